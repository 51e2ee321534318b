"""The loss within `forward`, block by block: the value and the gradients of the plain computation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny_models import SHAPES
from toolformer_ops.finetuning import summed_loss
from toolformer_ops.finetuning.sequences import NOT_SCORED
from toolformer_ops.finetuning.summed_loss import projects_exactly, sum_losses_in_forward, text_loss
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES

ROWS, WIDTH = 3, 40
Gradients = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {name: save(root / name) for name, save in SHAPES.items()}


def network_of(folder: Path) -> Any:
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    network.config.use_cache = False
    return network


def batch(scored: int = WIDTH) -> dict[str, torch.Tensor]:
    """Three rows of which the first `scored` tokens of each, and a few of another row, are scored."""
    ids = torch.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) * 7 % 500
    labels = ids.clone()
    labels[:, scored:] = NOT_SCORED
    labels[1, 3:9] = NOT_SCORED
    return {"input_ids": ids, "labels": labels}


def gradients(network: Any, loss: torch.Tensor) -> Gradients:
    network.zero_grad()
    loss.backward()
    return {
        name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None
    }


def in_blocks(folder: Path, inputs: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The loss of a network whose blocks are eight rows, with its gradients."""
    monkeypatch.setitem(BATCH_SIZES, "cpu", replace(BATCH_SIZES["cpu"], training_logits_rows=8))
    network = network_of(folder)
    sum_losses_in_forward(network)
    loss = network(**inputs)["summed_loss"]
    return float(loss.detach()), gradients(network, loss)


def plain(folder: Path, inputs: dict[str, torch.Tensor]) -> Any:
    """The loss of the logits that the network gives, with its gradients."""
    network = network_of(folder)
    loss = text_loss(network(input_ids=inputs["input_ids"]).logits, inputs["labels"])
    return float(loss.detach()), gradients(network, loss)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_logits_of_every_shape_are_projected_exactly(folders, shape):
    assert projects_exactly(network_of(folders[shape]))


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_logits_of_weights_in_bfloat16_are_projected_exactly(folders, shape):
    assert projects_exactly(network_of(folders[shape]).to(torch.bfloat16))


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_loss_in_blocks_is_the_plain_one(folders, shape, monkeypatch):
    [(loss, _), (expected, _)] = (
        in_blocks(folders[shape], batch(30), monkeypatch),
        plain(folders[shape], batch(30)),
    )
    assert loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_gradients_in_blocks_are_the_plain_ones(folders, shape, monkeypatch):
    [(_, found), (_, expected)] = (
        in_blocks(folders[shape], batch(30), monkeypatch),
        plain(folders[shape], batch(30)),
    )
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


def test_a_pass_without_a_scored_token_has_no_loss(folders, monkeypatch):
    loss, _ = in_blocks(folders["llama"], batch(0), monkeypatch)
    assert loss == 0.0


def test_a_pass_without_a_scored_token_has_a_gradient_for_every_weight(folders, monkeypatch):
    _, found = in_blocks(folders["llama"], batch(0), monkeypatch)
    assert found.keys() == {name for name, _ in network_of(folders["llama"]).named_parameters()}


def test_a_short_pass_is_computed_as_the_network_does_it(folders, monkeypatch):
    monkeypatch.setattr(summed_loss, "_loss_in_blocks", lambda *_: pytest.fail("in blocks"))
    network = network_of(folders["llama"])
    sum_losses_in_forward(network)
    assert float(network(**batch())["summed_loss"].detach()) == plain(folders["llama"], batch())[0]


def test_a_network_whose_logits_are_scaled_otherwise_is_computed_as_it_does_it(folders, monkeypatch):
    monkeypatch.setitem(BATCH_SIZES, "cpu", replace(BATCH_SIZES["cpu"], training_logits_rows=8))
    network = network_of(folders["llama"])
    forward = network.forward

    def scaled(**inputs: Any) -> Any:
        output = forward(**inputs)
        output.logits = 3 * output.logits
        return output

    network.forward = scaled
    assert not projects_exactly(network)
    sum_losses_in_forward(network)
    expected = text_loss(scaled(input_ids=batch()["input_ids"]).logits, batch()["labels"])
    assert float(network(**batch())["summed_loss"].detach()) == float(expected.detach())


def test_a_network_returns_what_it_did_where_no_labels_are_given(folders):
    network = network_of(folders["llama"])
    before = network(input_ids=batch()["input_ids"]).logits
    sum_losses_in_forward(network)
    assert torch.equal(network(input_ids=batch()["input_ids"]).logits, before)
