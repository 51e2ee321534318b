"""What a few packed tokens give of a network that is trained: a loss and its gradients, to compare two ways of computing them."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toolformer_ops.finetuning.summed_loss import text_loss

TOLERANCE = 0.25
"""The share by which the loss, and each weight's gradient, may differ. Passes in bfloat16 differ from those in float32 by
0.03 at most in eleven tiny architectures, by up to 0.27 with experts, of which a token may take others; a feed-forward
layer of half its size by 0.5."""
SMALLEST_NORM = 1e-6
"""A gradient below this norm has no share that differs: that of a bias of keys is zero but for rounding."""


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
