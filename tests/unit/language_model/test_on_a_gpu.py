"""The engine on a device twin (`benchmarks/device_twin.py`): its path on a GPU gives what its path on a CPU gives.

Each tiny architecture goes through everything that the stages ask of the engine, in float32 and in 16 bits. What rounding may
do is known where the numbers are float32; in 16 bits the losses are compared with those of float32.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.device_twin import Counts, device_twin
from tests.tiny_models import GPT, GROUPED, save_tiny_model, token_ids, train_tokenizer
from tests.unit.language_model.conftest import PROMPT, SAMPLING, TEXT, TextToSample, find_all, sample_calls
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.decoding.model import WritingModel
from toolformer_ops.decoding.records import DecodingSettings, Prompt
from toolformer_ops.language_model import LanguageModel, attention, packing
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.models.loading import load_network
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import PlacedCall

ARCHITECTURES = {"llama": "bfloat16", "qwen2": "float16", "gpt2": "float16", "gptj": "bfloat16", "gemma2": "bfloat16"}
"""With the number format of 16 bits in which each is compared with itself in float32."""
TEXTS = (TEXT, "Of 1400 participants 400 (or 29%) passed the test.", "Today is the first Friday of the year.")
FORMATS = [(name, dtype) for name, low in ARCHITECTURES.items() for dtype in ("float32", low)]
OTHER_ATTENTION = ((attention.GroupPass, "_by_products"), (attention.GroupPass, "_fused"), (packing, "_one_sequence"))
"""What attends in place of the kernel for sequences of any lengths."""
LOSS_ERROR = {"float32": 3e-7, "bfloat16": 0.02, "float16": 2e-3}
"""Largest difference of two losses, of some six nats, as a share of them; seen are 1.2e-7, 0.006 and 0.0007."""


def save(folder: Path, architecture: str) -> Path:
    """A tiny model; heads of 8 to 256 columns, shared keys, a window of 24 tokens and capped scores are among them."""
    from transformers import Gemma2Config, GPT2Config, GPTJConfig, LlamaConfig, Qwen2Config

    tokenizer = train_tokenizer(start_token=None if architecture.startswith("gpt") else "<s>")
    grouped = GROUPED | {"max_position_embeddings": 512} | token_ids(tokenizer)
    gpt = GPT | {"n_positions": 512} | token_ids(tokenizer)
    config: Any = {
        "llama": lambda: LlamaConfig(**grouped),
        "qwen2": lambda: Qwen2Config(**grouped | {"hidden_size": 64, "num_key_value_heads": 1}),
        "gpt2": lambda: GPT2Config(**gpt),
        "gptj": lambda: GPTJConfig(**gpt | {"n_embd": 256, "n_head": 1, "n_inner": 64, "rotary_dim": 64}),
        "gemma2": lambda: Gemma2Config(head_dim=8, query_pre_attn_scalar=8, sliding_window=24, **grouped),
    }[architecture]()
    return save_tiny_model(folder, config, tokenizer, scale=3.0 if architecture == "gptj" else 10.0)


@dataclass(frozen=True)
class Engine:
    """An engine on the CPU or on the twin, and one that writes with it."""

    model: CausalModel
    engine: LanguageModel
    writer: WritingModel

    @classmethod
    def of(cls, folder: Path, dtype: str, device: str) -> "Engine":
        network, tokenizer, identity = load_network(str(folder), None, dtype, "cpu", 1)

        def load(number_format: str) -> CausalModel:
            weights, *_ = load_network(str(folder), None, number_format, "cpu", 1)
            return CausalModel(weights.to(device), tokenizer.model_max_length)

        model = CausalModel(network.to(device), tokenizer.model_max_length)
        engine = LanguageModel(model, Tokenization(tokenizer), identity, load)
        return cls(model, engine, WritingModel(model, tokenizer, identity, Settings(_env_file=None), ("Calculator",)))


@dataclass(frozen=True)
class Found:
    """What the stages get of an engine."""

    positions: list[list[int]]
    samples: Any
    losses: list[float]
    pruned: list[list[bool]]
    written: list[str]
    answers: list[str]


def calls(number: int) -> list[PlacedCall]:
    return [
        PlacedCall(token, Call("Calculator", f"{number} * {token}"), str(number * token))
        for token in (2, 5, 6 + number % 2)
    ]


def everything(one: Engine) -> Found:
    """Positions, sampling from the most likely tokens, scoring, pruned scoring, losses alone, perplexity, writing, answers."""
    engine = one.engine
    places = find_all(engine, *TEXTS, at_most=3)
    texts = [TextToSample(text, positions, text) for text, positions in zip(TEXTS, places, strict=True)]
    samples = sample_calls(engine, texts, samples=3, max_new_tokens=8, temperature=1.2, top_p=0.9)
    placed = [(text, calls(number)) for number, text in enumerate(TEXTS)]
    scored = engine.score_texts(placed, verify="off")
    pruned = engine.score_texts(placed, prune_below=0.3, verify="off")
    alone = engine.losses_with_result(placed, number_format=engine.number_format)
    bare = engine.losses_without_call([(text, [2, 5, 8]) for text in TEXTS])
    whole = engine.text_losses(TEXTS, stride=100)
    given = engine.continuation_log_probabilities("The shop had", [" 520 shirts", " a year"])
    written = one.writer.write([Prompt(text) for text in TEXTS], DecodingSettings(max_new_tokens=6, call_start_rank=50))
    losses = [
        value
        for of_text in scored
        for call in of_text
        for value in (call.without_call, call.without_result, call.with_result)
    ]
    losses += [value for of_text in (*alone, *bare) for value in of_text]
    losses += [loss.nats / loss.tokens for loss in whole] + given
    return Found(
        [[place.token for place in of_text] for of_text in places],
        samples,
        [loss for loss in losses if loss is not None],
        [[losses.pruned for losses in of_text] for of_text in pruned],
        [text.text for text in written],
        engine.generate_texts(["The shop had", "Today is"], 5),
    )


@contextmanager
def asked_between_passes(network: Any, counts: Counts) -> Iterator[list[int]]:
    """Collects how often the host has read from the device when each pass begins."""
    reads: list[int] = []
    hook = network.get_input_embeddings().register_forward_pre_hook(lambda *_: reads.append(counts.reads))
    try:
        yield reads
    finally:
        hook.remove()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp(request.param) / request.param, request.param)


@pytest.fixture(scope="module")
def on_a_cpu(folder: Path) -> Found:
    """In float32."""
    return everything(Engine.of(folder, "float32", "cpu"))


@pytest.mark.parametrize(("folder", "dtype"), FORMATS, indirect=["folder"])
def test_the_engine_computes_on_a_gpu_what_it_computes_on_a_cpu(
    folder: Path, on_a_cpu: Found, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with device_twin() as counts:
        one = Engine.of(folder, dtype, "cuda")
        counts.clear()
        others = [mock.Mock(side_effect=getattr(owner, name)) for owner, name in OTHER_ATTENTION]
        for (owner, name), other in zip(OTHER_ATTENTION, others, strict=True):
            monkeypatch.setattr(owner, name, lambda *given, other=other: other(*given))
        found = everything(one)
    assert one.model.device.type == "cuda"
    pairs = list(zip(found.losses, on_a_cpu.losses, strict=True))
    assert all(abs(a - b) <= LOSS_ERROR[dtype] * abs(b) for a, b in pairs)
    if dtype == "float32":
        assert found.samples == on_a_cpu.samples
        assert (found.positions, found.pruned) == (on_a_cpu.positions, on_a_cpu.pruned)
        assert (found.written, found.answers) == (on_a_cpu.written, on_a_cpu.answers)
    assert any(map(any, on_a_cpu.pruned))
    # The kernel for sequences of any lengths, where there is one, and then no other attention.
    there = dtype != "float32" and folder.name != "gemma2"
    assert (counts.launches["varlen_attn"] > 0) == there
    capped = folder.name == "gemma2"  # its scores, for which torch has no attention of its own
    assert [other.called for other in others] == [not there, not there and not capped, not there]


def test_a_decode_step_reads_from_the_device_once(folder: Path) -> None:
    with device_twin() as counts:
        one = Engine.of(folder, "bfloat16", "cuda")
        places = find_all(one.engine, *TEXTS, at_most=3)
        sampler = one.engine.start_sampling(PROMPT, **SAMPLING | {"max_new_tokens": 6, "top_p": 0.9})
        for text, positions in zip(TEXTS, places, strict=True):
            sampler.add(text, [place.token for place in positions], text)
        with asked_between_passes(one.model.network, counts) as reads:
            sampler.finish()
    steps = [after - before for before, after in itertools.pairwise([*reads, counts.reads])]
    assert len(steps) >= 5
    assert set(steps) == {1}


def test_the_comparison_at_load_takes_the_paths_of_the_work(folder: Path) -> None:
    for dtype, there in (("bfloat16", folder.name != "gemma2"), ("float32", False)):
        with device_twin() as counts:
            Engine.of(folder, dtype, "cuda")
        assert (counts.launches["varlen_attn"] > 0) == there
    with device_twin(capability=(7, 5)) as counts:  # a T4, for which there is no such kernel
        Engine.of(folder, "float16", "cuda")
    assert counts.launches["varlen_attn"] == 0


def test_the_twin_refuses_and_counts_what_a_gpu_does() -> None:
    with device_twin() as counts:
        there, here = torch.arange(6.0, device="cuda"), torch.arange(6)
        assert there.device == torch.device("cuda:0")
        for refused in (
            lambda: there + here,
            lambda: there.index_select(0, here),
            lambda: torch.cat([there, there.cpu()]),
        ):
            with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu"):
                refused()
        counts.clear()
        assert (there * torch.tensor(2.0)).sum().item() == 30
        assert (counts.launches.total(), counts.reads, counts.copies) == (3, 1, 0)
        counts.clear()
        assert there[here][::2].tolist() == [0, 2, 4]
        assert (counts.reads, counts.copies, dict(counts.launches)) == (1, 1, {"index": 1})
        assert there[there > 3].tolist() == [4, 5]
        assert counts.reads == 3
    assert not torch.cuda.is_available()
