"""What an evaluation asks, what a model wrote, and what it scored: frozen records, cheap to import."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from toolformer_ops.decoding.records import MadeCall

CALENDAR_DATE = datetime.date(2023, 2, 9)
"""What the Calendar tells if an input has no date: always the same day, so that scores do not depend on the
day on which they are made. It is the day on which the paper appeared."""

Variant = Literal["base", "without_calls", "disabled", "with_tools"]
"""base: the model M before finetuning. without_calls: M finetuned on the same texts without calls. disabled:
the model finetuned with calls, its calls disabled. with_tools: the same, calling tools. The order is that of
the paper's tables."""
VARIANTS: tuple[Variant, ...] = get_args(Variant)

VARIANT_NAMES: Mapping[Variant, str] = {
    "base": "M",
    "without_calls": "M, finetuned without calls",
    "disabled": "Toolformer (disabled)",
    "with_tools": "Toolformer",
}
"""As tables show them; the paper's M + CC is `without_calls`."""


def variant_title(variant: Variant, call_start_rank: int) -> str:
    """The name of a variant with its k if calls are allowed."""
    return VARIANT_NAMES[variant] + (f", k = {call_start_rank}" if variant == "with_tools" else "")


@dataclass(frozen=True)
class Question:
    """One input of a suite."""

    subset: str
    """The data set it comes from, such as squad; of mlqa the language."""
    number: int
    """Its place in the whole subset, from 1; the same for every model, and whether all inputs are asked or a
    sample."""
    prompt: str
    """What the model continues, whole."""
    answers: tuple[str, ...]
    """Any of these is right; at least one."""
    date: datetime.date = CALENDAR_DATE
    """The current date that the Calendar tells."""
    shared_head: str = ""
    """The beginning of the prompt, where others of the data set begin so, too."""


@dataclass(frozen=True)
class Evaluated:
    """A model in a variant on one subset of a suite."""

    suite: str
    subset: str
    model: str
    """Identity of the model: name@content hash, or the id of a finetuned model."""
    variant: Variant
    call_start_rank: int
    """k: 0 if calls are disabled."""


@dataclass(frozen=True)
class SuiteScore(Evaluated):
    """One row of the paper's tables."""

    inputs: int
    """How many were asked; of perplexity the documents."""
    metric: str
    """share_correct; of perplexity perplexity_by_token and perplexity_by_byte."""
    score: float
    """In [0, 1]; a perplexity is at least 1."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end of its 95 % interval."""
    call_shares: dict[str, float]
    """Share of the inputs with at least one call, by tool, in (0, 1]; no entry for a tool that was not
    called."""
    inputs_with_call: int
    """Inputs with a call of any tool that gave a result."""
    score_with_call: float | None
    """The score among these, in [0, 1]; None if there are none."""
    score_without_call: float | None
    """The score among all other inputs; None if there are none."""
    seconds: float
    """Wall-clock seconds of writing and scoring."""
    data_sha256: str
    """Hash of the data files that were read, 64 hex digits."""
    calendar_date: datetime.date = CALENDAR_DATE
    """What the Calendar told for inputs without a date of their own."""


@dataclass(frozen=True)
class EvaluatedInput(Evaluated):
    """One question with what a model wrote and whether that is right."""

    number: int
    """Its place in the subset, from 1."""
    prompt: str
    answers: tuple[str, ...]
    written: str
    """The continuation with its calls and their results."""
    predicted: str
    """The part of the continuation without calls that was compared: the first words, or a number; empty if
    there is none."""
    correct: bool
    calls: tuple[MadeCall, ...]
    date: datetime.date
    """The current date that the Calendar told."""

    @property
    def has_call(self) -> bool:
        """Whether a call has a result, which is then part of the text."""
        return any(call.result is not None for call in self.calls)
