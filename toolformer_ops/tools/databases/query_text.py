"""What the text of a query says before any database reads it.

That is its words, its names, and whether it is one statement. The words of Postgres are read as its lexer
reads them with `standard_conforming_strings`, which each transaction sets:
https://www.postgresql.org/docs/current/sql-syntax-lexical.html. This is the first of several bounds, and
refuses what it does not understand; Postgres itself takes one statement at a time, in a transaction that only
reads (`postgres_queries.py`).
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.databases.reasons import FUNCTION, INVALID, NOT_A_SELECT, SEVERAL, TABLE

_FIRST_WORD = re.compile(r"(?>\s|--[^\n]*+|/\*(?>[^*]|\*(?!/))*+\*/)*+([A-Za-z]+)")
_SPACE = re.compile(r"[ \t\n\r\f\v]+|--[^\n\r]*")
_NUMBER = re.compile(r"\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
_DOLLAR = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$")
_NAME = re.compile(r'"((?:[^"\x00]|"")*)"')
_TEXT = re.compile(r"'(?:[^']|'')*'")

_BEFORE_A_BRACKET = """
all and any array as between both by case cast cross distinct else end except exists filter from full
group having in inner intersect is join lateral leading left like ilike limit materialized not offset on
or order over partition recursive right rows select set sets similar some symmetric then trailing union
using values when where window with within
"""
BEFORE_A_BRACKET = frozenset(_BEFORE_A_BRACKET.split())
"""Keywords of a SELECT that a round bracket may follow, which then calls nothing."""
_TYPES_WITH_LENGTHS = """
bit bpchar char character decimal dec float interval numeric time timestamp varchar varying
"""
TYPES_WITH_LENGTHS = frozenset(_TYPES_WITH_LENGTHS.split())
"""Types whose lengths are written in round brackets."""


@dataclass(frozen=True)
class Token:
    """A word, a quoted name, or a sign of a query."""

    text: str
    """In small letters, unless it is a quoted name."""
    is_word: bool = False
    is_quoted_name: bool = False

    @property
    def names(self) -> bool:
        """Whether it is a word or a quoted name."""
        return self.is_word or self.is_quoted_name


def first_word(query: str) -> str:
    """The first word of a query behind comments, in small letters; empty if it begins with something else."""
    word = _FIRST_WORD.match(query)
    return word[1].lower() if word else ""


def postgres_tokens(query: str) -> list[Token]:
    """The words, quoted names and signs of a query, without comments, texts and numbers.

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
        elif query[at] == "'":
            at = _end_of(_TEXT.match(query, at))
        elif dollar := _DOLLAR.match(query, at):
            end = query.find(dollar.group(), dollar.end())
            if end < 0:
                raise RejectedInputError(INVALID)
            at = end + len(dollar.group())
        elif query[at] == '"':
            name = _NAME.match(query, at)
            at = _end_of(name)
            tokens.append(Token(name[1].replace('""', '"') if name else "", is_quoted_name=True))
        elif number := _NUMBER.match(query, at):
            at = number.end()
            tokens.append(Token("0"))
        elif word := _WORD.match(query, at):
            at = word.end()
            text, following = word.group().lower(), query[at : at + 2]
            # Texts with escapes go on behind a line break, where one without would end: none is read here.
            if (text == "e" and following[:1] == "'") or (text == "u" and following in {"&'", '&"'}):
                raise RejectedInputError(INVALID)
            tokens.append(Token(text, is_word=True))
        else:
            tokens.append(Token(query[at]))
            at += 1
    return tokens


@dataclass(frozen=True)
class Names:
    """What a query of Postgres may and may not name, in small letters."""

    functions: Collection[str]
    """What it may call."""
    own_functions: Collection[str] = frozenset()
    """Functions that people made in the database: `row.name` may call one of them."""
    hidden: Collection[str] = frozenset()
    """Tables, views and schemas that are not offered."""


def check_postgres_query(query: str, names: Names) -> None:
    """Check that a query is one SELECT, calls allowed functions alone, and names nothing that is hidden.

    System catalogs are hidden.

    Raises:
        RejectedInputError: it is not.
    """
    if "\x00" in query:
        raise RejectedInputError(INVALID)
    tokens = postgres_tokens(query)
    while tokens and tokens[-1].text == ";" and not tokens[-1].names:
        tokens.pop()
    if any(token.text == ";" and not token.names for token in tokens):
        raise RejectedInputError(SEVERAL)
    if not tokens or not _begins_a_select(tokens):
        raise RejectedInputError(NOT_A_SELECT)
    padded = [Token(""), *tokens, Token("")]
    for number, token in enumerate(tokens):
        if not token.names:
            continue
        before, following = padded[number], padded[number + 2]
        is_called = following.text == "(" and not following.names
        is_qualified = before.text == "." and not before.names
        # The plain name of a built-in function means that function, before any of the same name.
        is_allowed = not is_qualified and (token.text in names.functions or _calls_nothing(tokens, number))
        if is_called and not is_allowed:
            raise RejectedInputError(FUNCTION)
        if is_qualified and token.text.lower() in names.own_functions:
            raise RejectedInputError(FUNCTION)
        if token.text.lower().startswith("pg_") or token.text.lower() == "information_schema":
            raise RejectedInputError(TABLE)
        if token.text.lower() in names.hidden:
            raise RejectedInputError(TABLE)


def without_last_semicolon(query: str) -> str:
    """The query without semicolons and white space at its end, so that it can be a part of another."""
    return query.rstrip("; \t\r\n")


def _begins_a_select(tokens: Sequence[Token]) -> bool:
    first = next((token for token in tokens if token.text != "(" or token.names), Token(""))
    return first.is_word and first.text in {"select", "with", "values", "table"}


def _calls_nothing(tokens: Sequence[Token], number: int) -> bool:
    """Whether a name before a round bracket is no function.

    It may be a keyword, a type, an alias with columns, or a query of WITH with columns.
    """
    token = tokens[number]
    before = tokens[number - 1] if number else Token("")
    if token.is_word and token.text in BEFORE_A_BRACKET | TYPES_WITH_LENGTHS:
        return True
    if before.is_word and before.text == "as":
        return True  # behind AS no function is called: an alias, or a type with a length
    # WITH name (column, column) AS [NOT] [MATERIALIZED] (SELECT; a function's list of columns has no SELECT.
    at = number + 2
    while at < len(tokens) and (tokens[at].names or tokens[at].text == ","):
        at += 1
    words = ['""' if token.is_quoted_name else token.text for token in tokens[at : at + 6]]
    if words[:2] != [")", "as"]:
        return False
    rest = [word for word in words[2:] if word not in {"not", "materialized"}]
    return rest[:2] in (["(", "select"], ["(", "with"])


def _end_of_comment(query: str, at: int) -> int:
    """The end of a comment of Postgres, which may hold comments."""
    depth = 0
    for sign in re.finditer(r"/\*|\*/", query[at:]):
        depth += 1 if sign.group() == "/*" else -1
        if depth == 0:
            return at + sign.end()
    raise RejectedInputError(INVALID)


def _end_of(match: re.Match[str] | None) -> int:
    if match is None:
        raise RejectedInputError(INVALID)
    return match.end()
