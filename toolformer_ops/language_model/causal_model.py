"""The network: hidden states of token sequences, and log probabilities of the rows that are asked for.

`CausalModel.hidden_states` is the plain way: sequences from their first token, no cache, packed without padding (`packing.py`), or,
for a network that cannot take them so, right-padded. Attention is causal, so what stands to the right of a token cannot change it:
padding needs no mask, and its own rows are never read.

`CausalModel.branches` is the shared way (`branches.py`): prompt, text and what is written after them in one cache. `trees`
decodes the samples of many texts together (`tree_decoding.py`).

Architectures for which this is not exact (recurrent or chunked layers, positions read from the mask) are found by
`_share_cache` from the configuration and by a comparison of both ways at load; for them branches are computed without a
cache: slower, same numbers.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.branches import Branches, CachedBranches, RecomputedBranches
from toolformer_ops.language_model.memory import DeviceMemory
from toolformer_ops.language_model.packing import (
    PackedSequences,
    fill_passes,
    takes_variable_lengths,
    variable_lengths_agree,
)
from toolformer_ops.language_model.tree_decoding import ROW_MULTIPLE, TreeDecoder
from toolformer_ops.language_model.trees import Tree

logger = logging.getLogger(__name__)

CPU_BATCH_TOKENS = 256
"""From so many padded tokens on, a larger batch hardly makes a CPU's matrix products faster (64 rows: 85 % of the rate of 512)."""
LARGEST_PADDED_SHARE = 1.06
"""Tokens with padding over tokens without, from which a batch that is large enough is closed."""
CPU_SOFTMAX_ROWS = 32
"""Of the projected rows, so many at once become probabilities on a CPU, in its cache: a row of a large vocabulary is a megabyte."""
FLOAT32_TOLERANCE = 1e-3
"""Largest difference of logits, as a share of the largest logit, that `_check_shortcuts` takes for rounding."""
LOW_PRECISION_TOLERANCE = 5e-2
"""The same in bfloat16 and float16. SmolLM2 mostly differs by 0.02 to 0.04 there, a finetuned one by 0.06 on one of two texts;
in float32 a position that is wrong by one changed its logits by 0.08, a token that is not seen by 0.13."""
ROUNDING_NATS = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.25}
"""By how much two computations of a loss reduction in this number format may differ, with room to spare: measured between bfloat16
and float32 with SmolLM2-135M, 0.03 in the mean and 0.09 at most; between two float32 batches below 1e-5. What holds for the model
at hand takes its place where it was measured (`runs/rounding.py`)."""
_ATTENTION = "toolformer_ops"
_SHARED_LAYERS = {"full_attention", "sliding_attention"}
_UNBOUNDED_TOKENIZER_LENGTH = 10**9


