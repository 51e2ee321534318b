"""`LanguageModel`: the engine's one door.

Loads a causal language model and finds, samples and scores calls with it.

Positions, samples and losses of several texts are computed together (`context.py`, `sampling.py`,
`scoring.py`). On a CPU the same text gives the same numbers, bit for bit, in every batch and order, but for
mixtures of experts, whose losses may differ by 1e-6 nats; on other devices they may differ by rounding.
"""

import dataclasses
import functools
import gc
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model import kv_cache, perplexity, scoring
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.columns import CachedText
from toolformer_ops.language_model.comparison import compared_model
from toolformer_ops.language_model.context import ContextBuilder, ReadCallStart, best_positions, call_starts
from toolformer_ops.language_model.devices import DeviceMemory
from toolformer_ops.language_model.kv_cache import KVCache, read_prompt
from toolformer_ops.language_model.losses import KEEP_RULES, KeepRule
from toolformer_ops.language_model.models.loading import load_network, load_weights
from toolformer_ops.language_model.perplexity import TextLoss
from toolformer_ops.language_model.sampling import Sampler, SamplingSettings
from toolformer_ops.language_model.scoring import Rung, Texts, verified_losses
from toolformer_ops.language_model.tokenization import AnnotationPrompt, Tokenization, TokenizedText
from toolformer_ops.records import (
    FLOAT32,
    TF32,
    CallLosses,
    CallPosition,
    LossWithResult,
    PlacedCall,
    VerifyInFloat32,
)

logger = logging.getLogger(__name__)


