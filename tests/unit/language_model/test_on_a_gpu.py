"""The engine on a device twin (`benchmarks/device_twin.py`): its path on a GPU gives what its path on a CPU gives.

Each shape goes through everything that the stages ask of the engine, in float32 and in 16 bits. What rounding
may do is known where the numbers are float32; in 16 bits the losses are compared with those of float32.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.device_twin import device_twin
from tests.tiny_models import save_tiny
from tests.unit.language_model.conftest import PROMPT, SAMPLING, TEXT, TextToSample, find_all, sample_calls
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.decoding.model import WritingModel
from toolformer_ops.decoding.records import DecodingSettings, Prompt
from toolformer_ops.language_model import attention, packing, scoring
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.models.loading import load_network
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import PlacedCall

SHAPES = ("llama", "gpt2", "gptj", "gemma")
TEXTS = (TEXT, "Of 1400 participants 400 (or 29%) passed the test.", "Today is the first Friday of the year.")
FORMATS = [(shape, "float32") for shape in SHAPES]
FORMATS += [("llama", "bfloat16"), ("gpt2", "float16"), ("gptj", "bfloat16"), ("gemma", "bfloat16")]
OTHER_ATTENTION = (
    (attention.GroupPass, "_by_products"),
    (attention.GroupPass, "_fused"),
    (packing, "_attention"),
)
"""What attends in place of the kernel for sequences of any lengths."""
LOSS_ERROR = {"float32": 3e-7, "bfloat16": 0.02, "float16": 2e-3}
"""Largest difference of two losses, of some six nats, as a share of them; seen are 1.2e-7, 0.006 and 0.0007."""


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
            return compared_model(weights.to(device), tokenizer.model_max_length)

        model = compared_model(network.to(device), tokenizer.model_max_length)
        engine = LanguageModel(model, Tokenization(tokenizer), identity, load)
        return cls(
            model, engine, WritingModel(model, tokenizer, identity, Settings(_env_file=None), ("Calculator",))
        )


def calls(number: int) -> list[PlacedCall]:
    return [
        PlacedCall(token, Call("Calculator", f"{number} * {token}"), str(number * token))
        for token in (2, 5, 6 + number % 2)
    ]


def everything(one: Engine) -> tuple[list[Any], list[float]]:
    """What the stages ask of an engine: decisions, which are the same, and losses, which rounding may change."""
    engine = one.engine
    places = find_all(engine, *TEXTS, at_most=3)
    texts = [TextToSample(text, positions, text) for text, positions in zip(TEXTS, places, strict=True)]
    placed = [(text, calls(number)) for number, text in enumerate(TEXTS)]
    pruned = engine.score_texts(placed, prune_below=0.3, verify="off")
    settings = DecodingSettings(max_new_tokens=6, call_start_rank=50)
    decisions = [
        [call.pruned for of_text in pruned for call in of_text],
        [[place.token for place in of_text] for of_text in places],
        sample_calls(engine, texts, samples=3, max_new_tokens=8, temperature=1.2, top_p=0.9),
        [text.text for text in one.writer.write([Prompt(text) for text in TEXTS], settings)],
        engine.generate_texts(["The shop had", "Today is"], 5),
    ]
    scored = [call for of_text in engine.score_texts(placed, verify="off") for call in of_text]
    losses = [loss for call in scored for loss in (call.without_call, call.without_result, call.with_result)]
    with_result = engine.losses_with_result(placed, number_format=engine.number_format)
    losses += [loss.nats for loss in itertools.chain(*with_result)]
    losses += itertools.chain(*engine.gain_bounds_without_call([(text, [2, 5, 8]) for text in TEXTS]))
    losses += [loss.nats / loss.tokens for loss in engine.text_losses(TEXTS)]
    losses += engine.continuation_log_probabilities("The shop had", [" 520 shirts", " a year"])
    return decisions, [loss for loss in losses if loss is not None]


@pytest.fixture(scope="module", params=SHAPES)
def folder(request, tmp_path_factory):
    """A tiny model; heads of 8 and 256 columns, shared keys, a window of 24 tokens and capped scores are among them."""
    one_head = {"n_embd": 256, "n_head": 1, "n_inner": 64, "rotary_dim": 64, "scale": 3.0}
    place = tmp_path_factory.mktemp(request.param) / request.param
    return save_tiny(request.param, place, **one_head if request.param == "gptj" else {})


@pytest.fixture(scope="module")
def on_a_cpu(folder):
    """In float32."""
    return everything(Engine.of(folder, "float32", "cpu"))


@pytest.mark.parametrize(("folder", "dtype"), FORMATS, indirect=["folder"])
def test_the_engine_computes_on_a_gpu_what_it_computes_on_a_cpu(folder, on_a_cpu, dtype, monkeypatch):
    # The kernel for sequences of any lengths, where there is one, and then no other attention.
    there = dtype != "float32" and folder.name != "gemma"
    with device_twin() as counts:
        one = Engine.of(folder, dtype, "cuda")
        assert (counts.launches["varlen_attn"] > 0) == there, (
            "the comparison at load takes the path of the work"
        )
        counts.clear()
        others = [mock.Mock(side_effect=getattr(owner, name)) for owner, name in OTHER_ATTENTION]
        for (owner, name), other in zip(OTHER_ATTENTION, others, strict=True):
            monkeypatch.setattr(owner, name, lambda *given, other=other: other(*given))
        decisions, losses = everything(one)
    assert one.model.device.type == "cuda"
    assert all(abs(a - b) <= LOSS_ERROR[dtype] * abs(b) for a, b in zip(losses, on_a_cpu[1], strict=True))
    assert any(on_a_cpu[0][0]), "some are pruned"
    if dtype == "float32":
        assert decisions == on_a_cpu[0]
    assert (counts.launches["varlen_attn"] > 0) == there
    capped = folder.name == "gemma"  # its scores, for which torch has no attention of its own
    assert [other.called for other in others] == [not there, not there and not capped, not there]


def test_a_decode_step_reads_from_the_device_once(folder):
    with device_twin() as counts:
        one = Engine.of(folder, "bfloat16", "cuda")
        places = find_all(one.engine, *TEXTS, at_most=3)
        sampler = one.engine.start_sampling(PROMPT, **SAMPLING | {"max_new_tokens": 6, "top_p": 0.9})
        for text, positions in zip(TEXTS, places, strict=True):
            sampler.add(text, [place.token for place in positions], text)
        reads: list[int] = []  # when each pass begins
        embeddings = one.model.network.get_input_embeddings()
        embeddings.register_forward_pre_hook(lambda *_: reads.append(counts.reads))
        sampler.finish()
    steps = [after - before for before, after in itertools.pairwise([*reads, counts.reads])]
    assert len(steps) >= 5
    assert set(steps) == {1}


@pytest.mark.parametrize("folder", ["llama", "gemma"], indirect=True)
def test_a_pass_in_float32_is_as_many_launches_for_any_number_of_sequences(folder):
    def launches(sequences: int) -> int:
        with device_twin() as counts:
            model = Engine.of(folder, "float32", "cuda").model
            counts.clear()
            model.hidden_states([[3 + number] * (33 + number) for number in range(sequences)])
            return counts.launches.total()

    assert launches(4) == launches(16)


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_losses_near_a_threshold_are_computed_in_tf32_then_those_near_its_rounding_in_float32(
    folder, monkeypatch
):
    precisions: list[tuple[str, str]] = []
    plain = scoring.score_texts

    def watched(model: CausalModel, *rest: Any, **options: Any) -> Any:
        precisions.append((model.number_format, torch.get_float32_matmul_precision()))
        return plain(model, *rest, **options)

    with device_twin():
        engine = Engine.of(folder, "bfloat16", "cuda").engine
        assert engine.has_tf32
        engine.margins["paper"] |= {engine.number_format: 100.0, "tf32": 0.5}
        monkeypatch.setattr(scoring, "score_texts", watched)
        [losses] = engine.score_texts([(TEXTS[0], calls(0))], verify="on")
    assert precisions == [("bfloat16", "highest"), ("float32", "high"), ("float32", "highest")]
    near = {call.number_format: abs(call.reduction_bound) for call in losses}
    assert set(near) <= {"tf32", "float32"}
    assert torch.get_float32_matmul_precision() == "highest"
