"""A language model without weights for tests of the stages: what it answers follows from the text alone.

Tokens are words. Positions are the last `at_most` words but the first. At each position the samples are `samples` in turn. The loss
with a result is one nat below the others where the result stands right after the position, else the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from toolformer_ops.records import CallLosses, CallPosition, PlacedCall, SampledContinuation, TextToSample

UNFINISHED = "Calculator(1 + 1) and so on without an end"


class StoppedError(Exception):
    """Raised in place of a kill."""


@dataclass
class FakeLanguageModel:
    """Answers the four questions that the stages ask."""

    script: Sequence[str] = ("Calculator(2 + 3)",)
    """What the samples of a position say, in turn; `UNFINISHED` has no end."""
    texts_before_stop: int | None = None
    """After this many texts `find_positions` and `score_calls` raise."""
    identity: str = "fake"
    seen: list[str] = field(default_factory=list)

    def _see(self, text: str) -> None:
        if self.texts_before_stop is not None and len(self.seen) >= self.texts_before_stop:
            raise StoppedError(text)
        self.seen.append(text)

    def find_positions(self, prompt: object, text: str, *, at_most: int, threshold: float) -> list[CallPosition]:
        self._see(text)
        starts = [at for at, character in enumerate(text) if character == " "]
        found = [CallPosition(number + 1, at, 0.5) for number, at in enumerate(starts)]
        return found[-at_most:]

    def sample_calls(
        self, prompt: object, texts: Sequence[TextToSample], *, samples: int, **_: Any
    ) -> list[list[list[SampledContinuation]]]:
        said = [self.script[number % len(self.script)] for number in range(samples)]
        return [
            [[SampledContinuation(item, item != UNFINISHED) for item in said] for _ in text.positions] for text in texts
        ]

    def score_calls(self, text: str, calls: Sequence[PlacedCall], **_: Any) -> list[CallLosses]:
        self._see(text)
        return [self._losses(text, call) for call in calls]

    @staticmethod
    def _losses(text: str, call: PlacedCall) -> CallLosses:
        if "nan" in text:
            return CallLosses(math.nan, 2.0, 1.0)
        result = call.with_result.partition("-> ")[2].removesuffix("]")
        helps = text.split(" ")[call.token].rstrip(".") == result
        return CallLosses(2.0, 2.5, 1.0 if helps else 2.25)
