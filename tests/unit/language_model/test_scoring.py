"""The three losses: weights, prefixes, windows, and that nothing they are computed with changes them."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from tests.unit.language_model.conftest import TEXT, Subject
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.windows import owner, plan_windows
from toolformer_ops.records import CallLosses, PlacedCall

LONG_TEXT = " ".join(f"Shop {number} sold {number * 7} shirts." for number in range(60))


def calculator(token: int, result: str = "333") -> PlacedCall:
    return PlacedCall(token, f"[Calculator(520 - 187) -> {result}]", "[Calculator(520 - 187) -> ]")


def close(found: CallLosses, expected: CallLosses, nats: float = 1e-5) -> bool:
    pairs = zip(
        (found.without_call, found.without_result, found.with_result),
        (expected.without_call, expected.without_result, expected.with_result),
        strict=True,
    )
    return all(abs(one - other) <= nats for one, other in pairs)


def test_a_batch_of_one_equals_a_batch_of_many(subject: Subject) -> None:
    calls = [
        calculator(token, result) for token in (1, 5, 9, 14) for result in ("333", "7", "a much longer result, padded")
    ]
    together = subject.engine.score_calls(TEXT, calls)
    for call, losses in zip(calls, together, strict=True):
        assert close(subject.engine.score_calls(TEXT, [call])[0], losses)


def test_the_same_calls_give_the_same_bits_whatever_came_before(subject: Subject) -> None:
    calls = [calculator(token) for token in (2, 6, 11)]
    first = subject.engine.score_calls(TEXT, calls)
    subject.engine.score_calls("Another text, with words.", [calculator(1)])
    assert subject.engine.score_calls(TEXT, calls) == first


@pytest.mark.parametrize("batch_tokens", [1, 64, 100_000])
def test_padding_changes_nothing(subject: Subject, batch_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [calculator(token, "3" * token) for token in (1, 4, 9, 14)]
    expected = [subject.reference.losses(TEXT, call) for call in calls]
    monkeypatch.setattr("toolformer_ops.language_model.causal_model.BATCH_TOKENS", batch_tokens)
    for found, plain in zip(subject.engine.score_calls(TEXT, calls), expected, strict=True):
        assert close(found, plain)


@pytest.mark.parametrize("left", [1, 2, 3, 4, 5])
def test_near_the_end_fewer_tokens_count_and_no_weight_is_scaled_up(subject: Subject, left: int) -> None:
    tokens = subject.engine.tokenize(TEXT)
    call = calculator(len(tokens) - left)
    details = subject.engine.score_details(TEXT, call)
    assert [item.weight for item in details] == [5 / 15, 4 / 15, 3 / 15, 2 / 15, 1 / 15][:left]
    losses = subject.engine.score_calls(TEXT, [call])[0]
    assert losses.with_result == pytest.approx(-sum(item.weight * item.log_p_with_result for item in details), abs=1e-6)
    assert losses.without_call == pytest.approx(
        -sum(item.weight * item.log_p_without_call for item in details), abs=1e-6
    )
    assert losses.with_result == pytest.approx(subject.reference.losses(TEXT, call).with_result, abs=1e-5)


def test_details_show_the_scored_tokens_as_they_stand_in_the_text(subject: Subject) -> None:
    details = subject.engine.score_details(TEXT, calculator(4))
    start = subject.engine.tokenize(TEXT).starts[4]
    assert TEXT[start:].startswith("".join(item.text for item in details))
    assert len(details) == 5


def test_tokens_more_than_five_after_the_call_do_not_count(subject: Subject) -> None:
    tokens = subject.engine.tokenize(TEXT)
    call = calculator(3)
    shortened = TEXT[: tokens.starts[8]]
    assert subject.engine.tokenize(shortened).ids == tokens.ids[:8]
    assert close(subject.engine.score_calls(shortened, [call])[0], subject.engine.score_calls(TEXT, [call])[0])


def test_a_call_far_into_the_text_is_scored_with_all_the_text_before_it(subject: Subject) -> None:
    text = " ".join(["It sold 187 shirts."] * 25)
    token = len(subject.engine.tokenize(text)) - 6
    assert token > 100
    call = calculator(token)
    losses = subject.engine.score_calls(text, [call])[0]
    assert close(losses, subject.reference.losses(text, call))
    assert losses.with_result != pytest.approx(losses.without_call, abs=1e-5), "the prefix is out of reach"


def test_equal_prefixes_of_a_text_are_one_pass(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    plain = CausalModel.hidden_states

    def counting(
        self: CausalModel, sequences: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        passes.append(len(sequences))
        return plain(self, sequences, rows)

    monkeypatch.setattr(CausalModel, "hidden_states", counting)
    today = [PlacedCall(token, "[Calendar() -> Today is Monday.]", "[Calendar() -> ]") for token in (1, 5, 9, 14)]
    found = subject.engine.score_calls(TEXT, today)
    assert passes == [3], "no call, the call, the call with its result"
    for call, losses in zip(today, found, strict=True):
        assert close(losses, subject.reference.losses(TEXT, call))


def test_losses_that_are_not_finite_are_returned_as_they_are(subject_of: Callable[[str], Subject]) -> None:
    engine = subject_of("gptj").engine
    bias = engine._model.network.lm_head.bias
    before = bias.clone()
    try:
        with torch.no_grad():
            bias[0] = math.nan
        assert all(map(math.isnan, vars(engine.score_calls(TEXT, [calculator(3)])[0]).values()))
    finally:
        with torch.no_grad():
            bias.copy_(before)
    assert all(map(math.isfinite, vars(engine.score_calls(TEXT, [calculator(3)])[0]).values()))


def test_a_position_outside_the_text_is_refused(subject: Subject) -> None:
    tokens = len(subject.engine.tokenize(TEXT))
    for token in (0, tokens):
        with pytest.raises(ValueError, match=f"expected a position in 1..{tokens - 1}, found {token}"):
            subject.engine.score_calls(TEXT, [calculator(token)])
    assert subject.engine.score_calls(TEXT, []) == []


def test_in_a_long_text_the_three_losses_see_one_and_the_same_window(long_subject: Subject) -> None:
    engine, reference = long_subject.engine, long_subject.reference
    tokens = engine.tokenize(LONG_TEXT)
    token = tokens.word_starts[-20]
    call = calculator(token)
    prefix = [*reference.encode(call.with_result), *reference.encode("\n")]
    # 256 positions less the start token and 64 for a prefix of up to 64 tokens.
    assert len(prefix) <= 64
    start = owner(plan_windows(len(tokens), 256 - 1 - 64), token).start
    assert start > 0
    losses = engine.score_calls(LONG_TEXT, [call])[0]

    def loss(z: Sequence[int]) -> float:
        ids = tokens.ids[start : start + 191]
        log_probs = reference.logits([*reference.start, *z, *ids]).log_softmax(-1)
        first = len(reference.start) + len(z) + token - start - 1
        return -sum((5 - step) / 15 * float(log_probs[first + step, tokens.ids[token + step]]) for step in range(5))

    without_result = [*reference.encode(call.without_result), *reference.encode("\n")]
    assert close(losses, CallLosses(loss([]), loss(without_result), loss(prefix)))


def test_every_position_of_a_long_text_has_finite_losses(long_subject: Subject) -> None:
    tokens = long_subject.engine.tokenize(LONG_TEXT)
    calls = [calculator(token) for token in range(1, len(tokens), 37)]
    losses = long_subject.engine.score_calls(LONG_TEXT, calls)
    assert all(math.isfinite(value) for item in losses for value in vars(item).values())


def test_a_call_that_leaves_no_room_for_text_has_no_losses(long_subject: Subject) -> None:
    too_long = calculator(3, "3" * 1000)
    assert len(long_subject.engine.tokenize(too_long.with_result)) > 256
    both = long_subject.engine.score_calls(TEXT, [too_long, calculator(3)])
    assert all(map(math.isnan, vars(both[0]).values()))
    assert all(map(math.isfinite, vars(both[1]).values()))
    assert long_subject.engine.score_details(TEXT, too_long) == []


def test_bfloat16_losses_are_near_those_of_float32(
    tiny_engine: LanguageModel, tiny_engine_bfloat16: LanguageModel
) -> None:
    for token in (2, 7, 12):
        exact = tiny_engine.score_calls(TEXT, [calculator(token)])[0]
        assert close(tiny_engine_bfloat16.score_calls(TEXT, [calculator(token)])[0], exact, nats=0.3)
