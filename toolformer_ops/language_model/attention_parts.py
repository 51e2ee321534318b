"""The attention of a pass in parts: the tokens of a part attend to keys that only this part knows.

A part is what one group of a KV cache adds (`attention.py`), or sequences without a cache (`packing.py`).
`PartedAttention` takes the place of attention in a network's layers, once for each network: transformers
calls it through its attention interface, GPT-J's layers in the place of their method `_attn`.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

_NAME = "toolformer_ops"


@dataclass(frozen=True)
class Heads:
    """What a layer's projections give for the new tokens."""

    queries: Tensor
    """(tokens, heads, width)."""
    keys: Tensor
    """(tokens, key heads, width)."""
    values: Tensor
    """(tokens, key heads, width)."""

    def of(self, tokens: slice) -> "Heads":
        """The queries, keys and values of some tokens."""
        return Heads(self.queries[tokens], self.keys[tokens], self.values[tokens])


class AttentionPart(Protocol):
    """Tokens of a pass, one after the other, that attend together."""

    @property
    def tokens(self) -> int:
        """How many there are."""
        ...

    @property
    def positions(self) -> np.ndarray:
        """(tokens,) of each token in its sequence."""
        ...

    def attend(
        self, layer: int, heads: Heads, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Attention of the tokens in a layer, (tokens, heads, width); a cache takes in their keys and values.

        `scale` multiplies scores; `softcap` bounds them; with `window` a token sees so many tokens, itself
        included.
        """
        ...


class PartedAttention:
    """The attention of one network's layers: that of the parts of the pass that is under way."""

    def __init__(self, network: Any, config: Any, *, slides: bool, beat: Callable[[], None]) -> None:
        """Take the place of attention in all layers of `network`, for good; `config` is its decoder's.

        `slides`: whether a layer forgets within the model's window. `beat` is called by each layer.
        """
        self._slides = slides
        self._beat = beat
        self._parts: Sequence[AttentionPart] = ()
        _register()
        config._attn_implementation = _NAME
        for module in network.modules():
            module.parted_attention = self
            if hasattr(module, "_attn") and hasattr(module, "scale_attn"):
                module._attn = functools.partial(_attend_as_gptj, module)

    @contextmanager
    def over(self, parts: Sequence[AttentionPart]) -> Iterator[None]:
        """Layers attend by these parts meanwhile."""
        self._parts = parts
        try:
            yield
        finally:
            self._parts = ()

    def attend(
        self, layer: int, heads: Heads, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """Attention of all tokens of the pass, (tokens, heads, width).

        Those after the last part's attend to nothing.
        """
        if not self._parts:
            raise RuntimeError(
                "expected a pass of the engine, found the network's own, which has no attention"
            )
        self._beat()
        window = window if self._slides else None
        if self._parts[0].tokens == len(heads.queries):
            return self._parts[0].attend(layer, heads, scale=scale, window=window, softcap=softcap)
        mixed, end = heads.queries.new_zeros((*heads.queries.shape[:2], heads.values.shape[-1])), 0
        for part in self._parts:
            own = slice(end, end + part.tokens)
            mixed[own] = part.attend(layer, heads.of(own), scale=scale, window=window, softcap=softcap)
            end = own.stop
        return mixed


@functools.cache
def _register() -> None:
    """Make the function known to transformers, once in a process."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_NAME, _attend_in_layer)


def _attend_in_layer(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """As transformers' interface has it: from (1, heads, tokens, width) to (1, tokens, heads, width)."""
    attention: PartedAttention = module.parted_attention
    mixed = attention.attend(
        module.layer_idx,
        Heads(*(tensor[0].transpose(0, 1) for tensor in (query, key, value))),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
    )
    return mixed[None], None


def _attend_as_gptj(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, None]:
    """As GPT-J's own method, from and to (1, heads, tokens, width)."""
    mixed, _ = _attend_in_layer(module, query, key, value, mask, scaling=1.0 / float(module.scale_attn))
    return mixed.transpose(1, 2), None
