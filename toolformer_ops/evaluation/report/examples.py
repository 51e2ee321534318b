"""Which evaluated inputs the page shows, and where the calls are in what was written. Pure values."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from toolformer_ops.decoding.records import MadeCall
from toolformer_ops.evaluation.records import EvaluatedInput

EXAMPLES = 20
PROMPT_CHARACTERS = 1_200
"""A longer prompt is cut at its start: the question is at its end."""
ANSWERS = 6
"""Most accepted answers that are shown."""


@dataclass(frozen=True)
class Segment:
    """A piece of what was written: plain text, or a call."""

    text: str
    call: MadeCall | None = None


@dataclass(frozen=True)
class Example:
    """One evaluated input as it is shown."""

    suite: str
    subset: str
    number: int
    prompt: str
    cut: bool
    """Whether the prompt's beginning is left out."""
    answers: tuple[str, ...]
    more_answers: int
    """Accepted answers that are not shown."""
    segments: tuple[Segment, ...]
    predicted: str
    correct: bool
    date: str | None


def choose_examples(inputs: Iterable[EvaluatedInput], at_most: int = EXAMPLES) -> list[Example]:
    """Inputs of the model with tools: each subset in turn, right and wrong ones in turn, those with a call before the others."""
    by_subset: dict[tuple[str, str], list[EvaluatedInput]] = defaultdict(list)
    for found in inputs:
        if found.variant == "with_tools" and found.call_start_rank > 0:
            by_subset[found.suite, found.subset].append(found)
    queues = []
    for of_subset in by_subset.values():
        by_number = sorted(of_subset, key=lambda found: (not found.has_call, found.number))
        right = [found for found in by_number if found.correct]
        wrong = [found for found in by_number if not found.correct]
        in_turn = [found for pair in zip_longest(right, wrong) for found in pair if found is not None]
        queues.append(sorted(in_turn, key=lambda found: not found.has_call))
    chosen = [found for each in zip_longest(*queues) for found in each if found is not None][:at_most]
    order = {key: place for place, key in enumerate(by_subset)}
    return [
        Example(
            suite=found.suite,
            subset=found.subset,
            number=found.number,
            prompt=found.prompt[-PROMPT_CHARACTERS:],
            cut=len(found.prompt) > PROMPT_CHARACTERS,
            answers=found.answers[:ANSWERS],
            more_answers=max(0, len(found.answers) - ANSWERS),
            segments=segments(found.written, found.calls),
            predicted=found.predicted,
            correct=found.correct,
            date=found.date.isoformat() if found.date else None,
        )
        for found in sorted(chosen, key=lambda found: (order[found.suite, found.subset], found.number))
    ]


def segments(written: str, calls: Sequence[MadeCall]) -> tuple[Segment, ...]:
    """`written` as text and calls in turn; a call without a result is at the place where it started."""
    pieces: list[Segment] = []
    end = 0
    for call in sorted(calls, key=lambda call: (call.start_char, call.end_char)):
        start = min(max(call.start_char, end), len(written))
        if start > end:
            pieces.append(Segment(written[end:start]))
        end = max(start, min(call.end_char, len(written)))
        pieces.append(Segment(written[start:end], call))
    if end < len(written):
        pieces.append(Segment(written[end:]))
    return tuple(pieces)
