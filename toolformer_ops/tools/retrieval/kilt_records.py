"""Read KILT knowledge-source records and cut them into passages of about 100 words.

A record is one JSON object a line with `wikipedia_id`, `wikipedia_title` and `text`, a list of paragraphs of which
the first is the title (https://github.com/facebookresearch/KILT, "Structure of each record"). A paragraph that begins
with `Section::::` is a heading, whose path is written `History.:Origins.`; one that begins with `BULLET::::` is a
list item.

Passages follow KILT's own scripts/create_kilt_data_paragraphs.py (passages of 100 words as in DPR): paragraphs are
cut at sentence ends, neighbours of one section are joined while they fit, and no passage crosses a heading. Unlike
there, words are what white space separates, and a sentence that is longer than a passage by itself is cut between
words.

Does not index: `index_build.py` does. Bad records are reported with a reason, never raised.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.retrieval.sentences import split_sentences

PASSAGE_WORDS = 100
PASSAGE_RULES = "kilt-100-words-1"
"""Raised when the same record gives other passages; part of an index's fingerprint."""

_SECTION = "Section::::"
_BULLET = re.compile(r"BULLET::::(?:-|\d+\.)?\s*")
_HEADING_STEP = re.compile(r"\.?:+\s*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Passage:
    """About 100 words of one section of one article."""

    passage_id: str
    """`<number of the record in its source, from 1>-<number of the passage in the record, from 1>`: unique in an index."""
    wikipedia_id: str
    """The record's own id; not necessarily unique in a source."""
    title: str
    section: tuple[str, ...]
    """Headings above the passage, outermost first; empty in the article's introduction."""
    text: str
    """Whole sentences, without line breaks."""
    paragraphs: tuple[int, int]
    """First and last paragraph that it draws on, as indices into the record's `text`."""

    @property
    def heading(self) -> str:
        """`Title`, or `Title > Section > Subsection`."""
        return " > ".join((self.title, *self.section))


@dataclass(frozen=True)
class KiltRecord:
    """One Wikipedia article."""

    number: int
    """Number of its line in the source, from 1."""
    wikipedia_id: str
    title: str
    paragraphs: tuple[str, ...]
    """As in the source: title first, with headings and list items."""


def parse_record(line: bytes, number: int) -> KiltRecord:
    """The article on one line.

    Raises:
        RejectedInputError: `invalid_utf8`, `invalid_json`, `not_an_object`, `no_title` or `no_text`.
    """
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RejectedInputError("invalid_utf8") from error
    except (ValueError, RecursionError) as error:
        raise RejectedInputError("invalid_json") from error
    if not isinstance(record, dict):
        raise RejectedInputError("not_an_object")
    title = record.get("wikipedia_title")
    if not isinstance(title, str) or not title.strip():
        raise RejectedInputError("no_title")
    paragraphs = record.get("text")
    if not isinstance(paragraphs, list) or not all(isinstance(paragraph, str) for paragraph in paragraphs):
        raise RejectedInputError("no_text")
    wikipedia_id = record.get("wikipedia_id", record.get("_id", ""))
    return KiltRecord(number, _clean(str(wikipedia_id)), _clean(title), tuple(_clean(item) for item in paragraphs))


def _clean(text: str) -> str:
    """One line without control characters; a lone surrogate, which no UTF-8 text can hold, becomes U+FFFD."""
    return " ".join(_CONTROL.sub(" ", _SURROGATE.sub("�", text)).split())


def passages_of(record: KiltRecord) -> Iterator[Passage]:
    """The passages of an article in reading order; none if it holds only its title and headings."""
    joined: list[_Piece] = []
    number = words = 0
    for piece in (*_pieces(record), None):
        fits = piece and joined and piece.heading == joined[0].heading and words + piece.words <= PASSAGE_WORDS
        if joined and not fits:
            number += 1
            yield Passage(
                passage_id=f"{record.number}-{number}",
                wikipedia_id=record.wikipedia_id,
                title=record.title,
                section=joined[0].section,
                text=" ".join(item.text for item in joined),
                paragraphs=(joined[0].paragraph, joined[-1].paragraph),
            )
            joined, words = [], 0
        if piece:
            joined.append(piece)
            words += piece.words


@dataclass(frozen=True)
class _Piece:
    """A sentence, or a part of one that is longer than a passage."""

    text: str
    words: int
    paragraph: int
    """Index into the record's `text`."""
    heading: int
    """Index of the heading above it, 0 in the introduction; two sections may have one path."""
    section: tuple[str, ...]


def _pieces(record: KiltRecord) -> Iterator[_Piece]:
    """The sentences below each heading. The first paragraph is skipped if it is the title."""
    section: tuple[str, ...] = ()
    heading = 0
    for index, paragraph in enumerate(record.paragraphs):
        if not paragraph or (index == 0 and paragraph == record.title):
            continue
        if paragraph.startswith(_SECTION):  # `Section::::History.:Origins.` is ("History", "Origins")
            steps = (step.strip().removesuffix(".") for step in _HEADING_STEP.split(paragraph[len(_SECTION) :]))
            section, heading = tuple(filter(None, steps)), index
            continue
        for sentence in split_sentences(_BULLET.sub("", paragraph, count=1)):
            words = sentence.split()
            parts = [words[start : start + PASSAGE_WORDS] for start in range(0, len(words), PASSAGE_WORDS)]
            for part in parts:
                yield _Piece(" ".join(part), len(part), index, heading=heading, section=section)
