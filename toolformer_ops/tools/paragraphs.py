"""What the paragraphs of a text are: for MT's filter, and for the ends at which a long text is cut.

A line break ends a paragraph in texts of the web, and in mail, RFCs and books of Project Gutenberg it only
ends a line. `paragraphs` decides for each block of lines between blank lines whether its lines are wrapped,
since one text may hold both (a reply in long lines with the wrapped mail that it quotes). In a wrapped block
a paragraph goes on over its line breaks, which are white space; elsewhere each line is a paragraph.

1. Lines end at LF, CR, CRLF, U+0085 and U+2029. U+2028 and the vertical tab break a line within a
   paragraph by their definition, and a form feed is a page break: they are white space.
2. Blocks are separated by blank lines, and by a change in the depth of quotation (`> `). A line of quotation
   marks alone is blank.
3. A block is wrapped if its lines end where the next word would not have fitted (`_is_wrapped`), or if they
   fill the width of the text's other wrapped blocks (`_fills`).
4. In a wrapped block a paragraph ends after a line that had room for the next word, before an item of a
   list, before an indented first line, and beside a row of a table (`_ends_paragraph`).

Does not judge paragraphs: a tool's filter does.
"""

import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolformer_ops.writing_systems import UNSPACED_SCRIPTS

Span = tuple[int, int]
"""The first character and the end, exclusive."""

NARROWEST_COLUMNS = 40
"""Lists of names and verse are narrower than this; columns of newspapers, which may be, then stay lines."""
WIDEST_COLUMNS = 132
"""The widest terminal; a longer line was not wrapped."""
SLACK = 0.1
"""People who end lines by hand end them up to this share of the width early."""
FULL_LINES = 0.75
"""Least share of a wrapped block's lines that are full; the last line of each paragraph is not."""
CONTINUING_LINES = 0.25
"""Least share of a wrapped block's lines, without the first, that begin with a small letter, or with one of a
script that has no capitals: fewer are verse, a list, or sentences a line."""

_LINE = re.compile(r"(?P<content>[^\n\r\x85\u2029]*)(?:\r\n|[\n\r\x85\u2029]|\Z)")
_QUOTATION = re.compile(r"[^\S\n]*(?:>[^\S\n]?)*")
_LINE_START = re.compile(r"(?:\A|[\n\r\x85\u2029])[^\S\n]*(?:>[^\S\n]?)*")
_FIRST_WORD = re.compile(rf"[{UNSPACED_SCRIPTS}]|[^\s{UNSPACED_SCRIPTS}]+")
_ITEM = re.compile(
    r"(?P<bullet>[-*+•‣◦·\u2013\u2014o])\s+\S|\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})(?P<number>[.)\]])\s+\S"
)
_TABLE = re.compile(r"\S(?:\s*\t\s*|\s{4,})\S|\|.*\|")
"""A tab, four spaces or two bars between words; text that is justified has two or three spaces."""
_SENTENCE_END = tuple(".!?:;\"'\u201d\u2019)»*_")


@dataclass(frozen=True)
class _Line:
    """A line that is not blank."""

    start: int
    """Offset in the text of its first character after quotation marks that is no white space."""
    end: int
    """Offset after its last character that is no white space."""
    text: str
    """What is between the two."""
    depth: int
    """How many quotation marks (`>`) stand before it."""
    indent: int
    """Columns before `start`, quotation marks included."""

    @property
    def width(self) -> int:
        """Columns from the margin to the line's end; a Chinese or Japanese character takes two."""
        return self.indent + _columns(self.text)

    @property
    def room_for_first_word(self) -> int:
        """Columns that its first word and a space take at the end of another line."""
        word = _FIRST_WORD.match(self.text)
        return 1 + _columns(word.group() if word else self.text)

    @property
    def is_one_word(self) -> bool:
        """Whether it is a word that may be too long for any line, such as an address."""
        return not any(map(str.isspace, self.text)) and _columns(self.text) == len(self.text)

    @property
    def item(self) -> str:
        """The kind of mark with which it begins as the item of a list; empty if it begins with none."""
        match = _ITEM.match(self.text)
        return (match["bullet"] or match["number"]) if match else ""

    @property
    def is_table_row(self) -> bool:
        """Whether it has columns of its own."""
        return _TABLE.search(self.text) is not None

    @property
    def goes_on(self) -> bool:
        """Whether its first letter or digit, after quotation marks and brackets, is a small letter.

        A letter without capitals counts as small.
        """
        first = next(filter(str.isalnum, self.text), "")
        return unicodedata.category(first) in ("Ll", "Lo") if first else False


