"""The three losses: weights, prefixes, windows, and that nothing they are computed with changes them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.language_model.conftest import (
    FORMATS,
    LONG_TEXT,
    TEXT,
    Subject,
    calculator,
    find_all,
    losses_with_result,
    passes_over,
    score_calls,
)
from toolformer_ops.call_syntax import Call
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model import LanguageModel, model, scoring
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.memory import DeviceMemory
from toolformer_ops.language_model.tokenization import MIN_WINDOW, owner, plan_windows
from toolformer_ops.records import CallLosses, PlacedCall


def numbers(losses: CallLosses) -> list[float]:
    """The losses that were computed."""
    values = (losses.without_call, losses.without_result, losses.with_result, losses.without_call_full_context)
    return [value for value in values if value is not None]


def close(found: CallLosses, expected: CallLosses, nats: float = 1e-5) -> bool:
    names = ("without_call", "without_result", "with_result")
    return all(abs(getattr(found, name) - getattr(expected, name)) <= nats for name in names)


@pytest.mark.parametrize("context_tokens", [None, 6])
@pytest.mark.parametrize("prune_below", [0.0, 0.05])
def test_each_loss_comes_with_the_log_probabilities_of_its_tokens(
    subject: Subject, prune_below: float, context_tokens: int | None
) -> None:
    end = len(subject.engine.tokenize(TEXT))
    calls = [*(calculator(token) for token in (2, 6, 11, 14)), calculator(end - 3)]
    found = score_calls(subject.engine, TEXT, calls, prune_below=prune_below, context_tokens=context_tokens)
    assert any(losses.pruned for losses in found) == (prune_below > 0)
    for call, losses in zip(calls, found, strict=True):
        tokens = losses.token_log_probabilities
        assert tokens is not None
        for name in ("without_call", "without_result", "with_result", "without_call_full_context"):
            loss, log_ps = getattr(losses, name), getattr(tokens, name)
            assert (loss is None) == (log_ps is None)
            if log_ps is not None:
                assert len(log_ps) == min(5, end - call.token)
                assert loss == -math.fsum(
                    step / 15 * value for step, value in zip((5, 4, 3, 2, 1), log_ps, strict=False)
                )
        tokenized = subject.engine.tokenize(TEXT)
        assert tokens.tokens == tuple(
            tokenized.char_span(token, token + 1) for token in range(call.token, min(call.token + 5, end))
        )
        # The same from one plain pass: of the whole text, which is the fourth loss where the others see less of it.
        reference, ids = subject.reference, subject.engine.tokenize(TEXT).ids
        plain = reference.logits([*reference.start, *ids]).log_softmax(-1)
        whole = tokens.without_call_full_context or tokens.without_call
        expected = [float(plain[token, ids[token]]) for token in range(call.token, min(call.token + 5, end))]
        assert whole == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("shape", "dtype"), FORMATS)
@pytest.mark.parametrize("prune_below", [0.0, 0.05])
def test_a_text_has_the_same_bits_in_any_company(
    subject_of: Callable[..., Subject], shape: str, dtype: str, prune_below: float
) -> None:
    subject = subject_of(shape, dtype)
    texts = [(TEXT, [calculator(3), calculator(11, "7")]), (LONG_TEXT[:900], [calculator(40)]), ("Sold 187.", [])]
    texts += [(f"{TEXT} {LONG_TEXT[: 20 * count]}", [calculator(count + 2, "3" * count)]) for count in range(1, 12)]
    together = subject.engine.score_texts(texts, prune_below=prune_below)
    assert any(losses.pruned for of_text in together for losses in of_text) == (prune_below > 0)
    for (text, calls), losses in zip(texts, together, strict=True):
        assert score_calls(subject.engine, text, calls, prune_below=prune_below) == losses
    alone = [losses_with_result(subject.engine, text, calls, number_format=dtype) for text, calls in texts]
    assert subject.engine.losses_with_result(texts, number_format=dtype) == alone
    if prune_below == 0 and dtype == "float32":
        assert alone == [[losses.with_result for losses in of_text] for of_text in together]


def test_passes_are_filled_from_many_texts(subject: Subject) -> None:
    texts = [(f"{number} {TEXT}", [calculator(9)]) for number in range(30, 70)]
    with passes_over(subject.model.network) as passes:
        subject.engine.score_texts(texts)
    read = sum(sequences * tokens for sequences, tokens in passes)
    at_most = subject.model.memory.pass_tokens
    assert read > 2 * at_most
    assert len(passes) <= read / at_most + 2, "120 sequences, in passes that are full"


def test_tokens_with_which_sequences_begin_are_read_once(subject: Subject) -> None:
    calls = [
        PlacedCall(12, Call("Calculator", "520 - 187 + 12 * 40 / 7 - 1000"), f"{number} shirts") for number in range(8)
    ]
    alone = []
    with passes_over(subject.model.network) as passes_alone:
        for call in calls:
            alone += losses_with_result(subject.engine, TEXT, [call])
    with passes_over(subject.model.network) as passes:
        together = losses_with_result(subject.engine, TEXT, calls)
    read, apart = (sum(sequences * tokens for sequences, tokens in some) for some in (passes, passes_alone))
    shared = len(subject.engine.tokenize(calls[0].without_result)) - 2
    assert read <= apart - (len(calls) - 1) * shared + 16
    assert together == alone, "bit for bit"
    expected = [subject.reference.losses(TEXT, call).with_result for call in calls]
    assert together == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("batch_tokens", [1, 64])
def test_packing_changes_no_loss(
    any_subject: Subject, batch_tokens: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a CPU, where sequences share tokens, and as elsewhere."""
    subject = any_subject
    calls = [calculator(token, "3" * token) for token in (1, 4, 9, 14)]
    expected = [subject.reference.losses(TEXT, call) for call in calls]
    monkeypatch.setattr(DeviceMemory, "pass_tokens", batch_tokens)
    monkeypatch.setattr(subject.model, "kind", kind)
    for found, plain in zip(score_calls(subject.engine, TEXT, calls), expected, strict=True):
        assert close(found, plain)


