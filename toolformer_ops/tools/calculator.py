"""The Calculator: `27 + 4 * 2` is `35`, `400 / 1400` is `0.29` (Toolformer, section 3 and appendix A.1).

In three parts: the tool; exact arithmetic on what a call asks; the filter, which documents are worth asking
for calls.

An expression may hold the four operators (also written as the letter x and as the signs for times, divided
by, minus and the en dash), round brackets, unary minus and a trailing per cent sign (`11.4%` is 0.114).
Everything else is invalid: no names, no powers, no implied multiplication, and no `0x10`, which is a
hexadecimal number to some readers and 0 times 10 to others. A number is written as in running text
(`written_numbers.py`); `1.250` is invalid if neither the sum nor the text says whether it is 1250. A result
has the decimal sign and the digits of its sum. What people and models write around a sum is passed over: currency
signs, a plus sign before a number, an equals sign or a full stop at the end.

The time is bounded by construction: length and nesting are limited before anything is computed, and the size
of every intermediate number is bounded by the number of digits that were written. Nothing here calls `eval`.
"""

import functools
import hashlib
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision, FilterRule, ProposedCalls, Tool, ToolOutput, ToolSpec
from toolformer_ops.tools.computations import judge_computations, proposed_sums
from toolformer_ops.tools.written_numbers import (
    COMMA,
    POINT,
    NumberWriting,
    is_read_in_two_ways,
    read_as_in,
    said_numbers,
    with_plain_digits,
    writing_of,
    writing_of_sum,
    written_as_in,
)

MAX_EXPRESSION_CHARS = 200
MAX_NESTING = 32
MAX_WHOLE_DIGITS = 60
"""Longest whole result; it is exact."""
MAX_ROUNDED = 10**15
"""Results with decimals are given below this; two decimals of a larger number say nothing."""

_CURRENCY = re.compile(r"[$€£¥]\s?(?=\.?[0-9])")
_TOKENS = {
    writing: re.compile(
        rf"\s*(?:(?P<number>{writing.unsigned})(?![\w.,](?<![xX]))|(?P<sign>[-+*/()%xX×÷−–]))"  # noqa: RUF001
    )
    for writing in (POINT, COMMA)
}
_END_OF_A_SUM = re.compile(r"(?:\s*=\s*\??|(?<=[0-9])\.)\s*$")
_HEXADECIMAL = re.compile(r"(?<![0-9.,])0[xX][0-9A-Fa-f]")
_OPERATORS = {
    "+": "+",
    "-": "-",
    "−": "-",  # noqa: RUF001
    "–": "-",  # noqa: RUF001
    "*": "*",
    "x": "*",
    "X": "*",
    "×": "*",  # noqa: RUF001
    "÷": "/",
    "/": "/",
}


