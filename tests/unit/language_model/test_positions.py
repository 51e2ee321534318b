"""Which positions are offered, in what order, and that nothing else processed before changes them."""

import itertools
from collections.abc import Callable

import pytest

from tests.unit.language_model.conftest import (
    FORMATS,
    PROMPT,
    TEXT,
    Subject,
    TextToSample,
    passes_over,
    sample_calls,
    score_calls,
)
from toolformer_ops.call_syntax import Call
from toolformer_ops.language_model import AnnotationPrompt, LanguageModel
from toolformer_ops.language_model.context import ContextBuilder, best_positions
from toolformer_ops.language_model.pulse import Pulse
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import CallPosition, PlacedCall


def position(token: int, probability: float) -> CallPosition:
    return CallPosition(token, 10 * token, probability)


def test_the_best_are_taken_and_given_in_the_order_of_the_text() -> None:
    found = [position(1, 0.1), position(2, 0.4), position(3, 0.2), position(4, 0.3)]
    assert [item.token for item in best_positions(found, 2, 0.0)] == [2, 4]


def test_a_position_at_the_threshold_is_not_above_it() -> None:
    found = [position(1, 0.05), position(2, 0.0500001)]
    assert [item.token for item in best_positions(found, 5, 0.05)] == [2]
    assert best_positions([position(1, 0.0)], 5, 0.0) == []


def test_of_equally_probable_positions_the_earlier_are_taken() -> None:
    found = [position(token, 0.2) for token in (1, 2, 3)]
    assert [item.token for item in best_positions(found, 2, 0.0)] == [1, 2]


def test_calls_stand_at_word_starts_and_never_before_the_whole_text(subject: Subject) -> None:
    found = subject.engine.find_positions(PROMPT, [TEXT], at_most=100, threshold=0.0)[0]
    assert [TEXT[item.char :].split()[0] for item in found] == TEXT.split()[1:]
    assert all(TEXT[item.char] == " " for item in found)
    assert all(item.token >= 1 and 0 < item.probability < 1 for item in found)


def test_a_word_after_a_line_break_is_offered_at_its_first_letter(subject: Subject) -> None:
    text = "It sold them.\n\nSo it has none."
    found = subject.engine.find_positions(PROMPT, [text], at_most=100, threshold=0.0)[0]
    assert text.index("So") in [item.char for item in found]


def test_texts_without_a_second_word_have_no_position(subject: Subject) -> None:
    for text in ("", "word", " word", "\n"):
        found = subject.engine.find_positions(PROMPT, [text], at_most=5, threshold=0.0)[0]
        assert [item for item in found if item.token == 0] == []
    assert subject.engine.find_positions(PROMPT, ["word"], at_most=5, threshold=0.0)[0] == []


def test_the_text_in_the_prompts_slot_reaches_the_model(subject: Subject) -> None:
    other = AnnotationPrompt("Calculator", PROMPT.template.replace("{text}", "nothing of it {text}"))
    here = subject.engine.find_positions(PROMPT, [TEXT], at_most=5, threshold=0.0)[0]
    assert here != subject.engine.find_positions(other, [TEXT], at_most=5, threshold=0.0)[0]


def test_the_same_text_gives_the_same_bits_whatever_came_before(subject: Subject) -> None:
    first = subject.engine.find_positions(PROMPT, [TEXT], at_most=100, threshold=0.0)[0]
    subject.engine.find_positions(PROMPT, ["Another text, with other words in it."], at_most=3, threshold=0.0)
    assert subject.engine.find_positions(PROMPT, [TEXT], at_most=100, threshold=0.0)[0] == first


@pytest.mark.parametrize(("shape", "dtype"), FORMATS)
def test_the_same_text_gives_the_same_bits_whatever_is_read_together_with_it(
    subject_of: Callable[..., Subject], shape: str, dtype: str
) -> None:
    engine = subject_of(shape, dtype).engine
    texts = [TEXT, "On Friday we meet.", "Of 1400 participants 400, or 29 %, passed the test.", TEXT * 12, "word", TEXT]
    engine.forget_texts()
    together = engine.find_positions(PROMPT, texts, at_most=100, threshold=0.0)
    for text, found in zip(texts, together, strict=True):
        engine.forget_texts()
        assert engine.find_positions(PROMPT, [text], at_most=100, threshold=0.0) == [found]
    engine.forget_texts()
    assert engine.find_positions(PROMPT, texts[::-1], at_most=100, threshold=0.0) == together[::-1]


