"""Compiles what the layers of a trained network compute element by element, as the engine does (`language_model/compiled.py`).

Norms, rotary positions and activations take a seventh of a training step with 1.5B parameters on an H200 and more of its
memory than the matrix products: compiled, 51,400 tokens a second where there were 44,100, with 46 GiB where there were
55. Only passes in bfloat16 on a GPU are compiled. Weights that DeepSpeed spreads over processes arrive by
hooks of the layers' own modules, which compiled functions do not call, so such a network stays plain.

Before the first step the loss of a few tokens and its gradients are compared with the plain ones. Where they differ by
more than rounding, the parts are computed plainly, and the log says so.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toolformer_ops.config import Settings
from toolformer_ops.finetuning.base_model import computes_in_bfloat16
from toolformer_ops.finetuning.summed_loss import text_loss
from toolformer_ops.language_model.compiled import CompiledParts, parts_compiled_on_gpu

logger = logging.getLogger(__name__)

PROBE_TOKENS = 31
TOLERANCE = 0.25
"""The share by which the loss, and each weight's gradient, may differ. Passes in bfloat16 differ from those in float32 by
0.03 at most in eleven tiny architectures, by up to 0.27 with experts, of which a token may take others; a feed-forward
layer of half its size by 0.5."""
SMALLEST_NORM = 1e-6
"""A gradient below this norm has no share that differs: that of a bias of keys is zero but for rounding."""


def compile_layers(network: Any, settings: Settings, *, is_spread: bool) -> CompiledParts | None:
    """Compile the parts of a network that is trained, if its passes compute in bfloat16 and its weights are not spread.

    None where nothing is compiled; the log says so if that is for a lack of the machine's or of the result.
    """
    if is_spread or not computes_in_bfloat16(settings):
        return None
    batch = probe_batch(network)
    plain = probe(network, batch)
    parts = parts_compiled_on_gpu(network, settings)
    if parts is None:
        return None
    difference = probe(network, batch).largest_difference(plain)
    if difference <= TOLERANCE:
        return parts
    logger.warning(
        "the layers' parts are computed plainly, and slower: compiled they give a loss or a gradient that differs by %.2g of "
        "its size, at most %g is rounding",
        difference,
        TOLERANCE,
    )
    parts.undo()
    return None


def probe_batch(network: Any) -> dict[str, Tensor]:
    """A few tokens, on the network's device."""
    embeddings = network.get_input_embeddings()
    ids = [(7 * token + 3) % embeddings.num_embeddings for token in range(PROBE_TOKENS)]
    batch = torch.tensor([ids], device=embeddings.weight.device)
    return {"input_ids": batch, "labels": batch}


@dataclass(frozen=True)
class Probe:
    """What a batch gives."""

    loss: Tensor
    """Nats, summed."""
    gradients: Sequence[Tensor]
    """Gradients of the tokens' embeddings and of all weights that are vectors, which pass through every layer; zeros where
    none came."""

    def largest_difference(self, other: "Probe") -> float:
        """The largest difference of loss and gradients, as a share of the other's; nan if one is not finite."""
        pairs = [(self.loss, other.loss), *zip(self.gradients, other.gradients, strict=True)]
        shares = [
            (own - expected).norm() / expected.norm().clamp(min=SMALLEST_NORM) for own, expected in pairs
        ]
        return float(torch.stack(shares).max())


def bfloat16_on_gpu(network: Any) -> contextlib.AbstractContextManager[Any]:
    """Passes compute in bfloat16 meanwhile if the network is on a GPU, as those of a training do."""
    device = network.get_input_embeddings().weight.device.type
    return contextlib.nullcontext() if device == "cpu" else torch.autocast(device, torch.bfloat16)


def probe(network: Any, batch: Mapping[str, Any]) -> Probe:
    """What a batch gives, with dropout off and, on a GPU, passes in bfloat16; the network's own gradients stay as they are."""
    embedded: list[Tensor] = []

    def as_leaf(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    is_training = network.training
    hook = network.get_input_embeddings().register_forward_hook(as_leaf)
    network.eval()
    try:
        with torch.enable_grad(), bfloat16_on_gpu(network):
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            loss = text_loss(network(**inputs).logits, batch["labels"])
        vectors = [
            parameter
            for parameter in network.parameters()
            if parameter.requires_grad and parameter.dim() == 1
        ]
        leaves = [*embedded, *vectors]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    finally:
        hook.remove()
        network.train(is_training)
    return Probe(loss=loss.detach().float(), gradients=[gradient.float() for gradient in gradients])
