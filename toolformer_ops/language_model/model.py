"""`LanguageModel`: the engine's one door. Loads a causal language model and finds, samples and scores calls with it.

Positions, samples and losses of several texts are computed together (`context.py`, `sampling.py`, `scoring.py`). On a CPU the same
text gives the same numbers, bit for bit, in every batch and order; on other devices they may differ by rounding.
"""

import gc
import logging
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from toolformer_ops.config import Settings
from toolformer_ops.language_model import context, decode_loop, perplexity, scoring
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.context import ContextBuilder
from toolformer_ops.language_model.perplexity import TextLoss
from toolformer_ops.language_model.sampling import Sampler, SamplingSettings
from toolformer_ops.language_model.scoring import ScoredToken
from toolformer_ops.language_model.tokenization import AnnotationPrompt, Tokenization, TokenizedText
from toolformer_ops.models.loading import load_network, load_weights
from toolformer_ops.records import CallLosses, CallPosition, PlacedCall

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


class LanguageModel:
    """A causal language model M, as the annotation stages use it. Not for use by several threads at once."""

    def __init__(
        self,
        model: CausalModel,
        tokenization: Tokenization,
        identity: str,
        load_float32: Callable[[], CausalModel] | None = None,
    ) -> None:
        self.identity = identity
        """`name@content hash` or `hub id@revision`: what goes into recipes."""
        self._model = model
        self._tokenization = tokenization
        self._contexts = ContextBuilder(model, tokenization)
        self._load_float32 = load_float32 or (lambda: model)
        self._float32_model: CausalModel | None = None

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
        """Load safetensors from a folder, from S3, or from the hub at a pinned revision; no code of a model is run.

        `settings` (the deployment's where None) say where S3, its cache and the hub are. `dtype` is float32, bfloat16 or
        float16 (float32 weights are then loaded beside, once a call needs them); `device` cpu, cuda or cuda:N; `threads` CPU
        threads of this process.

        Raises:
            ModelError: there is no such model, or it cannot be used here.
        """
        network, tokenizer, identity = load_network(path_or_hub_id, revision, dtype, device, threads, settings)
        longest = tokenizer.model_max_length

        def load_float32() -> CausalModel:
            return CausalModel(load_weights(path_or_hub_id, revision, "float32", device, threads, settings), longest)

        return cls(CausalModel(network, longest), Tokenization(tokenizer), identity, load_float32)

    @property
    def max_positions(self) -> int:
        """The model's window, in tokens."""
        return self._model.max_positions

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
        """For each text, the `at_most` word starts with the largest p(" [") above `threshold`, in the order of the text.

        `allowed` says of each text which word starts count; all without it. Short texts are read together; each has the same
        positions, bit for bit, as when it is read alone (on a CPU).

        Raises:
            ModelError: the prompt leaves no room for text in the model's window.
        """
        found = context.find_positions(
            self._model, self._contexts, self._tokenization.marker_ids, prompt, [self.tokenize(text) for text in texts]
        )
        if allowed is not None:
            found = [list(filter(allows, of_text)) for allows, of_text in zip(allowed, found, strict=True)]
        return [context.best_positions(of_text, at_most, threshold) for of_text in found]

    def start_sampling(
        self,
        prompt: AnnotationPrompt,
        *,
        samples: int,
        max_new_tokens: int,
        call_start: str,
        temperature: float,
        top_p: float,
    ) -> Sampler:
        """A sampler of calls: `samples` continuations of `call_start` at each position of the texts that are added to it.

        A continuation's text is all between "[" and "]", with what `call_start` holds of it; equal ones are not merged. The same
        seed key, position and sample index draw with the same random numbers in every batch. Where texts
        are added soon after `find_positions` (up to `context.KEPT_TEXT_TOKENS`), their KV caches are used again.

        Raises:
            ModelError: a number is out of its bounds.
        """
        settings = SamplingSettings(
            samples=samples, max_new_tokens=max_new_tokens, call_start=call_start, temperature=temperature, top_p=top_p
        )
        return Sampler(self._model, self._tokenization, self._contexts, prompt, settings)

    def report(self, what: str, done: int, total: int) -> None:
        """Say how far the caller's own work is; the log has it when the model was silent for a minute (`pulse.py`)."""
        self._model.pulse(what, done, total)

    def forget_texts(self) -> None:
        """Drop the KV caches of the last texts; they are computed again, to the same bits, when they are needed."""
        self._contexts.forget_texts()

    @torch.inference_mode()
    def losses_without_call(self, texts: Sequence[tuple[str, Sequence[int]]]) -> list[list[float]]:
        """L_i(nothing) at each of a text's tokens, nats, with all the text before it that the model's window holds.

        No call at i lowers the loss by more: see `surely_below`.
        """
        tokenized = [(self.tokenize(text), tokens) for text, tokens in texts]
        return scoring.losses_without_call(self._model, self._tokenization, tokenized)

    def surely_below(self, bound: float, prune_below: float) -> bool:
        """Whether `bound`, a loss or loss reduction that this model computed, proves that no call reaches `prune_below` there.

        The rounding errors of the model's number format are allowed for. Never for a `prune_below` of 0.
        """
        return scoring.surely_below(bound, prune_below, self._model.rounding_nats)

    @torch.inference_mode()
    def score_texts(
        self,
        texts: Sequence[tuple[str, Sequence[PlacedCall]]],
        *,
        prune_below: float = 0.0,
        float32_from: float | None = 0.0,
        float32_near: Sequence[float] = (),
        context_tokens: int | None = None,
    ) -> list[list[CallLosses]]:
        """The losses of each call of each text, in nats, in order; losses that are not finite are returned too.

        With `prune_below` above 0, what provably cannot reach that loss reduction is not computed (`scoring.py`).
        `context_tokens` is how much text before a position the call is scored with; None is all.

        A model in bfloat16 or float16 computes some calls again in float32, those of all texts together: those without finite
        losses; those that may reach `float32_from`, so that at every threshold from there on the kept calls are those of float32;
        those that rounding may bring over one of the thresholds `float32_near`, so that at these the kept calls are.
        All are nan where a call is so long that the model's window has no room for text behind it.

        Raises:
            ValueError: a call's position is not in 1..tokens - 1.
        """
        settings = scoring.ScoringSettings(prune_below, context_tokens)
        tokenized = [(self.tokenize(text), calls) for text, calls in texts]
        found = scoring.score_texts(self._model, self._tokenization, tokenized, settings)
        if self._model.dtype == torch.float32:
            return found
        margin = self._model.rounding_nats

        def is_decided(bound: float) -> bool:
            """Whether float32 would say the same of a loss reduction, or of its bound."""
            below = float32_from is None or bound < float32_from - margin
            return math.isfinite(bound) and below and all(abs(bound - threshold) > margin for threshold in float32_near)

        again = [
            [index for index, losses in enumerate(of_text) if not is_decided(losses.reduction_bound)]
            for of_text in found
        ]
        if any(again):
            asked = [
                (text, [calls[index] for index in indices])
                for (text, calls), indices in zip(tokenized, again, strict=True)
            ]
            exact = self._in_float32(lambda model: scoring.score_texts(model, self._tokenization, asked, settings))
            for of_text, indices, right in zip(found, again, exact, strict=True):
                for index, losses in zip(indices, right, strict=True):
                    of_text[index] = losses
        return found

    @torch.inference_mode()
    def losses_with_result(
        self,
        texts: Sequence[tuple[str, Sequence[PlacedCall]]],
        *,
        context_tokens: int | None = None,
        number_format: str = "float32",
    ) -> list[list[float]]:
        """L(e(c, r)) of each call alone, nats, in order, in float32 or in the model's own format.

        nan where a call is so long that the model's window has no room for text behind it.

        Raises:
            ValueError: a call's position is not in 1..tokens - 1, or the number format is neither.
        """
        if number_format not in ("float32", self.number_format):
            raise ValueError(f"expected float32 or {self.number_format}, found {number_format!r}")
        tokenized = [(self.tokenize(text), calls) for text, calls in texts]

        def losses(model: CausalModel) -> list[list[float]]:
            return scoring.losses_with_result(model, self._tokenization, tokenized, context_tokens)

        return losses(self._model) if number_format == self.number_format else self._in_float32(losses)

    @torch.inference_mode()
    def rounding_differences(self, texts: Sequence[tuple[str, Sequence[PlacedCall]]]) -> list[float]:
        """By how many nats the loss reduction of each call differs between the model's number format and float32."""
        settings = scoring.ScoringSettings()
        tokenized = [(self.tokenize(text), calls) for text, calls in texts]
        own = scoring.score_texts(self._model, self._tokenization, tokenized, settings)
        exact = self._in_float32(lambda model: scoring.score_texts(model, self._tokenization, tokenized, settings))
        differences = (
            abs(one.reduction_bound - other.reduction_bound)
            for of_text, right in zip(own, exact, strict=True)
            for one, other in zip(of_text, right, strict=True)
        )
        return [difference for difference in differences if math.isfinite(difference)]

    @property
    def number_format(self) -> str:
        """float32, bfloat16 or float16: that of the weights."""
        return self._model.number_format

    def allow_rounding(self, nats: float) -> None:
        """How far a loss reduction in the model's number format may be from float32's; measured, in place of a small model's."""
        self._model.rounding_nats = nats

    def _in_float32(self, work: Callable[[CausalModel], Found]) -> Found:
        """The work done by the model in float32.

        Its weights are loaded once and kept beside the others. Where the device has no room for both, the others are moved to main
        memory meanwhile, each time: seconds for a model of gigabytes, so that calls should come many at a time.
        """
        if self._model.dtype == torch.float32:
            return work(self._model)
        if self._float32_model is None and self._model.memory.has_room_for(self._model.float32_bytes):
            self._float32_model = self._load_float32()
        if self._float32_model is not None:
            return work(self._float32_model)
        logger.info(
            "the device has no room for float32 weights beside those in %s: they take turns", self.number_format
        )
        self.forget_texts()
        try:
            self._model.leave_device()
            return work(self._load_float32())
        finally:
            gc.collect()
            self._model.return_to_device()

    @torch.inference_mode()
    def score_details(self, text: str, call: PlacedCall, *, context_tokens: int | None = None) -> list[ScoredToken]:
        """Token by token what `score_texts` adds up for one call, in the model's own number format."""
        return scoring.score_details(self._model, self._tokenization, self.tokenize(text), call, context_tokens)

    @torch.inference_mode()
    def text_losses(self, texts: Sequence[str], *, stride: int | None = None) -> list[TextLoss]:
        """How well whole texts are predicted with calls disabled, read in windows that move by `stride` tokens (`perplexity.py`).

        None is half a window. Texts are computed together; the loss of a text depends on the others by rounding alone.

        Raises:
            ValueError: the stride is not between 1 and the model's window.
        """
        tokenized = [self.tokenize(text) for text in texts]
        return perplexity.text_losses(self._model, self._tokenization, tokenized, stride)

    @torch.inference_mode()
    def generate_texts(self, prompts: Sequence[str], max_new_tokens: int, stop: str | None = None) -> list[str]:
        """The most likely continuation of each prompt, up to (without) `stop`, the end of the document, or `max_new_tokens`.

        Raises:
            ModelError: a prompt with its continuation does not fit into the model's window (`max_positions`).
        """
        return decode_loop.generate_texts(self._model, self._tokenization, prompts, max_new_tokens, stop)

    @torch.inference_mode()
    def continuation_log_probabilities(self, prompt: str, continuations: Sequence[str]) -> list[float]:
        """Natural log probability of each continuation after the prompt, in order.

        Raises:
            ModelError: the prompt with its longest continuation does not fit into the model's window, or one of them has no token.
        """
        return decode_loop.continuation_log_probabilities(self._model, self._tokenization, prompt, continuations)