class Calculator(Tool):
    """The tool; it needs nothing to run."""

    spec = ToolSpec(
        name="Calculator",
        purpose="Computes a sum with + - * / and brackets, exactly, rounded to two decimals.",
        prompt_file="prompts/calculator.txt",
        source="Toolformer, appendix A: tau_s 0.0, k 20, m 10, tau_f 0.5 for the calculator",
        filter_version="3",
        code_version="4",
        has_sharp_filter=True,
        sampling_threshold=0.0,
        max_positions=20,
        samples_per_position=10,
        keep_threshold=0.5,
    )

    def filter(self, document: Document) -> list[FilterDecision]:
        """One decision for the whole document, by the paper's rules (i) to (iii)."""
        return _decided(document, judge)

    def filter_by(self, rule: FilterRule, document: Document) -> list[FilterDecision]:
        """One decision for the whole document.

        It is that of `filter`, unless `computations.py` finds a computation in it.
        """
        return self.filter(document) if rule == "paper" else _decided(document, judge_computations)

    def proposals(self, document: Document) -> ProposedCalls:
        """The computations of the text as expressions, each before its result (`computations.py`)."""
        return ProposedCalls(tuple(proposed_sums(document.text)))

    def effective_input(self, call_input: str, document: Document) -> str:
        """The expression without white space around it, its numbers read as the document writes numbers."""
        return read_as_in(document.text, call_input.strip())

    def input_only_after(self, call_input: str, text_before: str, text_after: str) -> bool:
        """Whether a number of the expression occurs in the text after the call and not before it.

        Numbers are compared by value (`1,400` is `1400`, and so is `fourteen hundred`). A number that occurs
        nowhere in the text, such as the 100 of a percentage, is common knowledge and does not count.
        """
        writing = writing_of(text_before + text_after) or POINT
        needed = _numbers_in(call_input, writing) - _numbers_in(text_before, writing)
        only_after = needed & _numbers_in(text_after, writing)
        return bool(only_after) and not only_after <= said_numbers(text_before)

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One result or reason an expression."""
        outputs = []
        for expression in inputs:
            try:
                value = evaluate(expression)
                result = write_number(value)
                # The paper rounds to two decimals, and 0.00 says nothing of 3 / 1000.
                is_lost = value != 0 and float(result) == 0
                shown = ToolOutput.of(written_as_in(expression, result))
                outputs.append(ToolOutput.none("rounds_to_zero") if is_lost else shown)
            except RejectedInputError as error:
                outputs.append(ToolOutput.none(error.reason))
        return outputs


TOOL = Calculator()


def _decided(document: Document, judge: Callable[[str], tuple[bool, str]]) -> list[FilterDecision]:
    kept, reason = judge(document.text)
    return [FilterDecision(kept, reason, end_char=len(document.text))]


@functools.lru_cache(maxsize=4)
def _numbers_in(text: str, writing: NumberWriting) -> frozenset[str]:
    """The numbers of a text in one spelling each, so that equal values are equal strings, however long.

    All calls of a position ask for those of the same two texts.
    """
    numbers = set()
    for match in re.finditer(writing.number, with_plain_digits(text)):
        whole, _, decimals = writing.plain(match[0]).partition(".")
        numbers.add(f"{whole.lstrip('0') or '0'}.{decimals.rstrip('0')}".removesuffix("."))
    return frozenset(numbers)


# Arithmetic


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression.

    Raises:
        RejectedInputError: its `reason` is `empty_input`, `expression_too_long`, `nested_too_deeply`,
        `invalid_expression`,
            `division_by_zero` or `result_too_large`.
    """
    if not expression.strip():
        raise RejectedInputError("empty_input")
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise RejectedInputError("expression_too_long")
    # 0. What people and models write around a sum.
    expression = _CURRENCY.sub("", with_plain_digits(expression))
    expression = _END_OF_A_SUM.sub("", expression)
    if _HEXADECIMAL.search(expression) or is_read_in_two_ways(expression):
        raise RejectedInputError("invalid_expression")
    # 1. Numbers as values; operators, brackets and % as one character each, in one spelling.
    writing = writing_of_sum(expression) or POINT
    token = _TOKENS[writing]
    tokens: list[Fraction | str] = []
    end, text = 0, expression.rstrip()
    while end < len(text):
        match = token.match(text, end)
        if match is None:
            raise RejectedInputError("invalid_expression")
        number, sign = match["number"], match["sign"]
        tokens.append(Fraction(writing.plain(number)) if number else _OPERATORS.get(sign, sign))
        end = match.end()
    # 2. The value of the tokens, which must be one sum and nothing behind it.
    parser = _Parser(tokens[::-1])
    try:
        value = parser.sum(nesting=0)
    except ZeroDivisionError as error:
        raise RejectedInputError("division_by_zero") from error
    if parser.left:
        raise RejectedInputError("invalid_expression")
    # 3. Within bounds?
    if abs(value) >= (10**MAX_WHOLE_DIGITS if value.denominator == 1 else MAX_ROUNDED):
        raise RejectedInputError("result_too_large")
    return value


def write_number(value: Fraction) -> str:
    """`35` for a whole number, else two decimals, halves rounded away from zero: `3.70`, `0.13` for 1/8."""
    if value.denominator == 1:
        return str(value.numerator)
    hundredths = (200 * abs(value.numerator) + value.denominator) // (2 * value.denominator)
    sign = "-" if value < 0 and hundredths else ""
    return f"{sign}{hundredths // 100}.{hundredths % 100:02d}"


