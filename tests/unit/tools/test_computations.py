"""The Calculator's sharp filter: which numbers are operands, and which texts hold a computation."""

import pytest

from toolformer_ops.annotation.filtering import filter_document
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import FilterChoices
from toolformer_ops.tools import computations
from toolformer_ops.tools.calculator import TOOL
from toolformer_ops.tools.computations import judge_computations
from toolformer_ops.tools.operands import UNIT, Value, operands

NUMBER, PERCENTAGE = (True, "number_of_two_others"), (True, "percentage_of_two_others")
TOTAL, EQUALS = (True, "total_of_several"), (True, "equals_sign_before_number")
NONE, TOO_FEW = (False, "no_computation"), (False, "fewer_than_three_numbers")

NO_OPERANDS = {
    "ordinals": ["the 3rd of 5th", "the third quarter, the fourth of July"],
    "dates": [
        "2018-12-07", "12/05/2018", "July 14, 2020", "Jan. 3-5", "14 July 2020", "May 2019", "2019/20", "2020-07-14T19:00:18Z",
    ],
    "clocks": ["19:00:18 +0200", "at 3 pm", "9-11 a.m.", "5 o'clock"],
    "versions": ["version 2", "v2.3", "1.2.3", "(3.1-1)", "release 4.2"],
    "numbers of lists": [
        "1. Clean it.\n2. Lock it.",
        "(1) red, (2) blue", "1) Draft", "  - 3. Review", "Do this: 1. Draft it. 2. Review it.", "[12]", "#5",
    ],
    "numbers of pages, sections, verses and things": [
        "page 12", "pp. 12-14", "Section 508", "John 3:16-17", "tables 1, 2 and 3", "§ 102", "in Windows 10", "COVID-19", "No. 5",
        "Problem 1: unclear",
    ],
    "addresses": ["https://a.gov/2012/05/12", "call 1-800-772-1213", "a1.2@b3.org"],
    "ranges": ["60 to 90 minutes", "10-12 years", "between two and four", "5 – 6 days", "$50,000 – $74,999"],  # noqa: RUF001
    "sizes of files": ["(PDF, 391 KB, 3 pages)"],
    "words that seldom count": ["one of them", "both", "hundreds of people", "the score", "half a dozen"],
}  # fmt: skip


@pytest.mark.parametrize("claim", NO_OPERANDS)
def test_what_people_do_not_compute_with_is_no_operand(claim):
    assert {text: operands(text) for text in NO_OPERANDS[claim]} == {text: [] for text in NO_OPERANDS[claim]}


@pytest.mark.parametrize(
    ("text", "number", "kind"),
    [
        ("48 clips", 48, "plain"),
        ("1,400 people", 1400, "plain"),
        ("forty-two boxes", 42, "plain"),
        ("two dozen eggs", 24, "plain"),
        ("twice as many", 2, "plain"),
        ("a third of it", 3, "plain"),
        ("2.3 million people", 2_300_000, "plain"),
        ("$45", 45, "money"),
        ("€ 1.5 billion", 1_500_000_000, "money"),
        ("12 dollars", 12, "money"),
        ("50 cents", 0.5, "money"),
        ("71%", 71, "percent"),
        ("ten percent", 10, "percent"),
        ("11.4 per cent", 11.4, "percent"),
        ("130 basis points", 1.3, "percent"),
        ("in 2012", 2012, "year"),
        ("in 1248", 1248, "year"),
        ("1248 grams", 1248, "plain"),
        ("2000 calories", 2000, "plain"),
    ],
)
def test_an_operand_has_its_value(text, number, kind):
    [operand] = operands(text)
    assert (operand.value.millionths, operand.value.kind) == (int(number * UNIT), kind)