class LanguageModel:
    """A causal language model M, as the annotation stages use it. Not for use by several threads at once."""

    def __init__(
        self,
        model: CausalModel,
        tokenization: Tokenization,
        identity: str,
        load: Callable[[str], CausalModel] | None = None,
    ) -> None:
        """`load` loads the same weights in a number format.

        Without it `model` is used where float32 is asked for, too.
        """
        self.identity = identity
        """`name@content hash` or `hub id@revision`: what goes into recipes."""
        self.number_format = model.number_format
        """float32, bfloat16 or float16: that of the weights."""
        self.window_tokens = model.window_tokens
        """The model's window, in tokens."""
        self.margins = {rule: dict(scoring.MARGINS) for rule in KEEP_RULES}
        """By keep rule and number format, the nats by which a gain may be off (`runs/rounding.py`)."""
        self._tokenization = tokenization
        self._builder = ContextBuilder(model, tokenization)
        self._loaded = {self.number_format: model} if load else {self.number_format: model, FLOAT32: model}
        self._load = load

    @classmethod
    def load(
        cls,
        path_or_hub_id: str,
        revision: str | None = None,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int = 1,
        settings: Settings | None = None,
    ) -> "LanguageModel":
        """Load safetensors from a folder, from S3, or from the hub at a pinned revision.

        No code of a model is run. `settings` (the deployment's where None) say where S3, its cache and the
        hub are. `dtype` is float32, bfloat16 or float16 (float32 weights are then loaded once a call needs
        them); `device` cpu, cuda or cuda:N; `threads` CPU threads of this process.

        Raises:
            ModelError: there is no such model, or it cannot be used here.
        """
        network, tokenizer, identity = load_network(
            path_or_hub_id, revision, dtype, device, threads, settings
        )
        longest = tokenizer.model_max_length

        def load(number_format: str) -> CausalModel:
            return compared_model(
                load_weights(path_or_hub_id, revision, number_format, device, threads, settings),
                longest,
                settings,
            )

        return cls(compared_model(network, longest, settings), Tokenization(tokenizer), identity, load)

    @property
    def read_tokens(self) -> int:
        """How many tokens of texts are worth reading for positions together, before calls are sampled."""
        return self._model.memory.read_tokens

    def tokenize(self, text: str) -> TokenizedText:
        """The one encoding of `text` that positions refer to."""
        return self._tokenization.tokenize(text)

    @torch.inference_mode()
    def find_positions(
        self,
        prompt: AnnotationPrompt,
        texts: Sequence[str],
        *,
        at_most: int,
        threshold: float,
        allowed: Sequence[Callable[[CallPosition], bool]] | None = None,
    ) -> list[list[CallPosition]]:
        """For each text, the `at_most` word starts with the largest p(" [") above `threshold`.

        They are in the order of the text. `allowed` says for each text which word starts count; None: all.
        Short texts are read together; each has the same positions, bit for bit, as when it is read alone (on
        a CPU).

        Raises:
            ModelError: the prompt leaves no room for text in the model's window.
        """
        positions = self._contexts.find_positions(prompt, [self.tokenize(text) for text in texts])
        if allowed is not None:
            positions = [
                list(filter(allows, text_positions))
                for allows, text_positions in zip(allowed, positions, strict=True)
            ]
        return [best_positions(text_positions, at_most, threshold) for text_positions in positions]

    def start_sampling(
        self,
        prompt: AnnotationPrompt,
        *,
        samples: int,
        max_new_tokens: int,
        call_start: str,
        temperature: float,
        top_p: float,
        until_arrow: bool = False,
    ) -> Sampler:
        """A sampler of calls.

        It draws `samples` continuations of `call_start` at each position of the texts that are added to it. A
        continuation's text is all between "[" and "]" (with `until_arrow`, the arrow), including what
        `call_start` holds of it; equal ones are not merged. The same seed key, position and sample index draw
        with the same random numbers in every batch. Where texts are added soon after `find_positions` (up to
        `memory.kept_text_tokens`), their KV caches are used again.

        Raises:
            ModelError: a number is out of its bounds.
        """
        settings = SamplingSettings(
            samples=samples, max_new_tokens=max_new_tokens, call_start=call_start, temperature=temperature, top_p=top_p,
            until_arrow=until_arrow,
        )  # fmt: skip
        return Sampler(self._model, self._tokenization, self._contexts, prompt, settings)

    def report(self, what: str, done: int, total: int) -> None:
        """Say how far the caller's own work is.

        The log has it when the model was silent for a minute (`Pulse`).
        """
        self._model.pulse(what, done, total)

    def forget_texts(self) -> None:
        """Drop the KV caches of the last texts.

        They are computed again, to the same bits, when they are needed.
        """
        self._builder.forget_texts()

    @torch.inference_mode()
    def gain_bounds_without_call(
        self, texts: Sequence[tuple[str, Sequence[int]]], keep_rule: KeepRule = "paper"
    ) -> list[list[float]]:
        """The most that a call can gain at each of a text's tokens, in nats: see `surely_below`.

        It is computed with all the text before the token that the model's window holds. By the rule `paper`
        it is L_i(nothing), nats.
        """
        tokenized = [(self.tokenize(text), tokens) for text, tokens in texts]
        return scoring.gain_bounds_without_call(self._model, self._tokenization, tokenized, keep_rule)

    def surely_below(self, bound: float, prune_below: float, keep_rule: KeepRule = "paper") -> bool:
        """Whether `bound` proves that no call reaches `prune_below` there.

        `bound` is of a gain that this model computed. The rounding errors of the model's number format are
        allowed for. A `prune_below` of 0 is never proved.
        """
        return scoring.surely_below(bound, prune_below, self.margins[keep_rule][self.number_format])

    @torch.inference_mode()
    def score_texts(
        self,
        texts: Sequence[tuple[str, Sequence[PlacedCall]]],
        *,
        prune_below: float = 0.0,
        keep_threshold: float | None = None,
        context_tokens: int | None = None,
        verify: VerifyInFloat32 = "all",
        keep_rule: KeepRule = "paper",
    ) -> list[list[CallLosses]]:
        """The losses of each call of each text, in nats, in order.

        Losses that are not finite are returned too. With `prune_below` above 0, what provably cannot reach
        that gain is not computed (`scoring.py`). `context_tokens` is how much text before a
        position the call is scored with; None is all.

        A model in bfloat16 or float16 marks the calls that rounding may bring over `prune_below` or
        `keep_threshold` (`within_rounding`). If it verifies (`verifies`), it computes these again in TF32 or
        float32 (`scoring.py`), and those without finite losses. Then the kept calls are those of float32
        at both thresholds; with `keep` at `keep_threshold` alone; with `all` at every threshold from
        `prune_below` on, since every call that may reach it is computed again. The calls of all texts are
        computed together. All losses of a call are nan if it is so long that the model's window has no room
        for text after it.

        Raises:
            ValueError: a call's position is not in 1..tokens - 1.
            ModelError: as `verifies`.
        """

        def score(rung: Rung, tokenized_texts: Texts) -> list[list[CallLosses]]:
            with self._in_format(rung.number_format) as model:
                losses = scoring.score_texts(
                    model,
                    self._tokenization,
                    tokenized_texts,
                    prune_below=prune_below,
                    context_tokens=context_tokens,
                    keep_rule=keep_rule,
                    margin=max(rung.margin, scoring.FLOAT32_MARGIN),
                )
            if rung.number_format != TF32:
                return losses
            in_tf32 = []
            for text_losses in losses:
                in_tf32.append([dataclasses.replace(call, number_format=TF32) for call in text_losses])
            return in_tf32

        tokenized = [(self.tokenize(text), calls) for text, calls in texts]
        if self.number_format == FLOAT32:
            return score(Rung(FLOAT32, 0.0), tokenized)
        keep = prune_below if keep_threshold is None else keep_threshold
        return verified_losses(
            score,
            tokenized,
            self._rungs(verify, keep_rule),
            thresholds=[keep] if verify == "keep" else sorted({prune_below, keep}),
            always_from=prune_below if verify == "all" else math.inf,
        )

    def _rungs(self, verify: VerifyInFloat32, keep_rule: KeepRule) -> list[Rung]:
        """The number formats in which losses are computed, one after the other (`scoring.py`)."""
        margins = self.margins[keep_rule]
        own = Rung(self.number_format, margins[self.number_format])
        if not self.verifies(verify):
            return [own]
        tf32 = [Rung(TF32, margins[TF32])] if self.has_tf32 else []
        return [own, *tf32, Rung(FLOAT32, 0.0)]

    @torch.inference_mode()
    def losses_with_result(
        self,
        texts: Sequence[tuple[str, Sequence[PlacedCall]]],
        *,
        context_tokens: int | None = None,
        number_format: str = "float32",
        keep_rule: KeepRule = "paper",
    ) -> list[list[LossWithResult]]:
        """L(e(c, r)) of each call alone, in order, in float32, TF32 or the model's own format.

        On a device without TF32 it is float32.

        A loss is nan if a call is so long that the model's window has no room for text after it.

        Raises:
            ValueError: a call's position is not in 1..tokens - 1, or the number format is none of these.
        """
        if number_format not in (FLOAT32, TF32, self.number_format):
            raise ValueError(f"expected float32, tf32 or {self.number_format}, found {number_format!r}")
        tokenized = [(self.tokenize(text), calls) for text, calls in texts]
        with self._in_format(number_format) as model:
            return scoring.losses_with_result(model, self._tokenization, tokenized, context_tokens, keep_rule)

    @torch.inference_mode()
    def rounding_differences(
        self,
        texts: Sequence[tuple[str, Sequence[PlacedCall]]],
        number_format: str | None = None,
        keep_rule: KeepRule = "paper",
    ) -> list[float]:
        """By how much the gain of each call differs between a number format and float32, in nats.

        The format is the model's own if None.
        """
        tokenized = [(self.tokenize(text), calls) for text, calls in texts]
        computed = []
        for one in (number_format or self.number_format, FLOAT32):
            with self._in_format(one) as model:
                computed.append(
                    scoring.score_texts(model, self._tokenization, tokenized, keep_rule=keep_rule)
                )
        differences = []
        for losses_in_format, in_float32 in zip(*computed, strict=True):
            for losses, right in zip(losses_in_format, in_float32, strict=True):
                difference = abs(losses.gain_bound - right.gain_bound)
                if math.isfinite(difference):
                    differences.append(difference)
        return differences

    @functools.cached_property
    def has_tf32(self) -> bool:
        """Whether the device computes float32 products in TF32, as NVIDIA's do from Ampere on."""
        device = self._model.device
        return (
            device.type == "cuda"
            and torch.version.hip is None
            and torch.cuda.get_device_capability(device) >= (8, 0)
        )

    def verifies(self, choice: VerifyInFloat32) -> bool:
        """Whether losses are computed again in float32 under this choice.

        With `auto` and `keep` they are if the device has room for both weights.

        Raises:
            ModelError: the choice asks for it, and the device could not hold even the float32 weights alone.
        """
        if self.number_format == FLOAT32 or choice == "off":
            return False
        if choice in ("auto", "keep") or self._has_room:
            return self._has_room
        if not self._could_hold_float32:
            raise ModelError(
                f"verify_in_float32 {choice}: expected a device that holds the weights in float32, "
                f"{self._model.float32_bytes / 2**30:.0f} GiB, found less. Choose auto or off, or give the "
                "pod more GPUs."
            )
        return True

    @functools.cached_property
    def _has_room(self) -> bool:
        """Whether the device has room for float32 weights, too; measured while only the others are loaded."""
        has_room = self._model.memory.has_room_for(self._model.float32_bytes)
        if not has_room:
            logger.info(
                "the device has no room for float32 weights (%.0f GiB) beside those in %s: with "
                "verify_in_float32 auto, calls near a threshold are counted and not computed again",
                self._model.float32_bytes / 2**30, self.number_format,
            )  # fmt: skip
        return has_room

    @functools.cached_property
    def _could_hold_float32(self) -> bool:
        """Whether float32 weights fit instead of the others; measured while only the others are loaded."""
        return self._model.memory.could_hold(self._model.float32_bytes)

    @property
    def _model(self) -> CausalModel:
        return self._loaded_in(self.number_format)

    @property
    def _contexts(self) -> ContextBuilder:
        """The contexts of the model in its own number format."""
        self._loaded_in(self.number_format)
        return self._builder

    @contextmanager
    def _in_format(self, number_format: str) -> Iterator[CausalModel]:
        """The model in a number format.

        Within the block products of float32 weights are rounded to TF32 if that is the format.
        """
        if number_format != TF32:
            yield self._loaded_in(number_format)
            return
        model = self._loaded_in(FLOAT32)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.has_tf32 else before)
        try:
            yield model
        finally:
            torch.set_float32_matmul_precision(before)

    def _loaded_in(self, number_format: str) -> CausalModel:
        """The model with weights in its own number format or in float32, loaded if it is not there.

        If the device has no room for both, one takes the other's place, which takes as long as loading. So
        callers ask for many calls at a time in one format and then in the other.
        """
        if number_format not in self._loaded:
            self.forget_texts()
            if not self._has_room:
                self._builder.let_go()
                logger.info("weights in %s take the place of the others", number_format)
                for other in self._loaded.values():
                    other.let_go()
                self._loaded.clear()
                gc.collect()
            assert self._load is not None  # or both are there  # noqa: S101
            self._loaded[number_format] = self._load(number_format)
            if number_format == self.number_format:
                self._builder = ContextBuilder(self._loaded[number_format], self._tokenization)
            for model in self._loaded.values():
                model.memory = DeviceMemory(model.network)  # what the others leave
        return self._loaded[number_format]

    @torch.inference_mode()
    def text_losses(self, texts: Sequence[str]) -> list[TextLoss]:
        """How well whole texts are predicted with calls disabled (`perplexity.py`).

        Texts are computed together; the loss of a text depends on the others by rounding alone.
        """
        return perplexity.text_losses(
            self._model, self._tokenization, [self.tokenize(text) for text in texts]
        )

    @torch.inference_mode()
    def call_starts(self, texts: Sequence[str]) -> list[list[ReadCallStart]]:
        """Where the model would begin a call as it reads each text without a prompt (`context.py`), in the text's order."""
        return call_starts(self._model, self._tokenization, [self.tokenize(text) for text in texts])

    @torch.inference_mode()
    def generate_texts(
        self, prompts: Sequence[str], max_new_tokens: int, stop: str | None = None
    ) -> list[str]:
        """The most likely continuation of each prompt.

        It ends before `stop`, at the end of the document, or after `max_new_tokens`.

        Raises:
            ModelError: a prompt with its continuation does not fit into the model's window (`window_tokens`).
        """
        return kv_cache.generate_texts(self._model, self._tokenization, prompts, max_new_tokens, stop)

    @torch.inference_mode()
    def continuation_log_probabilities(self, prompt: str, continuations: Sequence[str]) -> list[float]:
        """Natural log probability of each continuation after the prompt, in order.

        Raises:
            ModelError: the prompt with its longest continuation does not fit into the model's window, or one
            of them has no token.
        """
        ids = [*self._tokenization.start_ids, *self._tokenization.ids(prompt)]
        rows = [self._tokenization.ids(continuation) for continuation in continuations]
        longest = max(map(len, rows), default=0)
        if not ids or not all(rows) or len(ids) + longest > self.window_tokens:
            raise ModelError(
                "expected a prompt and continuations of at least one token that together take at most "
                f"{self.window_tokens}, found {len(ids)} tokens and {longest}. Shorten the prompt, or choose "
                "a model with a longer window."
            )
        if not rows:
            return []
        cache = KVCache(self._model)
        cache.join([CachedText(read_prompt(self._model, ids[:-1]))] * len(rows))
        hidden = cache.extend(
            range(len(rows)), [(ids[-1], *row[:-1]) for row in rows]
        )  # what predicts each token
        targets = list(itertools.chain.from_iterable(rows))
        values = iter(self._model.token_log_probabilities(torch.cat(hidden), targets))
        return [sum(itertools.islice(values, len(row))) for row in rows]
