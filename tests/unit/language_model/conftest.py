"""Models for the engine's tests: tiny random ones of five shapes, and the real one of the demo, converted once and kept."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks.reference import PlainReference
from tests.tiny_models import SHAPES, save_tiny_gpt2
from toolformer_ops.call_syntax import Call
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.models.loading import load_network
from toolformer_ops.language_model.tokenization import AnnotationPrompt, Tokenization
from toolformer_ops.records import CallLosses, CallPosition, PlacedCall, SampledContinuation

PROMPT = AnnotationPrompt(
    "Calculator",
    "Your task is to add calls to a Calculator API.\n"
    "Input: From this, we have 4 * 30 minutes = 120 minutes.\n"
    "Output: From this, we have 4 * 30 minutes = [Calculator(4 * 30)] 120 minutes.\n\n"
    "Input: {text}\nOutput:\n",
)
TEXT = "The shop had 520 shirts. In April it sold 187 of them, so it has 333 left, or 64 %."
LONG_TEXT = " ".join(f"Shop {number} sold {number * 7} shirts." for number in range(60))


def calculator(token: int, result: str = "333") -> PlacedCall:
    return PlacedCall(token, Call("Calculator", "520 - 187"), result)


SAMPLING: dict[str, Any] = {
    "samples": 4, "max_new_tokens": 10, "call_start": " [", "temperature": 1.0, "top_p": 1.0,
}  # fmt: skip


class TextToSample(NamedTuple):
    """A text with the positions at which calls are sampled, and what its random numbers are made from."""

    text: str
    positions: Sequence[CallPosition]
    seed_key: str


def sample_calls(
    engine: LanguageModel, texts: Sequence[TextToSample], prompt: AnnotationPrompt = PROMPT, **changed: Any
) -> list[list[list[SampledContinuation]]]:
    """The samples of each text, for each of its positions; all are sampled together, by `SAMPLING` but for the changes."""
    sampler = engine.start_sampling(prompt, **SAMPLING | changed)
    for item in texts:
        sampler.add(item.text, [position.token for position in item.positions], item.seed_key)
    return sampler.finish()


def find_all(engine: LanguageModel, *texts: str, at_most: int = 10_000) -> list[list[CallPosition]]:
    """The most probable positions of each text, with any probability."""
    return engine.find_positions(PROMPT, texts, at_most=at_most, threshold=0.0)


def score_calls(
    engine: LanguageModel, text: str, calls: Sequence[PlacedCall], **settings: Any
) -> list[CallLosses]:
    [found] = engine.score_texts([(text, calls)], **settings)
    return found


def losses_with_result(
    engine: LanguageModel, text: str, calls: Sequence[PlacedCall], **settings: Any
) -> list[float]:
    [losses] = engine.losses_with_result([(text, calls)], **settings)
    return [one.nats for one in losses]


@dataclass(frozen=True)
class Subject:
    """A model under test beside its plain reference; the engine is made of the model and the tokenization."""

    model: CausalModel
    tokenization: Tokenization
    engine: LanguageModel
    reference: PlainReference

    @classmethod
    def of(cls, folder: Path, start_ids: Sequence[int], dtype: str = "float32") -> "Subject":
        """The model of a folder; the reference is always in float32."""
        network, tokenizer, identity = load_network(str(folder), None, dtype, "cpu", 1)
        model, tokenization = compared_model(network, tokenizer.model_max_length), Tokenization(tokenizer)
        engine = LanguageModel(model, tokenization, identity)
        return cls(model, tokenization, engine, PlainReference(folder, start_ids))


@contextmanager
def passes_over(network: Any) -> Iterator[list[tuple[int, ...]]]:
    """Collects the shape of the token ids that each pass reads, (sequences, tokens): every pass begins with their embeddings."""
    shapes: list[tuple[int, ...]] = []
    hook = network.get_input_embeddings().register_forward_pre_hook(
        lambda _, ids: shapes.append(tuple(ids[0].shape))
    )
    try:
        yield shapes
    finally:
        hook.remove()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def subject_of(tmp_path_factory):
    """The subject of a shape's name and a number format, made once a session."""
    made: dict[tuple[str, str], Subject] = {}

    def subject(shape: str, dtype: str = "float32") -> Subject:
        if (shape, dtype) not in made:
            folder = SHAPES[shape](tmp_path_factory.mktemp(shape) / shape)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            start = tokenizer.convert_tokens_to_ids(tokenizer.bos_token or "<|endoftext|>")
            made[shape, dtype] = Subject.of(folder, [start], dtype)
        return made[shape, dtype]

    return subject


@pytest.fixture(params=["gpt2", "llama"])
def subject(request, subject_of):
    return subject_of(request.param)


SHARING = sorted(set(SHAPES) - {"bloom"})
"""Shapes whose layers can share a KV cache."""
FORMATS = [*((shape, "float32") for shape in SHARING), ("llama", "bfloat16")]
"""For tests of equal bits: every shape, and one in low precision."""


@pytest.fixture(params=SHARING)
def any_subject(request, subject_of):
    """Every shape, sliding windows among them."""
    return subject_of(request.param)


@pytest.fixture(scope="session")
def long_subject(tmp_path_factory):
    """A model whose window of 256 tokens is shorter than some texts."""
    folder = save_tiny_gpt2(tmp_path_factory.mktemp("long") / "gpt2", positions=256)
    return Subject.of(folder, [0])


@pytest.fixture(scope="session")
def tiny_engine(tiny_model_dir):
    return LanguageModel.load(str(tiny_model_dir))


@pytest.fixture(scope="session")
def tiny_engine_bfloat16(tiny_model_dir):
    return LanguageModel.load(str(tiny_model_dir), dtype="bfloat16")


@pytest.fixture(scope="session")
def smollm2(smollm2_dir):
    """The real model: it starts documents with `<|endoftext|>`, id 0."""
    return Subject.of(smollm2_dir, [0])