def paragraphs(text: str) -> list[Span]:
    """The paragraphs of a text in order, each without white space and quotation marks at its ends.

    No paragraph is empty.
    """
    blocks = list(_blocks(text))
    lines_by_width: Counter[int] = Counter()
    for block in blocks:
        if _is_wrapped(block):
            lines_by_width[_width(block)] += len(block)
    text_width = max(lines_by_width, key=lambda width: (lines_by_width[width], width), default=0)
    spans: list[Span] = []
    for block in blocks:
        if _is_wrapped(block):
            spans += _joined(block, _width(block))
        elif _fills(block, text_width):
            spans += _joined(block, text_width)
        else:
            spans += [(line.start, line.end) for line in block]
    return spans


@functools.lru_cache(maxsize=4)
def on_one_line(text: str) -> str:
    """A text with single spaces: line breaks, and the quotation marks that begin lines, are white space."""
    return " ".join(_LINE_START.sub(" ", text).split())


def _blocks(text: str) -> Iterator[list[_Line]]:
    """The lines between blank lines and changes of the depth of quotation."""
    block: list[_Line] = []
    for match in _LINE.finditer(text):
        content = match["content"]
        quotation = _QUOTATION.match(content)
        prefix = quotation.group() if quotation else ""
        stripped = content[len(prefix) :].strip()
        depth = prefix.count(">")
        if block and (not stripped or depth != block[-1].depth):
            yield block
            block = []
        if stripped:
            first = match.start() + content.index(stripped, len(prefix))
            block.append(
                _Line(
                    start=first,
                    end=first + len(stripped),
                    text=stripped,
                    depth=depth,
                    indent=len(content[: first - match.start()].expandtabs()),
                )
            )
    if block:
        yield block


def _width(block: Sequence[_Line]) -> int:
    """The width at which a block's lines were wrapped, if they were.

    It is that of its widest line that could be broken.
    """
    return max((line.width for line in block if not line.is_one_word), default=0)


def _is_wrapped(block: Sequence[_Line]) -> bool:
    """Whether a block's lines, by themselves, are seen to be pieces of longer lines.

    They are as wide as lines that were wrapped, nearly all end where the next word had no room, and some go
    on in lower case.
    """
    width = _width(block)
    if not NARROWEST_COLUMNS <= width <= WIDEST_COLUMNS:
        return False
    breaks = [
        (line, after)
        for line, after in itertools.pairwise(block)
        if not (line.is_table_row or after.is_table_row or after.item or _is_indented(line, after))
    ]
    full = sum(_is_full(line, after, width) for line, after in breaks)
    going_on = sum(after.goes_on for _, after in breaks)
    return bool(breaks) and full >= FULL_LINES * len(breaks) and going_on >= CONTINUING_LINES * len(breaks)


def _fills(block: Sequence[_Line], text_width: int) -> bool:
    """Whether each line of a block but the last is as wide as the wrapped lines of other blocks.

    A width of 0 says that no other block has any.
    """
    if not text_width or _width(block) > text_width * (1 + SLACK):
        return False
    return all(_is_full(line, after, text_width) for line, after in itertools.pairwise(block))


def _is_full(line: _Line, after: _Line, width: int) -> bool:
    """Whether a line had no room for the first word of the line after it."""
    if line.is_one_word and line.width > width / 2:
        return True
    return line.width + after.room_for_first_word > width * (1 - SLACK)


def _is_indented(line: _Line, after: _Line) -> bool:
    """Whether a line is indented more than the one before it, which is not the first of an item."""
    return after.indent > line.indent + 1 and not line.item


def _joined(block: Sequence[_Line], width: int) -> Iterator[Span]:
    """The paragraphs of a block that was wrapped at `width`."""
    start = block[0].start
    for number, line in enumerate(block):
        if number + 1 == len(block):
            yield start, line.end
        elif _ends_paragraph(block, number, width):
            yield start, line.end
            start = block[number + 1].start


def _ends_paragraph(block: Sequence[_Line], number: int, width: int) -> bool:
    """Whether a paragraph of a wrapped block ends with this line, which has a line after it."""
    line, after = block[number], block[number + 1]
    if line.is_table_row or after.is_table_row:
        return True
    # 1. The next line is the item of a list: at least two lines begin with such a mark.
    if after.item and sum(other.item == after.item for other in block) > 1:
        return True
    # 2. The next line is the indented first line of a paragraph: the line after it is indented less.
    is_first_line = (
        _is_indented(line, after) and number + 2 < len(block) and block[number + 2].indent < after.indent
    )
    if is_first_line and line.text.endswith(_SENTENCE_END):
        return True
    # 3. The next word had room. A line that goes on in lower case was put there by hand.
    return not _is_full(line, after, width) and not after.goes_on


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide
