"""Frozen records that cross the borders between rooms.

They carry values only; tables are described in `sql/schema`, tools in `tools/base.py`, recipes in
`runs/recipes.py`.
"""

import datetime
import functools
import hashlib
import math
import uuid
from dataclasses import dataclass
from typing import Literal

from toolformer_ops.call_syntax import Call, call_with_result, call_without_result

CHARACTERS_A_TOKEN = 4
"""A token of English prose has about so many: what a text counts for if no tokenizer is loaded; in SQL
`about_tokens`."""
FLOAT32 = "float32"
"""The number format whose losses decide."""
TF32 = "tf32"
"""Float32 whose products a GPU rounds to 10 bits of mantissa."""
VerifyInFloat32 = Literal["auto", "keep", "on", "all", "off"]
"""Which losses of a network in bfloat16 or float16 are computed again in float32 (`runs/choices.py` says what
each means)."""


def content_uuid(*parts: str) -> uuid.UUID:
    """A name made of content: the first 128 bits of a SHA-256.

    It is that of the parts, each preceded by its length in bytes.
    """
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return uuid.UUID(bytes=digest.digest()[:16])


def variant_id_of(document_id: uuid.UUID, url: str | None, day: datetime.date | None) -> uuid.UUID:
    """The id of a document's text with another url and date; the same as the SQL function."""
    return content_uuid(str(document_id), url or "", day.isoformat() if day else "")


def document_id_of(text: str) -> uuid.UUID:
    """The id of a document: a hash of its text and of nothing else."""
    return content_uuid("document", text)


@dataclass(frozen=True)
class Document:
    """One text of a corpus."""

    document_id: uuid.UUID
    """The row of `documents`: the hash of `text`, or the id of a variant. It says which record of a text was ingested
    first, so it decides neither chance nor order: `text_id` does."""
    text: str
    url: str | None = None
    document_date: datetime.date | None = None
    """The date in the record; None if it has none (the Calendar tool then looks at `url`)."""

    @classmethod
    def of(cls, text: str, url: str | None = None, document_date: datetime.date | None = None) -> "Document":
        """A document that is not (yet) in the database."""
        return cls(document_id=document_id_of(text), text=text, url=url, document_date=document_date)

    @functools.cached_property
    def text_id(self) -> uuid.UUID:
        """The hash of the text, also of a variant."""
        return document_id_of(self.text)

    @property
    def record_id(self) -> uuid.UUID:
        """The hash of text, url and date, also of the first record of its text."""
        return variant_id_of(self.text_id, self.url, self.document_date)


@dataclass(frozen=True)
class Paragraph:
    """A part of a document's text that a tool's filter kept.

    The whole text for a filter that judges documents.
    """

    document: Document
    number: int = 0
    """From 0."""
    start_char: int = 0
    """Offset in the document's text."""
    end_char: int = 0
    """Offset of the end, exclusive."""

    @property
    def text(self) -> str:
        """The part itself."""
        return self.document.text[self.start_char : self.end_char]


ProposedBy = Literal["model", "tool", "both"]
"""Who proposed a call: a model that samples (the run's own, or one behind an endpoint), the tool itself, or
both."""


@dataclass(frozen=True)
class CallPosition:
    """A place in a text where a call may start."""

    token: int
    """Index, in the text's token ids, of the token that would follow the call; at least 1."""
    char: int
    """Offset in the text where the call would be inserted: the start of that token, its leading space
    included."""
    probability: float | None
    """p(" [" | P(x), x[:token]), in [0, 1]; None at a place that a tool proposed: no model was asked."""
    pruned_by: float | None = None
    """The most that a call here can gain, if it proves that none can be kept, so that none is sampled; else
    None."""


@dataclass(frozen=True)
class SampledContinuation:
    """What the model wrote after " [" at one position."""

    text: str
    """From after " [" to before "]" (to the end of the budget where `finished` is False)."""
    finished: bool
    """Whether a "]" came within the token budget."""


