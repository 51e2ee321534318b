"""Where calls are sampled in the texts of a micro-batch: the likeliest positions, without those at which no call can be kept.

Positions are found for some texts at a time, when the sampler has room for more: what the model computed for them (their cached
columns) is still there then. Which texts are taken together changes no number.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolformer_ops.records import CallPosition

if TYPE_CHECKING:
    from toolformer_ops.language_model import AnnotationPrompt, LanguageModel

CHARACTERS_TOGETHER = 4000
"""Texts of so many characters together are taken at a time: some 1,000 tokens, what the engine keeps without strain."""


@dataclass(frozen=True)
class PrunedPosition:
    """A position at which no call can be kept."""

    position: CallPosition
    loss_without_call: float
    """L(nothing), in nats: the most that a call can save here."""


@dataclass(frozen=True)
class FoundPositions:
    """The positions of one text."""

    kept: list[CallPosition]
    """To be sampled at."""
    pruned: list[PrunedPosition]
    seconds: float
    """Its share, by length, of what the texts that were taken together took."""

    @property
    def all(self) -> list[CallPosition]:
        """Kept and pruned ones, in the order of the text."""
        return sorted([*self.kept, *(one.position for one in self.pruned)], key=lambda position: position.token)


@dataclass
class PositionFinder:
    """Iterates over texts' positions, in order; they are found as they are asked for."""

    model: "LanguageModel"
    prompt: "AnnotationPrompt"
    texts: Sequence[str]
    at_most: int
    """Positions a text (the paper's k)."""
    threshold: float
    """The paper's tau_s."""
    prune_below: float
    """The lowest threshold of interest, nats; 0 prunes nothing."""
    clock: Callable[[], float] = time.perf_counter
    found: list[FoundPositions] = field(default_factory=list)
    """What was found so far, in the order of the texts."""

    def __iter__(self) -> Iterator[FoundPositions]:
        """Each text's positions."""
        for together in _together(self.texts):
            started = self.clock()
            positions = self.model.find_positions(self.prompt, together, at_most=self.at_most, threshold=self.threshold)
            split = [
                split_positions(self.model, text, of_text, self.prune_below)
                for text, of_text in zip(together, positions, strict=True)
            ]
            seconds = (self.clock() - started) / max(sum(map(len, together)), 1)  # a character
            for text, (kept, pruned) in zip(together, split, strict=True):
                self.found.append(FoundPositions(kept, pruned, seconds * len(text)))
                yield self.found[-1]


def split_positions(
    model: "LanguageModel", text: str, positions: Sequence[CallPosition], prune_below: float
) -> tuple[list[CallPosition], list[PrunedPosition]]:
    """The positions to sample at, and those where provably no call can lower the loss by `prune_below` nats.

    A call lowers the loss by at most L(nothing), since L- is at most that and L+ at least 0.
    """
    if not positions or prune_below == 0:
        return list(positions), []
    losses = model.losses_without_call(text, [position.token for position in positions])
    kept: list[CallPosition] = []
    pruned: list[PrunedPosition] = []
    for position, loss in zip(positions, losses, strict=True):
        if model.surely_below(loss, prune_below):
            pruned.append(PrunedPosition(position, loss))
        else:
            kept.append(position)
    return kept, pruned


def _together(texts: Sequence[str]) -> Iterator[list[str]]:
    """Consecutive texts of at most `CHARACTERS_TOGETHER` characters together, or one that is longer."""
    together: list[str] = []
    characters = 0
    for text in texts:
        if together and characters + len(text) > CHARACTERS_TOGETHER:
            yield together
            together, characters = [], 0
        together.append(text)
        characters += len(text)
    if together:
        yield together
