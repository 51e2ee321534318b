"""Read and evaluate arithmetic exactly: `27 + 4 * 2` is 35, `400 / 1400` is 2/7 (Toolformer, section 3 and appendix A.1).

Also the one place that says what a number looks like, in an expression and in running text: digits, with commas between
groups of three (`658,893`), and a decimal part. An expression may hold the four operators (also written as the letter x and
as the signs for times, divided by, minus and the en dash), round brackets, unary minus and a trailing per cent sign
(`11.4%` is 0.114). Everything else is invalid: no names, no powers, no implied multiplication, no digits but 0 to 9.

The time is bounded by construction: length and nesting are limited before anything is computed, and the size of every
intermediate number is bounded by the number of digits that were written. Nothing here calls `eval`.
"""

import re
from fractions import Fraction

from toolformer_ops.errors import NoValueError

MAX_EXPRESSION_CHARS = 200
MAX_NESTING = 32
MAX_RESULT = 10**15
"""Results of this magnitude or above are not given: a page that needs them is not doing sums."""

UNSIGNED_NUMBER = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
NUMBER_IN_TEXT = re.compile(
    rf"(?:(?<!\w)|(?<=[0-9][xX]))(?<![0-9]\.)(?<!\w\.(?=[0-9])){UNSIGNED_NUMBER}"
    r"(?:(?!\w)|(?=[xX][0-9]))(?!\.[0-9]|,[0-9]{3}(?![0-9]))"
)
"""A number that stands by itself in running text: both of `12x3`, but not the 3 of `MP3` or `3D`, and no part of `1.2.3`."""

_TOKEN = re.compile(
    rf"\s*(?:(?P<number>{UNSIGNED_NUMBER})(?![\w.,](?<![xX]))|(?P<sign>[-+*/()%xX×÷−–]))"  # noqa: RUF001
)
_OPERATORS = {"+": "+", "-": "-", "−": "-", "–": "-", "*": "*", "x": "*", "X": "*", "×": "*", "÷": "/", "/": "/"}  # noqa: RUF001


def number_value(written: str) -> Fraction:
    """The exact value of a number as it is written, such as `658,893` or `2.87`."""
    return Fraction(written.replace(",", ""))


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression.

    Raises:
        NoValueError: its `reason` is `empty_input`, `expression_too_long`, `nested_too_deeply`, `invalid_expression`,
            `division_by_zero` or `result_too_large`.
    """
    if not expression.strip():
        raise NoValueError("empty_input")
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise NoValueError("expression_too_long")
    value = _Parser(_tokens(expression)).parse()
    if abs(value) >= MAX_RESULT:
        raise NoValueError("result_too_large")
    return value


def write_number(value: Fraction) -> str:
    """`35` for a whole number, else two decimals, halves rounded away from zero: `3.70`, `0.13` for 1/8."""
    if value.denominator == 1:
        return str(value.numerator)
    hundredths = round_to_hundredths(abs(value))
    sign = "-" if value < 0 and hundredths else ""
    return f"{sign}{hundredths // 100}.{hundredths % 100:02d}"


def round_to_hundredths(value: Fraction) -> int:
    """`value` (not negative) in hundredths, halves rounded up."""
    return (200 * value.numerator + value.denominator) // (2 * value.denominator)


def _tokens(expression: str) -> list[Fraction | str]:
    """Numbers as values; operators, brackets and % as one character each, in one spelling."""
    tokens: list[Fraction | str] = []
    end, text = 0, expression.rstrip()
    while end < len(text):
        match = _TOKEN.match(text, end)
        if match is None:
            raise NoValueError("invalid_expression")
        number = match["number"]
        tokens.append(number_value(number) if number else _OPERATORS.get(match["sign"], match["sign"]))
        end = match.end()
    return tokens


class _Parser:
    """Recursive descent over tokens, by this grammar.

    sum     = product (("+" | "-") product)*        left to right: 10 - 5 - 2 is 3
    product = factor (("*" | "/") factor)*          left to right: 8 / 4 / 2 is 1
    factor  = "-"* (number | "(" sum ")") "%"?
    """

    def __init__(self, tokens: list[Fraction | str]) -> None:
        self._tokens = tokens
        self._next = 0

    def parse(self) -> Fraction:
        value = self._sum(nesting=0)
        if self._next != len(self._tokens):
            raise NoValueError("invalid_expression")
        return value

    def _take(self, *wanted: str) -> str | None:
        """Step over the next token and return it if it is one of `wanted`."""
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            if isinstance(token, str) and token in wanted:
                self._next += 1
                return token
        return None

    def _sum(self, nesting: int) -> Fraction:
        value = self._product(nesting)
        while operator := self._take("+", "-"):
            operand = self._product(nesting)
            value = value + operand if operator == "+" else value - operand
        return value

    def _product(self, nesting: int) -> Fraction:
        value = self._factor(nesting)
        while operator := self._take("*", "/"):
            operand = self._factor(nesting)
            if operator == "*":
                value *= operand
            elif operand == 0:
                raise NoValueError("division_by_zero")
            else:
                value /= operand
        return value

    def _factor(self, nesting: int) -> Fraction:
        negative = False
        while self._take("-"):
            negative = not negative
        value = self._bracket(nesting) if self._take("(") else self._number()
        if self._take("%"):
            value /= 100
        return -value if negative else value

    def _bracket(self, nesting: int) -> Fraction:
        if nesting == MAX_NESTING:
            raise NoValueError("nested_too_deeply")
        value = self._sum(nesting + 1)
        if not self._take(")"):
            raise NoValueError("invalid_expression")
        return value

    def _number(self) -> Fraction:
        token = self._tokens[self._next] if self._next < len(self._tokens) else None
        if not isinstance(token, Fraction):
            raise NoValueError("invalid_expression")
        self._next += 1
        return token