def test_short_texts_are_read_in_one_pass_and_long_ones_alone(subject: Subject) -> None:
    texts = ("On Friday we meet.", "We met on Monday.", TEXT * 12, "We met.")

    def tokens_by_pass(*together: str) -> list[int]:
        subject.engine.forget_texts()
        with passes_over(subject.model.network) as passes:
            subject.engine.find_positions(PROMPT, together, at_most=5, threshold=0.0)
        return [sequences * tokens for sequences, tokens in passes]

    tokens_by_pass("word")  # the prompt is read once, and kept
    alone = [tokens_by_pass(text) for text in texts]
    together, *others = tokens_by_pass(*texts)
    assert together <= sum(alone[0] + alone[1])  # rows that fill a pass up to a multiple are lacking once
    assert [[tokens] for tokens in others] == alone[2:]


def test_a_marker_of_several_tokens_has_the_product_of_their_probabilities(
    subject_of: Callable[..., Subject],
) -> None:
    subject = subject_of("llama")
    tokenization = Tokenization(subject.reference.tokenizer)
    space, bracket = tokenization.ids(" "), tokenization.ids("[")
    tokenization.marker_ids = (*space, *bracket)
    parted = LanguageModel(subject.model, tokenization, "parted")
    found = parted.find_positions(PROMPT, [TEXT], at_most=100, threshold=0.0)[0]
    for item in found[::5]:
        prefix = subject.reference.annotation_prefix(PROMPT.template, TEXT, item.token)
        logits = subject.reference.logits([*prefix, *space]).softmax(-1)
        expected = float(logits[-2, space[0]] * logits[-1, bracket[0]])
        assert abs(item.probability - expected) <= 1e-3 * expected


def test_positions_of_a_text_longer_than_the_window_cover_all_of_it(long_subject: Subject) -> None:
    text = " ".join(f"Shop {number} sold {number * 7} shirts." for number in range(60))
    found = long_subject.engine.find_positions(PROMPT, [text], at_most=10_000, threshold=0.0)[0]
    assert len(found) == len(text.split()) - 1
    assert [item.char for item in found] == sorted({item.char for item in found})
    tokens = long_subject.engine.tokenize(text)
    assert len(tokens) > long_subject.engine.max_positions
    # The k best are the best of the whole text, not of one window.
    best = long_subject.engine.find_positions(PROMPT, [text], at_most=10, threshold=0.0)[0]
    assert best == best_positions(found, 10, 0.0)


def test_a_position_in_a_later_window_has_the_probability_of_that_window_alone(long_subject: Subject) -> None:
    engine, reference = long_subject.engine, long_subject.reference
    text = " ".join(f"Shop {number} sold {number * 7} shirts." for number in range(60))
    tokens = engine.tokenize(text)
    window = ContextBuilder(long_subject.model, long_subject.tokenization).windows(PROMPT, tokens)[1]
    found = engine.find_positions(PROMPT, [text], at_most=10_000, threshold=0.0)[0]
    inside = next(item for item in found if item.token >= window.owned_start + 3)
    part = tokens.ids[window.start : window.end]
    before, _, after = PROMPT.template.partition("{text}")
    seen = tokens.char_span(window.start, window.end)
    spelled = list(part) if seen.startswith(" ") else reference.encode(" " + seen)
    shift = len(spelled) - len(part)
    assert spelled[shift + 1 :] == list(part[1:])
    prefix = [*reference.start, *reference.encode(before[:-1]), *spelled, *reference.encode(after.rstrip())]
    logits = reference.logits([*prefix, *spelled[: shift + inside.token - window.start]])
    (marker,) = reference.encode(" [")
    expected = float(logits[-1].softmax(-1)[marker])
    assert abs(inside.probability - expected) <= 1e-3 * expected


def test_a_long_text_says_once_a_minute_how_far_its_positions_samples_and_losses_are(
    long_subject: Subject, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = long_subject.engine
    text = " ".join(f"Shop {number} sold {number * 7} shirts." for number in range(60))
    now = 0.0

    def clock() -> float:  # each layer takes 7 s
        nonlocal now
        now += 7.0
        return now

    monkeypatch.setattr(long_subject.model, "pulse", Pulse(clock))
    said_at = [now]
    caplog.handler.addFilter(lambda record: said_at.append(now) or True)  # type: ignore[func-returns-value]
    with caplog.at_level("INFO"):
        [positions] = engine.find_positions(PROMPT, [text], at_most=9, threshold=0.0)
        sample_calls(
            engine,
            [TextToSample(text, positions, "seed")],
            samples=2,
            max_new_tokens=4,
            call_start=" [",
            temperature=1.0,
            top_p=1.0,
        )
        calls = [PlacedCall(one.token, Call("Calculator", f"{one.token} + 1"), "2") for one in positions]
        score_calls(engine, text, calls)
    said = [message.removeprefix("at work: ") for message in caplog.messages]
    assert len(said) > 5
    assert max(later - before for before, later in itertools.pairwise([*said_at, now])) <= 60.0
    kinds = {message.partition(" of ")[2].partition(" ")[2] for message in said} - {""}
    assert kinds == {"windows read for positions", "samples ended", "sequences read"}
