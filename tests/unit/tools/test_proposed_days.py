"""Before which stretches of a text the Calendar proposes a call."""

import datetime
import time

import pytest

from toolformer_ops.records import Document
from toolformer_ops.tools.calendar import TOOL

DAY = datetime.date(2021, 10, 13)
"""A Wednesday."""


def after_calls(text: str, day: datetime.date | None = DAY) -> list[str]:
    """What follows each proposed call."""
    return [text[call.char :] for call in TOOL.proposals(Document.of(text, document_date=day)).calls]


TOLD = {
    "the date with its weekday": ("From Wednesday, October 13, 2021, on.", "Wednesday, October 13, 2021, on."),
    "a date nearby": ("It opens on October 20.", "October 20."),
    "a date with the day first": ("It opens on 20 October 2021.", "20 October 2021."),
    "a date in digits": ("Posted 2021-10-13 by Ann.", "2021-10-13 by Ann."),
    "the date without a year over the turn of a year": ("It opens on Oct. 14th.", "Oct. 14th."),
    "the month with its year": ("As of October 2021 it is open.", "October 2021 it is open."),
    "the month": ("It rained in October.", "October."),
    "the year": ("The report of 2021 is out.", "2021 is out."),
    "the weekday": ("The train left on Wednesday.", "Wednesday."),
    "the next weekday": ("The train leaves on Thursday.", "Thursday."),
    "today": ("The shop is closed today.", "today."),
    "a day told by a word": ("We met last Friday.", "last Friday."),
    "days before": ("We met three days ago.", "three days ago."),
    "a date in brackets": ("It is open (October 13).", "(October 13)."),
}  # fmt: skip


@pytest.mark.parametrize("stretch", TOLD)
def test_a_stretch_that_the_day_tells_has_a_call(stretch):
    text, after = TOLD[stretch]
    assert after_calls(text) == [after]


NOT_TOLD = {
    "a date far away": "It opens on March 20, 2021.",
    "a date with another weekday": "It opens on Monday, October 13, 2021.",
    "a date that does not exist": "It opens on October 32.",
    "another month": "It rained in April.",
    "another year": "The report of 2019 is out.",
    "a weekday days away": "The train left on Monday.",
    "a number that is no year": "It costs $2021 or 2021.50 a month.",
    "a word that is no month": "We may March.",
}


@pytest.mark.parametrize("stretch", NOT_TOLD)
def test_a_stretch_that_the_day_does_not_tell_has_no_call(stretch):
    assert after_calls(NOT_TOLD[stretch]) == []


def test_a_document_without_a_day_has_no_call():
    assert after_calls("The shop is closed today.", day=None) == []


def test_a_proposed_call_has_no_input():
    [call] = TOOL.proposals(Document.of("The shop is closed today.", document_date=DAY)).calls
    assert call.input == ""


def test_a_megabyte_of_dates_takes_seconds():
    text = "On Wednesday, October 13, 2021, the shop is closed, as it was in May. " * 14_400
    started = time.process_time()
    after_calls(text[:70])
    assert len(TOOL.proposals(Document.of(text, document_date=DAY)).calls) == 14_400
    assert time.process_time() - started < 6
