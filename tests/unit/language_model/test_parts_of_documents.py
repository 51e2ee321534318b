"""Paragraphs of a document with a real tokenizer and network: their positions are the document's, in its words and losses."""

import pytest

from tests.unit.language_model.conftest import LONG_TEXT
from toolformer_ops.annotation.candidates import sample_paragraphs
from toolformer_ops.annotation.filtering import filter_document, kept_paragraphs
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import FilterChoices, ToolSamplingChoices
from toolformer_ops.tools.registry import get_tool

DOCUMENT = Document.of(f"  The day's sales, by shop.\n\n{LONG_TEXT}\n\nThere were 60 shops = 60 sums.")
CHOICES = ToolSamplingChoices(
    max_positions=6, samples_per_position=1, sampling_threshold=0.0, max_call_tokens=4, prune_below=20.0
)
"""No call of a tiny model saves 20 nats: every position is pruned, with the loss that proves it."""


@pytest.fixture(scope="module")
def sampled(tiny_engine):
    """The pieces of the document, sampled together."""
    calculator = get_tool("Calculator")
    decisions = filter_document(calculator, DOCUMENT, FilterChoices(max_text_tokens=64))
    return sample_paragraphs(tiny_engine, calculator, CHOICES, kept_paragraphs(DOCUMENT, decisions))


def test_the_text_is_cut_into_several_pieces(sampled):
    assert len(sampled) > 4


def test_a_position_lies_within_its_piece(sampled):
    for piece in sampled:
        span = range(piece.paragraph.start_char, piece.paragraph.end_char)
        assert {position.char for position in piece.pruned} <= set(span)


def test_a_position_is_where_its_token_of_the_document_starts(sampled, tiny_engine):
    starts = tiny_engine.tokenize(DOCUMENT.text).starts
    positions = [position for piece in sampled for position in piece.pruned]
    assert [position.char for position in positions] == [starts[position.token] for position in positions]


def test_a_position_is_pruned_by_its_loss_in_the_document(sampled, tiny_engine):
    positions = [position for piece in sampled for position in piece.pruned]
    [losses] = tiny_engine.gain_bounds_without_call(
        [(DOCUMENT.text, [position.token for position in positions])]
    )
    assert [position.pruned_by for position in positions] == losses


def test_a_piece_has_the_positions_that_it_has_alone(sampled, tiny_engine):
    calculator = get_tool("Calculator")
    for piece in sampled[:3]:
        [alone] = sample_paragraphs(tiny_engine, calculator, CHOICES, [piece.paragraph])
        assert alone.pruned == piece.pruned
