"""Which parts of a document a tool is asked about, and where a long text is cut, with the real calculator and calendar."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolformer_ops.annotation.candidates import candidates_at
from toolformer_ops.annotation.filtering import (
    HOLDS_CALL_MARKUP,
    NOT_JUDGED,
    cut,
    filter_document,
    kept_paragraphs,
)
from toolformer_ops.records import CallPosition, Document, SampledContinuation
from toolformer_ops.runs.choices import FilterChoices
from toolformer_ops.tools.base import FilterDecision
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.writing_systems import tokens_before

CALCULATOR = get_tool("Calculator")
CALENDAR = get_tool("Calendar")
SUM = "There were 2 cats and 3 dogs, a total of 5 animals."


class TellingTool(type(CALCULATOR)):  # type: ignore[misc] - a tool's class
    """The calculator with decisions that are given, and what it was shown."""

    def __init__(
        self, decisions: Sequence[FilterDecision] | None = None, whole: str | None = None, **spec: Any
    ) -> None:
        self.spec = replace(CALCULATOR.spec, **spec)
        self._decisions = decisions
        self._whole = whole
        self.seen: list[Document] = []

    def filter(self, document: Document) -> list[FilterDecision]:
        self.seen.append(document)
        if self._decisions is None:
            return super().filter(document)
        if self._whole not in (None, document.text):  # a piece of it
            return [FilterDecision(kept=True, reason="of a piece", end_char=len(document.text))]
        return list(self._decisions)

    def effective_input(self, call_input: str, document: Document) -> str | None:
        self.seen.append(document)
        return super().effective_input(call_input, document)


def test_a_document_with_call_markup_is_refused_whole():
    document = Document.of(f"Sums: [Calculator(1 + 1) -> 3] {SUM}")
    [decision] = filter_document(CALCULATOR, document, FilterChoices())
    assert decision == FilterDecision(kept=False, reason=HOLDS_CALL_MARKUP, end_char=len(document.text))
    assert not kept_paragraphs(document, [decision])


@pytest.mark.parametrize(
    "beginning", ["", "Our [QA (quality assurance)] team: ", "[[Calendar (New York City)|1]] ", "d[QA(3)] = "]
)
def test_the_tool_decides_on_a_document_whose_brackets_hold_no_call(beginning):
    document = Document.of(beginning + SUM)
    [decision] = filter_document(CALCULATOR, document, FilterChoices())
    assert (decision.kept, decision.start_char, decision.end_char) == (True, 0, len(document.text))
    assert [item.text for item in kept_paragraphs(document, [decision])] == [document.text]


PROSE = "One two three. Four five six.\nSeven eight.\n \nNine ten eleven twelve, and thirteen is the last of them."


WRAPPED = (
    "The old man walked slowly along the river and looked at the boats. They\n"
    "came down from the hills with the first light, laden with apples and with\n"
    "wood, and he knew all of them."
)


LAST_LINE_IN_20 = ("Nine ten eleven", "twelve, and", "thirteen is the", "last of them.")


@pytest.mark.parametrize(
    ("text", "most", "unbroken", "pieces"),
    [
        ("ab cd\nef gh", 1.25, (), ["ab cd", "ef gh"]),  # at a line that ends exactly there
        (PROSE, 20, (), [PROSE[:42], PROSE[45:]]),  # at the end of the paragraph
        (PROSE, 5, (), ["One two three.", "Four five six.", "Seven eight.", *LAST_LINE_IN_20]),
        (WRAPPED, 35, (), [WRAPPED[:66], WRAPPED[67:]]),  # its line ends are no ends of a paragraph
        # a call holds the end of the paragraph: the line's
        (PROSE, 20, ((40, 47),), [PROSE[:29], PROSE[30:]]),
        # a call ends, or begins, at the end of the paragraph: still there
        (PROSE, 20, ((36, 42),), [PROSE[:42], PROSE[45:]]),
        (PROSE, 20, ((42, 44),), [PROSE[:42], PROSE[45:]]),
        ("word" * 10, 5, ((10, 35),), ["word" * 8 + "wor", "dword"]),  # only after the call
        ("word" * 10, 5, ((20, 30),), ["word" * 5, "word" * 5]),  # right before it
    ],
)  # fmt: skip
def test_a_text_is_cut_at_a_blank_line_or_else_at_the_end_of_a_paragraph_a_sentence_or_a_word(
    text, most, unbroken, pieces
):
    found = cut(text, (0, len(text)), most, unbroken)
    assert [text[start:end] for start, end in found] == pieces


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    st.lists(st.sampled_from(["x", "word ", "é\n", "  ", "\n\n", "End. ", "x" * 30]), max_size=60).map(
        "".join
    ),
    st.integers(4, 100).map(lambda quarters: quarters / 4),
    st.lists(st.tuples(st.integers(0, 200), st.integers(2, 40)), max_size=3),
    st.integers(0, 20),
)
def test_pieces_hold_all_but_white_space_within_the_limit_without_breaking_a_call(text, most, calls, start):
    ends = itertools.accumulate(
        calls, lambda last, call: (last[1] + call[0], last[1] + call[0] + call[1]), initial=(0, 0)
    )
    unbroken = [span for span in ends if start <= span[0] and span[1] <= len(text)]
    pieces = cut(text, (min(start, len(text)), len(text)), most, unbroken)
    before = tokens_before(text)
    assert "".join("".join(text[first:end].split()) for first, end in pieces) == "".join(text[start:].split())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(pieces))
    for first, end in pieces:
        longest = sum(
            before[last] - before[begin] for begin, last in unbroken if first < last and begin < end
        )
        assert 0 < before[end] - before[first] <= most + longest or end == first + 1
        for begin, last in unbroken:
            assert not begin < first < last or not text[begin:first].strip()
            assert not begin < end < last or not text[end:last].strip()


def test_a_long_paragraph_is_annotated_in_pieces_beside_the_others():
    long = "Seven words of a long first line."
    lines = [f"{long} {long}", "not kept, though it is too long to be annotated", "short", f"{long} {long}"]
    document = Document.of("\n".join(lines))
    ends = list(itertools.accumulate(len(line) + 1 for line in lines))
    decisions = [
        FilterDecision(
            kept=number != 1, reason="of a line", paragraph=number, start_char=start, end_char=end - 1
        )
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]

    def found(**chosen: Any) -> list[tuple[int, bool, str, str]]:
        made = filter_document(TellingTool(decisions, document.text), document, FilterChoices(**chosen))
        return [
            (one.paragraph, one.kept, one.reason, document.text[one.start_char : one.end_char])
            for one in made
        ]

    whole = [(number, number != 1, "of a line", line) for number, line in enumerate(lines)]
    assert found() == found(max_text_tokens=0) == whole
    piece = (True, "of a piece", long)
    assert found(max_text_tokens=10) == [(0, *piece), (4, *piece), *whole[1:3], (3, *piece), (5, *piece)]


@pytest.mark.parametrize(
    "decided", [[], [FilterDecision(kept=True, reason="of a line", start_char=0, end_char=40)]]
)
def test_a_part_of_exactly_the_longest_length_is_no_piece(decided):
    document = Document.of("Seven words of a long first line. " * 2)
    tool = TellingTool(decided, document.text)
    assert filter_document(tool, document, FilterChoices(max_text_tokens=10)) == decided


class TwoRefusals(TellingTool):
    """Refuses each piece twice."""

    def filter(self, document: Document) -> list[FilterDecision]:
        if self._whole == document.text:
            return super().filter(document)
        return [FilterDecision(kept=False, reason=reason, end_char=3) for reason in ("first", "second")]


def test_a_piece_that_is_refused_has_the_reason_of_its_first_refusal():
    document = Document.of("Seven words of a long first line. " * 2)
    decided = [FilterDecision(kept=True, reason="kept", end_char=len(document.text))]
    pieces = filter_document(TwoRefusals(decided, document.text), document, FilterChoices(max_text_tokens=10))
    assert {(piece.kept, piece.reason) for piece in pieces} == {(False, "first")}


class WordFilter(type(CALCULATOR)):  # type: ignore[misc] - a tool's class
    """Keeps a text that holds a word."""

    def filter(self, document: Document) -> list[FilterDecision]:
        kept = "word" in document.text
        return [FilterDecision(kept, "has_it" if kept else "has_it_not", end_char=len(document.text))]


def test_each_piece_of_a_long_text_is_judged_by_the_filter():
    document = Document.of(
        "Nothing to see here today.\n\nA word stands in this one.\n\nAnd nothing here again."
    )
    decisions = filter_document(WordFilter(), document, FilterChoices(max_text_tokens=8))
    pieces = [
        (one.paragraph, one.kept, one.reason, document.text[one.start_char : one.end_char])
        for one in decisions
    ]
    assert pieces == [
        (0, False, "has_it_not", "Nothing to see here today."),
        (1, True, "has_it", "A word stands in this one."),
        (2, False, "has_it_not", "And nothing here again."),
    ]


def test_a_piece_is_judged_with_the_date_of_its_document():
    text = "Today is a day.\n\nSo was the day before, it is said."
    dated = Document.of(text, document_date=date(2023, 1, 30))
    decisions = filter_document(CALENDAR, dated, FilterChoices(max_text_tokens=9))
    assert [one.kept for one in decisions] == [True, True]


def test_a_piece_that_the_filter_says_nothing_of_is_refused_under_that_reason():
    whole = FilterDecision(kept=True, reason="of a text", end_char=40)
    tool: Any = TellingTool([])
    with mock.patch.object(tool, "filter", side_effect=[[whole], [], []]):
        decisions = filter_document(tool, Document.of("four " * 8), FilterChoices(max_text_tokens=5))
    assert [(one.kept, one.reason) for one in decisions] == [(False, NOT_JUDGED)] * 2


@pytest.mark.parametrize("reads_record", [False, True])
def test_only_a_tool_that_says_so_gets_the_url_or_date_of_a_record(reads_record):
    """Filtering and sampling alike: what another tool computed cannot change when a record's date is corrected."""
    dated = Document.of(SUM, "https://x.org/2023/01/30/", date(2023, 1, 30))
    tool = TellingTool(reads_record=reads_record)
    filter_document(tool, dated, FilterChoices())
    candidates_at(tool, dated, CallPosition(3, 10, 0.5), [SampledContinuation("Calculator(2 + 3)", True)])
    assert tool.seen == [dated if reads_record else Document.of(SUM)] * 2
    assert (CALENDAR.spec.reads_record, CALCULATOR.spec.reads_record) == (True, False)
