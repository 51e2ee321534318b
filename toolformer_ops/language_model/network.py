"""The network: hidden states of token sequences, and log probabilities of the rows that are asked for.

`Network.hidden_states` is the plain way: sequences from their first token, no cache, packed without padding (`packing.py`).

`Network.run` is the shared way: one pass over tokens of many texts, whose attention is computed by the caller (`attention.py`)
over a cache that they share (`kv_cache.py`). transformers calls it in place of a network's own attention (its attention interface;
the method `_attn` for GPT-J, which has none). An architecture whose configuration says that this is not exact is refused.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.memory import DeviceMemory
from toolformer_ops.language_model.models.sharing import require_shared_cache
from toolformer_ops.language_model.packing import ROW_MULTIPLE, PackedSequences, fill_passes
from toolformer_ops.language_model.pulse import Pulse

CPU_SOFTMAX_ROWS = 32
"""Of the projected rows, so many at once become probabilities on a CPU, in its cache: a row of a large vocabulary is a megabyte."""
_ATTENTION = "toolformer_ops"
_UNBOUNDED_TOKENIZER_LENGTH = 10**9


class Network:
    """A causal language model of transformers, in inference mode."""

    def __init__(self, network: Any, tokenizer_length: int) -> None:
        self.network = network.eval().requires_grad_(False)
        self.config = network.config.get_text_config(decoder=True)
        self.device = torch.device(network.get_input_embeddings().weight.device)
        """Where token ids go."""
        self.dtype: torch.dtype = network.dtype
        self.number_format = str(self.dtype).removeprefix("torch.")
        self.window_tokens = _window_tokens(self.config, tokenizer_length)
        self.sliding_window = _sliding_window(self.config, self.window_tokens)
        self.memory = DeviceMemory(network)
        """How much may be in flight."""
        self.pulse = Pulse()
        """Told what is done after each pass."""
        self._decoder = network.base_model
        self._plain_attention = [  # GPT-J's
            module for module in network.modules() if hasattr(module, "_attn") and hasattr(module, "scale_attn")
        ]
        self._project = network.get_output_embeddings()
        self.output_device = torch.device(self._project.weight.device)
        """Where log probabilities are; another one than `device` where layers are on several."""
        self.kind = "cpu" if self.device.type == "cpu" else "cuda"
        """Which of the budgets by kind of device apply."""
        self.texts_together = self.kind != "cpu"
        """Whether all texts are attended to in one set of operations, padded to the longest: few launches, but more arithmetic."""
        require_shared_cache(type(self.network).__name__, self.config.to_dict())

    @property
    def float32_bytes(self) -> int:
        """What the weights would take in float32."""
        return int(4 * sum(parameter.numel() for parameter in self.network.parameters()))

    def let_go(self) -> None:
        """Free the weights and what was computed with them, whoever still refers to this model; it can no longer be used."""
        for parameter in self.network.parameters():
            parameter.data = parameter.data.new_empty(0)

    def hidden_states(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Last hidden states of each sequence, (tokens, hidden) each, in the order given; of its tokens `rows[n]` if given.

        Computed in batches that fit into memory, halved if they do not; rows that are not asked for are not kept.
        """
        found: dict[int, Tensor] = {}
        for batch in fill_passes(sequences, self.memory.pass_tokens, share=self.kind == "cpu"):
            states = self.memory.halving(lambda part: self._packed_pass(sequences, rows, part), batch, "sequences")
            found.update(zip(batch, states, strict=True))
            self.pulse("sequences read", len(found), len(sequences))
        return [found[index] for index in range(len(sequences))]

    def run(self, ids: np.ndarray, positions: np.ndarray, attend: Callable[..., Tensor]) -> Tensor:
        """One pass over tokens, (tokens,), at these positions; last hidden states, (tokens, hidden).

        `attend(layer, queries, keys, values, window, scale, softcap)` computes each layer's attention, (tokens, heads, width).
        """
        both = torch.from_numpy(np.stack([ids, positions])).to(self.device)[:, None]  # (2, 1, tokens)
        with self._attention(attend):
            found = self._decoder(input_ids=both[0], position_ids=both[1], use_cache=False)
        hidden: Tensor = found.last_hidden_state[0]
        return hidden

    @contextlib.contextmanager
    def _attention(self, attend: Callable[..., Tensor]) -> Iterator[None]:
        """The network's layers call `attend` while this lasts."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

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
            window = sliding_window if self.sliding_window is not None else None
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            rows, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # (tokens, heads, width)
            return attend(module.layer_idx, rows, keys, values, window, scale, softcap)[None], None

        def of_gptj(module: Any) -> Any:
            """GPT-J's own method, from and to (1, heads, tokens, width)."""

            def attn(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
                mixed, _ = from_layer(module, query, key, value, mask, scaling=1.0 / float(module.scale_attn))
                return mixed.transpose(1, 2), None

            return attn

        before = self.config._attn_implementation
        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, from_layer)
        self.config._attn_implementation = _ATTENTION
        for module in self._plain_attention:
            module._attn = of_gptj(module)
        try:
            yield
        finally:
            self.config._attn_implementation = before
            for module in self._plain_attention:
                del module._attn

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Natural log probabilities over the vocabulary, float32, (rows, vocabulary), for hidden states (rows, hidden).

        On a CPU the rows are padded to a multiple meanwhile, so that a row has the same bits in every batch (`kv_cache.py`).
        """
        return torch.cat(list(self.log_probability_blocks(hidden)))

    def log_probability_blocks(self, hidden: Tensor) -> Iterator[Tensor]:
        """The same block by block, so that all rows of a large vocabulary are never in memory together."""
        # On a CPU the probabilities of a block stay in its cache, and rows are filled up, so that their bits are the same always.
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

    def _packed_pass(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]] | None, batch: Sequence[int]
    ) -> list[Tensor]:
        packed = PackedSequences([sequences[index] for index in batch], share=self.kind == "cpu")
        hidden = self.run(packed.ids.numpy(), packed.positions.numpy(), packed.attend)  # (tokens, hidden)
        wanted = [range(len(sequences[index])) if rows is None else rows[index] for index in batch]
        places = [of_sequence[row] for of_sequence, own in zip(packed.places, wanted, strict=True) for row in own]
        kept = hidden[torch.tensor(places, device=hidden.device)]
        return list(kept.split([len(own) for own in wanted]))  # type: ignore[no-untyped-call]


def _window_tokens(config: Any, tokenizer_length: int) -> int:
    for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    if tokenizer_length < _UNBOUNDED_TOKENIZER_LENGTH:
        return tokenizer_length
    raise ModelError(
        "expected max_position_embeddings in config.json or model_max_length in tokenizer_config.json, found neither. "
        "Add the longest sequence that the model was trained on."
    )


def _sliding_window(config: Any, window_tokens: int) -> int | None:
    """Tokens that a sliding layer looks back, itself included; None if no layer forgets within the model's window."""
    window = getattr(config, "sliding_window", None)
    if not window or window >= window_tokens or getattr(config, "use_sliding_window", True) is False:
        return None
    layers = getattr(config, "layer_types", None)
    if layers and "sliding_attention" not in layers:
        return None
    return int(window)
