"""How a number that a tool computed is written in a text."""

import math
from decimal import Decimal

MOST_PLACES = 21
"""A number that is larger, or smaller than its inverse, keeps its exponent."""


def number_text(value: float) -> str:
    """A number as a text says it: `667`, not `667.0`, and `12345678901234568`, not `1.23456789012346e+16`.

    A whole number has all of its digits, another one at most 15.
    """
    if not math.isfinite(value):
        return str(value)
    short = format(value, ".15g")
    if value == 0 or not 10**-MOST_PLACES < abs(value) < 10**MOST_PLACES:
        return short.removeprefix("-") if value == 0 else short
    return format(value, ".0f") if value.is_integer() else format(Decimal(short), "f")