@pytest.mark.parametrize("left", [1, 2, 3, 4, 5])
def test_near_the_end_fewer_tokens_count_and_no_weight_is_scaled_up(subject: Subject, left: int) -> None:
    tokens = subject.engine.tokenize(TEXT)
    call = calculator(len(tokens) - left)
    details = subject.engine.score_details(TEXT, call)
    assert [item.weight for item in details] == [5 / 15, 4 / 15, 3 / 15, 2 / 15, 1 / 15][:left]
    start = tokens.starts[len(tokens) - left]
    assert "".join(item.text for item in details) == TEXT[start:]
    [losses] = score_calls(subject.engine, TEXT, [call])
    for name in ("with_result", "without_call", "without_result"):
        weighted = -sum(item.weight * getattr(item, f"log_p_{name}") for item in details)
        assert getattr(losses, name) == pytest.approx(weighted, abs=1e-6)
    assert close(losses, subject.reference.losses(TEXT, call))


def test_equal_prefixes_of_a_text_are_one_pass(subject: Subject) -> None:
    today = [PlacedCall(token, Call("Calendar", ""), "Today is Monday.") for token in (1, 5, 9, 14)]
    with passes_over(subject.model.network) as passes:
        found = score_calls(subject.engine, TEXT, today)
    with passes_over(subject.model.network) as passes_of_the_last:
        score_calls(subject.engine, TEXT, today[-1:])
    assert passes == passes_of_the_last, "no call, the call, the call with its result"
    for call, losses in zip(today, found, strict=True):
        assert close(losses, subject.reference.losses(TEXT, call))