DECISIONS = {
    "lists, dates and clocks are no computation": {
        "To start, do this.\n1. Clean the keyboard.\n2. Think twice.\n3. Lock the screen.": TOO_FEW,
        "2018-12-07 fixed the parser.\n2018-12-05 wrote the manual.": TOO_FEW,
        "demo (3.1-1) unstable; urgency=low, Tue, 14 Jul 2020 19:00:18 +0200": TOO_FEW,
        "See page 3, page 5 and page 8.": TOO_FEW,
        "Psalm 12:4 and 13:5; he read 17:9.": TOO_FEW,
    },
    "a share or a change in per cent is one": {
        "The line carried 150,000 riders last year and 165,000 this year, a rise of 10 percent.": PERCENTAGE,
        "Of 905 people who were asked, 639 had bought on their phones, or 71%.": PERCENTAGE,
        "Sales of $905 million came via phones, 74% ($670 million) of them via iOS.": PERCENTAGE,
        "Fares fell by 20% from $50 to $40.": PERCENTAGE,
        "Users increased 123%, or from 79 million to 176 million.": PERCENTAGE,
        "Of 905 people who were asked, 639 had bought on their phones, or 72%.": NONE,  # 70.6
        "Rates rose from 42 percent to 72 percent, an increase of 30 percent.": NUMBER,
        "Margin fell by 130 basis points to 38.7% from 40.0%.": NUMBER,
    },
    "a sum, a product or a quotient is one": {
        "She sold 48 in April, 24 in May, 72 in all.": NUMBER,
        "One loaf takes 350 grams of flour, so 16 loaves take 5600 grams.": NUMBER,
        "All 2,169 goals in 252 matches: 8.61 a match.": NUMBER,
        "He drove 612 kilometres in 9 hours, an average of 68 kilometres an hour.": NUMBER,
        "Of $60.3 million, $13.9 million is for options and $46.4 million for shares.": NUMBER,
        "The cathedral was begun in 1248 and finished in 1880, so building it took 632 years.": NUMBER,
        "He bought twelve apples and ate five of the apples, so seven apples are left.": NUMBER,
        "She sold 12 cups, 30 plates, 5 bowls and 4 jugs, 51 pieces in total.": TOTAL,
        "The answer is 17 * 3 = 51.": EQUALS,
    },
    "small numbers without words that compute are none": {
        "The team has 3 designers, 5 writers and 8 laptops.": NONE,
        "It links 17 pages, 12 images and 5 videos.": NONE,
    },
    "money and things do not add up": {"It has 120 rooms, costs $35 and seats 155 guests.": NONE},
    "years are counted, not added": {"From 2012 to 2014 it had 26 staff.": NONE, "In 2012 and in 2014 it won 4026 votes.": NONE},
    "cells of a table are no sentence": {"| 32 | 27 | 59 |": NONE},
}  # fmt: skip


@pytest.mark.parametrize("claim", DECISIONS)
def test_a_text_is_kept_for_what_it_computes(claim):
    assert {text: judge_computations(text) for text in DECISIONS[claim]} == DECISIONS[claim]


def test_most_numbers_that_follow_from_others_are_no_chance():
    first, second = "Eve has 9 pens and 4 caps.", "There are 36 pairs. Now 13 lie here."
    assert judge_computations(f"{first} {second}") == NUMBER  # 9 * 4, 9 + 4
    assert judge_computations(f"{first} There are 36 pairs.") == NONE


@pytest.mark.parametrize(
    ("rule", "reason"), [("paper", "rule_i_result_of_two_others"), ("sharp", "fewer_than_three_numbers")]
)
def test_the_run_chooses_by_which_rule_a_text_is_judged(rule, reason):
    document = Document.of("Do this.\n1. Clean it.\n2. Think.\n3. Lock it.")
    [decision] = filter_document(TOOL, document, FilterChoices.model_validate({"filter_rule": rule}))
    assert decision.reason == reason


def test_a_piece_of_a_long_text_is_judged_by_the_same_rule():
    text = "She sold 48 clips in April, 24 in May, 72 in all.\n\nDo this.\n1. Clean.\n2. Think.\n3. Lock."
    choices = FilterChoices(max_text_tokens=15, filter_rule="sharp")
    assert [decision.kept for decision in filter_document(TOOL, Document.of(text), choices)] == [True, False]


def test_windows_of_equal_numbers_are_looked_through_once(monkeypatch):
    compared: list[tuple[Value, Value, Value]] = []

    def follows(first: Value, second: Value, result: Value) -> None:
        compared.append((first, second, result))

    monkeypatch.setattr(computations, "_follows", follows)
    assert judge_computations("1 1 1 " * 5_000) == NONE
    assert len(compared) == 84  # of windows of one to nine numbers: 0 + 0 + 1 + 3 + 6 + 10 + 15 + 21 + 28


@pytest.mark.parametrize(
    "text",
    ["1" * 50_000, "1" + ",000" * 20_000, "1." * 50_000, "1-" * 50_000, "a." * 50_000, "(" * 50_000, "total of " * 9_000],
)  # fmt: skip
def test_hostile_texts_take_linear_time(text):
    assert judge_computations(text) == TOO_FEW


@pytest.mark.parametrize(
    "text",
    [
        "8-bit optimizers keep 32-bit performance. 4-bit quantization enables a quarter of 8 bits.",
        "If you look at the last 10 years and not the last 20, the chart has two lines, "
        "one each for the last 20 years.",
    ],
)
def test_sizes_of_numbers_or_spans_of_time_are_no_computation(text):
    assert not judge_computations(text)[0]
