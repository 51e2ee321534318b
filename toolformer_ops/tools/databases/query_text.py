"""What the text of a query says before any database reads it.

That is its words, its names, and whether it is one statement. The words of Postgres are read as its lexer
reads them with `standard_conforming_strings`, which each transaction sets:
https://www.postgresql.org/docs/current/sql-syntax-lexical.html. This is the first of several bounds, and
refuses what it does not understand. Which tables a query reads, and which of its texts are dates, Postgres
itself says (`postgres_queries.py`); it takes one statement at a time, in a transaction that only reads.
"""

import re
import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.databases.reasons import (
    FUNCTION,
    INVALID,
    NOT_A_SELECT,
    NOT_REPEATABLE,
    SEVERAL,
    TABLE,
)

_FIRST_WORD = re.compile(r"(?>\s|--[^\n]*+|/\*(?>[^*]|\*(?!/))*+\*/)*+([A-Za-z]+)")
_SPACE = re.compile(r"[ \t\n\r\f\v]+|--[^\n\r]*")
_NUMBER = re.compile(r"\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
_DOLLAR = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$")
_NAME = re.compile(r'"((?:[^"\x00]|"")*)"')
_TEXT = re.compile(r"'((?:[^']|'')*)'")

_BEFORE_A_BRACKET = """
all and any array as between both by case cast cross cube distinct else end except exists filter from full
group having in inner intersect is join lateral leading left like ilike limit materialized not offset on
or order over partition recursive right rollup rows select set sets similar some symmetric then trailing union
using values when where window with within
"""
BEFORE_A_BRACKET = frozenset(_BEFORE_A_BRACKET.split())
"""Keywords of a SELECT that a round bracket may follow, which then calls nothing."""
_TYPES_WITH_LENGTHS = """
bit bpchar char character decimal dec float interval numeric time timestamp varchar varying
"""
TYPES_WITH_LENGTHS = frozenset(_TYPES_WITH_LENGTHS.split())
"""Types whose lengths are written in round brackets."""
_CHANGING_WORDS = """
current_catalog current_date current_role current_schema current_time current_timestamp current_user localtime
localtimestamp session_user system_user tablesample user
"""
CHANGING_WORDS = frozenset(_CHANGING_WORDS.split())
"""Reserved words that have another value at another time, by chance, or for another role."""
SYSTEM_COLUMNS = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
"""Columns of every table that change when it is stored anew; no other column has these names."""
_CHANGING_FUNCTIONS = """
clock_timestamp gen_random_uuid now random random_normal statement_timestamp timeofday transaction_timestamp
uuidv4 uuidv7
"""
CHANGING_FUNCTIONS = frozenset(_CHANGING_FUNCTIONS.split())
"""Functions whose value is another each time."""
DAYS_OF_THE_CLOCK = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Words that Postgres reads as a date where it looks for one, with whatever stands beside them:
https://www.postgresql.org/docs/current/datatype-datetime.html#DATATYPE-DATETIME-SPECIAL-VALUES."""
_DATE_TYPES = """
date daterange datemultirange time timestamp timestamptz timetz tsmultirange tsrange tstzmultirange tstzrange
"""
DATE_TYPES = frozenset(_DATE_TYPES.split())
_NUMBERS_OF_NAMES = """
aclitem regclass regcollation regconfig regdictionary regnamespace regoper regoperator regproc regprocedure
regrole regtype
"""
NUMBERS_OF_NAMES = frozenset(_NUMBERS_OF_NAMES.split())
"""Types of names of the system catalogs: a cast to one says which tables, roles and functions exist."""
PADDING_FUNCTIONS = frozenset({"lpad", "repeat", "rpad"})
"""Functions whose second argument is the length of their value, or a factor of it."""
MOST_PADDING = 10_000
MOST_NAME_BYTES = 63
"""Postgres cuts longer names without an error: NAMEDATALEN - 1."""
_LONG_FORMAT = re.compile(r"%(?:\d+\$)?-?(?:\d{4,}|\*)")
"""A width of `format` that is long, or an argument."""
_LETTERS = re.compile("[a-z]+")
_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
"""Postgres leaves all other letters as they are."""


@dataclass(frozen=True)
class Token:
    """A word, a quoted name, a text, or a sign of a query."""

    text: str
    """In small letters, unless it is a quoted name or a text, which are without their quotes."""
    is_word: bool = False
    is_quoted_name: bool = False
    is_text: bool = False
    start: int = field(default=0, compare=False)
    """Its offset in the query."""
    end: int = field(default=0, compare=False)

    @property
    def names(self) -> bool:
        """Whether it is a word or a quoted name."""
        return self.is_word or self.is_quoted_name

    def is_sign(self, sign: str) -> bool:
        """Whether it is this sign, and no name or text that looks like it."""
        return self.text == sign and not self.names and not self.is_text


def first_word(query: str) -> str:
    """The first word of a query after comments, in small letters; empty if it begins with something else."""
    word = _FIRST_WORD.match(query)
    return word[1].lower() if word else ""


def postgres_tokens(query: str) -> list[Token]:
    """The words, quoted names, texts, numbers and signs of a query, without comments; long names are cut.

    Raises:
        RejectedInputError: a comment, a text or a name does not end, or one has escapes (`E''`, `U&""`).
    """
    tokens: list[Token] = []
    at = 0
    while at < len(query):
        if space := _SPACE.match(query, at):
            at = space.end()
        elif query.startswith("/*", at):
            at = _end_of_comment(query, at)
        else:
            token = _token_at(query, at)
            tokens.append(token)
            at = token.end
    return tokens


def _token_at(query: str, at: int) -> Token:
    if query[at] == "'":
        text_match = _match(_TEXT, query, at)
        return Token(text_match[1].replace("''", "'"), is_text=True, start=at, end=text_match.end())
    if dollar := _DOLLAR.match(query, at):
        end = query.find(dollar.group(), dollar.end())
        if end < 0:
            raise RejectedInputError(INVALID)
        return Token(query[dollar.end() : end], is_text=True, start=at, end=end + len(dollar.group()))
    if query[at] == '"':
        name = _match(_NAME, query, at)
        return Token(_cut(name[1].replace('""', '"')), is_quoted_name=True, start=at, end=name.end())
    if number := _NUMBER.match(query, at):
        return Token(number.group(), start=at, end=number.end())
    if word := _WORD.match(query, at):
        text, following = word.group().translate(_SMALL), query[word.end() : word.end() + 2]
        # Texts with escapes go on after a line break, where one without would end: none is read here.
        if (text == "e" and following[:1] == "'") or (text == "u" and following in {"&'", '&"'}):
            raise RejectedInputError(INVALID)
        return Token(_cut(text), is_word=True, start=at, end=word.end())
    return Token(query[at], start=at, end=at + 1)


def _cut(name: str) -> str:
    """A name as Postgres cuts it, at the end of a character."""
    return name.encode("utf-8", "replace")[:MOST_NAME_BYTES].decode("utf-8", "ignore")


@dataclass(frozen=True)
class Names:
    """What a query of Postgres may and may not name, in small letters."""

    functions: Collection[str]
    """What it may call."""
    own_functions: Collection[str] = frozenset()
    """Functions that people made in the database: `row.name` may call one of them."""
    has_times_of_day: bool = False
    """Whether an offered table has a column of times without a date."""


def check_postgres_query(query: str, names: Names) -> list[Token]:
    """Check that a query is one SELECT, and calls allowed functions alone; returns its tokens.

    System catalogs are refused, and what has another answer at another time (`is_repeatable`).

    Raises:
        RejectedInputError: it is not.
    """
    if "\x00" in query:
        raise RejectedInputError(INVALID)
    tokens = postgres_tokens(query)
    while tokens and tokens[-1].is_sign(";"):
        tokens.pop()
    if any(token.is_sign(";") for token in tokens):
        raise RejectedInputError(SEVERAL)
    first = next((token for token in tokens if not token.is_sign("(")), Token(""))
    if not first.is_word or first.text not in {"select", "with", "values", "table"}:
        raise RejectedInputError(NOT_A_SELECT)
    if not is_repeatable(tokens, has_times_of_day=names.has_times_of_day):
        raise RejectedInputError(NOT_REPEATABLE)
    padded = [Token(""), *tokens, Token("")]
    for number, token in enumerate(tokens):
        if not token.names:
            continue
        is_called = padded[number + 2].is_sign("(")
        before = padded[number]
        is_qualified = before.is_sign(".")
        if is_called and not _may_be_called(tokens, number, names, is_qualified=is_qualified):
            raise RejectedInputError(FUNCTION, f"{token.text} is not on the list of functions")
        if is_qualified and token.text.lower() in names.own_functions:
            raise RejectedInputError(FUNCTION, f"{token.text} is a function of this database")
        is_of_the_system = token.text.lower().startswith("pg_") or token.text.lower() == "information_schema"
        if is_of_the_system or (not is_qualified and token.text in NUMBERS_OF_NAMES):
            raise RejectedInputError(TABLE, f"{token.text} is of the system catalogs")
    return tokens


def _may_be_called(tokens: Sequence[Token], number: int, names: Names, *, is_qualified: bool) -> bool:
    """Whether the name before a round bracket calls nothing, or a function of the list."""
    token = tokens[number]
    before = tokens[number - 1] if number else Token("")
    if before.is_word and before.text == "as":
        return True  # after AS no function is called: an alias, or a type with a length
    if is_qualified:
        return False
    if token.text in names.functions:
        return not _is_long(tokens, number)
    return token.text.lower() not in names.own_functions and _calls_nothing(tokens, number)


def _is_long(tokens: Sequence[Token], number: int) -> bool:
    """Whether a function may be asked for a long text: its length has to be a small number in the query."""
    name = tokens[number].text
    arguments = _arguments(tokens, number + 1)
    if name in PADDING_FUNCTIONS:
        length = arguments[1] if len(arguments) > 1 else []
        return len(length) != 1 or not length[0].text.isdecimal() or int(length[0].text) > MOST_PADDING
    if name == "format":
        pattern = arguments[0] if arguments else []
        return len(pattern) != 1 or not pattern[0].is_text or bool(_LONG_FORMAT.search(pattern[0].text))
    return False


def is_repeatable(tokens: Sequence[Token], *, has_times_of_day: bool = False) -> bool:
    """Whether what a query says has the same answer at any time, as long as its tables stay as they are.

    It has not if it asks for the time, for chance or for its role, for where a row is stored, or for a time of
    day in a time zone, which is that of today. Postgres takes a text such as `'today'` for a date where it looks
    for one: here a query is refused that has such a text, and makes dates of what it computes. A text that is
    put together while the query runs is not seen.
    """
    if any(_changes(tokens, number) for number in range(len(tokens))):
        return False
    if _has_times_in_zones(tokens, has_times_of_day=has_times_of_day):
        return False
    return not (texts_of_the_clock(tokens) and _casts_to_dates(tokens))


def _changes(tokens: Sequence[Token], number: int) -> bool:
    """Whether a word or name says something else at another time."""
    token = tokens[number]
    before = tokens[number - 1] if number else Token("")
    if not token.names or (before.is_word and before.text == "as"):
        return False  # a name that the query gives
    if token.text in SYSTEM_COLUMNS:
        return True
    if before.is_sign("."):
        return False  # a column of a table
    is_called = number + 1 < len(tokens) and tokens[number + 1].is_sign("(")
    if is_called and token.text == "age":
        return len(_arguments(tokens, number + 1)) == 1  # the age of a moment is that of today
    return (token.is_word and token.text in CHANGING_WORDS) or (
        is_called and token.text in CHANGING_FUNCTIONS
    )


def _has_times_in_zones(tokens: Sequence[Token], *, has_times_of_day: bool) -> bool:
    """Whether a query may ask for a time of day in a time zone, whose summer time is that of today."""
    words = " ".join(_plain_word(token) for token in tokens)
    if re.search(r"\btimetz\b|\btime (?:\( \d+ \) )?with time zone\b", words):
        return True
    is_time = has_times_of_day or re.search(r"(?<!at )(?<!with )(?<!without )(?<!\. )\btime\b", words)
    return bool(is_time) and "at time zone" in words


def texts_of_the_clock(tokens: Sequence[Token]) -> list[tuple[int, int]]:
    """Where texts of a query begin and end that Postgres takes for a date where it looks for one."""
    # Postgres joins texts that follow each other on several lines.
    texts: list[list[Token]] = []
    goes_on = False
    for token in tokens:
        if token.is_text and goes_on:
            texts[-1].append(token)
        elif token.is_text:
            texts.append([token])
        goes_on = token.is_text
    places: list[tuple[int, int]] = []
    for group in texts:
        text = "".join(token.text for token in group)
        if DAYS_OF_THE_CLOCK.intersection(_LETTERS.findall(text.lower())):
            places.append((group[0].start, group[-1].end))
    return places


def names_relation(tokens: Sequence[Token], schema: str, relation: str) -> bool:
    """Whether a query has the name of a table as one: by itself, or after its schema."""
    padded = [Token(""), Token(""), *tokens]
    for number, token in enumerate(tokens):
        if not token.names or token.text.lower() != relation.lower():
            continue
        qualifier, before = padded[number], padded[number + 1]
        if not before.is_sign(".") or qualifier.text.lower() == schema.lower():
            return True
    return False


def _casts_to_dates(tokens: Sequence[Token]) -> bool:
    """Whether a query makes dates of what it computes: `x::date`, `cast(x as date)`, `date(x)`."""
    padded = [Token(""), Token(""), *tokens, Token("")]
    for number, token in enumerate(tokens):
        first, before, following = padded[number], padded[number + 1], padded[number + 3]
        is_cast = (before.is_sign(":") and first.is_sign(":")) or (before.is_word and before.text == "as")
        if token.names and token.text in DATE_TYPES and (is_cast or following.is_sign("(")):
            return True
    return False


def without_last_semicolon(query: str) -> str:
    """The query without semicolons and white space at its end, so that it can be a part of another."""
    return query.rstrip("; \t\r\n")


def _arguments(tokens: Sequence[Token], number: int) -> list[list[Token]]:
    """The tokens of each argument, if a bracket opens at this token; none if it does not."""
    arguments: list[list[Token]] = [[]]
    depth = 0
    for token in tokens[number:]:
        depth -= token.is_sign(")")
        if depth == 0 and not token.is_sign("("):
            return arguments if token.is_sign(")") else []
        if depth == 1 and token.is_sign(","):
            arguments.append([])
        elif depth:
            arguments[-1].append(token)
        depth += token.is_sign("(")
    return []


def _calls_nothing(tokens: Sequence[Token], number: int) -> bool:
    """Whether a name before a round bracket is no function.

    It may be a keyword, a type, or a query of WITH with columns.
    """
    token = tokens[number]
    if token.is_word and token.text in BEFORE_A_BRACKET | TYPES_WITH_LENGTHS:
        return True
    # WITH name (column, column) AS [NOT] [MATERIALIZED] (SELECT; a function's list of columns has no SELECT.
    at = number + 2
    while at < len(tokens) and (tokens[at].names or tokens[at].is_sign(",")):
        at += 1
    words = [_plain_word(token) for token in tokens[at : at + 6]]
    if words[:2] != [")", "as"]:
        return False
    rest = [word for word in words[2:] if word not in {"not", "materialized"}]
    return rest[:2] in (["(", "select"], ["(", "with"])


def _plain_word(token: Token) -> str:
    """A word or a sign as it is, and of a quoted name or a text its quotes alone."""
    return '""' if token.is_quoted_name or token.is_text else token.text


def _end_of_comment(query: str, at: int) -> int:
    """The end of a comment of Postgres, which may hold comments."""
    depth = 0
    for sign in re.finditer(r"/\*|\*/", query[at:]):
        depth += 1 if sign.group() == "/*" else -1
        if depth == 0:
            return at + sign.end()
    raise RejectedInputError(INVALID)


def _match(pattern: re.Pattern[str], query: str, at: int) -> re.Match[str]:
    match = pattern.match(query, at)
    if match is None:
        raise RejectedInputError(INVALID)
    return match
