"""How a number that a tool computed is written in a text."""

import math


def number_text(value: float) -> str:
    """A number as a text says it, with at most 15 digits: `667`, not `667.0`."""
    return format(value, ".15g") if math.isfinite(value) else str(value)
