"""The Calendar: `Today is Monday, January 30, 2023.` for the day a document was written (Toolformer, section 3 and appendix A.1).

That day is the date the record gives, else the one its address carries (`date_in_url.py`); documents without one are left out.
What is cached is the date, so one row serves all documents of a day. Names of days and months do not depend on the locale, and
no clock is read.
"""

import datetime
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision, ToolOutput, ToolSpec
from toolformer_ops.tools.date_in_url import date_in_url

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

CODE_VERSION = "1"
"""Raised when a day would be written differently."""

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def document_day(document: Document) -> tuple[datetime.date | None, str]:
    """The day a document was written, or None; and where it was found, or why it was not."""
    if document.document_date is not None:
        return document.document_date, "date_in_record"
    if not document.url:
        return None, "no_url"
    found = date_in_url(document.url)
    return found.date, found.reason


def write_day(day: datetime.date) -> str:
    """The sentence `Today is Monday, January 30, 2023.`, whatever the locale."""
    return f"Today is {_DAYS[day.weekday()]}, {_MONTHS[day.month - 1]} {day.day}, {day.year}."


class Calendar:
    """The tool before and after it is opened: it needs nothing to run."""

    spec = ToolSpec(
        name="Calendar",
        purpose="Tells the day on which the text was written.",
        prompt_file="calendar.txt",
        filter_version="1",
        source="Toolformer, appendix A: the defaults tau_s 0.05, k 5, m 5, tau_f 1.0",
        takes_input=False,
    )

    def filter(self, document: Document) -> list[FilterDecision]:
        """One decision for the whole document: is its day known?"""
        day, reason = document_day(document)
        return [FilterDecision(day is not None, reason, end_char=len(document.text))]

    def effective_input(self, call_input: str, document: Document) -> str | None:
        """The document's day as `2023-01-30`; None where it is not known.

        The tool is called with empty brackets. Whatever a model writes between them is passed on in brackets, which no
        date is, so that `run` refuses it and a call cannot choose its own day.
        """
        if call_input.strip():
            return f"({call_input.strip()})"
        day, _ = document_day(document)
        return day.isoformat() if day else None

    def input_only_after(self, call_input: str, text_before: str, text_after: str) -> bool:
        """Never: there is no input."""
        return False

    def version(self, settings: Settings, model_identity: str) -> str:
        """Version of the code that writes dates."""
        return f"calendar-{CODE_VERSION}"

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> "Calendar":
        """The calendar itself."""
        return self

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One sentence a date `YYYY-MM-DD`."""
        return [_answer(effective_input) for effective_input in inputs]


def _answer(effective_input: str) -> ToolOutput:
    if effective_input.startswith("("):
        return ToolOutput.none("takes_no_input")
    if not _ISO_DATE.fullmatch(effective_input):
        return ToolOutput.none("not_a_date")
    try:
        return ToolOutput.of(write_day(datetime.date.fromisoformat(effective_input)))
    except ValueError:
        return ToolOutput.none("not_a_date")


TOOL = Calendar()
