"""The Calculator computes exactly, refuses what is not a sum, and stays within its bounds."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolformer_ops.tools.calculator import MAX_EXPRESSION_CHARS, NUMBER_IN_TEXT, TOOL, evaluate, write_number


def answer(expression: str) -> str | None:
    return TOOL.run([expression])[0].results[0]


def reason(expression: str) -> str | None:
    return TOOL.run([expression])[0].reason


def is_too_large(value: Fraction) -> bool:
    """Whole results have at most 60 digits; those with decimals are below 10^15."""
    return abs(value) >= (10**60 if value.denominator == 1 else 10**15)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("27 + 4 * 2", "35"),
        ("400 / 1400", "0.29"),
        ("735 / 499", "1.47"),
        ("85 / 23", "3.70"),
        ("18 + 12 * 3", "54"),
        ("723 / 252", "2.87"),
        ("723 - 20", "703"),
        ("2011 - 1994", "17"),
        ("4 * 30", "120"),
    ],
)
def test_examples_of_the_paper(expression: str, result: str) -> None:
    assert answer(expression) == result


def test_the_percentage_of_the_papers_prompt_is_a_hundredth() -> None:
    assert answer("658,893 / 11.4%") == "5779763.16"  # 658893 / 0.114


def test_operators_of_one_rank_are_taken_from_the_left() -> None:
    assert answer("10-5-2") == "3"
    assert answer("8/4/2") == "1"
    assert answer("8/4*2") == "4"
    assert answer("10-5+2") == "7"


def test_brackets_and_unary_minus() -> None:
    assert answer("2 * (3 + 4)") == "14"
    assert answer("-3 + 5") == "2"
    assert answer("2 - (-3)") == "5"
    assert answer("2 * -3") == "-6"
    assert answer("-(2 + 3) * 2") == "-10"
    assert answer("--3") == "3"


def test_spaces_decimals_and_thousands_separators() -> None:
    assert answer("  1.5+2.25 ") == "3.75"
    assert answer(".5 + .5") == "1"
    assert answer("12,345 + 1") == "12346"
    assert answer("1,234,567.5 * 2") == "2469135"


@pytest.mark.parametrize("expression", ["12 x 3", "12x3", "12 X 3", "12 × 3", "72 ÷ 2", "39 − 3", "39 – 3"])  # noqa: RUF001
def test_other_signs_for_the_operators(expression: str) -> None:
    assert answer(expression) == "36"


def test_whole_numbers_have_no_decimals_and_others_have_two() -> None:
    assert answer("7 / 2") == "3.50"
    assert answer("0.1 + 0.2") == "0.30"  # exact: not 0.30000000000000004
    assert answer("0.1 + 0.9") == "1"
    assert answer("1 / 3 * 3") == "1"
    assert answer("2.999 + 0") == "3.00"  # rounded, so its decimals stay


def test_halves_are_rounded_away_from_zero() -> None:
    assert answer("1 / 8") == "0.13"  # 0.125
    assert answer("2.675 * 1") == "2.68"  # as a float 2.67499...
    assert answer("-1 / 8") == "-0.13"
    assert answer("-1 / 1000") == "0.00"


@pytest.mark.parametrize(
    "expression",
    [
        "1 +", "* 2", "2 3", "2(3)", "(2", "2)", "()", "2 ** 3", "7 // 2", "50 % 3", "5.", "1.2.3", "1,23", "12,34,567",
        "1e5", "two + 2", "abs(2)", "__import__('os')", "18 + 12 = 30", "$5 + $3", "+5", "1_000", "0b11", "nan",
        "\u0663 + 1", "\uff13 + 1", "\u00bd + 1",  # an Arabic-Indic digit, a full-width digit, a fraction sign
    ],
)  # fmt: skip
def test_what_is_not_a_sum_gets_no_result(expression: str) -> None:
    assert reason(expression) == "invalid_expression"


def test_reasons_for_no_result() -> None:
    assert reason("1 / 0") == "division_by_zero"
    assert reason("1 / (2 - 2)") == "division_by_zero"
    assert reason("") == "empty_input"
    assert reason(" \t") == "empty_input"
    assert reason("1 + " * 100 + "1") == "expression_too_long"
    assert reason("(" * 40 + "1" + ")" * 40) == "nested_too_deeply"


def test_whole_results_are_exact_up_to_sixty_digits() -> None:
    assert answer("999999999999 * 999999") == "999998999999000001"
    assert answer("123456789012345678901234567890 * 1000000000000000000000000000000 - 1") == (
        "123456789012345678901234567889999999999999999999999999999999"
    )
    assert answer("9" * 60) == "9" * 60
    assert answer("-" + "9" * 60) == "-" + "9" * 60
    assert reason(f"{'9' * 60} + 1") == "result_too_large"
    assert reason(f"-1{'0' * 60}") == "result_too_large"


def test_results_with_decimals_are_given_below_a_thousand_million_millions() -> None:
    assert answer("999999999999999 - 0.5") == "999999999999998.50"
    assert reason("1000000000000000 + 0.5") == "result_too_large"
    assert answer("999999999999999999 / 1000000000") == "1000000000.00"  # large on the way is no harm


@pytest.mark.parametrize("expression", ["0x10 + 1", "0X10", "1 + 0x1F", "0x5", "3*0xa", "(0x10)", "-0x10", "3x0x10"])
def test_what_looks_hexadecimal_is_refused(expression: str) -> None:
    assert reason(expression) == "invalid_expression"


def test_a_zero_before_an_x_is_a_factor_where_it_cannot_be_hexadecimal() -> None:
    assert answer("10x3") == "30"
    assert answer("0 x 10 + 1") == "1"
    assert answer("2.0x3") == "6"


def test_one_bad_input_does_not_stop_the_others() -> None:
    outputs = TOOL.run(["1 + 1", "1 / 0", "(" * 199, "3 * 3"])
    assert [output.results for output in outputs] == [("2",), (), (), ("9",)]
    assert [output.reason for output in outputs] == [None, "division_by_zero", "nested_too_deeply", None]


@given(st.text(max_size=300))
def test_any_text_gets_a_result_or_a_reason(expression: str) -> None:
    output = TOOL.run([expression])[0]
    assert bool(output.results) != bool(output.reason)


@given(st.text(alphabet="0123456789.,+-*/()%x ", max_size=250))
def test_any_row_of_signs_gets_a_result_or_a_reason(expression: str) -> None:
    output = TOOL.run([expression])[0]
    assert bool(output.results) != bool(output.reason)


Sum = tuple[str, Fraction | None]


def _combine(pair: tuple[Sum, str, Sum]) -> Sum:
    """A bracketed operation, written out and computed beside the parser; None where it divides by zero."""
    (left, left_value), operator, (right, right_value) = pair
    written = f"({left} {operator} {right})"
    if left_value is None or right_value is None or (operator == "/" and right_value == 0):
        return written, None
    value = {
        "+": left_value + right_value,
        "-": left_value - right_value,
        "*": left_value * right_value,
        "/": left_value / right_value if right_value else Fraction(0),
    }[operator]
    return written, value


NUMBERS = st.decimals(min_value=0, max_value=9999, places=2).map(lambda number: (str(number), Fraction(number)))
SUMS = st.recursive(NUMBERS, lambda part: st.tuples(part, st.sampled_from("+-*/"), part).map(_combine), max_leaves=10)


@given(SUMS)
def test_brackets_are_computed_as_they_are_nested(tree: Sum) -> None:
    expression, expected = tree
    if len(expression) > MAX_EXPRESSION_CHARS:
        assert reason(expression) == "expression_too_long"
    elif expected is None:
        assert reason(expression) == "division_by_zero"
    elif is_too_large(expected):
        assert reason(expression) == "result_too_large"
    else:
        assert evaluate(expression) == expected


@given(NUMBERS, st.lists(st.tuples(st.sampled_from("+-*/"), NUMBERS), min_size=1, max_size=8))
def test_without_brackets_products_bind_tighter_and_ranks_go_left_to_right(
    first: Sum, rest: list[tuple[str, Sum]]
) -> None:
    expression, terms = first[0], [first[1] or Fraction(0)]
    for operator, (written, value) in rest:
        expression += f"{operator}{written}"
        operand = value or Fraction(0)
        if operator in "+-":
            terms.append(operand if operator == "+" else -operand)
        elif operator == "*":
            terms[-1] *= operand
        elif operand:
            terms[-1] /= operand
        else:
            assert reason(expression) == "division_by_zero"
            return
    if is_too_large(sum(terms, Fraction(0))):
        assert reason(expression) == "result_too_large"
    else:
        assert evaluate(expression) == sum(terms)


@given(st.fractions(min_value=-1000, max_value=1000))
def test_what_is_written_is_within_half_a_hundredth(value: Fraction) -> None:
    assert abs(Fraction(write_number(value)) - value) <= Fraction(1, 200)


def test_numbers_in_running_text() -> None:
    text = "In 2011, 658,893 people (11.4%) paid $12.50 or .5; 18+12x3, 1,2,3 and 17/4. MP3 3D v1.2 1.2.3 B2 10,000."
    found = ["2011", "658,893", "11.4", "12.50", ".5", "18", "12", "3", "1", "2", "3", "17", "4", "10,000"]
    assert NUMBER_IN_TEXT.findall(text) == found


def test_an_input_is_only_after_where_one_of_its_numbers_is() -> None:
    assert TOOL.input_only_after("18 + 12", "There are 18 apples and", " 12 pears, in all 30.")
    assert not TOOL.input_only_after("18 + 12", "There are 18 apples and 12 pears, in all", " 30.")
    assert not TOOL.input_only_after("18 + 12", "18 apples and 12 pears, in all", " 30, that is 18 and 12.")


def test_numbers_are_compared_by_value_and_common_knowledge_does_not_count() -> None:
    assert not TOOL.input_only_after("1400 / 2.50", "Of 1,400 and 2.5 we get", " 560.")
    assert not TOOL.input_only_after("18 / 100", "Of 18", " of them")  # 100 stands nowhere in the text
    assert not TOOL.input_only_after("", "Of 18", " of 12")
    assert TOOL.input_only_after("1400 / 2", "Of 11400 and 2", " in 1,400")
