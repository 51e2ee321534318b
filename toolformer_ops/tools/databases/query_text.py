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
_CHANGING_WORDS = """
current_catalog current_date current_role current_schema current_time current_timestamp current_user localtime
localtimestamp session_user system_user tablesample user
"""
CHANGING_WORDS = frozenset(_CHANGING_WORDS.split())
"""Reserved words that have another value at another time, by chance, or for another role."""
_CHANGING_FUNCTIONS = """
clock_timestamp gen_random_uuid now random random_normal statement_timestamp timeofday transaction_timestamp
uuidv4 uuidv7
"""
CHANGING_FUNCTIONS = frozenset(_CHANGING_FUNCTIONS.split())
"""Functions whose value is another each time."""
DAYS_OF_THE_CLOCK = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Words that Postgres reads as a date where it looks for one:
https://www.postgresql.org/docs/current/datatype-datetime.html#DATATYPE-DATETIME-SPECIAL-VALUES."""
_WITH_A_DAY = DAYS_OF_THE_CLOCK | {"allballs", "am", "pm", "at", "utc", "gmt", "z"}
_LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Token:
    """A word, a quoted name, a text, or a sign of a query."""

    text: str
    """In small letters, unless it is a quoted name or a text, which are without their quotes."""
    is_word: bool = False
    is_quoted_name: bool = False
    is_text: bool = False

    @property
    def names(self) -> bool:
        """Whether it is a word or a quoted name."""
        return self.is_word or self.is_quoted_name

    def is_sign(self, sign: str) -> bool:
        """Whether it is this sign, and no name or text that looks like it."""
        return self.text == sign and not self.names and not self.is_text


def first_word(query: str) -> str:
    """The first word of a query behind comments, in small letters; empty if it begins with something else."""
    word = _FIRST_WORD.match(query)
    return word[1].lower() if word else ""


def postgres_tokens(query: str) -> list[Token]:
    """The words, quoted names, texts and signs of a query, without comments; each number is 0.

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
            text_match = _TEXT.match(query, at)
            at = _end_of(text_match)
            tokens.append(Token(text_match[1].replace("''", "'") if text_match else "", is_text=True))
        elif dollar := _DOLLAR.match(query, at):
            end = query.find(dollar.group(), dollar.end())
            if end < 0:
                raise RejectedInputError(INVALID)
            tokens.append(Token(query[dollar.end() : end], is_text=True))
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
    changing: Collection[str] = frozenset()
    """Views whose rows are others at another time, though no table changes."""


def check_postgres_query(query: str, names: Names) -> None:
    """Check that a query is one SELECT, calls allowed functions alone, and names nothing that is hidden.

    System catalogs are hidden. What has another answer at another time is refused (`is_repeatable`).

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
    if not tokens or not _begins_a_select(tokens):
        raise RejectedInputError(NOT_A_SELECT)
    if not is_repeatable(tokens, names.changing):
        raise RejectedInputError(NOT_REPEATABLE)
    padded = [Token(""), *tokens, Token("")]
    for number, token in enumerate(tokens):
        if not token.names:
            continue
        is_called = padded[number + 2].is_sign("(")
        is_qualified = padded[number].is_sign(".")
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


def is_repeatable(tokens: Sequence[Token], changing_views: Collection[str] = ()) -> bool:
    """Whether what a query says has the same answer at any time, as long as its tables stay as they are.

    It has not if it asks for the time, for chance or for its role. Postgres takes a text such as `'today'` for
    a date where it looks for one; what the text is compared with is not seen here, so all are refused that are
    nothing but such a word. A text that is put together while the query runs is not seen.
    """
    padded = [Token(""), *tokens, Token("")]
    for number, token in enumerate(tokens):
        before, following = padded[number], padded[number + 2]
        if token.names and token.text.lower() in changing_views:
            return False
        if before.is_sign(".") or (before.is_word and before.text == "as"):
            continue  # a column of a table, or a name that the query gives
        if token.is_word and token.text in CHANGING_WORDS:
            return False
        if following.is_sign("(") and token.names and token.text in CHANGING_FUNCTIONS:
            return False
        if token.text == "age" and token.names and _has_one_argument(tokens, number + 1):
            return False  # the age of a moment is that of today
    return not any(_is_a_day_of_the_clock(text) for text in _whole_texts(tokens))


def without_last_semicolon(query: str) -> str:
    """The query without semicolons and white space at its end, so that it can be a part of another."""
    return query.rstrip("; \t\r\n")


def _has_one_argument(tokens: Sequence[Token], number: int) -> bool:
    """Whether a bracket opens at this token, and closes without a comma of its own."""
    depth = 0
    for token in tokens[number:]:
        if token.is_sign("("):
            depth += 1
        elif token.is_sign(")"):
            depth -= 1
        elif depth == 1 and token.is_sign(","):
            return False
        if depth == 0:
            return token.is_sign(")")
    return False


def _whole_texts(tokens: Sequence[Token]) -> list[str]:
    """The texts of a query; Postgres joins those that follow each other on several lines."""
    texts: list[str] = []
    goes_on = False
    for token in tokens:
        if token.is_text and goes_on:
            texts[-1] += token.text
        elif token.is_text:
            texts.append(token.text)
        goes_on = token.is_text
    return texts


def _is_a_day_of_the_clock(text: str) -> bool:
    """Whether Postgres may take a text for a date that moves on, such as `today` or `tomorrow 12:00 UTC`."""
    words = set(_LETTERS.findall(text.lower()))
    return bool(words & DAYS_OF_THE_CLOCK) and words <= _WITH_A_DAY


def _begins_a_select(tokens: Sequence[Token]) -> bool:
    first = next((token for token in tokens if not token.is_sign("(")), Token(""))
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


def _end_of(match: re.Match[str] | None) -> int:
    if match is None:
        raise RejectedInputError(INVALID)
    return match.end()
