"""A causal language model of transformers whose shared passes are exact: hidden states and log probabilities.

`CausalModel.hidden_states` is the plain way: sequences from their first token, no cache, packed without
padding (`packing.py`).

`CausalModel.run` is the shared way: one pass over tokens of many texts, whose attention is computed by the
parts that they come in (`packing.py`): by groups of a cache that they share (`kv_cache.py`,
`attention.py`), or by packed sequences.

`comparison.py` makes a model of a network, and refuses architectures for which a shared cache is not exact.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES, BatchSizes, device_kind
from toolformer_ops.language_model.devices import DeviceMemory
from toolformer_ops.language_model.models.sharing import cannot_share, constant_positions
from toolformer_ops.language_model.packing import (
    ROW_MULTIPLE,
    AttentionPart,
    PackedSequences,
    PartedAttention,
    fill_passes,
)
from toolformer_ops.language_model.throughput import WORK, pass_operations


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


logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 50.0
"""The time between two lines of a long computation: below a minute, since a layer of the network may take
some seconds."""
_UNBOUNDED_TOKENIZER_LENGTH = 10**9
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
"""Names that configurations give the longest sequence."""


class Pulse:
    """Told what is done after each pass of the network.

    Logs the newest such state when it was silent for long.
    """

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
        """Takes the network over: its own forward pass has no attention any more (`PartedAttention`).

        Raises:
            ModelError: it names no longest sequence, or has no heads.
        """
        self.network = network.eval().requires_grad_(False)
        self.config = network.config.get_text_config(decoder=True)
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
                "expected max_position_embeddings in config.json or model_max_length in "
                "tokenizer_config.json, found neither. Add the longest sequence that the model was trained "
                "on."
            )
        constant = constant_positions(getattr(self.config, "rope_parameters", None))
        if constant is not None and constant < self.window_tokens:
            logger.info(
                "the window is %d tokens of %d: beyond them this model's positions depend on the other "
                "texts of a pass",
                constant,
                self.window_tokens,
            )
            self.window_tokens = constant
        back, layers = getattr(self.config, "sliding_window", None), getattr(self.config, "layer_types", None)
        slides = (
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
        self._project = network.get_output_embeddings()
        self.output_device = torch.device(self._project.weight.device)
        """Where log probabilities are; another one than `device` where layers are on several."""
        self.kind = device_kind(self.device.type)
        """The row of `BATCH_SIZES`."""
        self.texts_together = self.kind != "cpu"
        """Whether all texts are attended to in one set of operations, padded to the longest: few launches,
        but more arithmetic."""
        self._operations_a_token, self._operations_a_row = pass_operations(network)
        self.compiles = False
        """Whether what attention computes element by element is compiled, too (`compiled.py`)."""
        self._attention = PartedAttention(network, self.config, slides=slides, beat=self.pulse.beat)

    @property
    def sizes(self) -> BatchSizes:
        """The most that is worth computing together on this kind of device."""
        return BATCH_SIZES[self.kind]

    @property
    def float32_bytes(self) -> int:
        """What the weights would take in float32."""
        return int(4 * sum(parameter.numel() for parameter in self.network.parameters()))

    def let_go(self) -> None:
        """Free the weights and what was computed with them, whoever still refers to this model.

        It can no longer be used.
        """
        for parameter in self.network.parameters():
            parameter.data = parameter.data.new_empty(0)

    def hidden_states(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Last hidden states of each sequence, (tokens, hidden) each, in the order given.

        With `rows` they are those of the sequence's tokens `rows[n]`. Computed in batches that fit into
        memory, halved if they do not; rows that are not asked for are not kept.
        """

        def read(batch: Sequence[int]) -> list[Tensor]:
            packed = PackedSequences([sequences[index] for index in batch], share=self.kind == "cpu")
            hidden = self.run(packed.ids, [packed])  # (tokens, hidden)
            wanted = [range(len(sequences[index])) if rows is None else rows[index] for index in batch]
            places: list[int] = []
            for sequence_places, own in zip(packed.places, wanted, strict=True):
                places += [sequence_places[row] for row in own]
            kept = hidden[torch.tensor(places, device=hidden.device)]
            return list(kept.split([len(own) for own in wanted]))  # type: ignore[no-untyped-call]

        states: dict[int, Tensor] = {}
        for batch in fill_passes(sequences, self.memory.pass_tokens, share=self.kind == "cpu"):
            states.update(zip(batch, self.memory.halving(read, batch, "sequences"), strict=True))
            self.pulse("sequences read", len(states), len(sequences))
        return [states[index] for index in range(len(sequences))]

    def run(self, ids: np.ndarray, parts: Sequence[AttentionPart]) -> Tensor:
        """One pass over tokens, (tokens,), those of the parts one after the other.

        Returns their last hidden states, (tokens, hidden).
        """
        # On a CPU the pass is filled up with tokens that attend to nothing, so that a row has the same bits
        # in every batch.
        filler = 0 if self.texts_together else -len(ids) % ROW_MULTIPLE
        positions = np.concatenate([part.positions for part in parts])
        padded = np.stack(
            [np.pad(ids, (0, filler), constant_values=int(ids[0])), np.pad(positions, (0, filler))]
        )
        both = torch.from_numpy(padded).to(self.device)[:, None]  # (2, 1, tokens)
        with self._attention.over(parts):
            output = self._decoder(input_ids=both[0], position_ids=both[1], use_cache=False)
        WORK.add_tokens(len(ids), self._operations_a_token)
        hidden: Tensor = output.last_hidden_state[0, : len(ids)]
        return hidden

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Natural log probabilities over the vocabulary, float32, (rows, vocabulary).

        They are those after hidden states (rows, hidden). On a CPU the rows are padded to a multiple
        meanwhile, so that a row has the same bits in every batch (`kv_cache.py`).
        """
        return torch.cat(list(self.log_probability_blocks(hidden)))

    def log_probability_blocks(self, hidden: Tensor) -> Iterator[Tensor]:
        """Log probabilities block by block: those of a large vocabulary are never in memory for all rows."""
        # On a CPU the probabilities of a block stay in its cache, and rows are filled up, so that their bits
        # are the same always.
        for rows in hidden.to(self.output_device).split(self.memory.logits_rows):  # type: ignore[no-untyped-call]
            padding = 0 if self.texts_together else -len(rows) % ROW_MULTIPLE
            filled = torch.cat([rows, rows.new_zeros((padding, rows.shape[1]))]) if padding else rows
            projected = self._project(filled)[: len(rows)]  # (rows, vocabulary)
            WORK.add_rows(len(rows), self._operations_a_row)
            for block in projected.split(self.sizes.softmax_rows):
                yield logits_of(self.config, block.float()).log_softmax(dim=-1)

    def token_log_probabilities(self, hidden: Tensor, targets: Sequence[int]) -> list[float]:
        """Natural log probability of `targets[r]` after hidden state r, for hidden states (rows, hidden)."""
        values: list[float] = []
        for log_probs in self.log_probability_blocks(hidden):  # (rows, vocabulary)
            wanted = torch.tensor(
                targets[len(values) : len(values) + len(log_probs)], device=log_probs.device
            )
            values.extend(log_probs.gather(1, wanted[:, None])[:, 0].tolist())
        return values

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary, float32, (rows, vocabulary), for a few hidden states (rows, hidden)."""
        return logits_of(self.config, self._project(hidden.to(self.output_device)).float())
