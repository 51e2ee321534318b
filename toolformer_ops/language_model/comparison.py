"""Makes the engine's model of a network, after a comparison of its shared passes with the network's own.

Architectures for which a shared cache is not exact (recurrent or chunked layers, positions read from the
mask) are refused: by their configuration (`language_model/models/sharing.py`), or by a comparison of both
ways with the network's own forward pass on a few tokens at load. It takes the paths that the work takes, in
the same number format on the same devices, so that a kernel that computes something else is found, too. What
rounding may be is wide in bfloat16 (`TOLERANCE`), so only an error of structure is.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.columns import CachedText
from toolformer_ops.language_model.compiled import compile_parts
from toolformer_ops.language_model.kv_cache import KVCache, read_prompt
from toolformer_ops.language_model.models.sharing import cannot_share, require_shared_cache

logger = logging.getLogger(__name__)

TOLERANCE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}
"""Largest difference of logits that the comparison at load takes for rounding: its norm over that of the
logits, each row's mean taken away. Measured with SmolLM2-135M: 1e-6, 0.004 and 0.03 by rounding in these
formats; 0.17 by positions that are wrong by one, 0.24 by a token that is not seen."""
_OF_ANOTHER_STRUCTURE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,  # torch's, of shapes that do not fit
    TypeError,
    ValueError,
)
"""What a network raises in the comparison at load that is built in another way than the engine takes it to
be."""


@dataclass(frozen=True)
class _Probe:
    """A few tokens: two sequences that begin alike."""

    shared: Sequence[int]
    """Tokens of which each sequence begins with some."""
    seen: Sequence[int]
    """With how many of them each begins."""
    tails: Sequence[Sequence[int]]
    """How each goes on; equally many tokens."""

    @classmethod
    def of(cls, vocabulary: int) -> "_Probe":
        """Tokens of a vocabulary of this size."""
        return cls(
            shared=[(7 * step + 3) % vocabulary for step in range(9)],
            seen=(9, 6),
            tails=[
                [(11 * step + 5) % vocabulary for step in range(4)],
                [(13 * step + 1) % vocabulary for step in range(4)],
            ],
        )

    @property
    def sequences(self) -> list[list[int]]:
        """Each from its first token."""
        return [[*self.shared[:seen], *tail] for seen, tail in zip(self.seen, self.tails, strict=True)]

    @property
    def compared(self) -> int:
        """How many tokens of each sequence are compared: its tail's."""
        return len(self.tails[0])


def compared_model(network: Any, tokenizer_length: int, settings: Settings | None = None) -> CausalModel:
    """The engine's model of a network of transformers, which it takes over.

    `tokenizer_length` is the longest sequence that the tokenizer names. By the settings, the deployment's
    where None, parts of it are compiled (`compiled.py`); if what they give differs by more than rounding,
    they are not, and the log says so.

    Raises:
        ModelError: the network's passes cannot be shared, or it names no longest sequence.
    """
    config = network.config.get_text_config(decoder=True)
    require_shared_cache(type(network).__name__, config.to_dict())
    probe = _Probe.of(int(config.vocab_size))
    device = network.get_input_embeddings().weight.device
    with torch.inference_mode():
        # The network's own passes first: from then on its attention is the engine's.
        network.eval()
        plain = [
            network(input_ids=torch.tensor([ids], device=device)).logits[0, -probe.compared :]
            for ids in probe.sequences
        ]
        require_finite(network, torch.cat(plain))
        model = CausalModel(network, tokenizer_length)
        expected = torch.cat(plain).to(model.output_device)
        parts = compile_parts(network, settings or load_settings())
        if parts is not None:
            model.compiles = True
            try:
                _compare(model, probe, expected)
            except ModelError as error:
                logger.warning(
                    "the layers' parts are computed plainly, and slower: compiled they give %s", error
                )
                model.compiles = False
                parts.undo()
            else:
                return model
        _compare(model, probe, expected)
    return model


def require_finite(network: Any, logits: Tensor) -> None:
    """Refuse a network that computes no finite numbers for a few usual tokens.

    Raises:
        ModelError: the message says which number format has a larger range, if there is one.
    """
    if bool(torch.isfinite(logits).all()):
        return
    number_format = str(network.dtype).removeprefix("torch.")
    remedy = (
        "It was trained in numbers of a larger range: use TOOLFORMER_DTYPE=bfloat16, which has that of "
        "float32"
        if number_format == "float16"
        else "Its weights are damaged: load another copy"
    )
    raise ModelError(
        f"{type(network).__name__} in {number_format}: expected finite logits, found infinite ones or none. "
        f"{remedy}."
    )


def _centred(logits: Tensor) -> Tensor:
    """Logits in float32 less their mean, which changes no probability."""
    return logits.float() - logits.float().mean(dim=-1, keepdim=True)


def _compare(model: CausalModel, probe: _Probe, expected: Tensor) -> None:
    """Compare logits of packed passes, and of passes over a shared cache, with the expected ones.

    The shape of `expected` is (rows, vocabulary).

    Raises:
        ModelError: they differ by more than rounding, or the network does not take such a pass.
    """
    name = type(model.network).__name__
    try:
        # 1. Hidden states of the tails, (rows, hidden), without a cache.
        rows = [range(len(ids) - probe.compared, len(ids)) for ids in probe.sequences]
        packed = torch.cat(model.hidden_states(probe.sequences, rows))
        # 2. The same of two rows that continue a prompt of 4 tokens and a text.
        cache = KVCache(model)
        cache.join([CachedText(read_prompt(model, probe.shared[:4]))])
        cache.extend([0], [probe.shared[4:]])
        [text] = cache.texts()
        cache = KVCache(model)
        cache.share([(text, probe.seen, range(len(probe.tails)))])
        steps: list[Tensor] = []
        for tokens in zip(*probe.tails, strict=True):
            steps.append(cache.step(np.array(tokens)))  # (2, hidden)
        shared = torch.stack(steps, dim=1).flatten(0, 1)
        # 3. Their logits.
        for what, hidden in (
            ("output projection of the last hidden states", packed),
            ("passes over a shared KV cache", shared),
        ):
            computed, wanted = _centred(model.logits(hidden)), _centred(expected)
            difference, size = float((computed - wanted).norm()), float(wanted.norm())
            if not difference <= TOLERANCE[model.number_format] * size:
                raise cannot_share(
                    name,
                    f"logits that differ by {difference:.2g} where {size:.2g} is their size ({what}, "
                    f"{model.number_format}; at most {TOLERANCE[model.number_format]:g} of it)",
                )
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise  # they say something of the machine, and nothing of the network
    except _OF_ANOTHER_STRUCTURE as error:
        reason = f"a pass over shared keys and values that ends in {type(error).__name__}: {error}"
        raise cannot_share(name, reason) from error
