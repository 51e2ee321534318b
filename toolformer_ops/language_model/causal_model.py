"""A causal language model of transformers whose shared passes are exact: hidden states, log probabilities, the prompts it has read.

`CausalModel.hidden_states` is the plain way: sequences from their first token, no cache, packed without
padding (`packing.py`).

`CausalModel.run` is the shared way: one pass over tokens of many texts, whose attention is computed by the
caller (`attention.py`) over a cache that they share (`kv_cache.py`). transformers calls it in place of a
network's own attention (its attention interface; the method `_attn` for GPT-J, which has none).

Architectures for which a shared cache is not exact (recurrent or chunked layers, positions read from the
mask) are refused: by their configuration (`language_model/models/sharing.py`), or by a comparison of both
ways with the network's own forward pass on a few tokens at load. It takes the paths that the work takes, in
the same number format on the same devices, so that a kernel that computes something else is found, too. What
rounding may be is wide in bfloat16 (`TOLERANCE`), so only an error of structure is.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.columns import CachedPrompt, CachedText
from toolformer_ops.language_model.kv_cache import KVCache, read_prompt
from toolformer_ops.language_model.memory import DeviceMemory
from toolformer_ops.language_model.models.sharing import cannot_share, require_shared_cache
from toolformer_ops.language_model.packing import ROW_MULTIPLE, PackedSequences, fill_passes

logger = logging.getLogger(__name__)

CPU_SOFTMAX_ROWS = 32
"""Of the projected rows, so many at once become probabilities on a CPU, in its cache: a row of a large
vocabulary is a megabyte."""
MAX_PROMPTS = 16
"""Prompts whose keys and values are kept: those of the tools, and heads that texts to be continued share."""
TOLERANCE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}
"""Largest difference of logits that the comparison at load takes for rounding: its norm over that of the
logits, each row's mean taken away. Measured with SmolLM2-135M: 1e-6, 0.004 and 0.03 by rounding in these
formats; 0.17 by positions that are wrong by one,
0.24 by a token that is not seen."""
SECONDS_BETWEEN_LINES = 50.0
"""Of a long computation: below a minute, since a layer of the network may take some seconds."""
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
"""What a network raises in the comparison at load that is built in another way than the engine takes it to be."""
_ATTENTION = "toolformer_ops"
_UNBOUNDED_TOKENIZER_LENGTH = 10**9
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
"""Names that configurations give the longest sequence."""


class Pulse:
    """Told what is done after each pass of the network; logs the newest such state when it was silent for long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._state = "reading"

    def __call__(self, what: str, done: int, total: int) -> None:
        """`what` names the things that are counted, as "samples ended"."""
        self._state = f"{done} of {total} {what}"
        self.beat()

    def beat(self) -> None:
        """Called by each layer of the network."""
        now = self._clock()
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            logger.info("at work: %s", self._state)


