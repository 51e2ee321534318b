"""Which parts of a document a tool is asked about (Toolformer, appendix A.1): the first step of annotation.

1. A text that holds call markup is refused (`call_syntax.py`); in a chain it has to hold calls.
2. The tool's filter decides, on the whole text or on its paragraphs.
3. What it keeps and is too long to be read at once is cut into pieces, and the filter judges each: `cut`.

What is kept is a `Paragraph`: what the model reads when it proposes calls (`candidates.py`).
"""

import bisect
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from toolformer_ops.annotation.chains import EarlierCalls
from toolformer_ops.call_syntax import holds_call_markup
from toolformer_ops.records import Document, Paragraph
from toolformer_ops.runs.choices import FilterChoices
from toolformer_ops.tools.base import FilterDecision, Tool
from toolformer_ops.tools.paragraphs import Span, paragraphs
from toolformer_ops.tools.registry import tool_names
from toolformer_ops.writing_systems import MOST_TOKENS_A_CHARACTER, tokens_before

HOLDS_CALL_MARKUP = "holds_call_markup"
HOLDS_NO_CALL = "holds_no_call"
TAKES_NO_INPUT = "tool_takes_no_input"
"""In a chain: a call of this tool can hold no result."""
NOT_JUDGED = "filter_says_nothing"
"""The reason of a piece for which the tool's filter returned no decision."""
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
_WORD_END = re.compile(r"\s")
_SPACE = re.compile(r"\s*")


def filter_document(
    tool: Tool, document: Document, choices: FilterChoices, *, chains: bool = False
) -> list[FilterDecision]:
    """The tool's decisions on a document, or one refusal if the text already holds call markup.

    What is kept and longer than `choices.max_text_tokens` is cut into pieces that are judged one by one
    (`_judged_pieces`). With `chains` the text has to hold calls with their results, and no other
    markup; and the tool has to take an input.
    """
    # 1. Texts that no call may be put into.
    text, refused = document.text, None
    calls: list[Span] = []
    if chains:
        earlier = EarlierCalls.of(text, tool_names())
        text = earlier.plain_text
        refused = None if earlier.calls else HOLDS_NO_CALL
        calls = [(call.start_char, call.end_char) for call in earlier.calls]
        if not tool.spec.takes_input:
            refused = TAKES_NO_INPUT
    if holds_call_markup(text, tool_names()):
        refused = HOLDS_CALL_MARKUP
    if refused:
        return [FilterDecision(kept=False, reason=refused, end_char=len(document.text))]
    # 2. The tool's own decisions.
    decisions = tool.filter_by(choices.filter_rule, tool.spec.as_read(document))
    # 3. What is too long.
    most = choices.max_text_tokens
    before = tokens_before(document.text) if 0 < most < MOST_TOKENS_A_CHARACTER * len(document.text) else None
    number = max((decision.paragraph for decision in decisions), default=0)
    final: list[FilterDecision] = []
    for decision in decisions:
        is_long = before is not None and before[decision.end_char] - before[decision.start_char] > most
        if not (decision.kept and is_long):
            final.append(decision)
        else:
            pieces = _judged_pieces(tool, document, choices, decision, calls, number + 1)
            number = max(number, *(piece.paragraph for piece in pieces))
            final += pieces
    return final


def _judged_pieces(
    tool: Tool,
    document: Document,
    choices: FilterChoices,
    decision: FilterDecision,
    unbroken: Sequence[Span],
    next_number: int,
) -> list[FilterDecision]:
    """A decision on each piece of a kept paragraph that has more than `choices.max_text_tokens` tokens.

    The filter judges each piece as a document of its own, with the url and date of the whole. A piece of
    which it keeps anything is kept whole; the reason is that of what it keeps, or of its first refusal. So a
    long text costs only where its filter asks for it. The first piece has the paragraph's number, the others
    have numbers from `next_number` on, after those of all paragraphs, so that the other paragraphs keep
    theirs.
    """
    spans = cut(document.text, (decision.start_char, decision.end_char), choices.max_text_tokens, unbroken)
    numbers = [decision.paragraph, *range(next_number, next_number + len(spans) - 1)]
    pieces: list[FilterDecision] = []
    for number, (start, end) in zip(numbers, spans, strict=True):
        piece = Document.of(document.text[start:end], document.url, document.document_date)
        judged = tool.filter_by(choices.filter_rule, tool.spec.as_read(piece))
        deciding = next((item for item in judged if item.kept), judged[0] if judged else None)
        pieces.append(
            FilterDecision(
                kept=deciding is not None and deciding.kept,
                reason=NOT_JUDGED if deciding is None else deciding.reason,
                paragraph=number,
                start_char=start,
                end_char=end,
            )
        )
    return pieces


def cut(text: str, span: Span, most: float, unbroken: Sequence[Span] = ()) -> list[Span]:
    """Pieces of a part of a text, each of at most `most` tokens, in order.

    The white space between two pieces is in neither.

    The work on a text grows faster than its length, since a call near its end is sampled with all that comes
    before it. So a long text is cut at a blank line or else at the end of a paragraph
    (`tools/paragraphs.py`); within a longer paragraph at the end of a sentence, or of a word. Pieces are
    about equally long. Tokens are counted by the writing system (`writing_systems.py`), so that no tokenizer
    is loaded, and another model has the same pieces. A word without white space is cut at `most`. No piece
    begins or ends within one of the spans `unbroken`, which may make it longer.
    """
    start, end = span
    before = tokens_before(text[:end])
    pieces: list[Span] = []
    paragraph_ends = [last for _, last in paragraphs(text)] if before[end] - before[start] > most else []
    while (tokens := before[end] - before[start]) > most:
        even = tokens / math.ceil(tokens / most)
        earliest = int(np.searchsorted(before, before[start] + even / 2))
        latest = max(start + 1, int(np.searchsorted(before, before[start] + most, side="right")) - 1)
        at = latest
        for places in _breaks(text, (earliest, latest + 1), paragraph_ends):
            allowed = [place for place in places if not _is_within(place, unbroken)]
            if allowed:
                at = min(allowed, key=lambda place: abs(before[place] - before[start] - even))
                break
        for first, last in unbroken:
            if first < at < last:
                at = last
                break
        at = min(end, at)
        pieces.append((start, start + (len(text[start:at].rstrip()) or at - start)))
        match = _SPACE.match(text, at, end)
        start = match.end() if match else at
    return [*pieces, (start, end)] if start < end else pieces


def _is_within(place: int, spans: Sequence[Span]) -> bool:
    """Whether a place of a text lies inside one of the spans, at neither of its ends."""
    return any(first < place < last for first, last in spans)


def _breaks(text: str, part: Span, paragraph_ends: Sequence[int]) -> Iterator[list[int]]:
    """Places at which a part of a text can be cut, the best kind first.

    `paragraph_ends` ascend.
    """
    yield [match.start() for match in _BLANK_LINE.finditer(text, *part)]
    first, end = (bisect.bisect_left(paragraph_ends, char) for char in part)
    yield list(paragraph_ends[first:end])
    yield [match.start() for match in _SENTENCE_END.finditer(text, *part)]
    yield [match.start() for match in _WORD_END.finditer(text, *part)]


def kept_paragraphs(document: Document, decisions: Sequence[FilterDecision]) -> list[Paragraph]:
    """The paragraphs of a document that a filter kept."""
    paragraphs = []
    for item in decisions:
        if item.kept:
            paragraph = Paragraph(
                document=document,
                number=item.paragraph,
                start_char=item.start_char,
                end_char=item.end_char,
            )
            paragraphs.append(paragraph)
    return paragraphs