class CausalModel:
    """A causal language model of transformers, in inference mode."""

    def __init__(self, network: Any, tokenizer_length: int) -> None:
        self.network = network.eval().requires_grad_(False)
        self.config = network.config.get_text_config(decoder=True)
        self.device = torch.device(network.device)
        self.dtype: torch.dtype = network.dtype
        self.number_format = str(self.dtype).removeprefix("torch.")
        self.rounding_nats = ROUNDING_NATS[self.number_format]
        """By how much two computations of a loss reduction may differ."""
        self.max_positions = _max_positions(self.config, tokenizer_length)
        self.sliding_window = _sliding_window(self.config, self.max_positions)
        self.memory = DeviceMemory(network)
        """How much may be in flight."""
        self._decoder = network.base_model
        self._plain_attention = [  # GPT-J's
            module for module in network.modules() if hasattr(module, "_attn") and hasattr(module, "scale_attn")
        ]
        self._project = network.get_output_embeddings()
        self._shares_cache = _share_cache(self.config)
        self.trees: TreeDecoder | None = None
        """Decodes the samples of many texts together; None for a network that it cannot be used with."""
        self.packs = False
        """Whether sequences go through the network one behind the other, without padding."""
        self._check_shortcuts()

    @property
    def float32_bytes(self) -> int:
        """What the weights would take in float32."""
        return int(4 * sum(parameter.numel() for parameter in self.network.parameters()))

    def leave_device(self) -> None:
        """Move the weights to main memory, so that the device has room for others; only of a model that is on one GPU."""
        if self.device.type == "cuda" and not hasattr(self.network, "hf_device_map"):
            self.network.to("cpu")
            torch.cuda.empty_cache()

    def return_to_device(self) -> None:
        """Move the weights back."""
        if self.device.type == "cuda" and not hasattr(self.network, "hf_device_map"):
            torch.cuda.empty_cache()
            self.network.to(self.device)

    def hidden_states(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Last hidden states of each sequence, (tokens, hidden) each, in the order given; of its tokens `rows[n]` if given.

        Computed in batches that fit into memory, halved where they do not; rows that are not asked for are not kept.
        """
        lengths = [len(sequence) for sequence in sequences]
        batches = fill_passes(lengths, self.memory.pass_tokens) if self.packs else self._padded_batches(lengths)
        run = self._packed_pass if self.packs else self._padded_pass
        found: dict[int, Tensor] = {}
        for batch in batches:
            states = self.memory.halving(lambda part: run(sequences, rows, part), batch, "sequences")
            found.update(zip(batch, states, strict=True))
        return [found[index] for index in range(len(sequences))]

    def _padded_batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Sequences by length, the next batch begun where one is full, or large enough for the device and mostly padding else."""
        at_most = self.memory.pass_tokens
        enough = CPU_BATCH_TOKENS if self.device.type == "cpu" else at_most
        batches: list[list[int]] = []
        own = 0  # tokens of the last batch without padding
        for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
            padded = lengths[index] * (len(batches[-1]) + 1) if batches else 0
            wasteful = own >= enough and padded > LARGEST_PADDED_SHARE * (own + lengths[index])
            if not batches or padded > at_most or wasteful:
                batches.append([])
                own = 0
            batches[-1].append(index)
            own += lengths[index]
        return batches

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

    def branches(self) -> Branches:
        """One row without tokens, to be extended and forked."""
        return CachedBranches.empty(self) if self._shares_cache else RecomputedBranches(self, [[]])

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Natural log probabilities over the vocabulary, float32, (rows, vocabulary), for hidden states (rows, hidden).

        Filled up to a multiple of rows meanwhile, so that a row has the same bits whatever its company (`tree_decoding.py`).
        """
        return torch.cat(list(self.log_probability_blocks(hidden)))

    def log_probability_blocks(self, hidden: Tensor) -> Iterator[Tensor]:
        """The same block by block, so that what a large vocabulary takes is never all there."""
        block_rows = CPU_SOFTMAX_ROWS if self.device.type == "cpu" else self.memory.logits_rows
        for rows in hidden.split(self.memory.logits_rows):  # type: ignore[no-untyped-call]
            padding = rows.new_zeros((-len(rows) % ROW_MULTIPLE, rows.shape[1]))
            projected = self._project(torch.cat([rows, padding]))[: len(rows)]  # (rows, vocabulary)
            for block in projected.split(block_rows):
                yield self._scaled(block.float()).log_softmax(dim=-1)

    def token_log_probabilities(self, hidden: Tensor, targets: Sequence[int]) -> list[float]:
        """Natural log probability of `targets[r]` after hidden state r, for hidden states (rows, hidden)."""
        found: list[float] = []
        for log_probs in self.log_probability_blocks(hidden):  # (rows, vocabulary)
            wanted = torch.tensor(targets[len(found) : len(found) + len(log_probs)], device=self.device)
            found.extend(log_probs.gather(1, wanted[:, None])[:, 0].tolist())
        return found

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._scaled(self._project(hidden).float())  # (rows, vocabulary)

    def _scaled(self, projected: Tensor) -> Tensor:
        """Logits from the output projection, both (rows, vocabulary)."""
        softcap = getattr(self.config, "final_logit_softcapping", None)
        logits = softcap * torch.tanh(projected / softcap) if softcap else projected
        scale = self._logit_scale()
        return logits if scale == 1.0 else logits * scale

    def _logit_scale(self) -> float:
        divisor = getattr(self.config, "logits_scaling", None)  # Granite
        factor = getattr(self.config, "logit_scale", None)  # Cohere
        return 1.0 / float(divisor) if divisor else float(factor or 1.0)

    def _packed_pass(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]] | None, batch: Sequence[int]
    ) -> list[Tensor]:
        packed = PackedSequences([sequences[index] for index in batch])
        hidden = self.run(packed.ids.numpy(), packed.positions.numpy(), packed.attend)  # (tokens, hidden)
        wanted = [range(len(sequences[index])) if rows is None else rows[index] for index in batch]
        places = [start + row for start, own in zip(packed.starts, wanted, strict=True) for row in own]
        kept = hidden[torch.tensor(places, device=hidden.device)]
        return list(kept.split([len(own) for own in wanted]))  # type: ignore[no-untyped-call]

    def _padded_pass(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]] | None, batch: Sequence[int]
    ) -> list[Tensor]:
        longest = max(len(sequences[index]) for index in batch)
        filler = sequences[batch[0]][0]  # any token will do: nothing looks to the right
        ids = torch.tensor(
            [[*sequences[index], *[filler] * (longest - len(sequences[index]))] for index in batch], device=self.device
        )  # (batch, longest)
        hidden = self._decoder(input_ids=ids, use_cache=False).last_hidden_state  # (batch, longest, hidden)
        if rows is None:
            return [hidden[row, : len(sequences[index])] for row, index in enumerate(batch)]
        return [hidden[row, torch.tensor(list(rows[index]), device=self.device)] for row, index in enumerate(batch)]

    def _check_shortcuts(self) -> None:
        """Compare branched cache and own projection with the network's plain forward pass on a few tokens.

        Raises:
            ModelError: the projection differs, so that no loss of this model would be right.
        """
        vocabulary = int(self.config.vocab_size)
        shared = [(7 * step + 3) % vocabulary for step in range(9)]
        tails = [
            [(11 * step + 5) % vocabulary for step in range(4)],
            [(13 * step + 1) % vocabulary for step in range(3)],
        ]
        with torch.inference_mode():
            plain = [
                self.network(input_ids=torch.tensor([[*shared[:keep], *tail]], device=self.device))
                .logits[0, -1]
                .float()
                for keep, tail in zip((9, 6), tails, strict=True)
            ]
            hidden = self.hidden_states([[*shared, *tails[0]], [*shared[:6], *tails[1]]])
            if not self._agree(hidden, plain):
                raise ModelError(
                    f"{type(self.network).__name__}: expected logits that are the output projection of the last hidden "
                    f"state, found others. Choose another model, or teach language_model/causal_model.py this architecture."
                )
            self.packs = self._packs([[*shared, *tails[0]], [*shared[:6], *tails[1]]], plain)
            if self._shares_cache and not self._branches_agree(shared, tails, plain):
                logger.warning(
                    "%s: branches over a shared cache differ from plain passes, so sampling recomputes whole sequences (slow)",
                    type(self.network).__name__,
                )
                self._shares_cache = False
            trees = TreeDecoder(self.network, self.config, self.sliding_window)
            if self._shares_cache and self._trees_agree(trees, shared, tails, plain):
                self.trees = trees
            else:
                logger.info("%s: samples are decoded text by text", type(self.network).__name__)

    def _packs(self, sequences: list[list[int]], plain: list[Tensor]) -> bool:
        """Whether sequences can go through the network packed: by its structure, and by a comparison with plain passes."""
        variable = takes_variable_lengths(self.device, self.dtype, getattr(self.config, "attn_logit_softcapping", None))
        if not self._shares_cache or (self.device.type != "cpu" and not variable):
            return False  # sequence by sequence on a GPU is slower than padded
        self.packs = True
        try:
            agrees = self._agree(self.hidden_states(sequences), plain)
            agrees = agrees and (not variable or variable_lengths_agree(self.device, self.dtype))
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
            logger.info("%s does not take packed sequences: %s", type(self.network).__name__, error)
            agrees = False
        if not agrees:
            logger.warning("%s: losses are computed in padded passes (slower)", type(self.network).__name__)
        return agrees

    def _trees_agree(self, trees: TreeDecoder, shared: list[int], tails: list[list[int]], plain: list[Tensor]) -> bool:
        try:
            trunk = CachedBranches.empty(self)
            trunk.extend([shared])
            first, second = (
                Tree(trunk.columns(0, 4), trunk.columns(4), torch.tensor([keep], device=self.device)) for keep in (9, 6)
            )
            last = [torch.empty(0)] * 2
            for step in range(len(tails[0])):
                growing = [
                    (index, tree, tail[step])
                    for index, (tree, tail) in enumerate(zip((first, second), tails, strict=True))
                    if step < len(tail)
                ]
                found = trees.step([tree for _, tree, _ in growing], [[token] for _, _, token in growing])
                for (index, _, _), hidden in zip(growing, found, strict=True):
                    last[index] = hidden
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
            logger.info("%s does not decode in trees: %s", type(self.network).__name__, error)
            return False
        return self._agree(last, plain)

    def _branches_agree(self, shared: list[int], tails: list[list[int]], plain: list[Tensor]) -> bool:
        try:
            trunk = self.branches()
            trunk.extend([shared])
            branched = trunk.fork([0, 0], [9, 6])
            branched.extend([tail[:1] for tail in tails])
            last = branched.extend([tail[1:] for tail in tails])
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
            logger.info("%s does not take one mask row a token: %s", type(self.network).__name__, error)
            return False
        return self._agree(last, plain)

    def _agree(self, hidden: list[Tensor], expected: list[Tensor]) -> bool:
        """Whether the last of each sequence's hidden states gives the expected logits, but for rounding.

        In low precision one sequence is enough: rounding may tear one of them apart, a wrong computation tears all.
        """
        tolerance = FLOAT32_TOLERANCE if self.dtype == torch.float32 else LOW_PRECISION_TOLERANCE
        agree = [
            float((self._logits(rows[-1:])[0] - logits).abs().max()) <= tolerance * float(logits.abs().max())
            for rows, logits in zip(hidden, expected, strict=True)
        ]
        return all(agree) if self.dtype == torch.float32 else any(agree)


def _max_positions(config: Any, tokenizer_length: int) -> int:
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


def _sliding_window(config: Any, max_positions: int) -> int | None:
    """Tokens that a sliding layer looks back, itself included; None where no layer forgets within the model's window."""
    window = getattr(config, "sliding_window", None)
    if not window or window >= max_positions or getattr(config, "use_sliding_window", True) is False:
        return None
    layers = getattr(config, "layer_types", None)
    if layers and "sliding_attention" not in layers:
        return None
    return int(window)


def _share_cache(config: Any) -> bool:
    layers = getattr(config, "layer_types", None) or []
    local = "local" in (getattr(config, "attention_layers", None) or [])  # GPT-Neo masks inside its layers
    return set(layers) <= _SHARED_LAYERS and not local
