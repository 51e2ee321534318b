"""The forward passes of a step: which sequences each holds, packed into rows without attention between them.

Passes: `divide` takes the sequences of a step in their order, as many as the pass size allows.

Packing: several short sequences share a row and their position ids restart; transformers then masks them from
one another, in layers with a sliding window, too (`masking_utils.find_packed_sequence_indices`), with any
attention, not flash attention alone. Models that take their positions from the attention mask (ALiBi: BLOOM)
cannot do this; `packs_exactly` tries it out, and those get one sequence a row, padded at the right. Either
way padding, start tokens and borders are never scored (`summed_loss.py`).
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from toolformer_ops.finetuning.recipe import PassSize
from toolformer_ops.finetuning.sequences import NOT_SCORED

PROBE_LENGTHS = (5, 9, 7)
PROBE_TOLERANCE = 1e-3
"""The share of the largest logit that may differ: far above rounding in float32, far below what another
sequence's token changes."""
NARROW_PROBE_TOLERANCE = 0.05
"""The share for weights in bfloat16 or float16."""

ATTENTION_WIDTH = 4096
"""Tokens in a row at which attention costs about as much as all else, in a model of some hundred million
weights."""

Batch = dict[str, Tensor]
Collate = Callable[[Sequence[Mapping[str, Sequence[int]]]], Batch]


def divide(lengths: Sequence[int], size: PassSize) -> list[range]:
    """The sequences of each pass, by their numbers of tokens: consecutive ones, at least one a pass."""
    passes: list[range] = []
    first = tokens = 0
    for number, length in enumerate(lengths):
        if number > first and not size.holds(number - first + 1, tokens + length):
            passes.append(range(first, number))
            first, tokens = number, 0
        tokens += length
    return [*passes, range(first, len(lengths))]


def fill_rows(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """The sequences of each row: as many rows of about equal width as together cost least to compute.

    No row is wider than `row_tokens`, or than the longest sequence.
    """
    widest = max(row_tokens, *lengths)
    longest_first = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    cheapest, least_cost = [[index] for index in range(len(lengths))], math.inf
    for count in range(1, len(lengths) + 1):
        # Each sequence goes into the row that is the emptiest by then.
        rows: list[list[int]] = [[] for _ in range(count)]
        filled = [0] * count
        for index in longest_first:
            row = filled.index(min(filled))
            rows[row].append(index)
            filled[row] += lengths[index]
        # All tokens of the batch cost, padding included; a token's attention costs more the wider its row is.
        width = max(filled)
        cost = count * width * (1 + width / ATTENTION_WIDTH)
        if width <= widest and cost < least_cost:
            cheapest, least_cost = rows, cost
    return cheapest


def packed_batch(examples: Sequence[Mapping[str, Sequence[int]]], padding_id: int, row_tokens: int) -> Batch:
    """Sequences in rows of at most `row_tokens` tokens, with position ids that restart at each sequence.

    There is no attention mask.
    """
    batch = _in_rows(
        examples, fill_rows([len(example["input_ids"]) for example in examples], row_tokens), padding_id
    )
    del batch["attention_mask"]
    return batch


def padded_batch(examples: Sequence[Mapping[str, Sequence[int]]], padding_id: int) -> Batch:
    """One sequence a row, padded at the right; padding is neither attended to nor scored."""
    batch = _in_rows(examples, [[index] for index in range(len(examples))], padding_id)
    del batch["position_ids"]
    return batch


def _in_rows(
    examples: Sequence[Mapping[str, Sequence[int]]], rows: list[list[int]], padding_id: int
) -> Batch:
    """Padding is at the end of a row, each token of it a separate sequence."""
    lengths = [len(example["input_ids"]) for example in examples]
    width = 0
    for row in rows:
        width = max(width, sum(lengths[index] for index in row))
    input_ids = torch.full((len(rows), width), padding_id, dtype=torch.long)  # (row, position)
    position_ids = torch.zeros_like(input_ids)
    attention_mask = torch.zeros_like(input_ids)
    labels = torch.full_like(input_ids, NOT_SCORED)
    for number, row in enumerate(rows):
        start = 0
        for index in row:
            ids = torch.tensor(examples[index]["input_ids"], dtype=torch.long)
            end = start + len(ids)
            input_ids[number, start:end] = ids
            position_ids[number, start:end] = torch.arange(len(ids))
            attention_mask[number, start:end] = 1
            labels[number, start + 1 : end] = torch.tensor(examples[index]["labels"][1:])
            start = end
    return {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "attention_mask": attention_mask,
        "labels": labels,
    }


def collate_for(network: Any, tokenizer: Any, row_tokens: int) -> Collate:
    """How this model's batches are made: packed if that is exact, else padded."""
    # Any id will do: padding is neither attended to nor scored.
    token_ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    padding_id = next(value for value in token_ids if value is not None)
    if packs_exactly(network):
        return functools.partial(packed_batch, padding_id=padding_id, row_tokens=row_tokens)
    return functools.partial(padded_batch, padding_id=padding_id)


def probe_tolerance(network: Any) -> float:
    """How far two computations of the same logits may lie apart, as a share of the largest: by rounding alone."""
    return PROBE_TOLERANCE if network.dtype == torch.float32 else NARROW_PROBE_TOLERANCE


def packs_exactly(network: Any) -> bool:
    """Whether three short sequences in one row give the logits that each gives alone.

    It never is if the network fills a cache.
    """
    if "position_ids" not in inspect.signature(network.forward).parameters:
        return False
    vocabulary = network.get_input_embeddings().num_embeddings
    examples = []
    for length in PROBE_LENGTHS:
        ids = [(7 * token) % vocabulary for token in range(length, 2 * length)]
        examples.append({"input_ids": ids, "labels": ids})

    def logits(row: list[int]) -> Tensor:
        batch = _in_rows(examples, [row], 0)
        inputs = {name: batch[name].to(network.device) for name in ("input_ids", "position_ids")}
        with torch.no_grad():
            row_logits: Tensor = network(**inputs).logits  # (1, position, vocabulary)
        return row_logits[0].float()

    training = network.training
    network.eval()
    try:
        together, alone = logits([0, 1, 2]), torch.cat([logits([0]), logits([1]), logits([2])])
        return bool(
            (together - alone).abs().max() <= probe_tolerance(network) * alone.abs().max()
        )  # False if either is NaN
    finally:
        network.train(training)
