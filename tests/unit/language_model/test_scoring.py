"""The three losses: weights, prefixes, windows, and that nothing they are computed with changes them."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.language_model.conftest import (
    FORMATS,
    LONG_TEXT,
    TEXT,
    calculator,
    find_all,
    losses_with_result,
    passes_over,
    score_calls,
)
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model import losses as losses_module
from toolformer_ops.language_model import model, scoring
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES
from toolformer_ops.language_model.devices import DeviceMemory
from toolformer_ops.language_model.losses import KEEP_RULES
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.tokenization import MIN_WINDOW, owner, plan_windows
from toolformer_ops.records import CallLosses, PlacedCall

NAMES = ("without_call", "without_result", "with_result")


def close(found: CallLosses, expected: CallLosses, nats: float = 1e-5) -> bool:
    return all(abs(getattr(found, name) - getattr(expected, name)) <= nats for name in NAMES)


@pytest.mark.parametrize(("kind", "pass_tokens"), [("cpu", 64), ("cuda", 64), ("cuda", 1)])
def test_losses_are_those_of_one_plain_pass_a_call_however_passes_are_packed(
    any_subject, kind, pass_tokens, monkeypatch
):
    """As on a CPU, where sequences share tokens, and as elsewhere."""
    calls = [calculator(token, "3" * token) for token in (1, 4, 9, 14)]
    monkeypatch.setattr(DeviceMemory, "pass_tokens", pass_tokens)
    monkeypatch.setattr(any_subject.model, "kind", kind)
    for call, losses in zip(calls, score_calls(any_subject.engine, TEXT, calls), strict=True):
        assert close(losses, any_subject.reference.losses(TEXT, call))


@pytest.mark.parametrize("context_tokens", [None, 6])
@pytest.mark.parametrize("prune_below", [0.0, 0.05])
def test_each_loss_comes_with_the_log_probabilities_of_its_tokens(subject, prune_below, context_tokens):
    engine, reference, text = subject.engine, subject.reference, subject.engine.tokenize(TEXT)
    plain = reference.logits([*reference.start, *text.ids]).log_softmax(-1)  # of the whole text
    calls = [calculator(token) for token in (2, 6, 11, 14, len(text) - 3, len(text) - 1)]
    found = score_calls(engine, TEXT, calls, prune_below=prune_below, context_tokens=context_tokens)
    assert any(losses.pruned for losses in found) == (prune_below > 0)
    alone = losses_with_result(engine, TEXT, calls, context_tokens=context_tokens)
    [bare] = engine.gain_bounds_without_call([(TEXT, [call.token for call in calls])])
    for call, losses, with_result, without_call in zip(calls, found, alone, bare, strict=True):
        scored = range(call.token, min(call.token + 5, len(text)))
        weights = [5 / 15, 4 / 15, 3 / 15, 2 / 15, 1 / 15][: len(scored)]  # near the end none is scaled up
        tokens = losses.token_log_probabilities
        assert tokens is not None
        assert list(tokens.tokens) == [text.char_span(at, at + 1) for at in scored]
        for name in (*NAMES, "without_call_full_context"):
            loss, log_ps = getattr(losses, name), getattr(tokens, name)
            assert (loss is None) == (log_ps is None)
            if log_ps is not None:
                assert loss == -math.fsum(
                    weight * value for weight, value in zip(weights, log_ps, strict=True)
                )
        # In a context window the fourth loss is that of the whole text.
        start = 0 if context_tokens is None else max(0, call.token - context_tokens)
        assert (losses.without_call_full_context is None) == (start == 0)
        assert (losses.without_call_full_context or losses.without_call) == pytest.approx(
            without_call, abs=1e-6
        )
        whole = tokens.without_call_full_context or tokens.without_call
        assert whole == pytest.approx([float(plain[at, text.ids[at]]) for at in scored], abs=1e-5)
        if not losses.pruned:
            assert close(losses, reference.losses(TEXT, call, start, scored.stop))
            assert losses.with_result == pytest.approx(with_result, abs=1e-5)


@pytest.mark.parametrize(("shape", "dtype"), FORMATS)
def test_a_text_has_the_same_bits_in_any_company(subject_of, shape, dtype, monkeypatch):
    engine = subject_of(shape, dtype).engine
    texts = [
        (TEXT, [calculator(3), calculator(11, "7")]),
        (LONG_TEXT[:900], [calculator(40)]),
        ("Sold 187.", []),
    ]
    texts += [
        (f"{TEXT} {LONG_TEXT[: 20 * count]}", [calculator(count + 2, "3" * count)]) for count in range(1, 12)
    ]
    together = engine.score_texts(texts, prune_below=0.05)
    assert any(losses.pruned for of_text in together for losses in of_text)
    assert [score_calls(engine, text, calls, prune_below=0.05) for text, calls in texts] == together
    alone = [losses_with_result(engine, text, calls, number_format=dtype) for text, calls in texts]
    together_with_result = engine.losses_with_result(texts, number_format=dtype)
    assert [[one.nats for one in of_text] for of_text in together_with_result] == alone
    monkeypatch.setitem(BATCH_SIZES, "cpu", replace(BATCH_SIZES["cpu"], scored_passes=7))
    assert engine.score_texts(texts, prune_below=0.05) == together


def test_a_position_outside_the_text_is_refused(subject):
    tokens = len(subject.engine.tokenize(TEXT))
    for token in (0, tokens):
        with pytest.raises(ValueError, match=f"expected a position in 1..{tokens - 1}, found {token}"):
            score_calls(subject.engine, TEXT, [calculator(token)])
    assert score_calls(subject.engine, TEXT, []) == []


def test_in_a_long_text_the_three_losses_see_the_same_window(long_subject):
    engine, reference = long_subject.engine, long_subject.reference
    tokens = engine.tokenize(LONG_TEXT)
    token = tokens.word_starts[-20]
    call = calculator(token)
    # 256 positions less the start token and 64 for a prefix of up to 64 tokens.
    assert len(reference.encode(call.with_result)) + 1 <= 64
    start = owner(plan_windows(len(tokens), 256 - 1 - 64), token).start
    assert start > 0
    [losses] = score_calls(engine, LONG_TEXT, [call])
    assert close(losses, reference.losses(LONG_TEXT, call, start, start + 191))
    # Without anything before it the text has 64 tokens more of context.
    [[without_call]] = engine.gain_bounds_without_call([(LONG_TEXT, [token])])
    assert losses.without_call_full_context == pytest.approx(without_call, abs=1e-5)
    assert losses.without_call_full_context != pytest.approx(losses.without_call, abs=1e-5)


def test_a_call_has_the_whole_text_before_it_up_to_the_last_token_that_fits(long_subject):
    engine, reference = long_subject.engine, long_subject.reference
    prefix = len(reference.encode(calculator(1).with_result)) + len(reference.encode("\n"))
    last = engine.window_tokens - len(reference.start) - prefix - 5  # five tokens are scored
    fits, exceeds = score_calls(engine, LONG_TEXT, [calculator(last), calculator(last + 1)])
    assert fits.without_call_full_context is None
    assert exceeds.without_call_full_context is not None


@pytest.mark.parametrize(("room", "fits"), [(MIN_WINDOW, True), (MIN_WINDOW - 1, False)])
def test_a_window_of_the_least_size_beside_the_longest_prefix_is_room_enough(room, fits):
    model: Any = SimpleNamespace(window_tokens=2 * scoring.RESERVE_STEP + room + 1)
    tokenization: Any = SimpleNamespace(
        start_ids=(0,), newline_ids=(), ids=lambda z: range(scoring.RESERVE_STEP + 1)
    )
    text: Any = range(1000)
    planned = scoring._TextPasses(model, tokenization, text, "paper").planned(calculator(500), None)
    assert (planned is not None) is fits


def test_without_a_call_a_pass_has_all_the_text_before_it_where_its_scored_tokens_fit():
    room = 100
    model: Any = SimpleNamespace(window_tokens=room + 1)
    tokenization: Any = SimpleNamespace(start_ids=(0,))
    for length in (room, 1000):
        text: Any = range(length)
        passes = scoring._TextPasses(model, tokenization, text, "paper")
        for token in range(1, length):
            start, end = passes.full_pass(token).text_start, min(token + 5, length)
            assert end - start <= room
            assert (start == 0) is (end <= room)


def test_a_call_that_leaves_no_room_for_text_has_no_losses(long_subject):
    calls = [calculator(3, "3" * 1000), calculator(3)]
    lost, fitting = score_calls(long_subject.engine, TEXT, calls)
    assert all(math.isnan(getattr(lost, name)) and math.isfinite(getattr(fitting, name)) for name in NAMES)
    assert list(map(math.isnan, losses_with_result(long_subject.engine, TEXT, calls))) == [True, False]


def many_calls() -> list[PlacedCall]:
    results = ("333", "7", "64", "520 shirts", "187", "in April it sold")
    return [calculator(token, result) for token in range(1, 22, 2) for result in results]


@pytest.mark.parametrize("keep_rule", KEEP_RULES)
@pytest.mark.parametrize("context_tokens", [None, 6])
def test_pruning_keeps_the_same_calls_at_every_threshold_from_its_own_on(
    subject, context_tokens, keep_rule, monkeypatch
):
    monkeypatch.setattr(losses_module, "MOST_GAIN", 30.0)  # to a tiny random model each token is unlikely
    monkeypatch.setattr(scoring, "FLOAT32_MARGIN", 1e-6)  # and calls change little
    calls = many_calls()
    asked: dict[str, Any] = {"context_tokens": context_tokens, "keep_rule": keep_rule}
    plain = score_calls(subject.engine, TEXT, calls, **asked)
    assert not any(losses.pruned for losses in plain)
    prune_below = sorted(losses.gain_bound for losses in plain)[-2]
    pruned = score_calls(subject.engine, TEXT, calls, prune_below=prune_below, **asked)
    # Ten tokens a call, without a window, are nearly all that the passes of the calls beside it score.
    assert any(losses.pruned for losses in pruned) or (keep_rule, context_tokens) == ("probability", None)
    for losses, exact in zip(pruned, plain, strict=True):
        if losses.pruned:
            assert prune_below > losses.gain_bound >= exact.gain_bound - 1e-6
        else:
            assert losses.gain_bound == pytest.approx(exact.gain_bound, abs=1e-6)


@pytest.mark.parametrize("context_tokens", [None, 6])
def test_the_gain_by_probability_follows_from_the_plain_log_probabilities(
    subject, context_tokens, monkeypatch
):
    monkeypatch.setattr(losses_module, "MOST_GAIN", 30.0)
    engine, reference, text = subject.engine, subject.reference, subject.engine.tokenize(TEXT)
    calls = [calculator(token) for token in (2, 6, 11, len(text) - 3)]
    judged = score_calls(engine, TEXT, calls, context_tokens=context_tokens, keep_rule="probability")
    by_paper = score_calls(engine, TEXT, calls, context_tokens=context_tokens)
    whole = reference.logits([*reference.start, *text.ids]).log_softmax(-1)
    for call, losses, paper in zip(calls, judged, by_paper, strict=True):
        start = 0 if context_tokens is None else max(0, call.token - context_tokens)
        scored = range(call.token, min(call.token + 7, len(text)))
        means = []
        for prefix in ("", call.without_result, call.with_result):
            z = [*reference.encode(prefix), *reference.encode("\n")] if prefix else []
            plain = reference.logits([*reference.start, *z, *text.ids[start:]]).log_softmax(-1)
            log_ps = [float(plain[len(z) + at - start, text.ids[at]]) for at in scored]
            means.append(math.fsum(log_ps) / len(log_ps))
        full = [float(whole[at, text.ids[at]]) for at in scored]
        means.insert(0, math.fsum(full) / len(full))
        assert losses.gain_bound == pytest.approx(means[-1] - max(means[:-1]), abs=1e-5)
        assert close(losses, paper), "the paper's losses are those of its own rule"


def test_where_the_loss_without_a_call_is_below_the_bound_no_call_is_run(subject):
    with passes_over(subject.model.network) as passes:
        losses = score_calls(subject.engine, TEXT, many_calls(), prune_below=20.0)
    assert [sequences for sequences, _ in passes] == [1]  # the text alone, once for all positions
    assert all((item.without_result, item.with_result) == (None, None) for item in losses)


def test_a_bound_proves_something_only_beyond_the_rounding_of_the_number_format(
    tiny_engine, tiny_engine_bfloat16
):
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


@pytest.mark.parametrize("verify", ["on", "all"])
def test_float32_decides_near_the_thresholds_or_with_all_whatever_may_be_kept(
    tiny_engine, tiny_engine_bfloat16, verify, monkeypatch
):
    texts = [(TEXT, many_calls()), (LONG_TEXT[:200], many_calls()[:20]), (TEXT[:60], [])]
    differences = tiny_engine_bfloat16.rounding_differences(texts)
    assert len(differences) == 66 + 20
    margin = 2 * max(differences)
    monkeypatch.setitem(tiny_engine_bfloat16.margins["paper"], "bfloat16", margin)
    screened = tiny_engine_bfloat16.score_texts(texts, keep_threshold=0.1, verify="off")
    passes_in_float32: list[int] = []
    plain = scoring.score_texts

    def counted(model: Any, *rest: Any, **settings: Any) -> Any:
        passes_in_float32.extend([1] * (model.number_format == "float32"))
        return plain(model, *rest, **settings)

    exact = tiny_engine.score_texts(texts)
    monkeypatch.setattr(scoring, "score_texts", counted)
    found = tiny_engine_bfloat16.score_texts(texts, keep_threshold=0.1, verify=verify)
    assert len(passes_in_float32) == 1, "those of all texts together"
    formats = [losses.number_format for of_text in found for losses in of_text]
    assert 0 < formats.count("float32") < len(formats) / (2 if verify == "on" else 1)
    for of_text, in_bfloat16, of_float32 in zip(found, screened, exact, strict=True):
        for losses, rounded, right in zip(of_text, in_bfloat16, of_float32, strict=True):
            is_near = min(abs(rounded.reduction_bound), abs(rounded.reduction_bound - 0.1)) <= margin
            assert losses.within_rounding == rounded.within_rounding == is_near
            if is_near or (verify == "all" and rounded.reduction_bound >= -margin):
                assert losses.number_format == "float32"
                assert close(losses, right)
            else:
                assert losses == rounded
                assert all(
                    (losses.reduction_bound >= at) == (right.reduction_bound >= at) for at in (0.0, 0.1)
                )


@pytest.mark.parametrize("has_tf32", [False, True])
def test_each_number_format_prunes_by_its_own_margin(tiny_engine_bfloat16, monkeypatch, has_tf32):
    margins: list[float] = []

    def never_finite(*arguments: Any, margin: float, **_: Any) -> list[list[CallLosses]]:
        margins.append(margin)
        return [[CallLosses(math.nan, math.nan, math.nan) for _ in calls] for _, calls in arguments[2]]

    monkeypatch.setattr(scoring, "score_texts", never_finite)
    monkeypatch.setattr(tiny_engine_bfloat16, "has_tf32", has_tf32)
    monkeypatch.setitem(tiny_engine_bfloat16.margins["paper"], "bfloat16", 0.25)
    monkeypatch.setitem(tiny_engine_bfloat16.margins["paper"], "tf32", 0.05)
    tiny_engine_bfloat16.score_texts([(TEXT, many_calls()[:1])], prune_below=0.5, verify="on")
    assert margins == [0.25, *([0.05] if has_tf32 else []), scoring.FLOAT32_MARGIN]


@pytest.mark.parametrize(
    ("verify", "thresholds", "always_from"),
    [("keep", [1.0], math.inf), ("on", [0.5, 1.0], math.inf), ("all", [0.5, 1.0], 0.5)],
)
def test_a_choice_of_verification_says_which_calls_are_computed_again(
    tiny_engine_bfloat16, monkeypatch, verify, thresholds, always_from
):
    asked: dict[str, Any] = {}
    monkeypatch.setattr(model, "verified_losses", lambda *_, **choices: asked.update(choices))
    tiny_engine_bfloat16.score_texts([(TEXT, [])], prune_below=0.5, keep_threshold=1.0, verify=verify)
    assert asked == {"thresholds": thresholds, "always_from": always_from}


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


def test_without_room_auto_marks_what_rounding_may_decide_unverified(tiny_model_dir, monkeypatch):
    loads = Loads(tiny_model_dir, monkeypatch, has_room=False)
    found = loads.score(verify="auto")
    assert found == loads.score(verify="off")
    assert loads.formats == []
    assert any(losses.within_rounding for losses in found)
    assert not loads.engine.verifies("auto")


def test_without_room_a_wish_to_verify_is_an_error(tiny_model_dir, monkeypatch):
    loads = Loads(tiny_model_dir, monkeypatch, has_room=False)
    monkeypatch.setattr(DeviceMemory, "could_hold", lambda *_: False)  # nor in the place of the others
    for choice in ("on", "all"):
        with pytest.raises(ModelError, match=f"verify_in_float32 {choice}"):
            loads.engine.verifies(choice)


def test_without_room_float32_weights_take_the_place_of_the_others_once_for_all_calls_that_are_asked_together(
    tiny_engine, tiny_model_dir, monkeypatch
):
    loads = Loads(tiny_model_dir, monkeypatch, has_room=False)
    engine, calls = loads.engine, many_calls()
    own = engine._model.network
    positions = find_all(engine, TEXT, at_most=3)
    monkeypatch.setitem(engine.margins["paper"], "bfloat16", 100.0)
    found = engine.score_texts([(TEXT, calls), (LONG_TEXT[:200], calls[:4])], verify="on")
    assert loads.formats == ["float32"]
    assert sum(parameter.numel() for parameter in own.parameters()) == 0, "the others are let go"
    assert [replace(losses, within_rounding=False) for losses in found[0]] == score_calls(
        tiny_engine, TEXT, calls
    )
    assert losses_with_result(engine, TEXT, calls) == losses_with_result(tiny_engine, TEXT, calls)
    assert engine.surely_below(0.5 - 101.0, 0.5)
    assert engine.verifies("on")
    assert loads.formats == ["float32"], "they stay until the others are asked for"
    assert find_all(engine, TEXT, at_most=3) == positions
    assert loads.formats == ["float32", "bfloat16"]
    with pytest.raises(ValueError, match="float16"):
        losses_with_result(engine, TEXT, calls, number_format="float16")