class _Parser:
    """Recursive descent over tokens, by this grammar.

    sum     = "+"? product (("+" | "-") product)*   left to right: 10 - 5 - 2 is 3
    product = factor (("*" | "/") factor)*          left to right: 8 / 4 / 2 is 1
    factor  = "-"* (number | "(" sum ")") "%"?
    """

    def __init__(self, left: list[Fraction | str]) -> None:
        self.left = left
        """The tokens that were not read yet, the next one last."""

    def _take(self, *wanted: str) -> str | None:
        """Step over the next token and return it if it is one of `wanted`."""
        return str(self.left.pop()) if self.left and self.left[-1] in wanted else None

    def sum(self, nesting: int) -> Fraction:
        self._take("+")
        value = self.product(nesting)
        while operator := self._take("+", "-"):
            operand = self.product(nesting)
            value = value + operand if operator == "+" else value - operand
        return value

    def product(self, nesting: int) -> Fraction:
        value = self.factor(nesting)
        while operator := self._take("*", "/"):
            operand = self.factor(nesting)
            value = value * operand if operator == "*" else value / operand
        return value

    def factor(self, nesting: int) -> Fraction:
        if self._take("-"):
            return -self.factor(nesting)
        if self._take("("):
            if nesting == MAX_NESTING:
                raise RejectedInputError("nested_too_deeply")
            value = self.sum(nesting + 1)
            if not self._take(")"):
                raise RejectedInputError("invalid_expression")
        else:
            token = self.left.pop() if self.left else None
            if not isinstance(token, Fraction):
                raise RejectedInputError("invalid_expression")
            value = token
        return value / 100 if self._take("%") else value


# The filter

WINDOW_TOKENS = 100
PAIRS_REMEMBERED = 2**14
SAMPLED_SHARE = 0.01
"""Share of the documents matching only rule (iii) that is kept."""


_TEXT_TOKENS = {
    writing: re.compile(rf"(?P<number>{writing.number})|\w+?(?={writing.number})|\w+|[^\w\s]")
    for writing in (POINT, COMMA)
}
_ANNOUNCED_NUMBERS = {
    writing: re.compile(
        r"(?:=|\b(?i:equals|equal\s+to|total\s+of|average\s+of)\b)\s*(?:[-−]\s*)?(?:[$€£¥]\s*)?"  # noqa: RUF001
        + writing.number
    )
    for writing in (POINT, COMMA)
}

_UNIT = 10**6
"""Values are whole millionths: sums, products and quotients are then exact integer arithmetic."""
_HUNDREDTH = _UNIT // 100
_MAX_DIGITS = 15
"""Longer numbers (account and telephone numbers, hashes) take no part in rule (i)."""


@dataclass(frozen=True)
class NumberInText:
    """One number in a text."""

    token: int
    """Its place among the text's tokens."""
    value: int
    """In millionths; 0 if it is too long to take part in rule (i)."""
    has_decimals: bool


def judge(text: str) -> tuple[bool, str]:
    """Whether a document is worth asking for calls, and the first rule of appendix A.1 that decides it.

    (i)   Within a window of 100 tokens there are three numbers of which one is the result of +, -, * or /
          applied to the other two. A token is a number, another run of letters and digits, or a single other
          sign. The three are three different places, so that `5 ... 1` alone never counts as 5 * 1 = 5. What
          holds for any number is no evidence and does not count: adding or subtracting 0, multiplying by 0
          or 1, dividing by 1 or by itself. The result may be rounded as the calculator rounds it (two
          decimals) if the text writes it with decimals.
    (ii)  One of "=", "equals", "equal to", "total of", "average of" is followed by a number. White space, a
          currency sign or a minus sign may come between, other words may not.
    (iii) There are at least three numbers; of the documents that match only this rule one in a hundred is
          kept, chosen by a hash of the text, so that it is the same one every night.

    Numbers are unsigned (a hyphen before one may be a dash), as `written_numbers.py` finds them.
    """
    writing = writing_of(text) or POINT
    plain_text = with_plain_digits(text)
    numbers = []
    for token, match in enumerate(_TEXT_TOKENS[writing].finditer(plain_text)):
        if written := match["number"]:
            whole, point, decimals = writing.plain(written).partition(".")
            fits = len(whole) <= _MAX_DIGITS and len(decimals) <= 6
            value = int(whole or "0") * _UNIT + int(decimals.ljust(6, "0")) if fits else 0
            numbers.append(NumberInText(token, value, bool(point)))
    if _holds_result_of_two_others(numbers):
        return True, "rule_i_result_of_two_others"
    if _ANNOUNCED_NUMBERS[writing].search(plain_text):
        return True, "rule_ii_sequence_before_number"
    if len(numbers) < 3:
        return False, "fewer_than_three_numbers"
    digest = hashlib.sha256(b"calculator filter, rule iii\n" + text.encode("utf-8", "surrogatepass")).digest()
    sampled = int.from_bytes(digest[:8], "big") < SAMPLED_SHARE * 2**64
    return (True, "rule_iii_sampled") if sampled else (False, "rule_iii_not_sampled")