@dataclass(frozen=True)
class PlacedCall:
    """A call with its result before a token of a text, as the engine scores it."""

    token: int
    """Index, in the text's token ids, of the first token that is scored."""
    call: Call
    result: str

    @property
    def without_result(self) -> str:
        """The prefix z = e(c, ""), such as `[Calculator(400 / 1400) -> ]`."""
        return call_without_result(self.call)

    @property
    def with_result(self) -> str:
        """The prefix z = e(c, r), such as `[Calculator(400 / 1400) -> 0.29]`."""
        return call_with_result(self.call, self.result)


@dataclass(frozen=True)
class TokenLogProbabilities:
    """Natural log probabilities, float32, of the tokens that a call is judged by.

    They are five each by the rule `paper`, ten by `probability`, fewer near the text's end. None if the loss
    was not computed.
    """

    without_call: tuple[float, ...]
    without_result: tuple[float, ...] | None
    with_result: tuple[float, ...] | None
    without_call_full_context: tuple[float, ...] | None = None
    tokens: tuple[str, ...] = ()
    """The text of each of these tokens, its leading space included."""

    def as_array(self) -> tuple[tuple[float | None, ...], ...]:
        """The lines of the column `call_losses.token_log_probabilities`, in this order; all of one length."""
        lines = [self.without_call, self.without_result, self.with_result]
        if self.without_call_full_context is not None:
            lines.append(self.without_call_full_context)
        return tuple((None,) * len(self.without_call) if line is None else line for line in lines)


def gain_bound(
    reduction_bound: float, probability_without: float | None, probability_with: float | None
) -> float:
    """What a call gains by the rule of its run before its placebo, or the most that it can gain.

    `reduction_bound` is what the paper's rule says, nats; `probability_without` is None by that rule. A
    probability that was not computed is at most 1. Nan if a loss is not finite. The column
    `call_losses.gain_bound` is the same.
    """
    if probability_without is None or math.isnan(reduction_bound):
        return reduction_bound
    most_with = 0.0 if probability_with is None else math.log(probability_with)
    return most_with - math.log(probability_without)


@dataclass(frozen=True)
class CallLosses:
    """The weighted losses of one call, in nats; not finite if the model computed no finite number.

    None is a loss that was not computed: a bound proves that the call cannot be kept
    (`language_model/scoring.py`).
    """

    without_call: float
    """L_i of the text alone, with the context that the call has."""
    without_result: float | None
    """L_i with e(c, "") as prefix."""
    with_result: float | None
    """L_i with e(c, r) as prefix."""
    without_call_full_context: float | None = None
    """L_i of the text alone with all the text before i, if the call is scored with less of it; a further term
    of L-."""
    number_format: str = "float32"
    """In which the model computed these losses."""
    token_log_probabilities: TokenLogProbabilities | None = None
    """What each loss is the weighted sum of; None if the model has no room for text after the call."""
    within_rounding: bool = False
    """Whether the rounding of bfloat16 or float16 may have brought the gain over a threshold, had float32 not
    decided."""
    probability_without: float | None = None
    """By the rule `probability`: the largest probability of the next tokens without the result, of what was
    computed; None by the rule `paper`."""
    probability_with: float | None = None
    """By the rule `probability`: the probability of the next tokens with the result; None if not computed."""

    @property
    def pruned(self) -> bool:
        """Whether a loss was not computed."""
        return self.without_result is None or self.with_result is None

    @property
    def reduction_bound(self) -> float:
        """L- minus L+, or, if a loss was not computed, a number that it does not exceed.

        Nan if a loss is not finite. L- is a minimum, so a term that is missing can only lower it; L+ is not
        negative.
        """
        terms = [self.without_call, self.without_result, self.without_call_full_context]
        computed = [term for term in terms if term is not None]
        with_result = 0.0 if self.with_result is None else self.with_result
        if not all(map(math.isfinite, (*computed, with_result))):
            return math.nan
        return min(computed) - with_result

    @property
    def gain_bound(self) -> float:
        """What the call gains by its run's rule, or the most that it can gain."""
        return gain_bound(self.reduction_bound, self.probability_without, self.probability_with)


@dataclass(frozen=True)
class LossWithResult:
    """How well a text goes on after a call with a result; nan if there is no room for text."""

    nats: float
    """L(e(c, r)), the weighted loss."""
    probability: float | None = None
    """By the rule `probability`: that of the next tokens."""
