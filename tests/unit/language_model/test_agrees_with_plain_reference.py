"""The engine's shared cache, batches and saved rows change no probability, sampled call, loss, greedy text or perplexity."""

import dataclasses
import math

import pytest
from transformers import GPT2Config

from benchmarks.reference import PlainReference
from tests.tiny_models import save_tiny_model, token_ids, train_tokenizer
from tests.unit.language_model.conftest import (
    PROMPT,
    TEXT,
    Subject,
    TextToSample,
    find_all,
    sample_calls,
    score_calls,
)
from toolformer_ops.call_syntax import Call
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.perplexity import TextLoss
from toolformer_ops.records import CallPosition, PlacedCall

FIRST_WORD_OF_OTHER_TOKENS = "participants passed the test, so 29 % did."
"""`participants` is three tokens at the start of a text and one behind a space."""


def agree_in_probabilities(
    reference: PlainReference, text: str, found: list[CallPosition], rel: float
) -> None:
    tokens = [position.token for position in found]
    expected = reference.find_positions(PROMPT.template, text, tokens, at_most=len(tokens), threshold=0.0)
    assert [position.probability for position in found] == pytest.approx(
        [one.probability for one in expected], rel=rel
    )


CHINESE = "今年卖出187本书，"  # noqa: RUF001


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (TEXT, len(TEXT.split()) - 1),  # every word start but the first
        (FIRST_WORD_OF_OTHER_TOKENS, len(FIRST_WORD_OF_OTHER_TOKENS.split()) - 1),
        (CHINESE, len(["年", "卖", "出", "187本", "书，"])),  # noqa: RUF001
    ],
    ids=["aligned", "first word of other tokens", "no spaces"],
)
def test_probabilities_of_a_call_are_those_of_a_plain_pass(any_subject, text, places):
    [found] = find_all(any_subject.engine, text)
    assert len(found) == places
    agree_in_probabilities(any_subject.reference, text, found, rel=2e-4)


def test_samples_are_those_of_plain_decoding_with_the_same_draws(any_subject):
    [positions] = find_all(any_subject.engine, TEXT, at_most=2)
    for call_start in (" [", " [Calculator("):
        settings = {"samples": 3, "call_start": call_start, "max_new_tokens": 12, "temperature": 0.8}
        [sampled] = sample_calls(any_subject.engine, [TextToSample(TEXT, positions, "7")], **settings)
        plainly = any_subject.reference.sample_position
        assert sampled == [
            plainly(PROMPT.template, TEXT, position, seed_key="7", **settings) for position in positions
        ]


SUMS = (
    (
        "The school shop had 520 shirts and sold 193 on the first day, so it has 327 left.",
        " 327",
        "520 - 193",
    ),
    ("A packet has 250 sheets and we used 13 packets, so we used 3250 sheets.", " 3250", "250 * 13"),
)


@pytest.mark.slow
def test_a_real_model_keeps_the_same_calls_with_every_shortcut(smollm2, smollm2_dir):
    """One text is enough for bfloat16, which a CPU has to emulate: half of its calls are near a threshold, or above."""
    low_precision = LanguageModel.load(str(smollm2_dir), dtype="bfloat16")
    pruned = screened = 0
    for text, result, expression in SUMS:
        starts = smollm2.engine.tokenize(text).starts
        at = starts.index(text.index(result))
        right = result.strip()
        calls = [
            PlacedCall(token, Call("Calculator", expression), found)
            for token in (at - 6, at, at + 1)
            for found in (right, "815", f"{right}0")
        ]
        plain = [smollm2.reference.losses(text, call).reduction_bound for call in calls]
        unpruned = [losses.reduction_bound for losses in score_calls(smollm2.engine, text, calls)]
        assert unpruned == pytest.approx(plain, abs=1e-4)
        exact = score_calls(smollm2.engine, text, calls, prune_below=0.5)
        half = [] if screened else score_calls(low_precision, text, calls, prune_below=0.5)
        assert (
            plain[3] >= 0.5 > plain[4]
        )  # right behind " it has": the right result helps, and a wrong one does not
        for threshold in (0.5, 1.0, 2.0):
            expected = [reduction >= threshold for reduction in plain]
            for scored in filter(None, (exact, half)):
                assert [not item.pruned and item.reduction_bound >= threshold for item in scored] == expected
        pruned += sum(item.pruned for item in exact)
        screened += sum(item.number_format == "bfloat16" for item in half)
    assert pruned > 0
    assert screened > 0


PROMPTS = ("The shop sold", "The shop had 520 shirts and", "Today is the first")


def greedy(subject: Subject, prompt: str, tokens: int) -> str:
    ids = [*subject.reference.start, *subject.reference.encode(prompt)]
    new: list[int] = []
    for _ in range(tokens):
        new.append(int(subject.reference.logits([*ids, *new])[-1].argmax()))
        if new[-1] == subject.reference.tokenizer.eos_token_id:
            return str(subject.reference.tokenizer.decode(new[:-1]))
    return str(subject.reference.tokenizer.decode(new))


