"""Which documents the Calculator asks for: the rules (i) to (iii) of appendix A, in both directions."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolformer_ops.records import Document
from toolformer_ops.tools.calculator import TOOL, judge

FILLER = "word "


@pytest.mark.parametrize(
    "text",
    [
        "She sold 48 in April, 24 in May, 72 in all.",  # 48 + 24
        "Of 520 shirts 187 were sold and 333 are left.",  # 520 - 187
        "There were 6 teams of 11 players, 66 people.",  # 6 * 11
        "He shared 96 among 4 children, 24 each.",  # 96 / 4
        "All 2,169 goals in 252 matches: 8.61 a match.",  # 2169 / 252 = 8.607...
        "It holds 72 pieces: 48 red ones and 24 blue ones.",  # the result stands first
        "5 red, 5 blue, 10 in all.",  # two places with the same number
        "Prices of 1.25 and 2.5 make 3.75 together.",
        "From 17 it rose by 1 to 18.",  # adding one is an operation like any other
    ],
)
def test_three_numbers_of_which_one_is_the_result_are_kept(text: str) -> None:
    assert judge(text) == (True, "rule_i_result_of_two_others")


@pytest.mark.parametrize(
    "text",
    [
        "Chapter 1 of the book has 37 pages and 850 words.",  # 37 * 1 = 37 would use one place twice
        "It scored 0 goals in 37 games and 850 minutes.",  # 37 + 0 = 37 likewise
        "We saw 37 geese, 37 ducks and 1 swan.",  # 37 * 1 = 37 says nothing
        "We saw 37 geese, 37 ducks and 0 swans.",  # nor does 37 + 0 = 37, nor 37 - 37 = 0
        "Rooms 499 and 501 on floor 1.",  # 499 / 501 = 1.00 only when rounded, and 1 is written whole
        "Rooms 3 and 500, 0 guests.",  # 3 / 500 = 0.01
        "He counted 7, 23 and 96.",
    ],
)
def test_three_numbers_without_a_result_are_left_to_chance(text: str) -> None:
    assert judge(text) == (False, "rule_iii_not_sampled")


def test_a_rounded_result_counts_only_where_decimals_are_written() -> None:
    assert judge("735 K, which is 1.47 times 499 K")[1] == "rule_i_result_of_two_others"
    assert judge("1.5 of 12 pieces, 0.13 of all")[1] == "rule_i_result_of_two_others"  # 0.125, halves up
    assert judge("7 parts, 2 thirds, 4 quarters")[1] == "rule_iii_not_sampled"  # 7 / 2 = 3.5, not 4


def test_numbers_of_more_than_fifteen_digits_are_no_evidence() -> None:
    assert judge("100000000000000, then 7 more: 100000000000007")[1] == "rule_i_result_of_two_others"
    assert judge("1000000000000000, then 7 more: 1000000000000007")[1] == "rule_iii_not_sampled"
    assert judge("0.123456, then 1 more: 1.123456")[1] == "rule_i_result_of_two_others"
    assert judge("0.1234567, then 1 more: 1.1234567")[1] == "rule_iii_not_sampled"


def rounded(value: Fraction) -> Fraction:
    """To two decimals, halves up."""
    return Fraction(math.floor(value * 100 + Fraction(1, 2)), 100)


def one_is_the_result_of_two_others(written: list[str]) -> bool:
    """Rule (i) by trying every three places in every order."""
    for first, second, third in itertools.permutations(written, 3):
        a, b, c = Fraction(first), Fraction(second), Fraction(third)
        if 0 in (a, b, c):
            continue
        values = [a + b, a - b, *([a * b] if 1 not in (a, b) else []), *([a / b] if b not in (a, 1) else [])]
        if c in values or ("." in third and c in map(rounded, values)):
            return True
    return False


SMALL_NUMBERS = st.one_of(
    st.integers(0, 300).map(str), st.decimals(0, 20, places=2).map(str), st.decimals(0, 9, places=1).map(str)
)


@given(st.lists(SMALL_NUMBERS, min_size=3, max_size=6))
def test_rule_i_agrees_with_trying_every_three_numbers(written: list[str]) -> None:
    found = judge(", ".join(f"item {number}" for number in written))[1] == "rule_i_result_of_two_others"
    assert found == one_is_the_result_of_two_others(written)


def test_the_window_is_a_hundred_tokens() -> None:
    # Tokens: 48, 24, then the filler, then 72. With 97 words between, 48 and 72 are the ends of exactly 100 tokens.
    assert judge("48 24 " + FILLER * 97 + "72")[1] == "rule_i_result_of_two_others"
    assert judge("48 24 " + FILLER * 98 + "72")[1] == "rule_iii_not_sampled"
    assert judge("72 " + FILLER * 97 + "48 24")[1] == "rule_i_result_of_two_others"
    assert judge("72 " + FILLER * 98 + "48 24")[1] == "rule_iii_not_sampled"


def test_punctuation_counts_as_tokens_and_a_number_is_one_token() -> None:
    assert judge("1,248.50 24 " + "a, " * 48 + "b 1,272.50")[1] == "rule_i_result_of_two_others"  # 2 + 96 + 1 + 1
    assert judge("1,248.50 24 " + "a, " * 49 + "1,272.50")[1] == "rule_iii_not_sampled"  # 2 + 98 + 1


@pytest.mark.parametrize(
    "text",
    [
        "So x = 12.",
        "x=12",
        "That equals 12.",
        "It is equal to -12 degrees.",
        "A total of 252 matches were played.",
        "with an average of $2.87 each",
        "The Total of\n1,400 was paid.",
    ],
)
def test_a_number_after_an_announcing_sequence_is_kept(text: str) -> None:
    assert judge(text) == (True, "rule_ii_sequence_before_number")


@pytest.mark.parametrize(
    "text",
    [
        "x = y",
        "equals the 12",
        "a total of about 12",
        "the average age of 12",
        "It totals 12.",
        "subtotal of 12",
        "total of 12th",
    ],
)
def test_an_announcing_sequence_without_a_number_is_not_enough(text: str) -> None:
    assert judge(text) == (False, "fewer_than_three_numbers")


def test_one_in_a_hundred_of_the_rest_is_kept_and_always_the_same() -> None:
    texts = [f"Document {number} has the numbers 7, 23 and 96." for number in range(10_000, 15_000)]
    decisions = [judge(text) for text in texts]
    kept = decisions.count((True, "rule_iii_sampled"))
    assert kept + decisions.count((False, "rule_iii_not_sampled")) == 5000
    assert 30 <= kept <= 70  # 50 expected, standard deviation 7
    assert [judge(text) for text in texts] == decisions


def test_digits_inside_words_and_versions_are_no_numbers() -> None:
    assert judge("MP3, B2B, 3D, 1.2.3, covid19 and 192.168.0.1")[1] == "fewer_than_three_numbers"


def test_long_documents_take_linear_time() -> None:
    # Numbers of eleven digits of which none is the sum or difference of two others, then worst cases for the patterns.
    numbers = [1_000_000_001 + 97 * number * number % 8_999_999_993 for number in range(2_000)]
    assert not judge(" ".join(f"{number}7" for number in numbers))[0]
    assert judge("1" * 200_000) == (False, "fewer_than_three_numbers")
    assert judge("1" + ",000" * 50_000 + "a")[0] is False


def test_the_whole_document_is_one_decision() -> None:
    [decision] = TOOL.filter(Document.of("So x = 12.\nAnd more."))
    assert (decision.kept, decision.paragraph, decision.start_char, decision.end_char) == (True, 0, 0, 20)
    [decision] = TOOL.filter(Document.of(""))
    assert (decision.kept, decision.reason, decision.end_char) == (False, "fewer_than_three_numbers", 0)
