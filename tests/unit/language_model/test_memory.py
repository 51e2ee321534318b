"""Budgets follow the free memory and the network's shape; a batch that does not fit is halved, and the numbers stay the same."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.unit.language_model.conftest import TEXT, TextToSample, sample_calls, score_calls
from toolformer_ops.call_syntax import Call
from toolformer_ops.errors import DeviceMemoryError
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, free_main_memory
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.devices import DeviceMemory
from toolformer_ops.records import CallPosition, PlacedCall

GIGABYTE = 2**30


def llama(**numbers: int) -> LlamaConfig:
    return LlamaConfig(**{"num_key_value_heads": numbers["num_attention_heads"]} | numbers)


def seven_billion(vocabulary: int, *devices: str) -> Any:
    """The shape of Llama-2-7B in bfloat16, its weights spread over devices, without the weights."""
    shape = {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    }
    weights = [
        SimpleNamespace(device=torch.device(device), nbytes=13 * GIGABYTE // len(devices))
        for device in devices
    ]
    config = llama(vocab_size=vocabulary, **shape)
    return SimpleNamespace(config=config, dtype=torch.bfloat16, parameters=lambda: weights)


def test_budgets_follow_from_free_memory_for_a_shape():
    roomy = DeviceMemory(seven_billion(32_000, "cuda:0"), free_bytes=60 * GIGABYTE)
    assert (
        roomy.token_bytes.cached == 2 * 32 * 32 * 128 * 2
    )  # keys and values, layers, heads, width, two bytes
    assert roomy.token_bytes.logits == 32_000 * (2 + 32)
    # 60 GiB, of which 85 % are used, and 60 % of these for the cache: 30.6 GiB of half a mebibyte.
    assert roomy.cached_tokens == int(60 * 0.85 * 0.6 * 2048)
    assert (roomy.pass_tokens, roomy.logits_rows) == (16_384, 4_096)  # more would be no faster


def test_a_network_on_two_gpus_has_the_budget_of_the_fuller_one(monkeypatch):
    free = {torch.device("cuda:0"): 1 * GIGABYTE, torch.device("cuda:1"): 60 * GIGABYTE}
    monkeypatch.setattr("toolformer_ops.language_model.devices.free_memory", free.__getitem__)
    spread = DeviceMemory(seven_billion(32_000, "cuda:0", "cuda:1"))
    assert spread.cached_tokens == int(2 * 0.85 * 0.6 * 2048)  # half of a token's keys and values are on each


def test_little_memory_leaves_small_budgets():
    tight = DeviceMemory(seven_billion(256_000, "cuda:0"), free_bytes=2 * GIGABYTE)
    assert tight.cached_tokens == int(2 * 0.85 * 0.6 * 2048)
    # Residual, attention and feed-forward of a layer take 131,584 bytes.
    assert tight.pass_tokens == int(2 * 0.85 * 0.3 * GIGABYTE / 131_584)
    assert tight.logits_rows == 16  # of 8.3 MiB each, in 0.17 GiB, in sixteens


def test_without_free_memory_budgets_are_the_least():
    nothing_free = DeviceMemory(seven_billion(256_000, "cuda:0"), free_bytes=0)
    assert (nothing_free.cached_tokens, nothing_free.pass_tokens, nothing_free.logits_rows) == (512, 64, 16)


def test_contexts_are_kept_in_what_passes_leave_of_their_share():
    memory = DeviceMemory(seven_billion(32_000, "cuda:0"), free_bytes=30 * GIGABYTE)
    # 30 % of 25.5 GiB are 7.65; a pass of 16,384 tokens takes 2.01; half a mebibyte a token.
    assert memory.kept_text_tokens == int((30 * 0.85 * 0.3 * GIGABYTE - 16_384 * 131_584) / 2**19)
    assert 11_000 < memory.kept_text_tokens < 12_000


def test_the_contexts_of_all_texts_that_are_read_together_are_kept():
    for gigabytes in (0, 30, 60):
        memory = DeviceMemory(seven_billion(32_000, "cuda:0"), free_bytes=gigabytes * GIGABYTE)
        assert 2 * memory.read_tokens <= memory.kept_text_tokens


def test_a_roomy_gpu_finds_positions_in_16384_tokens_together():
    assert DeviceMemory(seven_billion(32_000, "cuda:0"), free_bytes=120 * GIGABYTE).read_tokens == 16_384


def test_a_cpu_finds_positions_in_1000_tokens_together_whatever_its_memory():
    for free in (0, 60 * GIGABYTE):
        assert DeviceMemory(seven_billion(32_000, "cpu"), free_bytes=free).read_tokens == 1_000


def test_64_texts_of_the_calculator_are_sampled_together_on_a_gpu():
    a_text = 2 * 200 + 20 * 10 * 27  # both copies of its tokens; positions, samples and tokens of a call
    assert 64 * a_text <= BATCH_SIZES["cuda"].cached_tokens


def test_a_containers_limit_counts(tmp_path):
    assert free_main_memory(tmp_path) > 8 * 2**20
    (tmp_path / "memory.max").write_text(f"{8 * 2**20}\n", encoding="ascii")
    (tmp_path / "memory.current").write_text(f"{3 * 2**20}\n", encoding="ascii")
    (tmp_path / "memory.stat").write_text("inactive_file 1048576\nanon 5", encoding="ascii")
    assert free_main_memory(tmp_path) == 6 * 2**20  # of what is used one mebibyte is a file's, and can be had


def test_a_vocabulary_of_256k_is_projected_in_pieces_that_fit():
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    torch.manual_seed(0)
    model = compared_model(
        LlamaForCausalLM(llama(vocab_size=256_000, max_position_embeddings=4096, **shape)), 4096
    )
    projected: list[int] = []
    model.network.lm_head.register_forward_hook(lambda _, __, logits: projected.append(len(logits)))
    hidden, targets = torch.randn(100, 8), list(range(0, 25_600, 256))
    with torch.inference_mode():
        expected = model.token_log_probabilities(hidden, targets)
        assert max(projected) > 16
        projected.clear()
        model.memory = DeviceMemory(model.network, free_bytes=GIGABYTE)
        assert model.memory.logits_rows == 16  # a row takes 8.8 MiB, all of them 41
        assert model.token_log_probabilities(hidden, targets) == expected
        assert max(projected) == 16


def at_most(count: int, error: RuntimeError) -> Callable[[Sequence[int]], list[int]]:
    def run(items: Sequence[int]) -> list[int]:
        if len(items) > count:
            raise error
        return [item * 10 for item in items]

    return run


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried"),
    ],
)
def test_a_batch_is_halved_until_it_fits(error):
    memory = DeviceMemory(seven_billion(256_000, "cuda:0"), free_bytes=4 * GIGABYTE)
    before = memory.cached_tokens, memory.pass_tokens
    assert memory.halving(at_most(4, error), list(range(1, 8)), "texts") == list(range(10, 80, 10))
    assert (memory.cached_tokens, memory.pass_tokens) == (before[0] // 2, before[1] // 2)  # from then on
    assert memory.halving(at_most(1, error), list(range(8)), "texts") == list(range(0, 80, 10))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried"),
    ],
)
def test_one_item_that_does_not_fit_is_refused(error):
    memory = DeviceMemory(seven_billion(256_000, "cuda:0"), free_bytes=4 * GIGABYTE)
    with pytest.raises(DeviceMemoryError, match="expected memory for one of texts"):
        memory.halving(at_most(0, error), [1, 2], "texts")


def test_errors_other_than_of_memory_halve_no_batch():
    memory = DeviceMemory(seven_billion(256_000, "cuda:0"), free_bytes=4 * GIGABYTE)
    with pytest.raises(RuntimeError, match="shapes"):
        memory.halving(at_most(0, RuntimeError("shapes do not match")), [1, 2], "texts")


def test_little_memory_changes_neither_scores_nor_samples(subject, monkeypatch):
    calls = [PlacedCall(token, Call("Calculator", f"1 + {token}"), str(token)) for token in range(1, 9)]
    texts = [
        TextToSample(TEXT, [CallPosition(at, 0, 1.0) for at in (token, token + 2)], str(token))
        for token in (2, 5, 9)
    ]
    more: dict[str, int] = {"samples": 6, "max_new_tokens": 6}
    expected = score_calls(subject.engine, TEXT, calls), sample_calls(subject.engine, texts, **more)
    forward = type(subject.model.network.base_model).forward
    refused: list[int] = []
    too_many = range(129, 10_000)

    def short(self: Any, *args: Any, **more: Any) -> Any:
        tokens = more["input_ids"]
        if tokens.shape[0] > 2 or (more.get("position_ids") is not None and tokens.shape[1] in too_many):
            refused.append(tokens.numel())
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, *args, **more)

    monkeypatch.setattr(type(subject.model.network.base_model), "forward", short)
    monkeypatch.setattr(subject.model, "memory", DeviceMemory(subject.model.network))  # which will shrink
    assert score_calls(subject.engine, TEXT, calls) == expected[0]
    assert len(refused) > 0
    before = len(refused)
    too_many = range(17, 64)
    assert sample_calls(subject.engine, texts, **more) == expected[1]
    assert len(refused) > before
