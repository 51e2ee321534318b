"""The network: hidden states of token sequences, and log probabilities of the rows that are asked for.

`CausalModel.hidden_states` is the plain way: sequences from their first token, no cache, packed without padding (`packing.py`), or,
for a network that cannot take them so, right-padded. Attention is causal, so tokens to the right of a token cannot change it:
padding needs no mask, and its own rows are never read.

`CausalModel.run` is the shared way: one pass over tokens of many texts, whose attention is computed by the caller (`attention.py`)
over a cache that they share (`kv_cache.py`). transformers calls it in place of a network's own attention (its attention interface;
the method `_attn` for GPT-J, which has none).

Architectures for which this is not exact (recurrent or chunked layers, positions read from the mask) are found by their
configuration and by a comparison of both ways on a few tokens at load. The comparison is made in float32 with the network's own
weights, so that its result is one of structure and not of the rounding of a low-precision format.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.kv_cache import ROW_MULTIPLE, CachedPrompt, CachedText, KVCache
from toolformer_ops.language_model.memory import DeviceMemory
from toolformer_ops.language_model.packing import (
    PackedSequences,
    fill_passes,
    takes_variable_lengths,
    variable_lengths_agree,
)
from toolformer_ops.language_model.pulse import Pulse

logger = logging.getLogger(__name__)

CPU_BATCH_TOKENS = 256
"""From so many padded tokens on, a larger batch hardly makes a CPU's matrix products faster (64 rows: 85 % of the rate of 512)."""
LARGEST_PADDED_SHARE = 1.06
"""Tokens with padding over tokens without, from which a batch that is large enough is closed."""
CPU_SOFTMAX_ROWS = 32
"""Of the projected rows, so many at once become probabilities on a CPU, in its cache: a row of a large vocabulary is a megabyte."""
MAX_PROMPTS = 16
"""Prompts whose keys and values are kept: those of the tools, and heads that texts to be continued share."""
TOLERANCE = 1e-3
"""Largest difference of logits, as a share of the largest logit, that the comparison at load takes for rounding of float32. A
position that is wrong by one changed SmolLM2's logits by 0.08, a token that is not seen by 0.13."""
_ATTENTION = "toolformer_ops"
_SHARED_LAYERS = {"full_attention", "sliding_attention"}
_UNBOUNDED_TOKENIZER_LENGTH = 10**9


