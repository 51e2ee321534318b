"""Compiles what the layers of a trained network compute element by element, as the engine does (`language_model/compiled.py`).

With 1.5B parameters on an H200 a training reads 51,400 tokens a second compiled and 44,100 plainly, in 46 and in
55 GiB. Only passes in bfloat16 on a GPU are compiled. Weights that DeepSpeed spreads over processes arrive by hooks of
the layers' own modules, which compiled functions do not call, so such a network stays plain.

Before the first step the loss of a few tokens and its gradients are compared with the plain ones. Where they differ by
more than rounding, the parts are computed plainly, and the log says so.
"""

import contextlib
import logging
from collections.abc import Sequence
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

    None where nothing is compiled. The log says so if the machine lacks what that needs, or if results differ.
    """
    if settings.compile == "off" or is_spread or not computes_in_bfloat16(settings):
        return None
    plain = probe(network)
    parts = parts_compiled_on_gpu(network, settings)
    if parts is None:
        return None
    difference = probe(network).largest_difference(plain)
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


@dataclass(frozen=True)
class Probe:
    """What a few tokens give."""

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


def probe(network: Any) -> Probe:
    """The loss of a few tokens and its gradients, with dropout off and, on a GPU, in bfloat16.

    The gradients that the network's weights hold stay as they are.
    """
    embeddings = network.get_input_embeddings()
    device = embeddings.weight.device
    ids = [(7 * token + 3) % embeddings.num_embeddings for token in range(PROBE_TOKENS)]
    batch = torch.tensor([ids], device=device)
    passes = contextlib.nullcontext() if device.type == "cpu" else torch.autocast(device.type, torch.bfloat16)
    embedded: list[Tensor] = []

    def as_leaf(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    is_training = network.training
    hook = embeddings.register_forward_hook(as_leaf)
    network.eval()
    try:
        with torch.enable_grad(), passes:
            loss = text_loss(network(input_ids=batch).logits, batch)
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
