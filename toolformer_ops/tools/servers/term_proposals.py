"""The calls that the tool of a server proposes for a text: those with the terms that the text names.

`The capital of Japan is Tokyo` names Japan. What the server answers to it is not known before it is asked, so
that a call is proposed before each word that may begin an answer: a number, or a word with a capital letter that
does not begin a sentence. The losses decide among these places.

1. The terms, the possible values of one argument, are a file with one in each line (`read_terms`). The
   server may write it, when a person asks for it (`listed_terms.py`): what a run proposes depends on the file
   alone.
2. The terms of a text are found as the keys of a database are (`databases/cell_proposals.py`).
3. A place belongs to the nearest term before it, and each term has a few places.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from toolformer_ops.config import load_settings
from toolformer_ops.errors import ToolError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.local_paths import local_path, open_local
from toolformer_ops.tools.base import ProposedCall, ProposedCalls
from toolformer_ops.tools.databases.cell_proposals import CellIndex, key_words
from toolformer_ops.tools.databases.said_values import TextWords
from toolformer_ops.tools.servers.server_file import ServerToolFile

logger = logging.getLogger(__name__)

PROPOSAL_VERSION = 1
"""Raised when the same terms would propose other calls for a text."""
MOST_TERMS = 1_000_000
"""Most terms of a file: an index of so many takes 0.25 GB."""
MOST_BYTES = 100_000_000
"""Most bytes of a file of terms."""
PLACES_A_TERM = 3
REACH_CHARACTERS = 300
"""How far after its term an answer may begin."""
_STRETCH = re.compile(r"\S+")
_FIRST_WORD_SIGN = re.compile(r"\w")
_ENDS_SENTENCE = re.compile(r"[.!?][\"'”’)\]]*\Z")  # noqa: RUF001


class TermIndex:
    """The terms that calls are proposed with."""

    def __init__(self, terms: Sequence[str], common: Collection[str], input_of: Callable[[str], str]) -> None:
        """`common` are terms that are left out, and `input_of` writes a term as the input of a call."""
        self._index = CellIndex(common)
        self._input_of = input_of
        table = self._index.add_table(())
        for term in terms:
            self._index.add(table, term, ())

    def proposals(self, document: Document) -> ProposedCalls:
        """The calls of a text, in its order, and what was left out."""
        text = document.text
        words = TextWords.of(text)
        left_out: Counter[str] = Counter()
        mentions = list(self._index.mentions(words, left_out))
        calls: list[ProposedCall] = []
        for number, mention in enumerate(mentions):
            start = words.ends[mention.last_word]
            end = start + REACH_CHARACTERS
            if number + 1 < len(mentions):
                end = min(end, words.starts[mentions[number + 1].first_word])
            call_input = self._input_of(mention.key)
            calls += [ProposedCall(place, call_input) for place in places_of_answers(text, start, end)]
        return ProposedCalls(calls, left_out)


def places_of_answers(text: str, start: int, end: int) -> Iterator[int]:
    """The first places between two offsets at which an answer may begin."""
    places = 0
    begins_sentence = False
    for stretch in _STRETCH.finditer(text, start):
        if stretch.start() >= end or places == PLACES_A_TERM:
            return
        sign = _FIRST_WORD_SIGN.search(stretch[0])
        is_behind_space = text[stretch.start() - 1 : stretch.start()].isspace()
        if sign and is_behind_space and (sign[0].isdigit() or (sign[0].isupper() and not begins_sentence)):
            places += 1
            yield stretch.start()
        begins_sentence = _ENDS_SENTENCE.search(stretch[0]) is not None


def terms_file(file: ServerToolFile, folder: Path) -> Path:
    """The absolute path of the file of terms; relative to the tool file's folder.

    Raises:
        ToolError: it is missing or too large, or this deployment allows no reading there.
    """
    name = file.proposals.terms
    try:
        path = local_path(load_settings(), str(folder / name), "terms", within=folder)
    except UsageError as error:
        raise ToolError(f"tool {file.name}: {error}") from error
    if not path.is_file():
        remedy = " It is written by refresh-tool." if file.proposals.listed_by else ""
        raise ToolError(
            f"tool {file.name}: expected a file with a term in each line at {path}, found none.{remedy}"
        )
    if path.stat().st_size > MOST_BYTES:
        raise ToolError(
            f"tool {file.name}: expected terms of at most {MOST_BYTES:,} bytes, found "
            f"{path.stat().st_size:,} in {path}. Leave out those that texts do not name."
        )
    return path


def read_terms(file: ServerToolFile, folder: Path) -> list[str]:
    """The terms of a file that can be looked for, each once; how many cannot is logged.

    Two that differ in their capitals alone are one, the first.

    Raises:
        ToolError: the file cannot be read, or has too many, or none that can be looked for.
    """
    path = terms_file(file, folder)
    try:
        with open_local(path) as opened:
            lines = opened.read().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(f"tool {file.name}: expected terms in UTF-8 at {path}, found {error}.") from error
    terms: dict[tuple[str, ...], str] = {}
    unusable = 0
    for line in lines:
        term = line.strip()
        words = key_words(term)
        if words is not None:
            terms.setdefault(words, term)
        elif term:
            unusable += 1
    if len(terms) > MOST_TERMS:
        raise ToolError(
            f"tool {file.name}: expected at most {MOST_TERMS:,} terms, found {len(terms):,} in {path}. Leave "
            "out those that texts do not name."
        )
    if not terms:
        raise ToolError(
            f"tool {file.name}: expected a term of at least three letters in a line of {path}, found none."
        )
    if unusable:
        logger.warning(
            "tool %s: %d lines of %s are left out: texts are searched for terms with three letters in a row, "
            "of at most eight words and 100 characters, without brackets",
            file.name,
            unusable,
            path,
        )
    return list(terms.values())
