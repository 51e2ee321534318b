"""LoRA adapters: what a model may have, and the numbers of base and adapter together, merged and apart."""

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny_models import SHAPES
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, UsageError
from toolformer_ops.finetuning import adapter
from toolformer_ops.finetuning.adapter import (
    described,
    linear_layers,
    merged,
    require_installed,
    require_trainable,
    with_adapters,
)
from toolformer_ops.finetuning.summed_loss import sum_losses_in_forward, text_loss
from toolformer_ops.runs.choices import FinetuningChoices

IDS = torch.arange(60).reshape(2, 30) * 7 % 500
RANK, ALPHA = 3, 6


def lora(**changes: object) -> FinetuningChoices:
    chosen = {"finetune_method": "lora", "finetune_lora_rank": RANK}
    return FinetuningChoices(**chosen | changes)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {name: save(root / name) for name, save in SHAPES.items()}


@pytest.fixture
def settings(tmp_path):
    return Settings(_env_file=None, state_dir=tmp_path / "state")


def network_of(folder: Path) -> Any:
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    network.config.use_cache = False
    return network


def with_drawn_adapters(network: Any, **changes: object) -> Any:
    """Adapters whose product is not zero, as after some steps."""
    adapted = with_adapters(network, lora(**changes), "model")
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    return adapted


def plain_sum(folder: Path, adapted: Any) -> Any:
    """The network with W + alpha / r * B A in place of W, computed here from the adapters' weights."""
    network = network_of(folder)
    weights = dict(adapted.named_parameters())
    with torch.no_grad():
        for name, layer in linear_layers(network).items():
            prefix = f"base_model.model.{name}"
            if f"{prefix}.lora_A.default.weight" not in weights:
                continue
            product = weights[f"{prefix}.lora_B.default.weight"] @ weights[f"{prefix}.lora_A.default.weight"]
            if not isinstance(layer, torch.nn.Linear):  # GPT-2 keeps its weights transposed
                product = product.T
            layer.weight += ALPHA / RANK * product
    return network


# What a model may have


def test_a_rank_above_the_width_is_refused(folders, settings):
    with pytest.raises(
        UsageError, match=r"finetune_lora_rank: expected at most 32, the width of .* found 33"
    ):
        require_trainable(settings, lora(finetune_lora_rank=33), str(folders["gpt2"]))


def test_a_rank_of_the_width_is_taken(folders, settings):
    require_trainable(settings, lora(finetune_lora_rank=32), str(folders["gpt2"]))


def test_nothing_is_asked_of_the_model_where_all_weights_are_trained(settings):
    require_trainable(settings, FinetuningChoices(), "no/such-model@main")


def test_a_rank_is_refused_by_the_config_of_the_model_alone(folders, settings):
    (weights,) = folders["mistral"].glob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(b"")
    try:
        with pytest.raises(UsageError, match="expected at most 32, the width"):
            require_trainable(settings, lora(finetune_lora_rank=33), str(folders["mistral"]))
    finally:
        weights.write_bytes(content)