class CausalModel:
    """A causal language model of transformers, in inference mode."""

    def __init__(self, network: Any, tokenizer_length: int) -> None:
        self.network = network.eval().requires_grad_(False)
        self.config = network.config.get_text_config(decoder=True)
        self.device = torch.device(network.get_input_embeddings().weight.device)
        """Where token ids go."""
        self.dtype: torch.dtype = network.dtype
        self.number_format = str(self.dtype).removeprefix("torch.")
        self.max_positions = _max_positions(self.config, tokenizer_length)
        self.sliding_window = _sliding_window(self.config, self.max_positions)
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
        self.shares_cache = _share_cache(self.config)
        """Whether sequences can share a KV cache; else each is computed from its first token in each step."""
        self.packs = False
        """Whether sequences go through the network one behind the other, without padding."""
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

    def hidden_states(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Last hidden states of each sequence, (tokens, hidden) each, in the order given; of its tokens `rows[n]` if given.

        Computed in batches that fit into memory, halved where they do not; rows that are not asked for are not kept.
        """
        if self.packs:
            batches = list(fill_passes(sequences, self.memory.pass_tokens, share=self.kind == "cpu"))
        else:
            batches = self._padded_batches([len(sequence) for sequence in sequences])
        run = self._packed_pass if self.packs else self._padded_pass
        found: dict[int, Tensor] = {}
        for batch in batches:
            states = self.memory.halving(lambda part: run(sequences, rows, part), batch, "sequences")
            found.update(zip(batch, states, strict=True))
            self.pulse("sequences read", len(found), len(sequences))
        return [found[index] for index in range(len(sequences))]

    def _padded_batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Sequences by length, the next batch begun where one is full, or large enough for the device and mostly padding else."""
        at_most = self.memory.pass_tokens
        enough = CPU_BATCH_TOKENS if self.kind == "cpu" else at_most
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

    def new_cache(self) -> KVCache:
        """A KV cache without rows."""
        return KVCache(self)

    def cached_prompt(self, ids: tuple[int, ...]) -> CachedPrompt:
        """The keys and values of a prompt's first tokens, computed once; the last `MAX_PROMPTS` are kept."""
        if ids not in self._prompts:
            if len(self._prompts) >= MAX_PROMPTS:
                self._prompts.pop(next(iter(self._prompts)))
            self._prompts[ids] = CachedPrompt.read(self, ids)
        return self._prompts[ids]

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
        return [hidden[row, torch.tensor(list(rows[index]), device=hidden.device)] for row, index in enumerate(batch)]

    def _compare_with_plain_passes(self) -> None:
        """Compare shared cache and own projection with the network's plain forward pass on a few tokens.

        Raises:
            ModelError: the projection differs, so that no loss of this model would be right.
        """
        name = type(self.network).__name__
        vocabulary = int(self.config.vocab_size)
        shared = [(7 * step + 3) % vocabulary for step in range(9)]
        tails = [
            [(11 * step + 5) % vocabulary for step in range(4)],
            [(13 * step + 1) % vocabulary for step in range(4)],
        ]
        sequences = [[*shared[:seen], *tail] for seen, tail in zip((9, 6), tails, strict=True)]
        with torch.inference_mode(), _in_float32(self.network):
            plain = [
                self.network(input_ids=torch.tensor([ids], device=self.device)).logits[0, -1].float()
                for ids in sequences
            ]
            if not self._agree([states[-1] for states in self.hidden_states(sequences)], plain):
                raise ModelError(
                    f"{name}: expected logits that are the output projection of the last hidden state, found others. Choose "
                    f"another model, or teach language_model/causal_model.py this architecture."
                )
            self.packs = self._packs(sequences, plain)
            if self.shares_cache:
                try:
                    self.shares_cache = self._agree(list(self._over_shared_cache(shared, tails)), plain)
                except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
                    logger.info("%s: a pass over a shared cache fails: %s", name, error)
                    self.shares_cache = False
        if not self.shares_cache:
            logger.warning(
                "%s: sequences cannot share a KV cache, so each token of a call or an answer takes a pass over all tokens before "
                "it: with a prompt of 500 tokens about 500 times the arithmetic. Choose a model with full or sliding attention "
                "where that is too slow.",
                name,
            )

    def _packs(self, sequences: list[list[int]], plain: list[Tensor]) -> bool:
        """Whether sequences can go through the network packed: by its structure, and by a comparison with plain passes."""
        variable = takes_variable_lengths(self.device, self.dtype, getattr(self.config, "attn_logit_softcapping", None))
        if not self.shares_cache or (self.device.type != "cpu" and not variable):
            return False  # sequence by sequence on a GPU is slower than padded
        self.packs = True
        try:
            agrees = self._agree([states[-1] for states in self.hidden_states(sequences)], plain)
            agrees = agrees and (not variable or variable_lengths_agree(self.device, self.dtype))
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
            logger.info("%s does not take packed sequences: %s", type(self.network).__name__, error)
            agrees = False
        if not agrees:
            logger.warning("%s: losses are computed in padded passes (slower)", type(self.network).__name__)
        return agrees

    def _over_shared_cache(self, shared: list[int], tails: list[list[int]]) -> Tensor:
        """Last hidden states, (2, hidden), of two rows that continue a prompt of 4 tokens and a text."""
        cache = KVCache(self)
        cache.join([CachedText(CachedPrompt.read(self, shared[:4]))])
        cache.extend([0], [shared[4:]])
        [text] = cache.texts()
        cache = KVCache(self)
        cache.share([(text, (9, 6), (0, 1))])
        for tokens in zip(*tails, strict=True):
            hidden = cache.step(np.array(tokens))
        return hidden

    def _agree(self, hidden: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
        """Whether hidden states give the expected logits, but for rounding of float32."""
        projected = self._project(torch.stack(list(hidden)).to(self.output_device)).float()
        return all(
            float((found - logits).abs().max()) <= TOLERANCE * float(logits.abs().max())
            for found, logits in zip(self._scaled(projected), expected, strict=True)
        )


@contextlib.contextmanager
def _in_float32(network: Any) -> Iterator[None]:
    """Each module computes with its weights in float32 while this lasts; they are converted while it runs and not before."""
    if network.dtype == torch.float32:
        yield
        return
    held: dict[Any, dict[str, torch.nn.Parameter]] = {}

    def convert(module: Any, *_: Any) -> None:
        held[module] = {name: one for name, one in module.named_parameters(recurse=False) if one.is_floating_point()}
        for name, one in held[module].items():
            setattr(module, name, torch.nn.Parameter(one.float(), requires_grad=False))

    def restore(module: Any, *_: Any) -> None:
        for name, one in held.pop(module).items():
            setattr(module, name, one)

    hooks = [module.register_forward_pre_hook(convert) for module in network.modules()]
    hooks += [module.register_forward_hook(restore) for module in network.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in list(held):
            restore(module)


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
