"""Greedy text: each prompt as if it were alone."""

import pytest

from tests.unit.language_model.conftest import Subject
from toolformer_ops.errors import ModelError

PROMPTS = ("The shop sold", "The shop had 520 shirts and", "Today is the first")


def greedy(subject: Subject, prompt: str, tokens: int) -> str:
    ids = [*subject.reference.start, *subject.reference.encode(prompt)]
    new: list[int] = []
    for _ in range(tokens):
        new.append(int(subject.reference.logits([*ids, *new])[-1].argmax()))
        if new[-1] == subject.reference.tokenizer.eos_token_id:
            return str(subject.reference.tokenizer.decode(new[:-1]))
    return str(subject.reference.tokenizer.decode(new))


def test_prompts_together_are_continued_as_each_alone(any_subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [greedy(any_subject, prompt, 8) for prompt in PROMPTS]
    for together in (8, 2):  # more are done in groups
        monkeypatch.setattr("toolformer_ops.language_model.decode_loop.MAX_PROMPTS_TOGETHER", together)
        assert any_subject.engine.generate_texts(PROMPTS, 8) == expected
    assert any_subject.engine.generate_texts([], 8) == []


def test_text_ends_before_what_stops_it(subject: Subject) -> None:
    whole = subject.engine.generate_texts(PROMPTS[:1], 8)[0]
    stop = whole[3]
    assert subject.engine.generate_texts(PROMPTS[:1], 8, stop) == [whole.partition(stop)[0]]


def test_given_continuations_have_the_probabilities_of_plain_passes(any_subject: Subject) -> None:
    reference, prompt, continuations = any_subject.reference, PROMPTS[1], [" 333 left", " sold", " 12"]
    start = [*reference.start, *reference.encode(prompt)]
    expected = []
    for ids in map(reference.encode, continuations):
        log_ps = reference.logits([*start, *ids]).log_softmax(dim=-1)
        expected.append(sum(float(log_ps[len(start) - 1 + step, token]) for step, token in enumerate(ids)))
    found = any_subject.engine.continuation_log_probabilities(prompt, continuations)
    assert found == pytest.approx(expected, abs=1e-4)
    assert any_subject.engine.continuation_log_probabilities(prompt, []) == []


def test_what_the_window_cannot_hold_is_refused(long_subject: Subject) -> None:
    with pytest.raises(ModelError, match="prompt 1: expected 1 to 248 tokens"):
        long_subject.engine.generate_texts(["short", "shirts " * 400], 8)
    for continuations in (["shirts " * 400], ["short", ""]):
        with pytest.raises(ModelError, match="at most 256"):
            long_subject.engine.continuation_log_probabilities("short", continuations)
