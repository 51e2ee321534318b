"""A trained network's compiled parts: the same loss and gradients, and where nothing is compiled."""

from typing import Any

import pytest
import torch

from benchmarks.device_twin import device_twin
from benchmarks.random_models import TINY_ARCHITECTURES, prompt_tokenizer, random_network, tiny_config
from tests.unit.language_model.test_compiled import PARTS, QUICK_ARCHITECTURES
from toolformer_ops.config import Settings
from toolformer_ops.finetuning.adapter import with_adapters
from toolformer_ops.finetuning.compiled_layers import TOLERANCE, Probe, compile_layers, probe
from toolformer_ops.language_model.compiled import CompiledParts
from toolformer_ops.runs.choices import FinetuningChoices

EXPERTS = {"mixtral", "olmoe", "qwen3_moe"}
"""Architectures where rounding may send a token to another expert."""
IDS = torch.tensor([[3, 7, 11, 5, 9, 2, 4, 8]])


def settings_with(**changes: Any) -> Settings:
    return Settings(_env_file=None, **{"device": "cuda"} | changes)  # type: ignore[call-arg]


def network_of(architecture: str = "llama") -> Any:
    return random_network(
        tiny_config(architecture, prompt_tokenizer(), layers=2)
    ).eval()  # without dropout, which is drawn anew


def gradients(network: Any) -> dict[str, torch.Tensor]:
    """By name, of all weights that are trained."""
    network.zero_grad()
    network(input_ids=IDS, labels=IDS).loss.backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in network.named_parameters()
        if parameter.grad is not None
    }


@pytest.fixture
def gpu_with_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    with device_twin():
        yield


@pytest.mark.parametrize("architecture", QUICK_ARCHITECTURES)
def test_all_weights_have_the_gradients_of_plain_layers(architecture):
    network = network_of(architecture)
    plain = gradients(network)
    parts = CompiledParts(network, backend="aot_eager")
    assert parts.names == PARTS[architecture]
    compiled = gradients(network)
    assert compiled.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(compiled[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_adapters_within_compiled_layers_have_the_gradients_of_plain_ones():
    network = network_of()
    adapted = with_adapters(network, FinetuningChoices(finetune_method="lora"), "tiny")
    plain = gradients(adapted)
    parts = CompiledParts(network, backend="aot_eager")
    assert "LlamaMLP" in parts.names
    compiled = gradients(adapted)
    assert compiled.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(compiled[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def test_layers_are_compiled_where_passes_compute_in_bfloat16(gpu_with_bfloat16):
    network = network_of().to("cuda")
    parts = compile_layers(network, settings_with(), is_spread=False)
    assert parts is not None
    assert parts.names == {"LlamaRMSNorm", "LlamaMLP", "apply_rotary_pos_emb"}


@pytest.mark.parametrize(
    ("settings", "is_spread"),
    [(settings_with(compile="off"), False), (settings_with(), True)],
    ids=["off", "weights spread over processes"],
)
def test_layers_stay_plain(gpu_with_bfloat16, settings, is_spread):
    network = network_of().to("cuda")
    assert compile_layers(network, settings, is_spread=is_spread) is None
    assert not any("forward" in vars(module) for module in network.modules())


def test_layers_stay_plain_on_a_cpu():
    assert compile_layers(network_of(), settings_with(device="cpu"), is_spread=False) is None


def test_compiled_layers_that_give_something_else_are_taken_back(gpu_with_bfloat16, monkeypatch, caplog):
    monkeypatch.setattr(Probe, "largest_difference", lambda self, other: 0.5)
    network = network_of().to("cuda")
    assert compile_layers(network, settings_with(), is_spread=False) is None
    assert not any("forward" in vars(module) for module in network.modules())
    assert "computed plainly, and slower" in caplog.text


def wrong_products(network: Any) -> None:
    for layer in network.model.layers:
        layer.mlp.forward = lambda hidden, mlp=layer.mlp: 0.5 * type(mlp).forward(mlp, hidden)


def wrong_gradients(network: Any) -> None:
    for layer in network.model.layers:
        layer.mlp.forward = lambda hidden, mlp=layer.mlp: type(mlp).forward(mlp, hidden).detach()


@pytest.mark.parametrize("damage", [wrong_products, wrong_gradients])
def test_a_network_that_gives_something_else_differs_by_more_than_rounding(damage):
    network = network_of()
    plain = probe(network)
    damage(network)
    assert not probe(network).largest_difference(plain) <= TOLERANCE


@pytest.mark.parametrize("architecture", [name for name in TINY_ARCHITECTURES if name not in EXPERTS])
def test_passes_in_bfloat16_differ_by_less_than_is_taken_for_rounding(architecture):
    network = network_of(architecture)
    plain = probe(network)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = probe(network)
    assert 0 < narrow.largest_difference(plain) <= TOLERANCE


def test_a_probe_that_is_not_finite_is_not_near():
    right = Probe(loss=torch.tensor(1.0), gradients=[torch.ones(3)])
    wrong = Probe(loss=torch.tensor(float("nan")), gradients=[torch.ones(3)])
    assert not wrong.largest_difference(right) <= TOLERANCE


def test_a_probe_leaves_no_gradient_behind():
    network = network_of()
    probe(network)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_probe_leaves_the_network_in_training():
    network = network_of().train()
    probe(network)
    assert network.training
