"""Compiles what the layers of a trained network compute element by element, as the engine does (`language_model/compiled.py`).

Norms, rotary positions and activations take a seventh of a training step with 1.5B parameters on an H200 and more of its
memory than the matrix products: compiled, 51,400 tokens a second where there were 44,100, with 46 GiB where there were
55. Only passes in bfloat16 on a GPU are compiled. Weights that DeepSpeed spreads over processes arrive by
hooks of the layers' own modules, which compiled functions do not call, so such a network stays plain.

Before the first step the loss of a few tokens and its gradients are compared with the plain ones. Where they differ by
more than rounding, the parts are computed plainly, and the log says so.
"""

import logging
from typing import Any

import torch
from torch import Tensor

from toolformer_ops.config import Settings
from toolformer_ops.finetuning.base_model import computes_in_bfloat16
from toolformer_ops.finetuning.probe import TOLERANCE, probe
from toolformer_ops.language_model.compiled import CompiledParts, parts_compiled_on_gpu

logger = logging.getLogger(__name__)

PROBE_TOKENS = 31


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
