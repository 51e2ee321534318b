"""The Calendar: `Today is Monday, January 30, 2023.` for the day a document was written.

See Toolformer, section 3 and appendix A.1. That day is the date the record gives, or the date in its address,
such as `https://example.org/2023/01/30/title`; of two that differ the earlier one, since a page is crawled,
stored or changed after it was written, and the date of many corpora (FineWeb's) is that of the crawl.
Documents without a day are left out. What is cached is the date, so one row serves all documents of a day.
Names of days and months do not depend on the locale, and no clock is read, so that the same document gives
the same answer every night.
"""

import contextlib
import datetime
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision, ProposedCalls, Tool, ToolOutput, ToolSpec
from toolformer_ops.tools.proposed_days import proposed_days

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class FoundDate(NamedTuple):
    """A date and where it was found, or why there is none."""

    date: datetime.date | None
    reason: str


class Calendar(Tool):
    """The tool; it needs nothing to run."""

    spec = ToolSpec(
        name="Calendar",
        purpose="Tells the day on which the text was written.",
        prompt_file="prompts/calendar.txt",
        source="Toolformer, appendix A: the defaults tau_s 0.05, k 5, m 5, tau_f 1.0",
        filter_version="2",
        takes_input=False,
        reads_record=True,
        needs_date=True,
    )

    def filter(self, document: Document) -> list[FilterDecision]:
        """One decision for the whole document: is its day known?"""
        day, reason = document_day(document)
        return [FilterDecision(day is not None, reason, end_char=len(document.text))]

    def proposals(self, document: Document) -> ProposedCalls:
        """A call before each stretch that the day of the text tells (`proposed_days.py`)."""
        day, _ = document_day(document)
        return ProposedCalls(tuple(proposed_days(document.text, day)) if day else ())

    def effective_input(self, call_input: str, document: Document) -> str | None:
        """The document's day as `2023-01-30`; None if it is not known.

        The tool is called with empty brackets. What a model writes between them is passed on in brackets,
        which no date has, so that `run` refuses it and a call cannot choose a day.
        """
        if call_input.strip():
            return f"({call_input.strip()})"
        day, _ = document_day(document)
        return day.isoformat() if day else None

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One sentence a date `YYYY-MM-DD`."""
        outputs = []
        for written_date in inputs:
            try:
                day = datetime.date.fromisoformat(written_date) if _ISO_DATE.fullmatch(written_date) else None
            except ValueError:  # no such day
                day = None
            refusal = "takes_no_input" if written_date.startswith("(") else "not_a_date"
            outputs.append(ToolOutput.of(write_day(day)) if day else ToolOutput.none(refusal))
        return outputs


TOOL = Calendar()


def document_day(document: Document) -> FoundDate:
    """The day a document was written: `date_in_record`, `no_url`, or what `date_in_url` finds.

    `earlier_date_in_url` says that the record has a later day than the address.
    """
    recorded = document.document_date
    in_url = date_in_url(document.url) if document.url else FoundDate(None, "no_url")
    if recorded is None:
        return in_url
    if in_url.date is not None and in_url.date < recorded:
        return FoundDate(in_url.date, "earlier_date_in_url")
    return FoundDate(recorded, "date_in_record")


def write_day(day: datetime.date) -> str:
    """The sentence `Today is Monday, January 30, 2023.`, in every locale."""
    return f"Today is {DAYS[day.weekday()]}, {MONTHS[day.month - 1]} {day.day}, {day.year}."


# The date in an address

FIRST_YEAR = 1990
LAST_YEAR = 2039
"""A fixed bound, not the clock; beyond it four digits are seldom a year."""
MAX_URL_CHARS = 8192

_MONTH_NUMBER = {"sept": 9}
for _number, _month in enumerate(MONTHS, start=1):
    _MONTH_NUMBER |= {_month.lower(): _number, _month[:3].lower(): _number}
_MONTH_NAME = "(?P<name>" + "|".join(sorted(_MONTH_NUMBER, key=len, reverse=True)) + ")"
_YEAR = "(?P<year>(?:19|20)[0-9]{2})"
_NO_DIGIT_BEFORE, _NO_DIGIT_AFTER = "(?<![0-9])", "(?![0-9])"
_NO_WORD_BEFORE, _NO_WORD_AFTER = "(?<![0-9A-Za-z])", "(?![0-9A-Za-z])"
_END_OF_FOLDER = r"(?=[/.?&#]|$)"
_TWO = "[0-9]{2}"
_ONE_OR_TWO = "[0-9]{1,2}"

_FOLDERS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:^|[/=]){_YEAR}/(?P<month>{_ONE_OR_TWO})/(?P<day>{_ONE_OR_TWO}){_END_OF_FOLDER}",
        rf"(?:^|[/=]){_YEAR}/{_MONTH_NAME}/(?P<day>{_ONE_OR_TWO}){_END_OF_FOLDER}",
        rf"(?:^|[/=]){_YEAR}/(?P<month>{_TWO})-?(?P<day>{_TWO}){_END_OF_FOLDER}",
        rf"(?:^|[/=]){_YEAR}-(?P<month>{_TWO})/(?P<day>{_TWO}){_END_OF_FOLDER}",
    )
)
_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_NO_DIGIT_BEFORE}{_YEAR}(?P<sep>[-_.])(?P<month>{_ONE_OR_TWO})(?P=sep)(?P<day>{_ONE_OR_TWO}){_NO_DIGIT_AFTER}",
        # Eight digits are often a mere number, so here only a month and a day that can be one are looked at.
        rf"{_NO_WORD_BEFORE}(?P<year>(?:199|20[0-3])[0-9])(?P<month>0[1-9]|1[0-2])(?P<day>0[1-9]|[12][0-9]|3[01])"
        rf"(?=T[0-9]{{4}}|{_NO_WORD_AFTER})",
        rf"{_NO_DIGIT_BEFORE}{_YEAR}(?P<sep>[-_.]){_MONTH_NAME}(?P=sep)(?P<day>{_ONE_OR_TWO}){_NO_DIGIT_AFTER}",
        rf"{_NO_DIGIT_BEFORE}(?P<day>{_ONE_OR_TWO})(?P<sep>[-_.]){_MONTH_NAME}(?P=sep){_YEAR}{_NO_DIGIT_AFTER}",
        rf"{_NO_WORD_BEFORE}{_MONTH_NAME}(?P<sep>[-_.])(?P<day>{_ONE_OR_TWO})(?P=sep){_YEAR}{_NO_DIGIT_AFTER}",
        rf"{_NO_DIGIT_BEFORE}(?P<first>{_ONE_OR_TWO})(?P<sep>[-_./])(?P<second>{_ONE_OR_TWO})(?P=sep){_YEAR}{_NO_DIGIT_AFTER}",
    )
)
_MONTH_FOLDERS = re.compile(r"(?:^|/)((?:19|20)[0-9]{2})/(0?[1-9]|1[0-2])(?=/)")
_ARCHIVED = re.compile(r"/web/[0-9]{4,14}[a-z_]*/")
"""How web.archive.org begins a path; after it is the address of the page."""
_ASKED_FOR = re.compile(
    r"(?:[a-z]+[_-])?(?:from|to|since|until|start|end|before|after|min|max)(?:[_-]?date)?=", re.IGNORECASE
)
"""A part of a query that chooses pages by their dates."""
_INCOMPLETE = re.compile(
    r"(?:^|[/=])(?:19|20)[0-9]{2}(?=[-/._?&#]|$)|(?<![0-9])(?:19|20)[0-9]{2}[-_.][0-9]{2}(?![0-9])"
)
"""A year that begins a folder, or a year and a month."""


def date_in_url(url: str) -> FoundDate:
    """The publication date that `url` carries (appendix A.1).

    Only a complete date counts; what is missing is never filled in. The path and the query are read, not the
    host. In this order:

        the date as folders, as web logs and newspapers file pages:
            /2023/01/30/  /2023/jan/30/  /2023/0130/  /2023-01/30/
        the date within a name:
            2023-01-30  2023_01_30  2023.01.30  20230130  30-01-2023  30-jan-2023  january-30-2023

    Folders go before names, since a name may speak of another day. A day in a folder must fill it:
    `/2023/10/3-questions/` is an article of October with a number in its title. Numbers in the order
    day-month-year or month-day-year count only if one of the two is above 12, or both are equal. Two
    different dates of one kind contradict each other and none is taken; neither is one of a name in the
    folder of another month (`/2021/09/september-11-2001-remembered`). What a query asks for
    (`?from=2020-01-01`) is no date of the page, and of an archive's address the archived page's is read
    (`/web/20150102/http://example.org/2014/05/06/title`).

    The reason is `date_in_url`; or `no_date_in_url`, `date_incomplete_in_url`, `date_ambiguous_in_url` (day
    or month first?), `date_invalid_in_url` (no such day, or a year out of range), `dates_conflict_in_url`.
    """
    where = _searched(url[:MAX_URL_CHARS])
    refused = set()
    for patterns in (_FOLDERS, _NAMES):
        matches = itertools.chain.from_iterable(pattern.finditer(where) for pattern in patterns)
        readings = [_readings(match.groupdict()) for match in matches]
        dates = {days.pop() for days in readings if len(days) == 1}
        if len(dates) > 1:
            return FoundDate(None, "dates_conflict_in_url")
        if dates:
            day = dates.pop()
            folders = {(int(year), int(month)) for year, month in _MONTH_FOLDERS.findall(where)}
            if patterns is _NAMES and folders and (day.year, day.month) not in folders:
                return FoundDate(None, "dates_conflict_in_url")
            return FoundDate(day, "date_in_url")
        refused |= {"date_ambiguous_in_url" if days else "date_invalid_in_url" for days in readings}
    if refused:
        return FoundDate(None, min(refused))  # ambiguous before invalid
    return FoundDate(None, "date_incomplete_in_url" if _INCOMPLETE.search(where) else "no_date_in_url")


def _searched(url: str) -> str:
    """Path and query of an address, without what is no date of its page; empty for what is no address."""
    try:
        parts = urlsplit(url)
    except ValueError:  # for example an unclosed bracket in the host
        return ""
    if archived := _ARCHIVED.match(parts.path):
        return _searched(url.partition(archived[0])[2])
    query = "&".join(item for item in parts.query.split("&") if not _ASKED_FOR.match(item))
    return unquote(f"{parts.path}?{query}" if query else parts.path)


def _readings(parts: dict[str, str | None]) -> set[datetime.date]:
    """The existing days, within the years allowed, that the parts of a match may mean."""
    year, name = int(parts["year"] or 0), parts.get("name")
    if not FIRST_YEAR <= year <= LAST_YEAR:
        return set()
    if parts.get("first"):
        first, second = int(parts["first"] or 0), int(parts["second"] or 0)
        candidates = [(first, second), (second, first)]
    else:
        candidates = [
            (int(parts["day"] or 0), _MONTH_NUMBER[name.lower()] if name else int(parts["month"] or 0))
        ]
    days = set()
    for day, month in candidates:
        with contextlib.suppress(ValueError):  # no such day: not a reading
            days.add(datetime.date(year, month, day))
    return days
