"""Random numbers that depend on what is drawn and on nothing else, and drawing a token with one.

Each sample of each position has its own stream: the n-th number is a hash of the key, the position, the sample's index and n.
So a sample does not depend on what it was computed together with, nor on how often a stage was started again.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor


def uniform(seed_key: str, position_token: int, sample: int, step: int) -> float:
    """A number in [0, 1) for one token of one sample; 53 bits of a SHA-256."""
    digest = hashlib.sha256(f"{seed_key}\x00{position_token}\x00{sample}\x00{step}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53


def only(log_probs: Tensor, tokens: Sequence[int]) -> Tensor:
    """Log probabilities, (rows, vocabulary), given that the token is one of `tokens`; from those of the same shape."""
    index = torch.tensor(tokens, device=log_probs.device)
    allowed = torch.full_like(log_probs, -math.inf)
    allowed[:, index] = log_probs[:, index]
    return allowed.log_softmax(dim=-1)


def cumulative_probabilities(log_probs: Tensor, temperature: float, top_p: float) -> Tensor:
    """Cumulative probabilities over the vocabulary, float64, (rows, vocabulary), from log probabilities of the same shape.

    `temperature` divides the logits; of the result only the most likely tokens count that are needed to reach `top_p`.
    """
    probabilities = (log_probs / temperature).softmax(dim=-1) if temperature != 1.0 else log_probs.exp()
    if top_p < 1.0:
        ordered, index = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered  # (rows, vocabulary): what the more likely tokens have together
        probabilities = torch.zeros_like(probabilities).scatter(-1, index, ordered * (before < top_p))
    return probabilities.cumsum(dim=-1, dtype=torch.float64)


def draw(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Token ids, (rows, draws), by inversion of `cumulative`, (rows, vocabulary), at `uniforms`, (rows, draws), float64 in [0, 1).

    A token of probability zero is never drawn. Rows that hold no distribution (not finite) give -1.
    """
    total = cumulative[:, -1:]  # (rows, 1)
    tokens = torch.searchsorted(cumulative, uniforms * total, right=True)  # (rows, draws)
    usable = torch.isfinite(total) & (total > 0)
    return torch.where(usable, tokens.clamp(max=cumulative.shape[1] - 1), torch.full_like(tokens, -1))
