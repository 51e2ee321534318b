"""A batch that does not fit is halved, the run goes on, and the numbers stay the same."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.unit.language_model.conftest import TEXT, Subject, TextToSample, sample_calls
from toolformer_ops.call_syntax import Call
from toolformer_ops.errors import DeviceMemoryError
from toolformer_ops.language_model.out_of_memory import halving
from toolformer_ops.records import CallPosition, PlacedCall


def at_most(count: int, error: RuntimeError) -> Callable[[Sequence[int]], list[int]]:
    def run(items: Sequence[int]) -> list[int]:
        if len(items) > count:
            raise error
        return [item * 10 for item in items]

    return run


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: not enough memory: you tried")],
)
def test_a_batch_is_halved_until_it_fits(error: RuntimeError, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert halving(at_most(2, error), [1, 2, 3, 4, 5, 6, 7], "texts") == [10, 20, 30, 40, 50, 60, 70]
    assert "out of memory with 7 texts at once: going on with 3" in caplog.messages


def test_one_item_that_does_not_fit_says_what_to_do() -> None:
    with pytest.raises(DeviceMemoryError, match="expected memory for one of texts"):
        halving(at_most(0, torch.OutOfMemoryError("no")), [1, 2], "texts")


def test_other_errors_are_not_taken_for_it() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        halving(at_most(0, RuntimeError("shapes do not match")), [1, 2], "texts")


def test_scores_and_samples_are_the_same_with_little_memory(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [PlacedCall(token, Call("Calculator", f"1 + {token}"), str(token)) for token in range(1, 9)]
    texts = [
        TextToSample(TEXT, (CallPosition(token, 0, 1.0), CallPosition(token + 2, 0, 1.0)), str(token))
        for token in (2, 5, 9)
    ]
    settings: dict[str, Any] = {
        "samples": 6,
        "max_new_tokens": 6,
        "call_start": " [",
        "temperature": 1.0,
        "top_p": 1.0,
    }
    expected = subject.engine.score_calls(TEXT, calls), sample_calls(subject.engine, texts, **settings)
    forward = type(subject.model.network.base_model).forward
    refused: list[int] = []

    def short(self: Any, *args: Any, **more: Any) -> Any:
        tokens = more["input_ids"]
        if tokens.shape[0] > 2 or (more.get("position_ids") is not None and 16 < tokens.shape[1] < 64):
            refused.append(tokens.numel())
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, *args, **more)

    monkeypatch.setattr(type(subject.model.network.base_model), "forward", short)
    scored = subject.engine.score_calls(TEXT, calls)
    assert len(refused) > 0
    before = len(refused)
    sampled = sample_calls(subject.engine, texts, **settings)
    assert len(refused) > before
    assert sampled == expected[1]
    for one, other in zip(scored, expected[0], strict=True):
        assert one.with_result == pytest.approx(other.with_result, abs=1e-6)
