"""The loss of one forward pass, computed within the network's `forward`: logits never fill the memory.

Logits in float32 are what fills a card: 16,384 tokens with a vocabulary of 128,256 are 8 GB, and the backward
pass holds them three times. So rows that nothing is scored at are left out, and the others are projected some
at a time (`batch_sizes.py: training_logits_rows`); the backward pass projects each block again. That costs
one product of the output projection more, and the sum of the blocks is the sum over all rows.

A pass of no more positions than that, and a network whose logits are not the scaled projection of its last
hidden states (`projects_exactly` tries it out), is computed as the network does it. The loss is within
`forward` since wrappers of a network (DistributedDataParallel, DeepSpeed's ZeRO-3, autocast) see `forward`
alone.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from toolformer_ops.finetuning.batches import probe_tolerance
from toolformer_ops.finetuning.sequences import NOT_SCORED
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, device_kind
from toolformer_ops.language_model.causal_model import logits_of

PROBE_TOKENS = 23

Forward = Callable[..., Any]


def text_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over the scored tokens of their negative log-likelihood, nats.

    Shapes: logits (row, position, vocabulary), labels (row, position).
    """
    return _nats(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def scored_tokens(labels: Tensor) -> Tensor:
    """Number of tokens that `text_loss` sums over."""
    return labels[:, 1:].ne(NOT_SCORED).sum()


def sum_losses_in_forward(network: Any) -> None:
    """Make the network's `forward`, if it has `labels`, return `{"summed_loss": nats}`.

    The nats are those that `text_loss` gives of its logits. Without labels it returns what it did.
    """
    forward: Forward = network.forward
    in_blocks = projects_exactly(network)
    block_rows = BATCH_SIZES[device_kind(torch.device(network.device).type)].training_logits_rows

    @functools.wraps(forward)
    def with_loss(*arguments: Any, labels: Tensor | None = None, **inputs: Any) -> Any:
        if labels is None:
            return forward(*arguments, **inputs)
        if not in_blocks or labels.numel() <= block_rows:
            return {"summed_loss": text_loss(forward(*arguments, **inputs).logits, labels)}
        return {"summed_loss": _loss_in_blocks(network, labels, inputs, block_rows)}

    network.forward = with_loss


def projects_exactly(network: Any) -> bool:
    """Whether the network's logits are the scaled projection of the last hidden states of its decoder."""
    decoder, head = network.base_model, network.get_output_embeddings()
    if head is None or decoder is network:
        return False
    vocabulary = network.get_input_embeddings().num_embeddings
    ids = torch.tensor([[(7 * token) % vocabulary for token in range(PROBE_TOKENS)]], device=network.device)
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            own = network(input_ids=ids).logits.float()
            output = decoder(input_ids=ids)
            hidden = getattr(output, "last_hidden_state", None)
            if hidden is None:
                return False
            projected = logits_of(network.config, head(hidden).float())
        if projected.shape != own.shape:
            return False
        return bool(
            (projected - own).abs().max() <= probe_tolerance(network) * own.abs().max()
        )  # False if either is NaN
    finally:
        network.train(training)


def _loss_in_blocks(network: Any, labels: Tensor, inputs: dict[str, Any], block_rows: int) -> Tensor:
    """`text_loss`, summed block by block over the scored rows."""
    accepted = inspect.signature(network.base_model.forward).parameters
    decoder_inputs = {
        name: value for name, value in inputs.items() if name in accepted or "kwargs" in accepted
    }
    hidden = network.base_model(**decoder_inputs).last_hidden_state  # (row, position, hidden)
    targets = labels[:, 1:].flatten()
    is_scored = targets.ne(NOT_SCORED)
    if not is_scored.any():
        is_scored[0] = True  # it counts for nothing, and every weight has a gradient all the same
    rows = hidden[:, :-1].flatten(0, 1)[is_scored]  # (scored tokens, hidden)
    targets = targets[is_scored]
    summed = torch.zeros((), device=rows.device)
    for first in range(0, len(rows), block_rows):
        block = slice(first, first + block_rows)
        summed = summed + checkpoint(_block_loss, network, rows[block], targets[block], use_reentrant=False)
    return summed


def _block_loss(network: Any, rows: Tensor, targets: Tensor) -> Tensor:
    return _nats(logits_of(network.config, network.get_output_embeddings()(rows).float()), targets)


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the negative log-likelihoods of (tokens,) targets under (tokens, vocabulary) logits."""
    return torch.nn.functional.cross_entropy(
        logits.float(), targets, ignore_index=NOT_SCORED, reduction="sum"
    )
