"""A model whose heads and columns are divided among processes: here two on a CPU, as they would be on two GPUs."""

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.language_model.conftest import PROMPT, TEXT, TextToSample, sample_calls, score_calls
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.tensor_parallel import load_parallel
from toolformer_ops.records import PlacedCall

CALLS = [PlacedCall(12, Call("Calculator", "520 - 187"), "333"), PlacedCall(16, Call("Calculator", "520 - 187"), "7")]


def divided(folder: Path, dtype: str = "float32", lost: threading.Event | None = None, processes: int = 2) -> Any:
    on_loss = (lost or threading.Event()).set
    return load_parallel(str(folder), None, dtype, "cpu", 1, load_settings(), processes=processes, on_loss=on_loss)


def losses_of(model: LanguageModel) -> list[float]:
    return [
        loss
        for losses in score_calls(model, TEXT, CALLS)
        for loss in (losses.without_call, losses.without_result, losses.with_result)
    ]


def chosen_by(model: LanguageModel) -> list[Any]:
    """Positions, samples and a text that a model writes."""
    [positions] = model.find_positions(PROMPT, [TEXT], at_most=3, threshold=0.0)
    settings = {"samples": 3, "max_new_tokens": 12, "call_start": " [", "temperature": 1.0, "top_p": 1.0}
    samples = sample_calls(model, [TextToSample(TEXT, positions, "key")], **settings)
    return [[one.token for one in positions], samples, model.generate_texts(["The shop had"], max_new_tokens=8)]


def test_two_processes_choose_and_score_as_one_does(tiny_model_dir: Path) -> None:
    alone = LanguageModel.load(str(tiny_model_dir))
    model = divided(tiny_model_dir)
    try:
        assert model.identity == alone.identity
        assert chosen_by(model) == chosen_by(alone)
        assert losses_of(model) == pytest.approx(losses_of(alone), abs=1e-4)
        too_long = PlacedCall(10_000, CALLS[0].call, "333")
        with pytest.raises(ValueError, match="10000"):  # in both, and both go on
            model.score_texts([(TEXT, [too_long])])
        assert losses_of(model) == pytest.approx(losses_of(alone), abs=1e-4)
    finally:
        model.close()


def test_float32_weights_beside_are_divided_too_and_the_end_of_a_process_is_noticed(tiny_model_dir: Path) -> None:
    alone = LanguageModel.load(str(tiny_model_dir), dtype="bfloat16")
    lost = threading.Event()
    model = divided(tiny_model_dir, "bfloat16", lost)
    try:
        assert losses_of(model) == pytest.approx(losses_of(alone), abs=1e-4)
        [other] = multiprocessing.active_children()
        assert not lost.is_set()
        other.kill()
        assert lost.wait(30)
    finally:
        model.close()


def test_a_model_that_cannot_be_divided_is_refused_before_a_process_starts(
    tiny_model_dir: Path, tiny_gpt2_dir: Path
) -> None:
    with pytest.raises(
        ModelError, match=r"key heads that 3 processes can share, found 2. Set TOOLFORMER_MODEL_PARALLEL=layers"
    ):
        divided(tiny_model_dir, processes=3)
    with pytest.raises(ModelError, match=r"that transformers can divide \(base_model_tp_plan\), found gpt2"):
        divided(tiny_gpt2_dir)
