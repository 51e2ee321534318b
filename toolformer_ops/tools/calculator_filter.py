"""Which documents are worth asking for Calculator calls (Toolformer, appendix A.1, the rules (i) to (iii)).

(i)   Within a window of 100 tokens stand three numbers of which one is the result of +, -, * or / applied to the other two.
      A token is a number, another run of letters and digits, or a single other sign. The three are three different places,
      so that `5 ... 1` alone never counts as 5 * 1 = 5. What holds for any number is no evidence and does not count: adding or
      subtracting 0, multiplying by 0 or 1, dividing by 1 or by itself. The result may be rounded as the calculator rounds it
      (two decimals) if the text writes it with decimals.
(ii)  One of "=", "equals", "equal to", "total of", "average of" is followed by a number. White space, a currency sign or a minus
      sign may stand between, other words may not.
(iii) There are at least three numbers; of the documents that match only this rule one in a hundred is kept, chosen by a hash of
      the text, so that it is the same one every night.

Numbers are unsigned (a hyphen before one may be a dash), as `arithmetic.NUMBER_IN_TEXT` finds them.
"""

import hashlib
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from toolformer_ops.tools.arithmetic import NUMBER_IN_TEXT, UNSIGNED_NUMBER

WINDOW_TOKENS = 100
SAMPLED_SHARE = 0.01
"""Share of the documents matching only rule (iii) that is kept."""

RESULT_OF_TWO = "rule_i_result_of_two_others"
NUMBER_ANNOUNCED = "rule_ii_sequence_before_number"
SAMPLED = "rule_iii_sampled"
NOT_SAMPLED = "rule_iii_not_sampled"
TOO_FEW_NUMBERS = "fewer_than_three_numbers"

_TEXT_TOKEN = re.compile(rf"(?P<number>{NUMBER_IN_TEXT.pattern})|\w+|[^\w\s]")
_ANNOUNCED_NUMBER = re.compile(
    rf"(?:=|\b(?:equals|equal\s+to|total\s+of|average\s+of)\b)\s*(?:[-−]\s*)?(?:[$€£¥]\s*)?{UNSIGNED_NUMBER}(?!\w)",  # noqa: RUF001
    re.IGNORECASE,
)

_UNIT = 10**6
"""Values are whole millionths: sums, products and quotients are then exact integer arithmetic."""
_HUNDREDTH = _UNIT // 100
_MAX_DIGITS = 15
"""Longer numbers (account and telephone numbers, hashes) take no part in rule (i)."""


@dataclass(frozen=True)
class _Number:
    """One number in a text."""

    token: int
    """Its place among the text's tokens."""
    value: int | None
    """In millionths; None where it is too long to take part in rule (i)."""
    has_decimals: bool


def judge(text: str) -> tuple[bool, str]:
    """Whether the document is kept, and the first rule that decides it."""
    numbers = list(_numbers(text))
    if _holds_result_of_two_others(numbers):
        return True, RESULT_OF_TWO
    if _ANNOUNCED_NUMBER.search(text):
        return True, NUMBER_ANNOUNCED
    if len(numbers) < 3:
        return False, TOO_FEW_NUMBERS
    return (True, SAMPLED) if _is_sampled(text) else (False, NOT_SAMPLED)


def _is_sampled(text: str) -> bool:
    """A draw with probability `SAMPLED_SHARE` that depends on the text alone."""
    digest = hashlib.sha256(b"calculator filter, rule iii\n" + text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < SAMPLED_SHARE * 2**64


def _numbers(text: str) -> Iterator[_Number]:
    for token, match in enumerate(_TEXT_TOKEN.finditer(text)):
        written = match["number"]
        if written:
            whole, point, decimals = written.replace(",", "").partition(".")
            fits = len(whole) <= _MAX_DIGITS and len(decimals) <= 6
            value = int(whole or "0") * _UNIT + int(decimals.ljust(6, "0")) if fits else None
            yield _Number(token, value, bool(point))


def _holds_result_of_two_others(numbers: list[_Number]) -> bool:
    """Rule (i). Each pair within a window is combined and the results are looked up: at most 100 look-ups a number and operator."""
    valued = [number for number in numbers if number.value]  # zero takes part only in what holds for any number
    places: dict[int, list[_Number]] = defaultdict(list)
    for number in valued:
        places[number.value or 0].append(number)
    for index, first in enumerate(valued):
        for second in valued[index + 1 : index + WINDOW_TOKENS]:
            if second.token - first.token >= WINDOW_TOKENS:
                break
            for value, exact in _results(first.value or 0, second.value or 0):
                if value in places and _stands_beside(places[value], first, second, exact):
                    return True
    return False


def _results(a: int, b: int) -> list[tuple[int, bool]]:
    """Values of `a op b` and `b op a`, in millionths, each with whether it is exact or rounded to hundredths."""
    results = [(a + b, True), (abs(a - b), True)]
    if _UNIT not in (a, b):
        results += _exact_and_rounded(a * b, _UNIT)
    if b not in (a, _UNIT):
        results += _exact_and_rounded(a * _UNIT, b)
    if a not in (b, _UNIT):
        results += _exact_and_rounded(b * _UNIT, a)
    return results


def _exact_and_rounded(numerator: int, denominator: int) -> list[tuple[int, bool]]:
    quotient, remainder = divmod(numerator, denominator)
    exact = [] if remainder else [(quotient, True)]
    if not remainder and quotient % _HUNDREDTH == 0:
        return exact
    step = denominator * _HUNDREDTH
    return [*exact, ((2 * numerator + step) // (2 * step) * _HUNDREDTH, False)]


def _stands_beside(places: list[_Number], first: _Number, second: _Number, exact: bool) -> bool:
    """Whether one of `places` is a third place within a window that also holds `first` and `second`."""
    earliest = second.token - WINDOW_TOKENS + 1
    latest = first.token + WINDOW_TOKENS - 1
    for place in places[bisect_left(places, earliest, key=lambda number: number.token) :]:
        if place.token > latest:
            return False
        if place.token not in (first.token, second.token) and (exact or place.has_decimals):
            return True
    return False