def test_losses_that_are_not_finite_are_returned_as_they_are(subject_of: Callable[..., Subject]) -> None:
    subject = subject_of("gptj")
    engine, bias = subject.engine, subject.model.network.lm_head.bias
    before = bias.clone()
    try:
        with torch.no_grad():
            bias[0] = math.nan
        assert all(map(math.isnan, numbers(score_calls(engine, TEXT, [calculator(3)])[0])))
    finally:
        with torch.no_grad():
            bias.copy_(before)
    assert all(map(math.isfinite, numbers(score_calls(engine, TEXT, [calculator(3)])[0])))


def test_a_position_outside_the_text_is_refused(subject: Subject) -> None:
    tokens = len(subject.engine.tokenize(TEXT))
    for token in (0, tokens):
        with pytest.raises(ValueError, match=f"expected a position in 1..{tokens - 1}, found {token}"):
            score_calls(subject.engine, TEXT, [calculator(token)])
    assert score_calls(subject.engine, TEXT, []) == []


def test_in_a_long_text_the_three_losses_see_one_and_the_same_window(long_subject: Subject) -> None:
    engine, reference = long_subject.engine, long_subject.reference
    tokens = engine.tokenize(LONG_TEXT)
    token = tokens.word_starts[-20]
    call = calculator(token)
    # 256 positions less the start token and 64 for a prefix of up to 64 tokens.
    assert len(reference.encode(call.with_result)) + 1 <= 64
    start = owner(plan_windows(len(tokens), 256 - 1 - 64), token).start
    assert start > 0
    losses = score_calls(engine, LONG_TEXT, [call])[0]
    assert close(losses, reference.losses(LONG_TEXT, call, start, start + 191))
    # Without anything before it the text has 64 tokens more of context.
    assert losses.without_call_full_context == pytest.approx(
        engine.losses_without_call([(LONG_TEXT, [token])])[0][0], abs=1e-5
    )
    assert losses.without_call_full_context != pytest.approx(losses.without_call, abs=1e-5)


def test_a_call_has_the_whole_text_before_it_up_to_the_last_token_that_fits(long_subject: Subject) -> None:
    engine, reference = long_subject.engine, long_subject.reference
    prefix = len(reference.encode(calculator(1).with_result)) + len(reference.encode("\n"))
    last = engine.window_tokens - len(reference.start) - prefix - 5  # five tokens are scored
    fits, exceeds = score_calls(engine, LONG_TEXT, [calculator(last), calculator(last + 1)])
    assert fits.without_call_full_context is None
    assert exceeds.without_call_full_context is not None


@pytest.mark.parametrize(("room", "fits"), [(MIN_WINDOW, True), (MIN_WINDOW - 1, False)])
def test_a_window_of_the_least_size_beside_the_longest_prefix_is_room_enough(room: int, fits: bool) -> None:
    model: Any = SimpleNamespace(window_tokens=2 * scoring.RESERVE_STEP + room + 1)
    tokenization: Any = SimpleNamespace(start_ids=(0,), newline_ids=(), ids=lambda z: range(scoring.RESERVE_STEP + 1))
    text: Any = range(1000)
    planned = scoring._TextPasses(model, tokenization, text).planned(calculator(500), None)
    assert (planned is not None) is fits


def test_without_a_call_a_pass_has_all_the_text_before_it_where_its_scored_tokens_fit() -> None:
    room = 100
    model: Any = SimpleNamespace(window_tokens=room + 1)
    tokenization: Any = SimpleNamespace(start_ids=(0,))
    for length in (room, 1000):
        text: Any = range(length)
        passes = scoring._TextPasses(model, tokenization, text)
        for token in range(1, length):
            start, end = passes.full_pass(token).text_start, min(token + 5, length)
            assert end - start <= room
            assert (start == 0) is (end <= room)


