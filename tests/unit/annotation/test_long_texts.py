"""A text of 12 kB in pieces beside the same text as a whole: a scripted model, the real Calculator."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fake_language_model import FakeLanguageModel
from toolformer_ops.annotation.candidates import SampledParagraph, sample_paragraphs
from toolformer_ops.annotation.filtering import filter_document, kept_paragraphs
from toolformer_ops.annotation.scoring import ExecutedCall, ExecutedText, ScoredCall, score_texts
from toolformer_ops.records import CallLosses, CallPosition, Document, PlacedCall
from toolformer_ops.runs.choices import FilterChoices, ScoringChoices, ToolSamplingChoices
from toolformer_ops.tools.registry import get_tool

CALCULATOR = get_tool("Calculator")
PARAGRAPH = (
    "Shop {0} had 2 boys and 3 girls at work, a total of 5 people. " + "Nothing else is said of it. " * 20
)
DOCUMENT = Document.of("\n\n".join(PARAGRAPH.format(number).strip() for number in range(100, 120)))
CHOICES = ToolSamplingChoices(
    max_positions=1000, samples_per_position=1, sampling_threshold=0.0, max_call_tokens=40, prune_below=0.0
)
WHOLE = FilterChoices(max_text_tokens=0)
PIECES = FilterChoices(max_text_tokens=128)

Place = tuple[int, str]
"""A call's offset in the document, and the call."""


class Reader(FakeLanguageModel):
    """Finds each place before a digit likely, and sees how far before a call its document begins."""

    def _positions(self, text: str) -> list[CallPosition]:
        return [item for item in super()._positions(text) if text[item.char + 1].isdigit()]

    def _exact_losses(self, text: str, call: PlacedCall) -> CallLosses:
        losses = super()._exact_losses(text, call)
        return replace(losses, without_call=losses.without_call + call.token / 65536)


def sampled(choices: FilterChoices, model: Any) -> list[SampledParagraph]:
    decisions = filter_document(CALCULATOR, DOCUMENT, choices)
    return sample_paragraphs(model, CALCULATOR, CHOICES, kept_paragraphs(DOCUMENT, decisions))


def scored(choices: FilterChoices) -> dict[Place, ScoredCall]:
    """The losses of every call of the document, by its place."""
    model: Any = Reader(("Calculator(2 + 3)",))
    candidates = [candidate for part in sampled(choices, model) for candidate in part.candidates]
    calls = [
        ExecutedCall(token=item.position.token, call=item.call, results=["5"], reason=None)
        for item in candidates
    ]
    [scored_calls] = score_texts(
        lambda: model, ScoringChoices(prune_below=0.0), 0.5, [ExecutedText(DOCUMENT.text, calls, None)]
    )
    return {
        (item.position.char, str(item.call)): call
        for item, call in zip(candidates, scored_calls, strict=True)
    }


@pytest.fixture(scope="module")
def whole():
    return scored(WHOLE)


@pytest.fixture(scope="module")
def pieces():
    return scored(PIECES)


def test_the_text_is_in_many_pieces():
    decisions = filter_document(CALCULATOR, DOCUMENT, PIECES)
    assert len(decisions) > 20


def test_a_call_in_a_piece_has_the_losses_that_it_has_in_the_whole_text(whole, pieces):
    assert pieces == {place: whole[place] for place in pieces}


def test_pieces_keep_the_calls_that_the_whole_text_keeps(whole, pieces):
    kept_in_whole = {place for place, call in whole.items() if call.reaches(0.5)}
    assert {place for place, call in pieces.items() if call.reaches(0.5)} == kept_in_whole
    assert len(kept_in_whole) == 20  # before the 5 of each paragraph


def test_pieces_without_a_sum_are_not_sampled(pieces):
    model: Any = Reader()
    refused = [item for item in filter_document(CALCULATOR, DOCUMENT, PIECES) if not item.kept]
    assert refused
    read = {part.paragraph.number for part in sampled(PIECES, model)}
    assert read.isdisjoint(item.paragraph for item in refused)