class CausalModel:
    """A causal language model of transformers, in inference mode, whose passes agree with its own."""

    def __init__(self, network: Any, tokenizer_length: int) -> None:
        """Compares shared passes with the network's own (`_compare_with_plain_passes`).

        Raises:
            ModelError: its passes cannot be shared, or it names no longest sequence.
        """
        decoder_config = network.config.get_text_config(decoder=True)
        require_shared_cache(type(network).__name__, decoder_config.to_dict())
        self.network = network.eval().requires_grad_(False)
        self.config = decoder_config
        self.device = torch.device(network.get_input_embeddings().weight.device)
        """Where token ids go."""
        self.dtype: torch.dtype = network.dtype
        self.number_format = str(self.dtype).removeprefix("torch.")
        lengths = [getattr(self.config, name, None) for name in _LENGTHS]
        if tokenizer_length < _UNBOUNDED_TOKENIZER_LENGTH:
            lengths.append(tokenizer_length)
        self.window_tokens: int = next(
            (number for number in lengths if isinstance(number, int) and number > 0), 0
        )
        if not self.window_tokens:
            raise ModelError(
                "expected max_position_embeddings in config.json or model_max_length in tokenizer_config.json, found neither. "
                "Add the longest sequence that the model was trained on."
            )
        back, layers = getattr(self.config, "sliding_window", None), getattr(self.config, "layer_types", None)
        self._slides = (
            bool(back and back < self.window_tokens)
            and getattr(self.config, "use_sliding_window", True) is not False
            and (not layers or "sliding_attention" in layers)
        )  # whether a layer forgets within the model's window
        try:
            self.memory = DeviceMemory(network)
        except AttributeError as error:  # a configuration without heads
            raise cannot_share(
                type(network).__name__, f"no attention as the engine knows it ({error})"
            ) from error
        """How much may be in flight."""
        self.pulse = Pulse()
        """Told what is done after each pass."""
        self._decoder = network.base_model
        self._plain_attention = [  # GPT-J's
            module
            for module in network.modules()
            if hasattr(module, "_attn") and hasattr(module, "scale_attn")
        ]
        self._project = network.get_output_embeddings()
        self.output_device = torch.device(self._project.weight.device)
        """Where log probabilities are; another one than `device` where layers are on several."""
        self.kind = "cpu" if self.device.type == "cpu" else "cuda"
        """Which of the budgets by kind of device apply."""
        self.texts_together = self.kind != "cpu"
        """Whether all texts are attended to in one set of operations, padded to the longest: few launches,
        but more arithmetic."""
        self._prompts: dict[tuple[int, ...], CachedPrompt] = {}
        self._compare_with_plain_passes()

    @property
    def float32_bytes(self) -> int:
        """What the weights would take in float32."""
        return int(4 * sum(parameter.numel() for parameter in self.network.parameters()))

    def let_go(self) -> None:
        """Free the weights and what was computed with them, whoever still refers to this model; it can no longer be used."""
        self._prompts.clear()
        for parameter in self.network.parameters():
            parameter.data = parameter.data.new_empty(0)

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

    def hidden_states(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Last hidden states of each sequence, (tokens, hidden) each, in the order given; of its tokens `rows[n]` if given.

        Computed in batches that fit into memory, halved if they do not; rows that are not asked for are not
        kept.
        """

        def read(batch: Sequence[int]) -> list[Tensor]:
            packed = PackedSequences([sequences[index] for index in batch], share=self.kind == "cpu")
            hidden = self.run(
                packed.ids, packed.positions, [(len(packed.ids), packed.attend)]
            )  # (tokens, hidden)
            wanted = [range(len(sequences[index])) if rows is None else rows[index] for index in batch]
            places = [
                of_sequence[row]
                for of_sequence, own in zip(packed.places, wanted, strict=True)
                for row in own
            ]
            kept = hidden[torch.tensor(places, device=hidden.device)]
            return list(kept.split([len(own) for own in wanted]))  # type: ignore[no-untyped-call]

        found: dict[int, Tensor] = {}
        for batch in fill_passes(sequences, self.memory.pass_tokens, share=self.kind == "cpu"):
            found.update(zip(batch, self.memory.halving(read, batch, "sequences"), strict=True))
            self.pulse("sequences read", len(found), len(sequences))
        return [found[index] for index in range(len(sequences))]

    def run(
        self, ids: np.ndarray, positions: np.ndarray, parts: Sequence[tuple[int, Callable[..., Tensor]]]
    ) -> Tensor:
        """One pass over tokens, (tokens,), at these positions; last hidden states, (tokens, hidden).

        `parts` says how many of the tokens, one behind the other, attend by which function:
        `attend(layer, queries, keys, values, window, scale, softcap)` computes each layer's attention,
        (tokens, heads, width).
        """
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        # On a CPU the pass is filled up with tokens that attend to nothing, so that a row has the same bits
        # in every batch.
        filler = 0 if self.texts_together else -len(ids) % ROW_MULTIPLE

        def from_layer(
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
            self.pulse.beat()
            window = sliding_window if self._slides else None
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            rows, keys, values = (
                tensor[0].transpose(0, 1) for tensor in (query, key, value)
            )  # (tokens, heads, width)
            if len(parts) == 1 and not filler:
                return parts[0][1](module.layer_idx, rows, keys, values, window, scale, softcap)[None], None
            mixed, end = rows.new_zeros((*rows.shape[:2], values.shape[-1])), 0
            for tokens, attend in parts:
                own = slice(end, end + tokens)
                mixed[own] = attend(
                    module.layer_idx, rows[own], keys[own], values[own], window, scale, softcap
                )
                end += tokens
            return mixed[None], None

        def of_gptj(module: Any) -> Any:
            """GPT-J's own method, from and to (1, heads, tokens, width)."""

            def attn(
                query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
            ) -> tuple[Tensor, None]:
                mixed, _ = from_layer(module, query, key, value, mask, scaling=1.0 / float(module.scale_attn))
                return mixed.transpose(1, 2), None

            return attn

        padded = np.stack(
            [np.pad(ids, (0, filler), constant_values=int(ids[0])), np.pad(positions, (0, filler))]
        )
        both = torch.from_numpy(padded).to(self.device)[:, None]  # (2, 1, tokens)
        before = self.config._attn_implementation
        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, from_layer)
        self.config._attn_implementation = _ATTENTION
        for module in self._plain_attention:
            module._attn = of_gptj(module)
        try:
            found = self._decoder(input_ids=both[0], position_ids=both[1], use_cache=False)
        finally:
            self.config._attn_implementation = before
            for module in self._plain_attention:
                del module._attn
        hidden: Tensor = found.last_hidden_state[0, : len(ids)]
        return hidden

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Natural log probabilities over the vocabulary, float32, (rows, vocabulary), for hidden states (rows, hidden).

        On a CPU the rows are padded to a multiple meanwhile, so that a row has the same bits in every batch
        (`kv_cache.py`).
        """
        return torch.cat(list(self.log_probability_blocks(hidden)))

    def log_probability_blocks(self, hidden: Tensor) -> Iterator[Tensor]:
        """The same block by block, so that all rows of a large vocabulary are never in memory together."""
        # On a CPU the probabilities of a block stay in its cache, and rows are filled up, so that their bits
        # are the same always.
        blocks = self.memory.logits_rows if self.texts_together else CPU_SOFTMAX_ROWS
        for rows in hidden.to(self.output_device).split(self.memory.logits_rows):  # type: ignore[no-untyped-call]
            padding = 0 if self.texts_together else -len(rows) % ROW_MULTIPLE
            filled = torch.cat([rows, rows.new_zeros((padding, rows.shape[1]))]) if padding else rows
            projected = self._project(filled)[: len(rows)]  # (rows, vocabulary)
            for block in projected.split(blocks):
                yield self._scaled(block.float()).log_softmax(dim=-1)

    def token_log_probabilities(self, hidden: Tensor, targets: Sequence[int]) -> list[float]:
        """Natural log probability of `targets[r]` after hidden state r, for hidden states (rows, hidden)."""
        found: list[float] = []
        for log_probs in self.log_probability_blocks(hidden):  # (rows, vocabulary)
            wanted = torch.tensor(targets[len(found) : len(found) + len(log_probs)], device=log_probs.device)
            found.extend(log_probs.gather(1, wanted[:, None])[:, 0].tolist())
        return found

    def _scaled(self, projected: Tensor) -> Tensor:
        """Logits from the output projection, both (rows, vocabulary)."""
        softcap = getattr(self.config, "final_logit_softcapping", None)
        logits = softcap * torch.tanh(projected / softcap) if softcap else projected
        divisor = getattr(self.config, "logits_scaling", None)  # Granite
        factor = getattr(self.config, "logit_scale", None)  # Cohere
        scale = 1.0 / float(divisor) if divisor else float(factor or 1.0)
        return logits if scale == 1.0 else logits * scale

    def _compare_with_plain_passes(self) -> None:
        """Compare packed passes and passes over a shared cache with the network's plain forward pass on a few tokens.

        Raises:
            ModelError: they differ by more than rounding, or the network does not take such a pass.
        """
        vocabulary = int(self.config.vocab_size)
        shared = [(7 * step + 3) % vocabulary for step in range(9)]
        tails = [
            [(factor * step + first) % vocabulary for step in range(4)]
            for factor, first in ((11, 5), (13, 1))
        ]
        sequences = [[*shared[:seen], *tail] for seen, tail in zip((9, 6), tails, strict=True)]
        with torch.inference_mode():
            plain = [
                self.network(input_ids=torch.tensor([ids], device=self.device)).logits[0, -4:]
                for ids in sequences
            ]
            expected = torch.cat(plain).to(self.output_device)
            try:
                # 1. Packed, without a cache.
                packed = self.hidden_states(sequences, [range(len(ids) - 4, len(ids)) for ids in sequences])
                # 2. Two rows that continue a prompt of 4 tokens and a text.
                cache = KVCache(self)
                cache.join([CachedText(read_prompt(self, shared[:4]))])
                cache.extend([0], [shared[4:]])
                [text] = cache.texts()
                cache = KVCache(self)
                cache.share([(text, (9, 6), (0, 1))])
                steps = [
                    cache.step(np.array(tokens)) for tokens in zip(*tails, strict=True)
                ]  # (2, hidden) each
                # 3. Their logits are the expected ones but for rounding.
                for what, hidden in (
                    ("output projection of the last hidden states", torch.cat(packed)),
                    ("passes over a shared KV cache", torch.stack(steps, dim=1).flatten(0, 1)),
                ):  # (8, hidden)
                    logits = self._scaled(self._project(hidden.to(self.output_device)).float())
                    found, wanted = (
                        values.float() - values.float().mean(dim=-1, keepdim=True)
                        for values in (logits, expected)
                    )
                    difference, size = float((found - wanted).norm()), float(wanted.norm())
                    if not difference <= TOLERANCE[self.number_format] * size:
                        raise cannot_share(
                            type(self.network).__name__,
                            f"logits that differ by {difference:.2g} where {size:.2g} is their size ({what}, "
                            f"{self.number_format}; at most {TOLERANCE[self.number_format]:g} of it)",
                        )
            except (torch.OutOfMemoryError, torch.AcceleratorError):
                raise  # they say something of the machine, and nothing of the network
            except _OF_ANOTHER_STRUCTURE as error:
                reason = f"a pass over shared keys and values that ends in {type(error).__name__}: {error}"
                raise cannot_share(type(self.network).__name__, reason) from error