def test_prompts_together_are_continued_as_each_alone(any_subject, monkeypatch):
    expected = [greedy(any_subject, prompt, 8) for prompt in PROMPTS]
    for together in (8, 2):  # more are done in groups
        monkeypatch.setitem(BATCH_SIZES, "cpu", dataclasses.replace(BATCH_SIZES["cpu"], prompts=together))
        assert any_subject.engine.generate_texts(PROMPTS, 8) == expected
    assert any_subject.engine.generate_texts([], 8) == []


def test_text_ends_before_what_stops_it(subject):
    whole = subject.engine.generate_texts(PROMPTS[:1], 8)[0]
    stop = whole[3]
    assert subject.engine.generate_texts(PROMPTS[:1], 8, stop) == [whole.partition(stop)[0]]


def test_given_continuations_have_the_probabilities_of_plain_passes(any_subject):
    reference, prompt, continuations = any_subject.reference, PROMPTS[1], [" 333 left", " sold", " 12"]
    start = [*reference.start, *reference.encode(prompt)]
    expected = []
    for ids in map(reference.encode, continuations):
        log_ps = reference.logits([*start, *ids]).log_softmax(dim=-1)
        expected.append(sum(float(log_ps[len(start) - 1 + step, token]) for step, token in enumerate(ids)))
    found = any_subject.engine.continuation_log_probabilities(prompt, continuations)
    assert found == pytest.approx(expected, abs=1e-4)
    assert any_subject.engine.continuation_log_probabilities(prompt, []) == []


def test_what_the_window_cannot_hold_is_refused(long_subject):
    with pytest.raises(ModelError, match="prompt 1: expected 1 to 248 tokens"):
        long_subject.engine.generate_texts(["short", "shirts " * 400], 8)
    for continuations in (["shirts " * 400], ["short", ""]):
        with pytest.raises(ModelError, match="at most 256"):
            long_subject.engine.continuation_log_probabilities("short", continuations)


WITH_MARKERS = "The name of the film [or book] is [unknown], so it has 333 left."


def plain_nats(subject: Subject, text: str, *, room: int, stride: int) -> list[float]:
    """Nats of each token, one forward pass a token, by the description: the window that first reaches it."""
    reference = subject.reference
    ids = reference.encode(text)
    (marker,) = reference.encode(" [")
    nats = []
    end = min(room, len(ids))
    for token in range(len(ids)):
        while token >= end:
            end = min(end + stride, len(ids))
        start = max(0, end - room)
        logits = reference.logits([*reference.start, *ids[start:token]])[-1].double()
        probabilities = logits.softmax(-1)
        p = float(probabilities[ids[token]])
        if ids[token] != marker:
            p /= float(probabilities.sum() - probabilities[marker])
        nats.append(-math.log(p))
    return nats


def test_every_shape_agrees_with_one_pass_a_token(any_subject):
    texts = [TEXT, WITH_MARKERS, "The"]
    found = any_subject.engine.text_losses(texts)
    for text, loss in zip(texts, found, strict=True):
        nats = plain_nats(any_subject, text, room=1023, stride=511)
        assert loss.tokens == len(nats)
        assert loss.token_nats == pytest.approx(nats, rel=2e-3)
        assert loss.nats == pytest.approx(sum(nats), rel=2e-4)
        assert loss.utf8_bytes == len(text.encode())


def test_a_text_longer_than_the_window_is_scored_once_a_token(long_subject):
    text = " ".join([TEXT] * 14)
    assert len(long_subject.reference.encode(text)) > 255 + 127
    (loss,) = long_subject.engine.text_losses([text])
    nats = plain_nats(long_subject, text, room=255, stride=127)
    assert loss.tokens == len(nats)
    assert loss.nats == pytest.approx(sum(nats), rel=2e-4)


def test_a_model_that_finds_every_token_equally_likely_has_losses_that_are_worked_on_paper(
    tmp_path, monkeypatch
):
    tokenizer = train_tokenizer()
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=64, **token_ids(tokenizer))
    model = LanguageModel.load(str(save_tiny_model(tmp_path / "gpt2", config, tokenizer, scale=0.0)))
    tokens, size = len(tokenizer(WITH_MARKERS)["input_ids"]), len(tokenizer)
    # " [" stands twice in this text: there its own probability counts, 1 in `size`; elsewhere 1 in size - 1.
    nats = (tokens - 2) * math.log(size - 1) + 2 * math.log(size)
    [loss, empty, euro] = model.text_losses([WITH_MARKERS, "", "é€"])
    assert (loss.nats, loss.tokens) == (pytest.approx(nats, rel=1e-6), tokens)
    assert loss.utf8_bytes == len(WITH_MARKERS.encode())
    assert empty == TextLoss((), 0)
    assert euro.utf8_bytes == 5  # 2 and 3
    # A marker of several tokens is disabled only behind its first ones: here behind " The", unless it is
    # written there.
    the, film, name = (tokenizer(word)["input_ids"][0] for word in (" The", " film", " name"))
    monkeypatch.setattr(model._tokenization, "marker_ids", (the, film))
    [loss] = model.text_losses([" film The name The film"])
    assert tokenizer(" film The name The film")["input_ids"] == [film, the, name, the, film]
    assert loss.nats == pytest.approx(4 * math.log(size) + math.log(size - 1), rel=1e-6)
