"""SQLite's functions of dates without its clock.

`date('now')` has another answer another day, and `'localtime'` another on another machine: the same query
would not give the same rows. SQLite's authorizer sees the name of a function and not its arguments, which a
query may compute, so a function that looks at the arguments replaces each of these, and asks SQLite's own,
on a connection without tables. Source: https://www.sqlite.org/lang_datefunc.html
"""

import sqlite3
from collections.abc import Callable
from functools import lru_cache

NAMES = ("date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff")
MOMENTS_OF_THE_CLOCK = frozenset({"now", "subsec", "subsecond"})
TIME_ZONE_OF_THE_MACHINE = frozenset({"localtime", "utc"})
REMEMBERED = 10_000
"""Calls whose answers are kept: rows share their dates, and a look costs more than SQLite's own function."""

Value = str | bytes | int | float | None


class ClockError(Exception):
    """A query asks for the time at which it runs, or for the machine's time zone."""


def replace_functions(connection: sqlite3.Connection, refused: Callable[[], None]) -> None:
    """Replace a connection's functions of dates; `refused` is called before one refuses its arguments.

    Those that this version of SQLite lacks stay unknown.
    """
    plain = sqlite3.connect(":memory:")
    there = {name for (name,) in plain.execute("select name from pragma_function_list")}
    for name in there.intersection(NAMES):
        function = _without_clock(plain, name, refused)
        connection.create_function(name, -1, function, deterministic=True)


def _without_clock(plain: sqlite3.Connection, name: str, refused: Callable[[], None]) -> Callable[..., Value]:
    """A function of dates that refuses arguments which mean the clock or the machine."""

    @lru_cache(maxsize=REMEMBERED, typed=True)
    def function(*arguments: Value) -> Value:
        if asks_the_clock(name, arguments):
            refused()
            raise ClockError
        places = ", ".join("?" * len(arguments))
        [value] = plain.execute(f"select {name}({places})", arguments).fetchone()
        return value  # type: ignore[no-any-return]

    return function


def asks_the_clock(name: str, arguments: tuple[Value, ...]) -> bool:
    """Whether a function of dates has another answer at another time, or on another machine."""
    words = []
    for value in arguments:
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        words.append(text.partition("\0")[0].lower())  # SQLite ends a text at its first zero byte
    moments = words
    if name == "strftime":
        moments = words[1:2]
        if not moments and words:
            return True
    elif name != "timediff":
        moments = words[:1]
        if not moments:
            return True
    return bool(MOMENTS_OF_THE_CLOCK.intersection(moments) or TIME_ZONE_OF_THE_MACHINE.intersection(words))
