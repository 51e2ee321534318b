"""What torch compiles of a network: which parts, that they give the same, and what is done where they cannot be compiled."""

import copy
import functools
import logging
from typing import Any

import pytest
import torch

from benchmarks import device_twin
from benchmarks.random_models import TINY_ARCHITECTURES, prompt_tokenizer, random_network, tiny_config
from tests.unit.language_model.conftest import Subject
from toolformer_ops.config import Settings
from toolformer_ops.language_model import compiled
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.compiled import CompiledParts, compile_parts

TEXTS = ([3, 7, 11, 5, 9, 2], [4, 8, 3])
PARTS = {
    "llama": {"LlamaRMSNorm", "LlamaMLP", "apply_rotary_pos_emb"},
    "qwen2": {"Qwen2RMSNorm", "Qwen2MLP", "apply_rotary_pos_emb"},
    "qwen3": {"Qwen3RMSNorm", "Qwen3MLP", "apply_rotary_pos_emb"},
    "mistral": {"MistralRMSNorm", "MistralMLP", "apply_rotary_pos_emb"},
    "gemma2": {"Gemma2RMSNorm", "Gemma2MLP", "apply_rotary_pos_emb"},
    "gemma3_text": {"Gemma3RMSNorm", "Gemma3MLP", "apply_rotary_pos_emb"},
    "phi3": {"Phi3RMSNorm", "Phi3MLP", "apply_rotary_pos_emb"},
    "olmo": {"OlmoMLP", "apply_rotary_pos_emb"},
    "olmo2": {"Olmo2RMSNorm", "Olmo2MLP", "apply_rotary_pos_emb"},
    "olmoe": {"OlmoeRMSNorm", "apply_rotary_pos_emb"},
    "mixtral": {"MixtralRMSNorm", "apply_rotary_pos_emb"},
    "qwen3_moe": {"Qwen3MoeRMSNorm", "apply_rotary_pos_emb"},
    "gpt2": {"GPT2MLP"},
    "gptj": {"GPTJMLP", "apply_rotary_pos_emb"},
}
"""What is compiled of each architecture; experts, of which each pass takes others, and torch's LayerNorm stay plain."""
QUICK_ARCHITECTURES = [
    name if name in ("llama", "gemma3_text", "gpt2") else pytest.param(name, marks=pytest.mark.slow)
    for name in PARTS
]
"""To compile the parts of one takes a second: three kinds of them before each commit."""
AUTO, OFF = (Settings(_env_file=None, compile=choice) for choice in ("auto", "off"))  # type: ignore[call-arg]


def network_of(subject: Subject, dtype: torch.dtype = torch.float32) -> Any:
    return copy.deepcopy(subject.reference.network).to(dtype)


def log_probabilities(network: Any) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [network(input_ids=torch.tensor([ids])).logits.log_softmax(dim=-1) for ids in TEXTS]


def on_the_twin(subject: Subject, settings: Settings, dtype: torch.dtype = torch.bfloat16) -> CausalModel:
    return compared_model(network_of(subject, dtype).to("cuda"), 1024, settings)


def test_every_architecture_that_is_measured_is_in_the_table():
    assert set(PARTS) == set(TINY_ARCHITECTURES)


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "gpt2"])
def test_compiled_parts_give_the_losses_of_plain_ones(architecture, caplog):
    network = random_network(tiny_config(architecture, prompt_tokenizer(), layers=2)).eval()
    plain = log_probabilities(network)
    CompiledParts(network, backend="aot_eager")
    for found, expected in zip(log_probabilities(network), plain, strict=True):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert "is not compiled" not in caplog.text


def test_a_network_has_its_own_parts_again_when_they_are_undone(subject_of):
    network = network_of(subject_of("llama"))
    CompiledParts(network, backend="aot_eager").undo()
    assert not any("forward" in vars(module) for module in network.modules())


def test_parts_whose_forward_is_replaced_already_stay_as_they_are(subject_of):
    network = network_of(subject_of("llama"))
    for module in network.modules():
        module.forward = functools.partial(type(module).forward, module)
    assert not CompiledParts(network, backend="aot_eager").names


def test_a_network_on_a_gpu_in_16_bits_is_compiled(subject_of):
    with device_twin.device_twin() as counts:
        model = on_the_twin(subject_of("llama"), AUTO)
        assert model.compiles
        assert counts.launches["compiled"] > 0


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [(OFF, torch.bfloat16), (AUTO, torch.float32)],
    ids=["off", "float32"],
)
def test_nothing_is_compiled(subject_of, settings, dtype):
    with device_twin.device_twin() as counts:
        assert not on_the_twin(subject_of("llama"), settings, dtype).compiles
        assert not counts.launches["compiled"]


def test_nothing_is_compiled_on_a_cpu(subject_of):
    assert compile_parts(network_of(subject_of("llama"), torch.bfloat16), AUTO) is None


def test_compiled_parts_that_give_something_else_are_computed_plainly(subject_of, monkeypatch, caplog):
    def wrong(function: Any, **_: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return result * 0.5 if "MLP" in function.__qualname__ else result

        return run

    with device_twin.device_twin() as counts:
        monkeypatch.setattr(torch, "compile", wrong)
        model = on_the_twin(subject_of("llama"), AUTO)
        assert not model.compiles
        assert not any("forward" in vars(module) for module in model.network.modules())
        assert not counts.launches["compiled"]
    [line] = [record.getMessage() for record in caplog.records if "plainly" in record.getMessage()]
    assert "logits that differ" in line


def test_a_part_that_cannot_be_compiled_is_computed_plainly(subject_of, monkeypatch, caplog):
    from torch._dynamo.exc import Unsupported  # which takes as long as torch

    def refusing(function: Any, **_: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            raise Unsupported("no kernel for this\nmore lines")

        return run

    caplog.set_level(logging.WARNING)
    with device_twin.device_twin():
        monkeypatch.setattr(torch, "compile", refusing)
        on_the_twin(subject_of("gpt2"), AUTO)
    lines = [record.getMessage() for record in caplog.records if "is not compiled" in record.getMessage()]
    assert lines[0] == "GPT2MLP.forward is not compiled, and slower: no kernel for this"
    assert len(lines) == len(set(lines)), "each function once"


def test_a_machine_without_a_c_compiler_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    assert "found none of gcc, clang. Install gcc" in compiled.why_not()


def test_a_machine_without_triton_is_named(monkeypatch):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    assert "expected Triton" in compiled.why_not()


def test_a_network_that_cannot_be_compiled_here_is_plain_with_one_line(subject_of, monkeypatch, caplog):
    with device_twin.device_twin():
        monkeypatch.setattr(compiled, "why_not", lambda: "expected a C compiler, found none")
        assert not on_the_twin(subject_of("gpt2"), AUTO).compiles
    assert sum("expected a C compiler" in record.getMessage() for record in caplog.records) == 1