def test_a_call_that_leaves_no_room_for_text_has_no_losses(long_subject: Subject) -> None:
    too_long = calculator(3, "3" * 1000)
    assert len(long_subject.engine.tokenize(too_long.with_result)) > 256
    both = score_calls(long_subject.engine, TEXT, [too_long, calculator(3)])
    assert all(map(math.isnan, numbers(both[0])))
    assert all(map(math.isfinite, numbers(both[1])))
    lost, fitting = losses_with_result(long_subject.engine, TEXT, [too_long, calculator(3)])
    assert (math.isnan(lost), math.isfinite(fitting)) == (True, True)
    assert long_subject.engine.score_details(TEXT, too_long) == []


RESULTS = ("333", "7", "64", "520 shirts", "187", "in April it sold")


def many_calls() -> list[PlacedCall]:
    return [calculator(token, result) for token in range(1, 22, 2) for result in RESULTS]


@pytest.mark.parametrize("context_tokens", [None, 6])
def test_pruning_keeps_the_same_calls_at_every_threshold_from_its_own_on(
    subject: Subject, context_tokens: int | None
) -> None:
    calls = many_calls()
    plain = score_calls(subject.engine, TEXT, calls, context_tokens=context_tokens)
    reductions = [losses.reduction_bound for losses in plain]
    assert not any(losses.pruned for losses in plain)
    prune_below = sorted(reductions)[-8]  # tiny random models lower losses by little: seven calls and more reach this
    pruned = score_calls(subject.engine, TEXT, calls, prune_below=prune_below, context_tokens=context_tokens)
    assert any(losses.pruned for losses in pruned)
    for losses, exact in zip(pruned, plain, strict=True):
        if losses.pruned:
            assert exact.reduction_bound < prune_below
            assert losses.reduction_bound < prune_below
            assert losses.reduction_bound >= exact.reduction_bound - 1e-6
        else:
            assert losses.reduction_bound == pytest.approx(exact.reduction_bound, abs=1e-6)


def test_where_the_loss_without_a_call_is_below_the_bound_no_call_is_run(subject: Subject) -> None:
    with passes_over(subject.model.network) as passes:
        losses = score_calls(subject.engine, TEXT, many_calls(), prune_below=20.0)
    assert [sequences for sequences, _ in passes] == [1]  # the text alone, once for all positions
    assert all(item.without_result is None and item.with_result is None for item in losses)
    assert all(item.reduction_bound == item.without_call for item in losses)


@pytest.mark.parametrize("context_tokens", [1, 6, 16])
def test_with_a_context_window_the_call_sees_only_the_last_tokens_before_it(
    subject: Subject, context_tokens: int
) -> None:
    token = 14
    start = max(0, token - context_tokens)
    [losses] = score_calls(subject.engine, TEXT, [calculator(token)], context_tokens=context_tokens)
    assert close(losses, subject.reference.losses(TEXT, calculator(token), start, token + 5))
    if start == 0:
        assert losses.without_call_full_context is None
    else:
        [[whole]] = subject.engine.losses_without_call([(TEXT, [token])])
        assert losses.without_call_full_context == pytest.approx(whole, abs=1e-6)


def test_a_bound_proves_something_only_beyond_the_rounding_of_the_number_format(
    tiny_engine: LanguageModel, tiny_engine_bfloat16: LanguageModel
) -> None:
    for engine, bound, prune_below, proves in (
        (tiny_engine, 0.49, 0.5, True),
        (tiny_engine, 0.49995, 0.5, False),
        (tiny_engine_bfloat16, 0.49, 0.5, False),
        (tiny_engine_bfloat16, 0.24, 0.5, True),
        (tiny_engine, -1.0, 0.0, False),  # 0 turns pruning off
        (tiny_engine, math.nan, 0.5, False),
    ):
        assert engine.surely_below(bound, prune_below) is proves
    assert scoring.surely_below(0.25, 0.5, 0.125)
    assert not scoring.surely_below(0.375, 0.5, 0.125)  # exactly the rounding away


