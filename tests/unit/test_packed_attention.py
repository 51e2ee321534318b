"""Attention by the lengths of packed sequences: what a mask gives, with all gradients, and what refuses it."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.random_models import TINY_ARCHITECTURES, prompt_tokenizer, random_network, tiny_config
from toolformer_ops.finetuning.batches import collate_for, packed_batch, probe_batch
from toolformer_ops.finetuning.packed_attention import LENGTHS, NAME, attends_by_lengths, packed_attention
from toolformer_ops.finetuning.probe import TOLERANCE, Probe, probe
from toolformer_ops.finetuning.summed_loss import text_loss

KEEP_THEIR_MASK = {"gemma2", "gptj"}
"""Scores of Gemma 2 are capped; GPT-J does not tell its layers the lengths."""
EXPERTS = {"mixtral", "olmoe", "qwen3_moe"}
"""Architectures where rounding may send a token to another expert."""
TEXT_TOKENS = (60, 33, 3, 90, 40, 2, 1)
"""The sliding windows of the tiny models are 24."""


def network_of(architecture: str = "llama", dropout: float = 0.0) -> Any:
    network = random_network(tiny_config(architecture, prompt_tokenizer(), layers=2)).eval()
    network.config.use_cache = False
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    return network


def packed(row_tokens: int = 128) -> dict[str, Any]:
    draw = random.Random(0)  # noqa: S311 - no secret
    texts = [[draw.randrange(500) for _ in range(tokens)] for tokens in TEXT_TOKENS]
    examples = [{"input_ids": ids, "labels": ids} for ids in texts]
    return packed_batch(examples, 0, row_tokens, names_lengths=True)


def gradients(network: Any, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """By name, of all weights, of the summed loss."""
    network.zero_grad()
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    text_loss(network(**inputs).logits, batch["labels"]).backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in network.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("architecture", [name for name in TINY_ARCHITECTURES if name not in KEEP_THEIR_MASK])
def test_all_weights_have_the_gradients_that_a_mask_gives(architecture: str) -> None:
    network, batch = network_of(architecture), packed()
    by_mask = gradients(network, {name: value for name, value in batch.items() if name not in LENGTHS})
    assert attends_by_lengths(network, probe_batch(network))
    by_lengths = gradients(network, batch)
    assert by_lengths.keys() == by_mask.keys()
    for name, gradient in by_mask.items():
        torch.testing.assert_close(by_lengths[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


def test_the_layers_call_the_function_of_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of()
    assert attends_by_lengths(network, probe_batch(network))
    assert network.config._attn_implementation == NAME


def test_a_row_without_lengths_is_one_sequence() -> None:
    network = network_of()
    ids = torch.tensor([[3, 7, 11, 5, 9], [4, 8, 3, 2, 6]])
    with torch.no_grad():
        plain = network(input_ids=ids).logits
        assert attends_by_lengths(network, probe_batch(network))
        torch.testing.assert_close(network(input_ids=ids).logits, plain, rtol=1e-4, atol=1e-5)


def test_lengths_are_those_of_the_sequences_of_each_row() -> None:
    examples = [{"input_ids": [1] * tokens, "labels": [1] * tokens} for tokens in (4, 3, 2)]
    batch = packed_batch(examples, 0, 5, names_lengths=True)
    rows, width = batch["input_ids"].shape
    assert (rows, width) == (2, 5)
    assert batch["cu_seq_lens_q"].tolist() == [0, 4, 5, 8, 10]  # 4, a padding token; 3, 2
    assert batch["max_length_q"] == 4


def test_batches_name_no_lengths_unless_it_was_tried() -> None:
    collate = collate_for(network_of(), prompt_tokenizer(), 64, tries_lengths=False)
    assert not set(LENGTHS) & set(collate([{"input_ids": [1, 2], "labels": [1, 2]}]))


def test_batches_name_lengths_where_the_network_gives_the_same() -> None:
    collate = collate_for(network_of(), prompt_tokenizer(), 64, tries_lengths=True)
    assert set(LENGTHS) < set(collate([{"input_ids": [1, 2], "labels": [1, 2]}]))


def with_dropout() -> Any:
    return network_of("gpt2", dropout=0.1)


def with_capped_scores() -> Any:
    return network_of("gemma2")


def without_lengths_in_layers() -> Any:
    return network_of("gptj")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (with_dropout, "has no dropout"),
        (with_capped_scores, "has no capped scores"),
        (without_lengths_in_layers, "of its size"),
    ],
    ids=["dropout", "capped scores", "layers that are not told"],
)
def test_a_network_that_the_kernel_cannot_serve_keeps_its_mask(
    made: Callable[[], Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    network = made()
    implementation = network.config._attn_implementation
    assert not attends_by_lengths(network, probe_batch(network))
    assert network.config._attn_implementation == implementation
    assert reason in caplog.text


def test_a_network_that_gives_something_else_keeps_its_mask(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(*args: Any, **kwargs: Any) -> Any:
        attended, weights = packed_attention(*args, **kwargs)
        return 2 * attended, weights

    monkeypatch.setattr("toolformer_ops.finetuning.packed_attention.packed_attention", wrong)
    network = network_of()
    assert not attends_by_lengths(network, probe_batch(network))
    assert "of its size" in caplog.text


def test_a_mask_is_refused() -> None:
    heads = torch.ones(1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match="a mask"):
        packed_attention(None, heads, heads, heads, torch.ones(1, 1, 3, 3))


def wrong_products(network: Any) -> None:
    for layer in network.model.layers:
        layer.mlp.forward = lambda hidden, mlp=layer.mlp: 0.5 * type(mlp).forward(mlp, hidden)


def wrong_gradients(network: Any) -> None:
    for layer in network.model.layers:
        layer.mlp.forward = lambda hidden, mlp=layer.mlp: type(mlp).forward(mlp, hidden).detach()


@pytest.mark.parametrize("damage", [wrong_products, wrong_gradients])
def test_a_network_that_gives_something_else_differs_by_more_than_rounding(
    damage: Callable[[Any], None],
) -> None:
    network = network_of()
    plain = probe(network, probe_batch(network))
    damage(network)
    assert not probe(network, probe_batch(network)).largest_difference(plain) <= TOLERANCE


@pytest.mark.parametrize("architecture", [name for name in TINY_ARCHITECTURES if name not in EXPERTS])
def test_passes_in_bfloat16_differ_by_less_than_is_taken_for_rounding(architecture: str) -> None:
    network = network_of(architecture)
    plain = probe(network, probe_batch(network))
    with torch.autocast("cpu", torch.bfloat16):
        narrow = probe(network, probe_batch(network))
    assert 0 < narrow.largest_difference(plain) <= TOLERANCE


def test_a_probe_that_is_not_finite_is_not_near() -> None:
    right = Probe(loss=torch.tensor(1.0), gradients=[torch.ones(3)])
    wrong = Probe(loss=torch.tensor(float("nan")), gradients=[torch.ones(3)])
    assert not wrong.largest_difference(right) <= TOLERANCE


def test_a_probe_leaves_no_gradient_behind() -> None:
    network = network_of()
    probe(network, probe_batch(network))
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_probe_leaves_the_network_in_training() -> None:
    network = network_of().train()
    probe(network, probe_batch(network))
    assert network.training
