"""Which expressions the Calculator proposes for a text, and before which word."""

import time

import pytest

from toolformer_ops.records import Document
from toolformer_ops.tools.calculator import TOOL
from toolformer_ops.tools.files.answering import MOST_PROPOSED_CALLS


def shown(text: str) -> list[tuple[str, str]]:
    """Each call with the text that follows it."""
    return [(call.input, text[call.char :]) for call in TOOL.proposals(Document.of(text)).calls]


EXPRESSIONS = {
    "a sum": ("It had 520 shirts and 187 coats, a total of 707 pieces.", "520 + 187", "707 pieces."),
    "a difference": ("The shop had 520 shirts and sold 187 of them, so 333 were left.", "520 - 187", "333 were left."),
    "a product": ("She bought 24 boxes of 18 pens each, 432 pens.", "24 * 18", "432 pens."),
    "a quotient": ("They split 432 pens among 24 children, 18 pens each.", "432 / 24", "18 pens each."),
    "a share in per cent": ("The test had 1450 participants; 400 passed (27.6%) at once.", "400 / 1450 * 100", "(27.6%) at once."),
    "a share of an amount": ("Of the 1400 participants 25% were late, 350 people.", "1400 * 25%", "350 people."),
    "a span of years": ("I went to Paris in 1994 and stayed until 2011, 17 years.", "2011 - 1994", "17 years."),
    "number words": ("He had forty-eight pens and sold 31 of them, so 17 were left.", "48 - 31", "17 were left."),
    "an amount": ("A coat costs $120 and a hat $35, a total of $155 today.", "120 + 35", "$155 today."),
    "a chain": ("Each of 12 rows has 9 seats, and 45 more are outside, so 153 can sit.", "(12 * 9) + 45", "153 can sit."),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXPRESSIONS)
def test_a_computation_is_proposed_before_its_result(kind):
    text, expression, after = EXPRESSIONS[kind]
    assert shown(text) == [(expression, after)]


@pytest.mark.parametrize("kind", EXPRESSIONS)
def test_the_value_of_a_proposed_expression_follows_it_but_for_rounding(kind):
    _, expression, after = EXPRESSIONS[kind]
    [value] = [output.results[0] for output in TOOL.run([expression])]
    assert float(value) == pytest.approx(float(after.lstrip("$(").split()[0].split("%")[0]), abs=0.05)


def test_a_number_that_was_said_before_is_not_proposed_again():
    assert shown("It had 520 shirts and 187 coats, a total of 707 pieces. The 707 pieces are gone.") == [
        ("520 + 187", "707 pieces. The 707 pieces are gone.")
    ]


def test_a_number_that_a_written_sum_computes_with_is_not_proposed():
    text = "It had 520 shirts and 187 coats, so the total is 707 + 12 pieces."
    assert shown(text) == []


def test_of_several_expressions_the_nearest_comes_first():
    text = "She earned 20 euros and 35 euros, then 25 euros and 30 euros, a total of 55 euros."
    assert [expression for expression, _ in shown(text)] == ["25 + 30", "20 + 35"]


def test_an_expression_has_the_decimal_sign_of_its_text():
    text = "The first one costs $3,50 and the second $2,75, a total of $6,25 today."
    assert shown(text) == [("3,5 + 2,75", "$6,25 today.")]


def test_a_text_without_a_computation_has_no_proposal():
    assert shown("In chapter 3 of 1984 there are 12 pages.") == []


def test_a_megabyte_of_numbers_takes_seconds():
    text = "The shop had 520 shirts and sold 187 of them, so 333 were left. " * 16_000
    started = time.process_time()
    calls = TOOL.proposals(Document.of(text)).calls
    assert len(calls) > MOST_PROPOSED_CALLS or calls
    assert time.process_time() - started < 12
