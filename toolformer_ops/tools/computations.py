"""Computations in a text: a number that follows from two others shortly before it, as filter and as calls.

What the Calculator's filter looks for by its rule `sharp`, and what it proposes (`tools/calculator.py`). The
paper's rule takes every number for an operand, so that the list numbers 1, 2 and 3, a date or a clock make a
sum, and knows no percentage. Here, in this order:

1. `operands.py` finds the numbers that people compute with, each with its kind: an amount of money, a
   percentage, a year, or a plain number.
2. `computations`: the operands that follow from two of the few before them, by an operation that their kinds
   allow: money and money is money, money by a number of things is money, a share of two plain numbers is a
   percentage.
3. Small numbers meet by chance. So a relation counts if its numbers have many digits, if words around it say
   that something is computed, such as `total` or `twice`, or if most numbers around it follow from others, as
   in a worked problem.

Reads English. The time is linear in the length of the text. Does not compute what a call asks.

`proposed_sums` writes them as expressions. A call comes before the number that follows from others, and
before the currency sign or bracket that opens it. Of several pairs that give a number the nearest are taken,
at most `EXPRESSIONS_AT_A_PLACE`. A number that no pair gives may follow from the three numbers before it, by
two operations: of these only large ones are taken, since small ones follow by chance. A number that the text
has just said is repeated, not computed, and a number that a written sum computes with is no result.

An expression has its numbers in digits, however the text writes them: `half of 48` is `0.5 * 48`.
"""

import functools
import itertools
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

from toolformer_ops.tools.base import ProposedCall, place_before
from toolformer_ops.tools.operands import UNIT, Kind, Operand, Value, operands
from toolformer_ops.tools.written_numbers import COMMA, writing_of

