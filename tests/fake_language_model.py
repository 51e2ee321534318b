"""A language model without weights for tests of the stages: what it answers follows from the text alone.

Tokens are words. Positions are the last `at_most` words but the first. At each position the samples are
`script` in turn. The loss without a call is 2 nats; with a result it is 1 where the result is the word after
the position, else 2.25. Prunes as the real one does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from toolformer_ops.call_syntax import Call
from toolformer_ops.language_model.losses import tokens_scored_by
from toolformer_ops.language_model.tokenization import TokenizedText
from toolformer_ops.records import (
    CallLosses,
    CallPosition,
    LossWithResult,
    PlacedCall,
    SampledContinuation,
    TokenLogProbabilities,
)

FULL_CONTEXT = 1.75
"""The loss without a call given the whole text, where a context window is asked for."""
UNFINISHED = "Calculator(1 + 1) and so on without an end"
TOKENS = (' "a"', "\\", "\n", "é", " NULL")
"""The tokens behind every call."""


class StoppedError(Exception):
    """Raised in place of a kill."""


@dataclass
class FakeSampler:
    """Writes the same at each position."""

    said: list[str]
    added: list[str]
    seed_keys: list[str]
    positions: list[int] = field(default_factory=list)

    def add(self, text: str, tokens: Sequence[int], seed_key: str) -> None:
        self.added.append(text)
        self.seed_keys.append(seed_key)
        self.positions.append(len(tokens))

    def finish(self) -> list[list[list[SampledContinuation]]]:
        samples = [SampledContinuation(item, item != UNFINISHED) for item in self.said]
        return [[samples for _ in range(count)] for count in self.positions]


@dataclass
class FakeLanguageModel:
    """Answers the questions that the stages ask."""

    script: Sequence[str] = ("Calculator(2 + 3)",)
    """What the samples of a position say, in turn; `UNFINISHED` has no end."""
    texts_before_stop: int | None = None
    """After this many texts `find_positions` and `score_calls` raise."""
    identity: str = "fake"
    number_format: str = "float32"
    sure_words: frozenset[str] = frozenset()
    """Words that it expects anyway: without a call their loss is 0.25 nats, so that no call can save more."""
    seen: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    """Texts that a sampler took in, and what the random numbers of each are made from."""
    seed_keys: list[str] = field(default_factory=list)
    context_tokens: list[int | None] = field(default_factory=list)
    """The context window of each `score_calls`."""
    loads: int = 0
    read_tokens: int = 1000

    def load(self, *_: object) -> "FakeLanguageModel":
        """In place of `runs.models.load_run_model`."""
        self.loads += 1
        return self

    def _see(self, text: str) -> None:
        if self.texts_before_stop is not None and len(self.seen) >= self.texts_before_stop:
            raise StoppedError(text)
        self.seen.append(text)

    def find_positions(
        self,
        prompt: object,
        texts: Sequence[str],
        *,
        at_most: int,
        threshold: float,
        allowed: Sequence[Callable[[CallPosition], bool]] | None = None,
    ) -> list[list[CallPosition]]:
        found = [self._positions(text) for text in texts]
        if allowed is not None:
            found = [list(filter(allows, of_text)) for allows, of_text in zip(allowed, found, strict=True)]
        return [of_text[-at_most:] for of_text in found]

    def _positions(self, text: str) -> list[CallPosition]:
        self._see(text)
        starts = [at for at, character in enumerate(text) if character == " "]
        return [CallPosition(number + 1, at, 0.5) for number, at in enumerate(starts)]

    def tokenize(self, text: str) -> TokenizedText:
        """Its words, each with the space before it."""
        starts = (0, *(at for at, character in enumerate(text) if character == " "))
        return TokenizedText(text, tuple(range(len(starts))), starts, tuple(range(len(starts))))

    def report(self, *_: object) -> None:
        """Nobody reads it."""

    def start_sampling(self, prompt: object, *, samples: int, **_: Any) -> "FakeSampler":
        return FakeSampler(
            [self.script[number % len(self.script)] for number in range(samples)], self.added, self.seed_keys
        )

    def gain_bounds_without_call(
        self, texts: Sequence[tuple[str, Sequence[int]]], keep_rule: str = "paper"
    ) -> list[list[float]]:
        asked = Call("Calculator", "")
        bounds = []
        for text, tokens in texts:
            losses = [self._exact_losses(text, PlacedCall(token, asked, "")).without_call for token in tokens]
            bounds.append(losses)  # by the rule probability -log(exp(-loss))
        return bounds

    def surely_below(self, bound: float, prune_below: float, keep_rule: str = "paper") -> bool:
        return prune_below > 0 and bound < prune_below

    def score_texts(
        self, texts: Sequence[tuple[str, Sequence[PlacedCall]]], **options: Any
    ) -> list[list[CallLosses]]:
        return [self.score_calls(text, calls, **options) for text, calls in texts]

    def score_calls(
        self,
        text: str,
        calls: Sequence[PlacedCall],
        *,
        prune_below: float = 0.0,
        keep_threshold: float | None = None,
        context_tokens: int | None = None,
        verify: str = "all",
        keep_rule: str = "paper",
    ) -> list[CallLosses]:
        self._see(text)
        self.context_tokens.append(context_tokens)
        full_context = None if context_tokens is None else FULL_CONTEXT
        scored = []
        for call in calls:
            exact = replace(self._exact_losses(text, call), without_call_full_context=full_context)
            pruned = self._pruned(with_probabilities(exact, keep_rule), prune_below, keep_rule)
            scored.append(with_terms(pruned, tokens_scored_by(keep_rule)))
        return scored

    def losses_with_result(
        self,
        texts: Sequence[tuple[str, Sequence[PlacedCall]]],
        *,
        context_tokens: int | None = None,
        number_format: str = "float32",
        keep_rule: str = "paper",
    ) -> list[list[LossWithResult]]:
        losses_of_texts = []
        for text, calls in texts:
            scored = self.score_calls(text, calls, keep_rule=keep_rule)
            losses_of_texts.append(
                [
                    LossWithResult(float(losses.with_result or 0.0), losses.probability_with)
                    for losses in scored
                ]
            )
        return losses_of_texts

    def _pruned(self, losses: CallLosses, prune_below: float, keep_rule: str) -> CallLosses:
        without_result = replace(losses, without_result=None)
        proofs = (replace(without_result, with_result=None), without_result)
        for proof in proofs:
            losses_of_proof = with_probabilities(proof, keep_rule)
            if self.surely_below(losses_of_proof.gain_bound, prune_below):
                return losses_of_proof
        return losses

    def _exact_losses(self, text: str, call: PlacedCall) -> CallLosses:
        if "nan" in text:
            return CallLosses(math.nan, 2.0, 1.0)
        word = text.split(" ")[call.token].rstrip(".,")
        if word in self.sure_words:
            return CallLosses(0.25, 0.5, 0.125 if word == call.result else 0.25)
        return CallLosses(2.0, 2.5, 1.0 if word == call.result else 2.25)


def with_probabilities(losses: CallLosses, keep_rule: str) -> CallLosses:
    """The losses with the probabilities of the next tokens, if the keep rule asks for them."""
    if keep_rule == "paper":
        return losses
    without = (losses.without_call, losses.without_result, losses.without_call_full_context)
    return replace(
        losses,
        probability_without=max(math.exp(-loss) for loss in without if loss is not None),
        probability_with=None if losses.with_result is None else math.exp(-losses.with_result),
    )


def with_terms(losses: CallLosses, tokens: int = 5) -> CallLosses:
    """The losses with log probabilities that they are the weighted sums of: equal ones, of so many tokens."""
    names = ("without_call", "without_result", "with_result", "without_call_full_context")
    lines: dict[str, Any] = {
        name: None if (loss := getattr(losses, name)) is None else (-loss,) * tokens for name in names
    }
    texts = (TOKENS * 2)[:tokens]
    return replace(losses, token_log_probabilities=TokenLogProbabilities(**lines, tokens=texts))


UseModel = Callable[[FakeLanguageModel], FakeLanguageModel]


def loaded_by_stages(monkeypatch: pytest.MonkeyPatch) -> UseModel:
    """What puts a model where the stages load theirs, until the patch is undone."""

    def use(model: FakeLanguageModel) -> FakeLanguageModel:
        monkeypatch.setattr(
            "toolformer_ops.language_model.models.model_identity", lambda *_, **__: model.identity
        )
        monkeypatch.setattr("toolformer_ops.runs.models.load_run_model", model.load)
        monkeypatch.setattr("toolformer_ops.runs.models.load_tokenization", lambda *_: model)
        return model

    return use
