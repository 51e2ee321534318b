"""Where a text says a value of a database: its numbers, dates and words, by value, with their places.

A number is found however it is grouped (`1,200`, `8.25`, `8,25` in a text with decimal commas), a date as
2024-03-05, March 5, 2024, 5 March 2024, 3/5/2024 in both orders, or 05.03.2024. Words are compared with their
boundaries. A text may write a capital letter where the database has a small one, never the other way round,
so that `Apple` of a database is not the fruit of a text.

Reads scripts with spaces between words; month names are English. The time is linear in the text.
"""

import functools
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from toolformer_ops.tools.written_numbers import POINT, with_plain_digits, writing_of, written

WORD = re.compile(r"[^\W_]+")
_SPACE = re.compile(r"\s+")
_CURLY = re.compile(r"[‘’ʼ]")  # noqa: RUF001
LONGEST_ACRONYM = 5
"""A longer word of capitals alone, such as `KETTLE`, is how some databases write every word."""
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_MOST_DIGITS = 30
_DAY_CELL = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[ T]00:00(?::00(?:\.0+)?)?(?:Z|\+00(?::00)?)?)?")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_DAY = r"[0-3]?[0-9](?:st|nd|rd|th)?"
_YEAR = r"[0-9]{4}(?![0-9])"
_DATE = re.compile(
    rf"(?<![\w/.-])(?:(?P<iso>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})(?![\w-])"
    rf"|(?P<first>[0-9]{{1,2}})[./-](?P<second>[0-9]{{1,2}})[./-](?P<year>{_YEAR})"
    rf"|(?P<month_a>{_MONTH})\s+(?P<day_a>{_DAY}),?\s+(?P<year_a>{_YEAR})"
    rf"|(?P<day_b>{_DAY})\s+(?:of\s+)?(?P<month_b>{_MONTH}),?\s+(?P<year_b>{_YEAR}))"
)


class Place(NamedTuple):
    """Where a text says a value."""

    start_char: int
    word: int
    """The number of its first word in the text."""


@dataclass(frozen=True)
class TextWords:
    """The words of a text."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]
    folded: Sequence[str]
    """In small letters."""

    @classmethod
    def of(cls, text: str) -> "TextWords":
        """Its words in their order."""
        matches = list(WORD.finditer(text))
        return cls(
            text,
            [match.start() for match in matches],
            [match.end() for match in matches],
            [match[0].casefold() for match in matches],
        )

    def span(self, first: int, end: int) -> str:
        """The text from one word up to another, with what is between them."""
        return self.text[self.starts[first] : self.ends[end - 1]]


class SaidValues:
    """The values that a text says."""

    def __init__(self, words: TextWords) -> None:
        self._words = words

    def first_place(self, value: str, after_word: int, reach: int) -> Place | None:
        """The first place of a value of a database after a word, at most `reach` words farther."""
        if day := _DAY_CELL.fullmatch(value):
            return self._next(self._dates.get(day[1], ()), after_word, reach)
        if is_number(value):
            return self._next(self._numbers.get(written(Decimal(value)), ()), after_word, reach)
        wanted = WORD.findall(value)
        if sum(map(len, wanted)) < 3:
            return None
        folded = [word.casefold() for word in wanted]
        core = core_of(value)
        places = self._by_word.get(folded[0], ())
        for number in range(bisect_right(places, after_word), len(places)):
            word = places[number]
            if word - after_word > reach:
                return None
            end = word + len(folded)
            is_there = self._words.folded[word:end] == folded
            if is_there and is_written_as(self._words.span(word, end), core):
                return Place(self._words.starts[word], word)
        return None

    def _next(self, starts: Sequence[int], after_word: int, reach: int) -> Place | None:
        """The first of these places within reach."""
        at = bisect_left(starts, self._words.ends[after_word])
        if at == len(starts):
            return None
        word = bisect_left(self._words.starts, starts[at])
        return Place(starts[at], word) if word - after_word <= reach else None

    @functools.cached_property
    def _by_word(self) -> dict[str, list[int]]:
        places: dict[str, list[int]] = defaultdict(list)
        for number, word in enumerate(self._words.folded):
            places[word].append(number)
        return dict(places)

    @functools.cached_property
    def _dates(self) -> dict[str, list[int]]:
        """The places of each date, as the database writes it."""
        places: dict[str, list[int]] = defaultdict(list)
        for match in self._date_matches:
            for day in _days(match):
                places[day].append(match.start())
        return dict(places)

    @functools.cached_property
    def _date_matches(self) -> list[re.Match[str]]:
        return list(_DATE.finditer(self._words.text))

    @functools.cached_property
    def _numbers(self) -> dict[str, list[int]]:
        """The places of each number that is no part of a date; a minus belongs to it."""
        text = with_plain_digits(self._words.text)
        writing = writing_of(text) or POINT
        date_starts = [match.start() for match in self._date_matches]
        places: dict[str, list[int]] = defaultdict(list)
        for match in re.finditer(writing.number, text):
            before = bisect_right(date_starts, match.start())
            if before and match.start() < self._date_matches[before - 1].end():
                continue
            plain = writing.plain(match[0])
            if len(plain) > _MOST_DIGITS:
                continue
            start = match.start()
            is_negative = re.search(r"(?:\A|[\s(])[-−]\Z", text[max(0, start - 2) : start])  # noqa: RUF001
            number = written(Decimal(plain))
            places[f"-{number}" if is_negative else number].append(start - bool(is_negative))
        return dict(places)


def is_number(value: str) -> bool:
    """Whether a value is a number, and no code such as `007`."""
    is_code = value.lstrip("-").startswith("0") and value.lstrip("-")[1:2].isdigit()
    return len(value) <= _MOST_DIGITS and not is_code and _NUMBER.fullmatch(value) is not None


def core_of(name: str) -> str:
    """A name from its first word to its last one: `Yahoo` of `Yahoo!`; empty if it has no word."""
    words = list(WORD.finditer(name))
    return name[words[0].start() : words[-1].end()] if words else ""


def is_written_as(said: str, name: str) -> bool:
    """Whether what a text says is a name of a database, which have the same words in small letters.

    The signs between the words are the same as well, and capitals of the database are capitals of the text.
    """
    said, name = (_CURLY.sub("'", _SPACE.sub(" ", text)) for text in (said, name))
    if name.isupper() and len(name) > LONGEST_ACRONYM:
        return said.casefold() == name.casefold()
    return len(said) == len(name) and all(
        one in (other, other.upper()) for one, other in zip(said, name, strict=True)
    )


def _days(match: re.Match[str]) -> list[str]:
    """The dates that a stretch of text may mean, as 2024-03-05; two if day and month may be exchanged."""
    if match["iso"]:
        return [match["iso"]]
    if match["year"]:
        first, second, year = int(match["first"]), int(match["second"]), int(match["year"])
        possible = [(year, first, second), (year, second, first)]
    else:
        kind = "a" if match["year_a"] else "b"
        month = _MONTHS.index(match[f"month_{kind}"][:3].lower()) + 1
        possible = [(int(match[f"year_{kind}"]), month, int(match[f"day_{kind}"].rstrip("stndrh")))]
    days = []
    for year, month, day in dict.fromkeys(possible):
        try:
            days.append(date(year, month, day).isoformat())
        except ValueError:  # the 30th of February
            continue
    return days