How = Literal["sum", "product", "years", "share", "change"]
"""How a number follows: as a sum or difference, a product or quotient, the difference of two years, a part of
a whole, or what a change of so many per cent makes."""
WINDOW_TOKENS = 100
OPERANDS_BEFORE = 8
"""Operands before a number of which two may give it."""
OPERANDS_BEFORE_PERCENT = 3
"""How many operands before a percentage may give it: it has few digits, so that more pairs meet it by
chance."""
UNSURE_TOGETHER = 2
"""So many numbers, each of which may follow by chance, are taken for a computation together, if they are half of
the numbers between the first and the last of them."""
NEAREST_TOKENS = 25
NEAR_TOKENS = 40
WORDS_TOKENS = 60
"""How far from each other, in tokens, the numbers of a computation are whose words or few digits decide."""
WINDOWS_REMEMBERED = 2**12
HUNDRED = 100 * UNIT
SMALL = 10 * UNIT
"""Below this, some numbers of every text follow from others by chance."""
_QUOTIENTS: Mapping[tuple[Kind, Kind], Kind] = MappingProxyType(
    {("plain", "plain"): "plain", ("money", "plain"): "money", ("money", "money"): "plain"}
)
"""The kind of the quotient of two kinds."""
_TOTAL = re.compile(
    r"\b(?:totals?|totall?ing|altogether|in all|sum of|combined|together|remaining|remainder|remains?|difference|averag\w+|net"
    r"|profit)\b",
    re.IGNORECASE,
)
"""Words with which people say that a number is a result."""
_CHANGE = re.compile(
    r"\b(?:increas\w+|decreas\w+|rose|ris(?:e|es|ing)|rais\w+|grew|grow\w*|fell|fall\w*|drop\w*|declin\w+|gain\w*|reduc\w+|up|down|from"
    r"|chang\w+|more|less|fewer|higher|lower|off|discount\w*|jump\w*|climb\w*|sav\w+|cut|percentage\s+points?)\b",
    re.IGNORECASE,
)
"""Words of one number that became another."""
_CUE = re.compile(
    r"\b(?:plus|minus|add(?:s|ed|ing)?|subtract\w*|left|leav(?:es|ing)|times|twice|thrice|double[ds]?|triple[ds]?|half|each|every|per"
    r"|apiece|spen[dt]s?|paid|pays?|costs?|earn(?:s|ed)?|sold|another|extra|multipl\w+|divid\w+|so|then|means|makes?|needs?|uses?)\b",
    re.IGNORECASE,
)
"""Words that people use when they compute, though not then alone."""
_FACTOR = re.compile(
    r"\b(?:times|each|every|per|apiece|twice|thrice|double[ds]?|triple[ds]?|half|halves|third|quarter|multipl\w+|divid\w+|split|average)\b",
    re.IGNORECASE,
)
_DIFFERENCE = re.compile(
    r"\b(?:increas\w+|decreas\w+|rose|ris(?:e|es|ing)|grew|growth|fell|drop\w*|declin\w+|gain\w*|difference|points?|jump\w*|climb\w*)\b",
    re.IGNORECASE,
)
_WORD_BEHIND = re.compile(r"[\s-]([A-Za-z]+)")
_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")
_LINE_END = re.compile(r"\n")
_CELL = re.compile(r"\|")
_EQUALS = re.compile(r"(?:[0-9)%]\s*=|(?<=[0-9])\s+equals)\s*(?:[$€£¥]\s?)?(?=[0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class Computation:
    """A number that follows from two numbers before it."""

    first: Operand
    second: Operand
    result: Operand
    how: How


def judge_computations(text: str) -> tuple[bool, str]:
    """Whether a computation is found in a text, and which kind of it, or why not."""
    numbers = operands(text)
    computation = next(computations(text, numbers), None)
    if computation is not None:
        is_of_percentage = computation.how in ("share", "change")
        return True, "percentage_of_two_others" if is_of_percentage else "number_of_two_others"
    if sums_several(text, numbers):
        return True, "total_of_several"
    if announces_a_result(text, numbers):
        return True, "equals_sign_before_number"
    return False, "fewer_than_three_numbers" if len(numbers) < 3 else "no_computation"


def computations(text: str, numbers: list[Operand], at_most: int = 1) -> Iterator[Computation]:
    """For each number that follows from two others shortly before it, hardly by chance, such pairs.

    At most so many for each, the nearest first.
    """
    # Windows of equal numbers are looked through once, however often they are repeated.
    names: dict[Value, int] = {}  # integers for the values, which are hashed faster
    values = [names.setdefault(number.value, len(names)) for number in numbers]
    distinct = list(names)
    pairs_of = functools.lru_cache(maxsize=WINDOWS_REMEMBERED)(
        lambda window: _pairs([distinct[name] for name in window])
    )
    places = [number.token for number in numbers]
    words = _Words(text)
    unsure: list[Computation] = []  # of the last numbers
    for index, result in enumerate(numbers):
        begin = max(0, index - OPERANDS_BEFORE)
        while result.token - places[begin] >= WINDOW_TOKENS:
            begin += 1
        pairs = pairs_of(tuple(values[begin : index + 1]))
        if not pairs:
            continue
        surroundings = _Surroundings(words, numbers, index)
        possible: Computation | None = None
        meant = 0
        for first, second, how in pairs:
            computation = Computation(numbers[begin + first], numbers[begin + second], result, how)
            if surroundings.mean(computation):
                yield computation
                meant += 1
                if meant == at_most:
                    break
            possible = possible or (computation if surroundings.allow(computation) else None)
        if not meant and possible is not None:
            unsure = [other for other in unsure if result.token - other.result.token < WINDOW_TOKENS]
            unsure.append(possible)
            numbers_among = index - bisect_right(places, unsure[0].first.token)
            if len(unsure) >= UNSURE_TOGETHER and 2 * len(unsure) >= numbers_among:
                yield possible


def _pairs(window: Sequence[Value]) -> list[tuple[int, int, How]]:
    """The pairs of places from which the last value of a window follows, the nearest first, and how."""
    *before, result = window
    pairs = []
    for second, first in itertools.combinations(reversed(range(len(before))), 2):
        how = _follows(before[first], before[second], result)
        if how is not None:
            pairs.append((first, second, how))
    return pairs


def _follows(first: Value, second: Value, result: Value) -> How | None:
    """How a value follows from two others; None if it does not."""
    kinds = {first.kind, second.kind}
    if result.kind == "year" or "year" in kinds:
        return _follows_from_years(first, second, result)
    if result.kind == "percent" and "percent" not in kinds:
        return _follows_as_percentage(first, second, result) if len(kinds) == 1 else None
    if len(kinds) == 2 and "percent" in kinds:
        percentage, amount = (first, second) if first.kind == "percent" else (second, first)
        return _follows_by_percentage(percentage, amount, result)
    alike = {*kinds, result.kind}
    # A currency sign is often left out, of one of the amounts.
    is_of_kind = len(alike) == 1 or (alike == {"money", "plain"} and result.kind == "money")
    a, b = first.millionths, second.millionths
    if is_of_kind and result.millionths in (a + b, abs(a - b)):
        return "sum"
    return None if "percent" in alike else _follows_as_product(first, second, result)


def _follows_from_years(first: Value, second: Value, result: Value) -> How | None:
    """Whether a value is the number of years between two."""
    if first.kind != "year" or second.kind != "year" or result.kind != "plain":
        return None
    is_between = abs(first.millionths - second.millionths) == result.millionths
    return "years" if is_between and (result.counts_years or result.millionths >= SMALL) else None


def _follows_as_percentage(first: Value, second: Value, result: Value) -> How | None:
    """Whether a percentage is the smaller's share in the larger, or the change from first to second."""
    low, high = sorted((first.millionths, second.millionths))
    if low == high or result.millionths == HUNDRED:
        return None
    if result.equals(low * HUNDRED, high, rounds=True):
        return "share"
    return "change" if result.equals((high - low) * HUNDRED, first.millionths, rounds=True) else None


def _follows_by_percentage(percentage: Value, amount: Value, result: Value) -> How | None:
    """Whether a value is so many per cent of an amount, or the amount changed by so many per cent."""
    if result.kind != amount.kind or percentage.millionths == HUNDRED:
        return None

    def is_part(per_cent: int) -> bool:
        return result.equals(per_cent * amount.millionths, HUNDRED, rounds=result.is_rounded)

    if is_part(percentage.millionths):
        return "share"
    changes = (HUNDRED + percentage.millionths, HUNDRED - percentage.millionths)
    return "change" if any(map(is_part, changes)) else None


def _follows_as_product(first: Value, second: Value, result: Value) -> How | None:
    """Whether a value is the product or the quotient of two others; not by 1, and not a number by itself."""
    a, b = first.millionths, second.millionths
    amounts = [first.kind, second.kind].count("money")
    is_amount = result.kind == "money"
    if (
        UNIT not in (a, b)
        and amounts == int(is_amount)
        and result.equals(a * b, UNIT, rounds=result.is_rounded)
    ):
        return "product"
    for dividend, divisor in ((first, second), (second, first)):
        kind_of_quotient = _QUOTIENTS.get((dividend.kind, divisor.kind))
        if kind_of_quotient != result.kind or divisor.millionths in (UNIT, dividend.millionths):
            continue
        if result.equals(dividend.millionths * UNIT, divisor.millionths, rounds=result.is_rounded):
            return "product"
    return None


class _Words:
    """Where a text's sentences end, and where words of computing occur; each pattern is searched once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._places: dict[re.Pattern[str], list[int]] = {}

    def occur(self, words: re.Pattern[str], start: int, end: int) -> bool:
        """Whether a match of a pattern begins between two characters."""
        return self._next(words, start) < end

    def sentence_of(self, number: Operand) -> tuple[int, int]:
        """The first character and the end of a number's sentence.

        It reaches at most 200 characters before the number and 100 after it.
        """
        ends = self._of(_SENTENCE_END)
        place = bisect_right(ends, number.start_char - 1)
        start = max(0, number.start_char - 200, ends[place - 1] + 1 if place else 0)
        return start, min(number.end_char + 100, self._next(_SENTENCE_END, number.end_char))

    def _next(self, words: re.Pattern[str], start: int) -> int:
        places = self._of(words)
        place = bisect_left(places, start)
        return places[place] if place < len(places) else len(self.text)

    def _of(self, words: re.Pattern[str]) -> list[int]:
        if words not in self._places:
            self._places[words] = [match.start() for match in words.finditer(self.text)]
        return self._places[words]


class _Surroundings:
    """What is around a number that follows from others: it says whether that is chance."""

    def __init__(self, words: _Words, numbers: list[Operand], index: int) -> None:
        self._words = words
        self._text = words.text
        self._result = numbers[index]
        self._earliest_of_percentage = numbers[max(0, index - OPERANDS_BEFORE_PERCENT)].token

    def _says(self, *patterns: re.Pattern[str]) -> bool:
        """Whether the sentence of the result holds words of one of the patterns."""
        sentence = self._words.sentence_of(self._result)
        return any(self._words.occur(pattern, *sentence) for pattern in patterns)

    def mean(self, computation: Computation) -> bool:
        """Whether the numbers, alone or with the words around them, show that they were computed."""
        if self._crosses_cells(computation):
            return False
        if computation.how in ("share", "change"):
            return self._mean_percentage(computation)
        first, second, result = computation.first, computation.second, computation.result
        tokens = result.token - first.token
        if computation.how == "years":
            return self._is_in_sentence(first)
        if first.value.kind == second.value.kind == "percent":
            is_near = tokens <= NEAR_TOKENS and self._is_in_sentence(first)
            return is_near and self._says(_DIFFERENCE)
        digits = _digits(first, second, result)
        if min(digits) >= 2 and (max(digits) >= 3 or (tokens <= NEAR_TOKENS and self._is_in_sentence(first))):
            return True
        return tokens <= WORDS_TOKENS and self._mean_small_numbers(computation, tokens)

    def _mean_small_numbers(self, computation: Computation, tokens: int) -> bool:
        """Whether words say that numbers of few digits are computed."""
        first = computation.first
        counts_alike = len({_thing(self._text, number) for number in _numbers_of(computation)}) < 3
        if computation.how == "sum" and counts_alike and self._says(_TOTAL):
            return True
        is_near = tokens <= NEAR_TOKENS and (tokens <= NEAREST_TOKENS or self._is_in_sentence(first))
        if not is_near or not _are_distinct(computation):
            return False
        if computation.how == "sum":
            return counts_alike and self._says(_CHANGE, _CUE)
        return self._says(_FACTOR)

    def _mean_percentage(self, computation: Computation) -> bool:
        """Whether a percentage's relation is no chance: its numbers have many digits, or are near each other."""
        first, second, result = computation.first, computation.second, computation.result
        tokens = result.token - first.token
        digits = _digits(first, second, result)
        if min(digits[:2]) >= 2 and digits[2] >= 3 and tokens <= NEAR_TOKENS:
            return True
        crosses_line = self._words.occur(_LINE_END, second.end_char, result.start_char)
        if first.token < self._earliest_of_percentage or tokens > WORDS_TOKENS or crosses_line:
            return False
        return self._says(_CHANGE) if computation.how == "change" else self._is_in_sentence(second)

    def allow(self, computation: Computation) -> bool:
        """Whether a relation that may be chance counts if there are others of its kind around it."""
        is_of_numbers = computation.how in ("sum", "product") and _are_distinct(computation)
        return is_of_numbers and not self._crosses_cells(computation)

    def _crosses_cells(self, computation: Computation) -> bool:
        """Whether a border of a table's cell is among the numbers."""
        return self._words.occur(_CELL, computation.first.end_char, computation.result.start_char)

    def _is_in_sentence(self, number: Operand) -> bool:
        """Whether no sentence ends between a number and the result."""
        return not self._words.occur(_SENTENCE_END, number.end_char, self._result.start_char)


def _numbers_of(computation: Computation) -> tuple[Operand, Operand, Operand]:
    return computation.first, computation.second, computation.result


def _digits(*numbers: Operand) -> list[int]:
    """How many digits of each number say something: those before its last zeros."""
    return [len(str(number.value.millionths).rstrip("0")) for number in numbers]


def _are_distinct(computation: Computation) -> bool:
    """Whether three numbers differ, and one of them is not small."""
    values = {number.value.millionths for number in _numbers_of(computation)}
    return len(values) == 3 and max(values) >= SMALL


def _thing(text: str, number: Operand) -> str:
    """What a number counts: its currency, or the word after it without an ending."""
    if number.value.kind == "money":
        return "money"
    word = _WORD_BEHIND.match(text, number.end_char)
    return word[1].lower().rstrip("s") if word else ""


def sums_several(text: str, numbers: list[Operand]) -> bool:
    """Whether a number that a sentence calls a total or an average is that of the numbers right before it.

    They are at least three.
    """
    words = _Words(text)
    for index, result in enumerate(numbers):
        total, amount = 0, result.value.millionths
        is_result = False
        for count, number in enumerate(reversed(numbers[max(0, index - OPERANDS_BEFORE) : index]), start=1):
            if result.token - number.token >= WINDOW_TOKENS or number.value.kind != result.value.kind:
                break
            total += number.value.millionths
            is_result = is_result or (count >= 3 and total in (amount, count * amount))
        if is_result and result.value.kind != "year" and words.occur(_TOTAL, *words.sentence_of(result)):
            return True
    return False


def announces_a_result(text: str, numbers: list[Operand]) -> bool:
    """Whether an equals sign after a number announces a number with two operands shortly before it."""
    starts = [number.start_char for number in numbers]
    for match in _EQUALS.finditer(text):
        place = bisect_right(starts, match.end()) - 1
        if place >= 2 and starts[place] == match.end():
            result, first = numbers[place], numbers[place - 2]
            if result.value.kind != "year" and result.token - first.token < WINDOW_TOKENS:
                return True
    return False


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