def _holds_result_of_two_others(numbers: list[NumberInText]) -> bool:
    """Rule (i): each pair within a window is combined, and the results are looked up.

    Of the numbers of one value after a first number, the two nearest are combined with it. That
    decides as all of them do: the results are equal, and the third place must be at most `WINDOW_TOKENS`
    before the second number and after the first, so that the nearest second allows every place that a
    farther one allows, except its own; and the next one allows that.
    """
    # Zero takes part only in what holds for any number.
    valued = [number for number in numbers if number.value]
    places: dict[int, list[NumberInText]] = defaultdict(list)
    for number in valued:
        places[number.value].append(number)
    rounded_values = frozenset(number.value for number in valued if number.has_decimals)
    # Pairs of equal values are combined once, however often they are repeated.
    results = functools.lru_cache(maxsize=PAIRS_REMEMBERED)(
        lambda a, b: tuple(_results(a, b, places.keys(), rounded_values))
    )
    # By value, the two nearest numbers after the first; values in the order of their nearest, the last
    # first.
    ahead: dict[int, tuple[NumberInText, ...]] = {}
    for first in reversed(valued):
        latest = first.token + WINDOW_TOKENS - 1
        for seconds in reversed(ahead.values()):
            if seconds[0].token > latest:
                break
            for value, exact in results(first.value, seconds[0].value):
                for second in seconds:
                    if second.token <= latest and _stands_near(places[value], first, second, exact):
                        return True
        ahead[first.value] = (first, *ahead.pop(first.value, ())[:1])
    return False


def _stands_near(places: list[NumberInText], first: NumberInText, second: NumberInText, exact: bool) -> bool:
    """Whether a place of a result is within a window that holds both numbers, and is neither of them."""
    earliest, latest = second.token - WINDOW_TOKENS + 1, first.token + WINDOW_TOKENS - 1
    begin = bisect_left(places, earliest, key=lambda number: number.token)
    for place in places[begin : begin + 2 * WINDOW_TOKENS]:
        if place.token > latest:
            return False
        if place.token not in (first.token, second.token) and (exact or place.has_decimals):
            return True
    return False


def _results(
    a: int, b: int, values: Container[int], rounded_values: Container[int]
) -> Iterator[tuple[int, bool]]:
    """Those of `a op b` and `b op a`, in millionths, that are among `values`, each with whether it is exact.

    A result that is rounded to hundredths is among `rounded_values`.
    """
    for value in (a + b, abs(a - b)):
        if value in values:
            yield value, True
    fractions = []
    if _UNIT not in (a, b):
        fractions.append((a * b, _UNIT))
    if b not in (a, _UNIT):
        fractions.append((a * _UNIT, b))
    if a not in (b, _UNIT):
        fractions.append((b * _UNIT, a))
    for numerator, denominator in fractions:
        quotient, remainder = divmod(numerator, denominator)
        if not remainder and quotient in values:
            yield quotient, True
        if remainder or quotient % _HUNDREDTH:
            step = denominator * _HUNDREDTH
            rounded = (2 * numerator + step) // (2 * step) * _HUNDREDTH
            if rounded in rounded_values:
                yield rounded, False
