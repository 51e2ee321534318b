"""How far two computations of the same logits may lie apart by rounding alone."""

from typing import Any

import torch

PROBE_TOLERANCE = 1e-3
"""The share of the largest logit that may differ: far above rounding in float32, far below what another
sequence's token changes."""
NARROW_PROBE_TOLERANCE = 0.05
"""The share for weights in bfloat16 or float16."""


def probe_tolerance(network: Any) -> float:
    """How far two computations of the same logits may lie apart, as a share of the largest: by rounding alone."""
    return PROBE_TOLERANCE if network.dtype == torch.float32 else NARROW_PROBE_TOLERANCE
