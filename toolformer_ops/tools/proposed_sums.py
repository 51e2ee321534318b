"""The calls that the Calculator proposes for a text: the computations of `computations.py` as expressions.

A call comes before the number that follows from others, and before the currency sign or bracket that opens
it. Of several pairs that give a number the nearest are taken, at most `EXPRESSIONS_AT_A_PLACE`. A number that
no pair gives may follow from the three numbers before it, by two operations: of these only large ones are
taken, since small ones follow by chance. A number that the text has just said is repeated, not computed, and
a number that a written sum computes with is no result.

An expression has its numbers in digits, however the text writes them: `half of 48` is `0.5 * 48`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from toolformer_ops.tools.base import ProposedCall
from toolformer_ops.tools.computations import OPERANDS_BEFORE, WORDS_TOKENS, Computation, computations
from toolformer_ops.tools.operands import UNIT, Operand, operands
from toolformer_ops.tools.proposed_places import place_before
from toolformer_ops.tools.written_numbers import COMMA, writing_of

EXPRESSIONS_AT_A_PLACE = 3
LEAST_OF_A_CHAIN = 100 * UNIT
"""Smaller numbers follow from three others by chance."""
_OPERATOR_BEHIND = re.compile(r"\s*[-+*/x×÷=−–]\s*[$€£¥(]?[0-9]")  # noqa: RUF001


@dataclass(frozen=True)
class _Term:
    """An expression and its value."""

    expression: str
    value: Fraction

    @classmethod
    def of(cls, number: Operand) -> "_Term":
        """A number in digits, with a decimal point, without signs that group."""
        whole, millionths = divmod(number.value.millionths, UNIT)
        written = f"{whole}.{millionths:06d}".rstrip("0").rstrip(".")
        return cls(written, Fraction(number.value.millionths, UNIT))


def proposed_sums(text: str) -> Iterator[ProposedCall]:
    """The calls of a text, in the order of its numbers."""
    numbers = operands(text)
    has_commas = writing_of(text) is COMMA
    pairs: dict[Operand, list[Computation]] = defaultdict(list)
    for computation in computations(text, numbers, EXPRESSIONS_AT_A_PLACE):
        pairs[computation.result].append(computation)
    for index, result in enumerate(numbers):
        # 1. Only a number that is a result.
        before = numbers[max(0, index - OPERANDS_BEFORE) : index]
        was_said = any(number.value.millionths == result.value.millionths for number in before)
        if was_said or _OPERATOR_BEHIND.match(text, result.end_char):
            continue
        # 2. The expressions that give it.
        expressions = list(map(expression_of, pairs[result])) or _chains(before[-3:], result)
        place = place_before(text, result.start_char)
        for expression in dict.fromkeys(expressions):
            yield ProposedCall(place, expression.replace(".", ",") if has_commas else expression)


def expression_of(computation: Computation) -> str:
    """The expression whose value is the computation's result."""
    first, second, result = computation.first, computation.second, computation.result
    if computation.how not in ("share", "change"):
        terms = _results(_Term.of(first), _Term.of(second))
        expected = _Term.of(result).value
        return min(terms, key=lambda term: abs(term.value - expected)).expression
    if result.value.kind == "percent":
        low, high = sorted(map(_Term.of, (first, second)), key=lambda term: term.value)
        if computation.how == "share":
            return f"{low.expression} / {high.expression} * 100"
        return f"({high.expression} - {low.expression}) / {_Term.of(first).expression} * 100"
    percentage, amount = (first, second) if first.value.kind == "percent" else (second, first)
    part = f"{_Term.of(amount).expression} * {_Term.of(percentage).expression}%"
    if computation.how == "share":
        return part
    sign = "+" if result.value.millionths > amount.value.millionths else "-"
    return f"{_Term.of(amount).expression} {sign} {part}"


def _chains(before: Sequence[Operand], result: Operand) -> list[str]:
    """At most one expression with two operations on the three numbers before a large number."""
    if len(before) < 3 or result.token - before[0].token > WORDS_TOKENS:
        return []
    is_plain = {number.value.kind for number in (*before, result)} <= {"plain", "money"}
    if not is_plain or result.value.millionths < LEAST_OF_A_CHAIN:
        return []
    x, y, z = map(_Term.of, before)
    for first, second, third in ((x, y, z), (y, z, x), (x, z, y)):
        for inner in _results(first, second):
            for chain in _results(_Term(f"({inner.expression})", inner.value), third):
                if chain.value == _Term.of(result).value:
                    return [chain.expression]
    return []


def _results(left: _Term, right: _Term) -> list[_Term]:
    """What two terms give by each operation."""
    results = [
        _Term(f"{left.expression} + {right.expression}", left.value + right.value),
        _Term(f"{left.expression} - {right.expression}", left.value - right.value),
        _Term(f"{right.expression} - {left.expression}", right.value - left.value),
        _Term(f"{left.expression} * {right.expression}", left.value * right.value),
    ]
    if right.value:
        results.append(_Term(f"{left.expression} / {right.expression}", left.value / right.value))
    if left.value:
        results.append(_Term(f"{right.expression} / {left.expression}", right.value / left.value))
    return results
