"""Models for the engine's tests: tiny random ones of six shapes, and the real one of the demo, converted once and kept."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.tiny_models import SHAPES, save_tiny_gpt2
from tests.unit.language_model.plain_reference import PlainReference
from toolformer_ops.language_model import AnnotationPrompt, LanguageModel

PROMPT = AnnotationPrompt(
    "Calculator",
    "Your task is to add calls to a Calculator API.\n"
    "Input: From this, we have 4 * 30 minutes = 120 minutes.\n"
    "Output: From this, we have 4 * 30 minutes = [Calculator(4 * 30)] 120 minutes.\n\n"
    "Input: {text}\nOutput:\n",
)
TEXT = "The shop had 520 shirts. In April it sold 187 of them, so it has 333 left, or 64 %."


@dataclass(frozen=True)
class Subject:
    """A model under test beside its plain reference."""

    engine: LanguageModel
    reference: PlainReference


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def subject_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """The subject of a shape's name, made once a session."""
    made: dict[str, Subject] = {}

    def subject(shape: str) -> Subject:
        if shape not in made:
            folder = SHAPES[shape](tmp_path_factory.mktemp(shape) / shape)
            engine = LanguageModel.load(str(folder))
            tokenizer_start = PlainReference(folder, [])
            name = tokenizer_start.tokenizer.bos_token or "<|endoftext|>"
            start = tokenizer_start.tokenizer.convert_tokens_to_ids(name)
            made[shape] = Subject(engine, PlainReference(folder, [start]))
        return made[shape]

    return subject


@pytest.fixture(params=["gpt2", "llama"])
def subject(request: pytest.FixtureRequest, subject_of: Callable[[str], Subject]) -> Subject:
    """A GPT-2-shaped and a Llama-shaped model."""
    return subject_of(request.param)


@pytest.fixture(params=sorted(SHAPES))
def any_subject(request: pytest.FixtureRequest, subject_of: Callable[[str], Subject]) -> Subject:
    """Every shape, sliding windows and ALiBi among them."""
    return subject_of(request.param)


@pytest.fixture(scope="session")
def long_subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A model whose window of 256 tokens is shorter than some texts."""
    folder = save_tiny_gpt2(tmp_path_factory.mktemp("long") / "gpt2", positions=256)
    return Subject(LanguageModel.load(str(folder)), PlainReference(folder, [0]))


@pytest.fixture(scope="session")
def tiny_engine(tiny_model_dir: Path) -> LanguageModel:
    """A Llama-shaped engine."""
    return LanguageModel.load(str(tiny_model_dir))


@pytest.fixture(scope="session")
def tiny_engine_bfloat16(tiny_model_dir: Path) -> LanguageModel:
    """The same in bfloat16."""
    return LanguageModel.load(str(tiny_model_dir), dtype="bfloat16")


@pytest.fixture(scope="session")
def smollm2_dir(request: pytest.FixtureRequest) -> Path:
    """SmolLM2-135M-Instruct from its wheel as safetensors, kept in pytest's cache folder from session to session."""
    from toolformer_ops.demo.model import prepare_demo_model

    cache = request.config.cache
    assert cache is not None
    return prepare_demo_model(cache.mkdir("language-model"))


@pytest.fixture(scope="session")
def smollm2(smollm2_dir: Path) -> Subject:
    """The real model: it starts documents with `<|endoftext|>`, id 0."""
    return Subject(LanguageModel.load(str(smollm2_dir)), PlainReference(smollm2_dir, [0]))
