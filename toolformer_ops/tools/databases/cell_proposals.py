"""The calls that a database proposes for a text: its own cells, where the text says them.

`The kettle costs 24.5 euros` names a row of products, and then says a cell of this row: before 24.5 belongs
`SELECT price FROM products WHERE name = 'kettle'`.

1. The rows are put into an index by their keys, the cells that name them (`CellIndex`). A key has to have
   three letters and to fit into a call. Keys of several rows are left out.
2. The keys of a text are found, the longest first: each run of words that begins like a key is looked up.
3. After each key the cells of its row are looked for (`said_values.py`). A place belongs to the nearest key.
   If several cells of a row have its value, the text has to name the column of one of them.

The index is a dictionary by the words of a key, which are looked up as runs of words: as exact as an
automaton of all keys, since keys begin and end with words. Does not read the database (`table_rows.py`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from toolformer_ops.call_syntax import ARROW, NOT_IN_A_CALL
from toolformer_ops.records import Document
from toolformer_ops.tools.base import MAX_INPUT_CHARACTERS, ProposedCall, ProposedCalls, place_before
from toolformer_ops.tools.databases.said_values import (
    WORD,
    Place,
    SaidValues,
    TextWords,
    core_of,
    is_written_as,
)

PROPOSAL_VERSION = 1
"""Raised when the same rows would propose other calls for a text."""
REACH_WORDS = 60
"""How far after its key a cell may be."""
REACH_OF_SHORT_CELLS = 15
"""How far a cell of at most three characters may be: a longer text says such a cell by chance."""
SHORT_CELL = 3
MOST_KEY_WORDS = 8
MOST_CELL_CHARACTERS = 100
AMBIGUOUS_KEY = "proposal_of_key_of_several_rows"
COMMON_KEY = "proposal_of_common_key"
AMBIGUOUS_COLUMN = "proposal_of_several_columns"
_SEPARATOR = "\x1f"
"""Between the cells of a row: no cell with control characters is proposed."""
_SEVERAL_ROWS = ""
"""The row of a key that several have."""
_LETTERS = re.compile(r"[^\W\d_]{3,}")
_NOT_IN_A_CELL = re.compile(rf"{NOT_IN_A_CALL}|{ARROW}|[\x00-\x1f\x7f]")


def key_words(key: str) -> tuple[str, ...] | None:
    """The words of a key in small letters; None if no text can be searched for it, or no call hold it."""
    if len(key) > MOST_CELL_CHARACTERS or _NOT_IN_A_CELL.search(key) or not _LETTERS.search(key):
        return None
    words = tuple(word.casefold() for word in WORD.findall(key))
    return words if len(words) <= MOST_KEY_WORDS else None


@dataclass(frozen=True)
class CellColumn:
    """A column whose cells are looked for in texts."""

    name: str
    query: str
    """The query of a cell up to the key: `SELECT price FROM products WHERE name = `."""

    @property
    def words(self) -> set[str]:
        """The words by which a text may name it: `unit` and `price` of `unit_price`."""
        parts = re.findall(r"[A-Z]?[^\W_A-Z]{2,}", self.name)
        return {part.casefold() for part in parts}


@dataclass
class KeyedRows:
    """The rows of a table by one of its columns."""

    columns: Sequence[CellColumn]
    rows: dict[str, str] = field(default_factory=dict)
    """By the words of the key in small letters, the key and the cells of its row."""
    counts: Counter[str] = field(default_factory=Counter)
    """`rows`, `keys`, and the rows that were left out: `without_key` and `of_several`."""

    def add(self, key: str | None, cells: Sequence[str | None]) -> tuple[str, ...] | None:
        """Add a row; returns the words of its key, None if it has none that can be used."""
        self.counts["rows"] += 1
        words = key_words(key) if key else None
        if words is None or key is None:
            self.counts["without_key"] += 1
            return None
        folded = " ".join(words)
        if folded in self.rows:
            self.counts["of_several"] += 1 + bool(self.rows[folded])
            self.rows[folded] = _SEVERAL_ROWS
            return words
        self.rows[folded] = _SEPARATOR.join([key, *map(_usable, cells)])
        return words


def _usable(cell: str | None) -> str:
    """A cell as it is looked for; empty if a text cannot say it."""
    if cell is None or len(cell) > MOST_CELL_CHARACTERS or _NOT_IN_A_CELL.search(cell):
        return ""
    return cell.strip()


@dataclass(frozen=True)
class Mention:
    """A key in a text."""

    table: KeyedRows
    row: str
    first_word: int
    last_word: int

    @property
    def key(self) -> str:
        """As its row spells it."""
        return self.row.partition(_SEPARATOR)[0]


@dataclass(frozen=True)
class _Claim:
    """A cell that a text says after its key."""

    mention: Mention
    column: CellColumn
    place: Place

    @property
    def call_input(self) -> str:
        """The query of the cell."""
        return f"{self.column.query}{quoted_text(self.mention.key)}"


def quoted_text(text: str) -> str:
    """A text of SQL: `'O''Brien'`."""
    return "'" + text.replace("'", "''") + "'"


def key_of(call_input: str) -> str:
    """The key in the query of a cell."""
    return call_input.partition(" = '")[2][:-1].replace("''", "'")


class CellIndex:
    """The rows of all tables whose cells are proposed."""

    def __init__(self, common: Collection[str] = ()) -> None:
        """`common` are keys that are left out, since they are words that texts say without meaning a row."""
        self.tables: list[KeyedRows] = []
        self._longest: dict[str, int] = {}
        self._common: set[str] = set()
        self.leave_out(common)

    def leave_out(self, common: Collection[str]) -> None:
        """Leave out these keys, too."""
        self._common |= {" ".join(key_words(key) or ()) for key in common}

    def add_table(self, columns: Sequence[CellColumn]) -> KeyedRows:
        """A table without rows; `add` puts them into it."""
        self.tables.append(KeyedRows(columns))
        return self.tables[-1]

    def add(self, table: KeyedRows, key: str | None, cells: Sequence[str | None]) -> None:
        """Add a row to one of the tables."""
        words = table.add(key, cells)
        if words is not None and len(words) > self._longest.get(words[0], 0):
            self._longest[words[0]] = len(words)

    def proposals(self, document: Document) -> ProposedCalls:
        """The calls of a text, in its order, and what was left out."""
        text = document.text
        words = TextWords.of(text)
        left_out: Counter[str] = Counter()
        mentions = list(self.mentions(words, left_out))
        if not mentions:
            return ProposedCalls((), left_out)
        # 1. The cells that the text says, by their places; a place belongs to the nearest key before it.
        said = SaidValues(words)
        claims: dict[int, list[_Claim]] = defaultdict(list)
        for mention in mentions:
            for claim in _claims(mention, said):
                there = claims[claim.place.start_char]
                if there and there[0].mention.last_word < mention.last_word:
                    there.clear()
                there.append(claim)
        # 2. One call a place.
        calls: list[ProposedCall] = []
        for start, there in sorted(claims.items()):
            chosen = _named_by_the_text(there, words)
            if chosen is None:
                left_out[AMBIGUOUS_COLUMN] += 1
            elif len(chosen.call_input) <= MAX_INPUT_CHARACTERS:
                calls.append(ProposedCall(place_before(text, start), chosen.call_input))
        return ProposedCalls(tuple(calls), left_out)

    def keys_in(self, text: str) -> set[str]:
        """The keys that a text names, in small letters, also those of several rows."""
        return {folded for folded, _, _ in self._runs(TextWords.of(text))}

    def mentions(self, words: TextWords, left_out: Counter[str]) -> Iterator[Mention]:
        """The keys of a text whose rows are looked at; the others are counted once each."""
        not_looked_at: dict[str, str] = {}
        for folded, first, end in self._runs(words):
            if folded in self._common:
                not_looked_at[folded] = COMMON_KEY
                continue
            for table in self.tables:
                row = table.rows.get(folded)
                if row == _SEVERAL_ROWS:
                    not_looked_at[folded] = AMBIGUOUS_KEY
                elif row and is_written_as(words.span(first, end), core_of(row.partition(_SEPARATOR)[0])):
                    yield Mention(table, row, first, end - 1)
        left_out.update(not_looked_at.values())

    def _runs(self, words: TextWords) -> Iterator[tuple[str, int, int]]:
        """The runs of words that are keys in small letters, each with its first word and its end."""
        folded, at = words.folded, 0
        while at < len(folded):
            length = self._longest.get(folded[at], 0)
            for end in range(min(at + length, len(folded)), at, -1):
                run = " ".join(folded[at:end])
                if any(run in table.rows for table in self.tables):
                    yield run, at, end
                    at = end - 1
                    break
            at += 1


def _claims(mention: Mention, said: SaidValues) -> Iterator[_Claim]:
    """The cells of a row that the text says after its key."""
    _, *cells = mention.row.split(_SEPARATOR)
    for column, cell in zip(mention.table.columns, cells, strict=True):
        if not cell:
            continue
        reach = REACH_OF_SHORT_CELLS if len(cell) <= SHORT_CELL else REACH_WORDS
        place = said.first_place(cell, mention.last_word, reach)
        if place is not None:
            yield _Claim(mention, column, place)


def _named_by_the_text(claims: Sequence[_Claim], words: TextWords) -> _Claim | None:
    """The claim of a place; of several the one whose column the words around the place name, if it is one."""
    if len(claims) == 1:
        return claims[0]
    first, place = claims[0].mention.last_word, claims[0].place.word
    around = set(words.folded[max(0, first - REACH_OF_SHORT_CELLS) : place + REACH_OF_SHORT_CELLS])
    named = [claim for claim in claims if claim.column.words & around]
    return named[0] if len(named) == 1 else None