def test_bfloat16_screens_and_float32_decides_all_that_may_be_kept(
    tiny_engine: LanguageModel, tiny_engine_bfloat16: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = many_calls()
    exact = score_calls(tiny_engine, TEXT, calls)
    differences = tiny_engine_bfloat16.rounding_differences([(TEXT, calls)])
    monkeypatch.setattr(tiny_engine_bfloat16, "rounding_nats", 2 * max(differences))
    rechecked = score_calls(tiny_engine_bfloat16, TEXT, calls, verify="all")
    formats = {losses.number_format for losses in rechecked}
    assert formats == {"float32", "bfloat16"}
    for losses, right in zip(rechecked, exact, strict=True):
        if losses.number_format == "float32":
            assert close(losses, right, nats=1e-5)
        else:
            assert right.reduction_bound < 0.0


@pytest.mark.parametrize("context_tokens", [None, 6])
def test_the_losses_with_a_result_and_without_a_call_alone_are_those_of_scoring(
    subject: Subject, context_tokens: int | None
) -> None:
    calls = [calculator(token, result) for token in (2, 6, 11) for result in ("333", "7")]
    alone = losses_with_result(subject.engine, TEXT, calls, context_tokens=context_tokens)
    together = score_calls(subject.engine, TEXT, calls, context_tokens=context_tokens)
    assert alone == pytest.approx([losses.with_result for losses in together], abs=1e-5)
    if context_tokens is None:
        assert alone == pytest.approx([subject.reference.losses(TEXT, call).with_result for call in calls], abs=1e-4)
        [bare] = subject.engine.losses_without_call([(TEXT, [call.token for call in calls])])
        assert bare == pytest.approx([losses.without_call for losses in together], abs=1e-6)


def test_float32_decides_only_near_the_thresholds_that_are_asked_for(
    tiny_engine: LanguageModel, tiny_engine_bfloat16: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [(TEXT, many_calls()), (LONG_TEXT[:200], many_calls()[:20]), (TEXT[:60], [])]
    exact = tiny_engine.score_texts(texts)
    threshold = 0.1
    differences = tiny_engine_bfloat16.rounding_differences(texts)
    assert len(differences) == sum(len(calls) for _, calls in texts)
    margin = 2 * max(differences)
    monkeypatch.setattr(tiny_engine_bfloat16, "rounding_nats", margin)
    passes_in_float32: list[int] = []
    plain = scoring.score_texts

    def counted(model: Any, *rest: Any) -> Any:
        if model.number_format == "float32":
            passes_in_float32.append(1)
        return plain(model, *rest)

    monkeypatch.setattr(scoring, "score_texts", counted)
    found = tiny_engine_bfloat16.score_texts(texts, keep_threshold=threshold, verify="on")
    assert len(passes_in_float32) == 1, "those of all texts together"
    formats = [losses.number_format for of_text in found for losses in of_text]
    assert 0 < formats.count("float32") < len(formats) / 2
    for of_text, right in zip(found, exact, strict=True):
        for losses, of_float32 in zip(of_text, right, strict=True):
            assert (losses.reduction_bound >= threshold) == (of_float32.reduction_bound >= threshold)
            assert losses.within_rounding == (losses.number_format == "float32")
            if losses.number_format == "float32":
                assert close(losses, of_float32)
            else:
                assert min(abs(losses.reduction_bound - 0.0), abs(losses.reduction_bound - threshold)) > margin


class Loads:
    """An engine in bfloat16, and which weights it loads after its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_room: bool) -> None:
        self.formats: list[str] = []
        self.engine = LanguageModel.load(str(folder), dtype="bfloat16")
        load = model.load_weights

        def counted(path: str, revision: str | None, dtype: str, *rest: Any) -> Any:
            self.formats.append(dtype)
            return load(path, revision, dtype, *rest)

        monkeypatch.setattr(model, "load_weights", counted)
        monkeypatch.setattr(DeviceMemory, "has_room_for", lambda *_: has_room)

    def score(self, **asked: Any) -> list[CallLosses]:
        return score_calls(self.engine, TEXT, many_calls(), **asked)


def losses_alone(found: Sequence[CallLosses]) -> list[CallLosses]:
    return [replace(losses, within_rounding=False) for losses in found]


def test_with_room_float32_weights_are_loaded_once_and_kept_beside_the_others(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = Loads(tiny_model_dir, monkeypatch, has_room=True)
    unverified = loads.score(verify="off")
    assert loads.formats == []
    auto = loads.score(verify="auto")
    assert loads.score(verify="on") == auto
    assert loads.score(verify="off") == unverified
    assert loads.formats == ["float32"]
    marked = [losses.within_rounding for losses in unverified]
    assert marked == [losses.within_rounding for losses in auto]
    assert marked == [losses.number_format == "float32" for losses in auto]
    assert any(marked)
    assert {losses.number_format for losses in unverified} == {"bfloat16"}


def test_without_room_auto_verifies_nothing_and_marks_what_rounding_may_decide(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = Loads(tiny_model_dir, monkeypatch, has_room=False)
    found = loads.score(verify="auto")
    assert found == loads.score(verify="off")
    assert loads.formats == []
    assert not loads.engine.verifies("auto")
    near = [abs(losses.reduction_bound) <= loads.engine.rounding_nats for losses in found]
    assert [losses.within_rounding for losses in found] == near
    assert any(near)


def test_without_room_float32_weights_take_the_place_of_the_others_once_for_all_calls_that_are_asked_together(
    tiny_engine: LanguageModel, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = Loads(tiny_model_dir, monkeypatch, has_room=False)
    engine, calls = loads.engine, many_calls()
    own = engine._model.network
    positions = find_all(engine, TEXT, at_most=3)
    monkeypatch.setattr(engine, "rounding_nats", 100.0)
    found = engine.score_texts([(TEXT, calls), (LONG_TEXT[:200], calls[:4])], verify="on")
    assert loads.formats == ["float32"]
    assert sum(parameter.numel() for parameter in own.parameters()) == 0, "the others are let go"
    assert losses_alone(found[0]) == score_calls(tiny_engine, TEXT, calls)
    assert losses_with_result(engine, TEXT, calls) == losses_with_result(tiny_engine, TEXT, calls)
    assert loads.formats == ["float32"], "they stay until the others are asked for"
    assert engine.surely_below(0.5 - 101.0, 0.5)
    assert not engine.surely_below(0.5 - 99.0, 0.5)
    assert engine.verifies("on")
    assert loads.formats == ["float32"]
    assert find_all(engine, TEXT, at_most=3) == positions
    assert loads.formats == ["float32", "bfloat16"]
    with pytest.raises(ValueError, match="expected float32 or bfloat16, found 'float16'"):
        losses_with_result(engine, TEXT, calls, number_format="float16")


def test_float32_weights_that_the_device_cannot_hold_alone_are_refused_before_anything_is_scored(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = Loads(tiny_model_dir, monkeypatch, has_room=False)
    monkeypatch.setattr(DeviceMemory, "could_hold", lambda *_: False)
    for choice in ("on", "all"):
        with pytest.raises(
            ModelError, match=rf"verify_in_float32 {choice}: expected a device that holds .* auto or off"
        ):
            loads.engine.verifies(choice)
    assert not loads.engine.verifies("auto")
    assert not loads.engine.verifies("off")


def test_more_passes_than_are_kept_at_once_give_the_same_losses(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [(TEXT, many_calls()), (LONG_TEXT[:200], many_calls()[:20])]
    together = subject.engine.score_texts(texts)
    asked: list[int] = []
    run = CausalModel.hidden_states

    def counted(self: CausalModel, sequences: Any, rows: Any) -> Any:
        asked.append(len(sequences))
        return run(self, sequences, rows)

    monkeypatch.setattr(CausalModel, "hidden_states", counted)
    monkeypatch.setattr(scoring, "PASSES_AT_ONCE", 7)
    assert subject.engine.score_texts(texts) == together
    assert max(asked) == 7
