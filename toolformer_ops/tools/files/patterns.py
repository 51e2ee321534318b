"""Regular expressions that a tool file or a server names, searched within a limit of time.

Python's `re` has no limit: a pattern with nested repeats, such as `(a+)+b`, may take longer than the night
for one text. The package `regex` reads the same patterns. Its limit is of the process's computing time, so
that a machine which is busy with other work gives up no search.
"""

from typing import Any

SEARCH_SECONDS = 2.0
"""The longest search, roughly: the library looks at the clock only now and then. A search that never has to
go back in its text takes milliseconds for a megabyte."""


class PatternTimedOutError(Exception):
    """A search takes longer than `SEARCH_SECONDS`."""


def first_match(pattern: str, text: str) -> Any:
    """The first `regex.Match` of a pattern in a text; None if there is none.

    Raises:
        PatternTimedOutError: it takes too long to find out.
    """
    import regex

    try:
        return regex.search(pattern, text, timeout=SEARCH_SECONDS)
    except TimeoutError as error:
        raise PatternTimedOutError from error


def check_pattern(pattern: str, place: str) -> None:
    """Check that a pattern can be read.

    Raises:
        ValueError: it cannot; `place` says where it was expected.
    """
    import regex

    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"expected a regular expression {place}, found {pattern!r} ({error})") from error
