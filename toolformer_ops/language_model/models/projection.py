"""What an architecture does to the output projection of its last hidden states to make logits of it."""

from typing import Any

import torch
from torch import Tensor


def logits_of(config: Any, projected: Tensor) -> Tensor:
    """Logits from the output projection, both (..., vocabulary).

    They have the softcap of Gemma 2 and the scale of Granite or Cohere. `config` is the network's or that of
    its text part.
    """
    config = config.get_text_config(decoder=True)
    softcap = getattr(config, "final_logit_softcapping", None)
    logits = softcap * torch.tanh(projected / softcap) if softcap else projected
    divisor = getattr(config, "logits_scaling", None)  # Granite
    factor = getattr(config, "logit_scale", None)  # Cohere
    scale = 1.0 / float(divisor) if divisor else float(factor or 1.0)
    return logits if scale == 1.0 else logits * scale
