"""A duration as people read it: on the run page, and in what a command prints."""

MISSING = "\u2013"
_UNITS = (
    (1.0, "s", 90.0),
    (60.0, "min", 90 * 60.0),
    (3600.0, "h", 72 * 3600.0),
    (86400.0, "d", float("inf")),
)
"""The seconds of a unit, its name, and from how many seconds on the next one is used."""


def duration(seconds: float | None) -> str:
    """Return `0.4 s`, `42 s`, `3.0 min`, `2.5 h` or `12 d`; a dash if it is not known."""
    if seconds is None:
        return MISSING
    size, unit, _ = next(scale for scale in _UNITS if seconds < scale[2])
    number = seconds / size
    return f"{number:.{1 if number < 10 else 0}f} {unit}"
