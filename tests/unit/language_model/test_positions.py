"""Which positions are offered, in what order, and that nothing else processed before changes them."""

import itertools

import pytest

from tests.unit.language_model.conftest import FORMATS, LONG_TEXT, PROMPT, TEXT, find_all
from toolformer_ops.language_model.causal_model import Pulse
from toolformer_ops.language_model.context import ContextBuilder, best_positions
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import CallPosition


@pytest.mark.parametrize(
    ("probabilities", "at_most", "threshold", "taken"),
    [
        ((0.1, 0.4, 0.2, 0.3), 2, 0.0, [2, 4]),  # the best, in the order of the text
        ((0.05, 0.0500001), 5, 0.05, [2]),  # at the threshold is not above it
        ((0.0,), 5, 0.0, []),
        ((0.2, 0.2, 0.2), 2, 0.0, [1, 2]),  # of equally probable ones the earlier
        ((0.2, 0.3), 0, 0.0, []),
    ],
)
def test_the_best_above_the_threshold_are_taken_in_the_order_of_the_text(
    probabilities, at_most, threshold, taken
):
    found = [
        CallPosition(token, 10 * token, probability) for token, probability in enumerate(probabilities, 1)
    ]
    assert [item.token for item in best_positions(found, at_most, threshold)] == taken


def test_calls_stand_at_word_starts_but_never_before_the_whole_text(subject):
    [found, lines] = find_all(subject.engine, TEXT, "It sold them.\n\nSo it has none.")
    assert [TEXT[item.char :].split()[0] for item in found] == TEXT.split()[1:]
    assert all(TEXT[item.char] == " " for item in found)
    assert all(item.token >= 1 and 0 < item.probability < 1 for item in found)
    assert [
        item for text in ("", " word", "\n") for item in find_all(subject.engine, text)[0] if item.token == 0
    ] == []
    assert find_all(subject.engine, "word") == [[]]
    assert "It sold them.\n\nSo".index("So") in [
        item.char for item in lines
    ]  # after a line break at its first letter


@pytest.mark.parametrize(("shape", "dtype"), FORMATS)
def test_the_same_text_gives_the_same_bits_whatever_is_read_together_with_it(subject_of, shape, dtype):
    engine = subject_of(shape, dtype).engine
    texts = [
        TEXT,
        "On Friday we meet.",
        "Of 1400 participants 400, or 29 %, passed the test.",
        TEXT * 12,
        "word",
        TEXT,
    ]
    engine.forget_texts()
    together = find_all(engine, *texts)
    for text, found in zip(texts, together, strict=True):
        engine.forget_texts()
        assert find_all(engine, text) == [found]
    assert find_all(engine, *texts) == together  # after others were read
    engine.forget_texts()
    assert find_all(engine, *texts[::-1]) == together[::-1]


def test_a_marker_of_several_tokens_has_the_product_of_their_probabilities(subject_of):
    subject = subject_of("llama")
    tokenization = Tokenization(subject.reference.tokenizer)
    space, bracket = tokenization.ids(" "), tokenization.ids("[")
    tokenization.marker_ids = (*space, *bracket)
    parted = LanguageModel(subject.model, tokenization, "parted")
    [found] = find_all(parted, TEXT)
    for item in found[::5]:
        prefix = subject.reference.annotation_prefix(PROMPT.template, TEXT, item.token)
        logits = subject.reference.logits([*prefix, *space]).softmax(-1)
        expected = float(logits[-2, space[0]] * logits[-1, bracket[0]])
        assert abs(item.probability - expected) <= 1e-3 * expected


def test_positions_of_a_text_longer_than_the_window_are_each_those_of_its_window(long_subject):
    engine, reference = long_subject.engine, long_subject.reference
    [found] = find_all(engine, LONG_TEXT)
    assert len(found) == len(LONG_TEXT.split()) - 1
    assert [item.char for item in found] == sorted({item.char for item in found})
    # The k best are the best of the whole text, not of one window.
    assert find_all(engine, LONG_TEXT, at_most=10) == [best_positions(found, 10, 0.0)]
    tokens = engine.tokenize(LONG_TEXT)
    window = ContextBuilder(long_subject.model, long_subject.tokenization).windows(PROMPT, tokens)[1]
    inside = next(item for item in found if item.token >= window.owned_start + 3)
    seen = tokens.char_span(window.start, window.end)
    token = inside.token - window.start
    [expected] = reference.find_positions(
        PROMPT.template, seen.removeprefix(" "), [token], at_most=1, threshold=0.0
    )
    assert inside.probability == pytest.approx(expected.probability, rel=1e-3)


def test_a_long_computation_says_once_a_minute_how_far_it_is(caplog):
    seconds = itertools.count(step=10.0)
    pulse = Pulse(lambda: next(seconds))
    with caplog.at_level("INFO"):
        for done in range(1, 12):
            pulse("samples ended", done, 11)
    assert caplog.messages == ["at work: 5 of 11 samples ended", "at work: 10 of 11 samples ended"]
