"""A language model whose shared passes are exact: a `Network` that was compared with its own forward pass, and the prompts it read.

Architectures for which a shared cache is not exact (recurrent or chunked layers, positions read from the mask) are refused: by
their configuration (`language_model/models/sharing.py`), or by a comparison of both ways with the network's own forward pass on a
few tokens at load. It takes the paths that the work takes, in the same number format on the same devices, so that a kernel that
computes something else is found, too. What rounding may be is wide in bfloat16 (`TOLERANCE`), so only an error of structure is.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.language_model.columns import CachedPrompt, CachedText
from toolformer_ops.language_model.kv_cache import KVCache, read_prompt
from toolformer_ops.language_model.models.sharing import cannot_share
from toolformer_ops.language_model.network import Network

MAX_PROMPTS = 16
"""Prompts whose keys and values are kept: those of the tools, and heads that texts to be continued share."""
TOLERANCE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}
"""Largest difference of logits that the comparison at load takes for rounding: its norm over that of the logits, each row's mean
taken away. Measured with SmolLM2-135M: 1e-6, 0.004 and 0.03 by rounding in these formats; 0.17 by positions that are wrong by one,
0.24 by a token that is not seen."""


class CausalModel(Network):
    """A network whose passes agree with its own."""

    def __init__(self, network: Any, tokenizer_length: int) -> None:
        super().__init__(network, tokenizer_length)
        self._prompts: dict[tuple[int, ...], CachedPrompt] = {}
        self._compare_with_plain_passes()

    def let_go(self) -> None:
        """Free the weights and what was computed with them, whoever still refers to this model; it can no longer be used."""
        self._prompts.clear()
        super().let_go()

    def new_cache(self) -> KVCache:
        """A KV cache without rows."""
        return KVCache(self)

    def cached_prompt(self, ids: tuple[int, ...]) -> CachedPrompt:
        """The keys and values of a prompt's first tokens, computed once; the last `MAX_PROMPTS` are kept."""
        if ids not in self._prompts:
            if len(self._prompts) >= MAX_PROMPTS:
                self._prompts.pop(next(iter(self._prompts)))
            self._prompts[ids] = read_prompt(self, ids)
        return self._prompts[ids]

    def _compare_with_plain_passes(self) -> None:
        """Compare packed passes and passes over a shared cache with the network's plain forward pass on a few tokens.

        Raises:
            ModelError: they differ by more than rounding, or the network does not take such a pass.
        """
        vocabulary = int(self.config.vocab_size)
        shared = [(7 * step + 3) % vocabulary for step in range(9)]
        tails = [[(factor * step + first) % vocabulary for step in range(4)] for factor, first in ((11, 5), (13, 1))]
        sequences = [[*shared[:seen], *tail] for seen, tail in zip((9, 6), tails, strict=True)]
        with torch.inference_mode():
            plain = [
                self.network(input_ids=torch.tensor([ids], device=self.device)).logits[0, -4:] for ids in sequences
            ]
            expected = torch.cat(plain).to(self.output_device)
            try:
                packed = self.hidden_states(sequences, [range(len(ids) - 4, len(ids)) for ids in sequences])
                self._require_equal("output projection of the last hidden states", torch.cat(packed), expected)
                self._require_equal("passes over a shared KV cache", self._over_shared_cache(shared, tails), expected)
            except (TypeError, AttributeError, LookupError) as error:  # it is built in another way
                raise cannot_share(type(self.network).__name__, f"{type(error).__name__}: {error}") from error

    def _over_shared_cache(self, shared: list[int], tails: list[list[int]]) -> Tensor:
        """Last hidden states, (8, hidden), of each of 4 tokens of two rows that continue a prompt of 4 tokens and a text."""
        cache = KVCache(self)
        cache.join([CachedText(read_prompt(self, shared[:4]))])
        cache.extend([0], [shared[4:]])
        [text] = cache.texts()
        cache = KVCache(self)
        cache.share([(text, (9, 6), (0, 1))])
        steps = [cache.step(np.array(tokens)) for tokens in zip(*tails, strict=True)]  # (2, hidden) each
        return torch.stack(steps, dim=1).flatten(0, 1)

    def _require_equal(self, what: str, hidden: Tensor, expected: Tensor) -> None:
        """Refuse hidden states, (rows, hidden), whose logits are not the expected ones, (rows, vocabulary), but for rounding."""
        logits = self._scaled(self._project(hidden.to(self.output_device)).float())
        found, wanted = (one.float() - one.float().mean(dim=-1, keepdim=True) for one in (logits, expected))
        difference, size = float((found - wanted).norm()), float(wanted.norm())
        if not difference <= TOLERANCE[self.number_format] * size:
            raise cannot_share(
                type(self.network).__name__,
                f"logits that differ by {difference:.2g} where {size:.2g} is their size ({what}, {self.number_format}; at most "
                f"{TOLERANCE[self.number_format]:g} of it)",
            )