@pytest.mark.parametrize(
    ("chosen", "remedy"),
    [
        ({"finetune_method": "lora"}, r"toolformer-ops\[finetune\].* Or choose finetune_method full"),
        ({"finetune_optimizer": "adamw_8bit"}, r"\[finetune-8bit\].* Or choose finetune_optimizer adamw\."),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_its_remedy(chosen, remedy, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=remedy):
        require_installed(FinetuningChoices(**chosen))


def test_all_weights_need_no_further_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    require_installed(FinetuningChoices())


# What is trained


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_linear_layer_but_the_output_projection_has_an_adapter(folders, shape):
    adapted = with_adapters(network_of(folders[shape]), lora(), "model")
    trained = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    expected = {
        f"base_model.model.{layer}.lora_{part}.default.weight"
        for layer in linear_layers(network_of(folders[shape]))
        for part in "AB"
    }
    assert trained == expected


def test_adapters_of_one_seed_are_equal(folders):
    first, second = (with_adapters(network_of(folders["llama"]), lora(), "m") for _ in range(2))
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_adapters_of_another_seed_are_others(folders):
    first, second = (with_adapters(network_of(folders["llama"]), lora(seed=seed), "m") for seed in (0, 1))
    ours, theirs = (
        next(weight for name, weight in adapted.named_parameters() if "lora_A" in name)
        for adapted in (first, second)
    )
    assert not torch.equal(ours, theirs)


def test_adapters_beside_weights_in_bfloat16_are_in_float32(folders):
    adapted = with_adapters(network_of(folders["llama"]).to(torch.bfloat16), lora(), "model")
    formats = {weight.dtype for weight in adapted.parameters() if weight.requires_grad}
    assert formats == {torch.float32}


# The numbers


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_training_starts_from_the_model_itself(folders, shape):
    expected = network_of(folders[shape])(IDS).logits
    adapted = with_adapters(network_of(folders[shape]), lora(), "model").eval()
    assert torch.equal(adapted(IDS).logits, expected)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_merged_weights_are_those_of_the_base_and_the_scaled_product(folders, shape, tmp_path):
    adapted = with_drawn_adapters(network_of(folders[shape]))
    adapted.save_pretrained(tmp_path)
    found = merged(network_of(folders[shape]), tmp_path).state_dict()
    expected = plain_sum(folders[shape], adapted).state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_merged_weights_give_the_logits_of_base_and_adapter(folders, shape, tmp_path):
    adapted = with_drawn_adapters(network_of(folders[shape])).eval()
    adapted.save_pretrained(tmp_path)
    network = merged(network_of(folders[shape]), tmp_path)
    before = network_of(folders[shape])(IDS).logits
    expected = adapted(IDS).logits.detach()
    assert (expected - before).abs().max() > 0.01 * before.abs().max()  # the adapters change something
    torch.testing.assert_close(
        network(IDS).logits, expected, rtol=0.0, atol=1e-4 * float(expected.abs().max())
    )


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_gradients_of_adapters_are_those_that_the_merged_weights_pass_on(folders, shape):
    """Of W' = W + s B A, with the gradient G of W': s B^T G for A, and s G A^T for B."""
    base = network_of(folders[shape])
    adapted = with_drawn_adapters(base).eval()
    plain = plain_sum(folders[shape], adapted)
    text_loss(plain(IDS).logits, IDS).backward()
    sum_losses_in_forward(base)
    adapted(input_ids=IDS, labels=IDS)["summed_loss"].backward()
    weights = dict(adapted.named_parameters())
    for name, layer in linear_layers(plain).items():
        gradient = layer.weight.grad if isinstance(layer, torch.nn.Linear) else layer.weight.grad.T
        first = weights[f"base_model.model.{name}.lora_A.default.weight"]
        second = weights[f"base_model.model.{name}.lora_B.default.weight"]
        scale = ALPHA / RANK
        for found, expected in (
            (first.grad, scale * second.detach().T @ gradient),
            (second.grad, scale * gradient @ first.detach().T),
        ):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_the_frozen_weights_have_no_gradient(folders):
    base = network_of(folders["llama"])
    adapted = with_drawn_adapters(base)
    sum_losses_in_forward(base)
    adapted(input_ids=IDS, labels=IDS)["summed_loss"].backward()
    assert all(weight.grad is None for name, weight in adapted.named_parameters() if "lora" not in name)


def test_a_checkpoint_asks_no_hub(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda *_: pytest.fail("asked")
    )
    network = network_of(folders["llama"])
    network.name_or_path = network.config._name_or_path = "org/name"
    with_adapters(network, lora(), "org/name").save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").is_file()


def test_the_card_says_what_was_trained():
    assert described(FinetuningChoices()) == "all weights, by AdamW"
    assert described(lora()) == (
        "LoRA adapters of rank 3 and alpha 6 beside all linear layers of the decoder, by AdamW, merged into "
        "the weights"
    )


def test_a_network_without_linear_layers_is_refused(folders, monkeypatch):
    monkeypatch.setattr(adapter, "linear_layers", lambda _: {})
    with pytest.raises(UsageError, match="expected linear layers in model, found none"):
        with_adapters(copy.deepcopy(network_of(folders["llama"])), lora(), "model")
