"""Which paragraphs are worth asking for translations (Toolformer, appendix A.1, Machine Translation).

A paragraph (a line that is not blank) is kept if it holds a chunk of ten tokens that fastText finds to be in another language
than English with a confidence above 0.8, with English text before it and after it. English text is a chunk of ten tokens, or
the shorter rest at the paragraph's start or end, whose likeliest language is English with a confidence above 0.5. Chunks of
only numbers or special signs are neither.

The paper does not say where chunks begin. Here one begins at every token, since chunks laid at fixed multiples of ten cut
most foreign phrases in two: of 1,256 English paragraphs with foreign phrases marked by hand, four fifths of them shorter than
five words, every tenth token keeps 30 and every token 72; of 26,902 paragraphs of English web text every token keeps 22.

A token is what stands between white space; in scripts that are written without spaces each character is one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from toolformer_ops.tools.base import FilterDecision
from toolformer_ops.tools.language_identification import ENGLISH, Language, has_letters, identify

CHUNK_TOKENS = 10
FOREIGN_CONFIDENCE = 0.8
ENGLISH_CONFIDENCE = 0.5

FOREIGN_BETWEEN_ENGLISH = "foreign_between_english"
NO_FOREIGN_CHUNK = "no_foreign_chunk"
NOT_BETWEEN_ENGLISH = "foreign_not_between_english"
TOO_SHORT = "too_short_for_a_chunk_between_others"
NO_LETTERS = "only_numbers_or_symbols"
NO_PARAGRAPH = "no_paragraph"

UNSPACED_SCRIPTS = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
"""Thai, Lao, Tibetan, Burmese, Khmer, Japanese kana and Chinese characters, as the inside of a character class."""
_TOKEN = re.compile(rf"[{UNSPACED_SCRIPTS}]|[^\s{UNSPACED_SCRIPTS}]+")
_LINE = re.compile(r"[^\n]*\S[^\n]*")


@dataclass(frozen=True)
class Paragraph:
    """One line of a document that is not blank."""

    number: int
    """From 0."""
    start_char: int
    """Offset in the document, after white space at the line's start."""
    text: str


def paragraphs(text: str) -> Iterator[Paragraph]:
    """The lines of `text` that are not blank, without white space at their ends."""
    for number, match in enumerate(_LINE.finditer(text)):
        line = match.group()
        yield Paragraph(number, match.start() + len(line) - len(line.lstrip()), line.strip())


def judge(text: str) -> list[FilterDecision]:
    """One decision a paragraph, or one for a document that has none."""
    decisions = [_decision(paragraph) for paragraph in paragraphs(text)]
    return decisions or [FilterDecision(False, NO_PARAGRAPH, end_char=len(text))]


def _decision(paragraph: Paragraph) -> FilterDecision:
    reason = judge_paragraph(paragraph.text)
    end_char = paragraph.start_char + len(paragraph.text)
    return FilterDecision(reason == FOREIGN_BETWEEN_ENGLISH, reason, paragraph.number, paragraph.start_char, end_char)


def judge_paragraph(text: str) -> str:
    """The reason to keep a paragraph (`foreign_between_english`) or to leave it."""
    if not has_letters(text):
        return NO_LETTERS
    spans = [match.span() for match in _TOKEN.finditer(text)]
    if len(spans) < CHUNK_TOKENS + 2:
        return TOO_SHORT

    def language(first: int, last: int) -> Language | None:
        """Of the tokens from `first` to before `last`; None for only numbers or special signs, or nothing."""
        return identify(text[spans[first][0] : spans[last - 1][1]]) if first < last else None

    chunks = [language(first, first + CHUNK_TOKENS) for first in range(len(spans) - CHUNK_TOKENS + 1)]
    foreign = [first for first, chunk in enumerate(chunks) if _is_foreign(chunk)]
    if not foreign:
        return NO_FOREIGN_CHUNK
    english = [first for first, chunk in enumerate(chunks) if _is_english(chunk)]
    for first in foreign:
        last = first + CHUNK_TOKENS
        before = bool(english) and english[0] + CHUNK_TOKENS <= first
        after = bool(english) and english[-1] >= last
        before = before or (first < CHUNK_TOKENS and _is_english(language(0, first)))
        after = after or (len(spans) - last < CHUNK_TOKENS and _is_english(language(last, len(spans))))
        if before and after:
            return FOREIGN_BETWEEN_ENGLISH
    return NOT_BETWEEN_ENGLISH


def _is_foreign(chunk: Language | None) -> bool:
    return chunk is not None and chunk.label != ENGLISH and chunk.confidence > FOREIGN_CONFIDENCE


def _is_english(chunk: Language | None) -> bool:
    return chunk is not None and chunk.label == ENGLISH and chunk.confidence > ENGLISH_CONFIDENCE
