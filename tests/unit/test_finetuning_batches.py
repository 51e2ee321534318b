"""The forward passes of a step: packed sequences do not see each other, and nothing but text is scored."""

import copy
import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny_models import SHAPES
from toolformer_ops.finetuning.batches import (
    NOT_SCORED,
    Batch,
    divide,
    fill_rows,
    packed_batch,
    packs_exactly,
    padded_batch,
)
from toolformer_ops.finetuning.recipe import PassSize
from toolformer_ops.finetuning.summed_loss import scored_tokens, text_loss

LENGTHS = (60, 33, 3, 90, 40, 2, 1)
"""Tokens; the sliding windows of the tiny models are 24, so that they matter in the longer ones."""


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    loaded = {}
    for name, save in SHAPES.items():
        network = AutoModelForCausalLM.from_pretrained(save(tmp_path_factory.mktemp("models") / name)).eval()
        network.config.use_cache = False
        loaded[name] = network
    return loaded


def _examples() -> list[dict[str, list[int]]]:
    draw = random.Random(0)  # noqa: S311 - no secret
    texts = [[draw.randrange(500) for _ in range(length)] for length in LENGTHS]
    return [{"input_ids": ids, "labels": list(ids)} for ids in texts]


def _mean_loss(network: Any, batch: Batch) -> float:
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    with torch.no_grad():
        total = text_loss(network(**inputs).logits, batch["labels"])
    return float(total / scored_tokens(batch["labels"]))


def _mean_loss_alone(network: Any, examples: list[dict[str, list[int]]]) -> float:
    """By the definition, one sequence at a time; of the labels, which are masked here and there."""
    total, tokens = 0.0, 0
    for example in examples:
        ids = torch.tensor([example["input_ids"]])
        with torch.no_grad():
            log_probs = network(ids).logits.log_softmax(-1)[0, :-1]  # (position, vocabulary)
        for place, label in enumerate(example["labels"][1:]):
            total -= float(log_probs[place, label]) if label != NOT_SCORED else 0.0
            tokens += label != NOT_SCORED
    return total / tokens


@pytest.mark.parametrize(
    ("lengths", "size", "passes"),
    [
        ((5, 9, 4, 1, 6), PassSize(tokens=14), [range(0, 2), range(2, 5)]),  # 5 + 9, 4 + 1 + 6
        ((5, 9, 4, 1, 6), PassSize(tokens=13), [range(0, 1), range(1, 3), range(3, 5)]),
        ((20, 3, 20), PassSize(tokens=10), [range(0, 1), range(1, 2), range(2, 3)]),  # longer than a pass
        ((5, 9, 4, 1, 6), PassSize(sequences=2), [range(0, 2), range(2, 4), range(4, 5)]),
        ((5,), PassSize(tokens=1), [range(0, 1)]),
    ],
)
def test_a_step_is_divided_into_passes_of_consecutive_sequences(lengths, size, passes):
    assert divide(lengths, size) == passes


def test_rows_are_filled_with_little_padding():
    assert fill_rows([5, 9, 4, 1, 6], 10) == [[1], [4, 3], [0, 2]]  # 9, 6 + 1, 5 + 4: 27 tokens for 25
    assert fill_rows([12, 3], 10) == [[0], [1]]  # nothing stands beside what is longer than a row
    assert fill_rows([30, 30, 30], 1000) == [
        [0],
        [1],
        [2],
    ]  # one row would have no padding either, and more attention
    assert fill_rows([30, 1, 1, 1], 1000) == [[0, 1, 2, 3]]  # two rows would take 60 tokens for 33


def test_rows_lose_no_sequence_within_their_width():
    for seed in range(5):
        draw = random.Random(seed)  # noqa: S311 - no secret
        lengths = [draw.randrange(1, 200) for _ in range(32)]
        rows = fill_rows(lengths, 256)
        assert sorted(index for row in rows for index in row) == list(range(32))
        widths = [sum(lengths[index] for index in row) for row in rows]
        assert max(widths) <= 256
        assert len(rows) * max(widths) < 1.2 * sum(lengths)  # a sequence a row, padded, takes 32 * 200


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_loss_of_a_batch_is_that_of_its_sequences_alone_at_any_padding(networks, shape):
    network, examples = networks[shape], _examples()
    examples[3]["labels"][20:31] = [NOT_SCORED] * 11
    examples[1]["labels"][-1] = NOT_SCORED
    expected = _mean_loss_alone(network, examples)
    assert packs_exactly(network) == (shape != "bloom")
    for padding_id in (0, 300):
        batches = [padded_batch(examples, padding_id)]
        if shape != "bloom":  # which reads positions from the mask, and gets a sequence a row
            batches.append(packed_batch(examples, padding_id, 128))
            assert 229 <= batches[1]["input_ids"].numel() < 280  # 229 tokens: padded, they would take 7 * 90
        for batch in batches:
            assert int(scored_tokens(batch["labels"])) == 229 - 7 - 12
            assert _mean_loss(network, batch) == pytest.approx(expected, abs=1e-5)
            scoring_all = batch | {"labels": batch["input_ids"]}
            assert (
                abs(_mean_loss(network, scoring_all) - expected) > 1e-4
            )  # what this test would see otherwise


def test_network_that_fills_a_cache_is_never_packed(networks):
    """transformers then masks no sequence from the others: the probe must see it."""
    network = networks["llama"]
    network.config.use_cache = True
    try:
        assert not packs_exactly(network)
    finally:
        network.config.use_cache = False


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_weights_in_bfloat16_are_packed_as_those_in_float32(networks, shape):
    narrow = copy.deepcopy(networks[shape]).to(torch.bfloat16)
    assert packs_exactly(narrow) == packs_exactly(networks[shape])
