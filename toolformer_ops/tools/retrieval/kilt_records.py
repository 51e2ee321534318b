"""Read KILT knowledge-source records and cut them into passages of about 100 words.

A record is one JSON object a line with `wikipedia_id`, `wikipedia_title` and `text`, a list of paragraphs of
which the first is the title (https://github.com/facebookresearch/KILT, "Structure of each record"). A
paragraph that begins with `Section::::` is a heading, whose path is written `History.:Origins.`; a paragraph
that begins with `BULLET::::` is a list item.

Passages follow KILT's own scripts/create_kilt_data_paragraphs.py (passages of 100 words as in DPR):
paragraphs are cut at sentence ends, neighbours of one section are joined while they fit, and no passage
crosses a heading. Unlike there, words are what white space separates, and a sentence that is longer than a
passage by itself is cut between words.

Does not index: `index_build.py` does. Bad records are reported with a reason, never raised.
"""

import json
import re
from dataclasses import dataclass, replace

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
    """`<number of the record in its source, from 1>-<number of the passage in the record, from 1>`: unique in
    an index."""
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
    return KiltRecord(
        number, _clean(str(wikipedia_id)), _clean(title), tuple(_clean(item) for item in paragraphs)
    )


def _clean(text: str) -> str:
    """One line without control characters; a lone surrogate, which no UTF-8 text can hold, becomes U+FFFD."""
    return " ".join(_CONTROL.sub(" ", _SURROGATE.sub("�", text)).split())


def passages_of(record: KiltRecord) -> list[Passage]:
    """The passages of an article in reading order; none if it holds only its title and headings."""
    passages: list[Passage] = []
    section: tuple[str, ...] = ()
    room = 0  # words that the last passage still takes
    for index, paragraph in enumerate(record.paragraphs):
        if not paragraph or (index == 0 and paragraph == record.title):
            continue
        if paragraph.startswith(_SECTION):  # `Section::::History.:Origins.` is ("History", "Origins")
            steps = (
                step.strip().removesuffix(".") for step in _HEADING_STEP.split(paragraph[len(_SECTION) :])
            )
            section, room = tuple(filter(None, steps)), 0
            continue
        for sentence in split_sentences(_BULLET.sub("", paragraph, count=1)):
            words = sentence.split()
            for start in range(0, len(words), PASSAGE_WORDS):
                part = words[start : start + PASSAGE_WORDS]
                if len(part) <= room:
                    last = passages[-1]
                    text, paragraphs = " ".join((last.text, *part)), (last.paragraphs[0], index)
                    passages[-1] = replace(last, text=text, paragraphs=paragraphs)
                    room -= len(part)
                    continue
                passage = Passage(
                    passage_id=f"{record.number}-{len(passages) + 1}",
                    wikipedia_id=record.wikipedia_id,
                    title=record.title,
                    section=section,
                    text=" ".join(part),
                    paragraphs=(index, index),
                )
                passages.append(passage)
                room = PASSAGE_WORDS - len(part)
    return passages
