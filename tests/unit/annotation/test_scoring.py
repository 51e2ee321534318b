"""A call's result, its losses and whether it is kept, with a scripted model."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fake_language_model import FULL_CONTEXT, TOKENS, FakeLanguageModel
from toolformer_ops.annotation.scoring import (
    EMPTY_RESULT,
    NOT_EXECUTED,
    NOT_FINITE,
    PRUNED,
    REPEATS_DOCUMENT_TEXT,
    ExecutedCall,
    ExecutedText,
    ScoredCall,
    choose_result,
    own_text_of,
    score_texts,
)
from toolformer_ops.call_syntax import Call
from toolformer_ops.records import Document, TokenLogProbabilities
from toolformer_ops.runs.choices import ScoringChoices
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.tools.retrieval.own_text import OwnText

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."
TOKEN = SUM.split().index("5")
OWN = "A ball is a round object. It is used in many games, by children and by others."


def executed(*results: str, token: int = TOKEN, reason: str | None = None) -> ExecutedCall:
    return ExecutedCall(token=token, call=Call("Calculator", "2 + 3"), results=results, reason=reason)


def scored(calls: list[ExecutedCall], text: str = SUM, **choices: Any) -> list[ScoredCall]:
    model: Any = FakeLanguageModel()
    [found] = score_texts(lambda: model, ScoringChoices(**choices), 0.5, [ExecutedText(text, calls, None)])
    return found


REPEATS = "A ball is a round object."


@pytest.mark.parametrize(
    ("results", "reason", "own_text", "chosen"),
    [
        (["", " \n", "a sphere"], None, None, ScoredCall(result_rank=2, result="a sphere")),
        ([REPEATS, "a [round]\nthing"], None, OWN, ScoredCall(result_rank=1, result="a (round) thing")),
        ([REPEATS], None, None, ScoredCall(result_rank=0, result=REPEATS)),
        ([f"[{REPEATS}]", ""], None, OWN, ScoredCall(reason=REPEATS_DOCUMENT_TEXT)),  # as it would be written
        ([" "], None, OWN, ScoredCall(reason=EMPTY_RESULT)),
        (None, None, OWN, ScoredCall(reason=NOT_EXECUTED)),
        (["a sphere"], "timed_out", OWN, ScoredCall(reason="timed_out")),
    ],
)
def test_the_first_result_that_is_neither_empty_nor_a_repetition_is_chosen(
    results: list[str] | None, reason: str | None, own_text: str | None, chosen: ScoredCall
) -> None:
    assert choose_result(results, reason, OwnText(own_text) if own_text else None) == chosen


def test_only_a_tool_that_searches_texts_must_not_repeat_the_document() -> None:
    document = Document.of(OWN)
    assert own_text_of(get_tool("Calculator"), document) is None
    assert own_text_of(get_tool("WikiSearch"), document) is not None


def test_a_call_that_helps_is_kept_up_to_its_reduction() -> None:
    [found] = scored([executed("5")])
    assert (found.reason, found.result_rank, found.result) == (None, 0, "5")
    assert (found.loss_without_call, found.loss_without_result, found.loss_with_result) == (2.0, 2.5, 1.0)
    assert found.loss_reduction == found.reduction_bound == 1.0  # min(2.0, 2.5) - 1.0
    assert found.reaches(1.0)
    assert not found.reaches(1.001)
    assert found.token_log_probabilities == TokenLogProbabilities(
        (-2.0,) * 5, (-2.5,) * 5, (-1.0,) * 5, tokens=TOKENS
    )


def test_calls_keep_their_order_whether_or_not_they_have_a_result() -> None:
    calls = [executed(reason="division_by_zero"), executed("5"), executed(""), executed("7")]
    found = scored(calls, prune_below=0.0)
    assert [item.reason for item in found] == ["division_by_zero", None, EMPTY_RESULT, None]
    assert [item.loss_with_result for item in found] == [None, 1.0, None, 2.25]
    assert [item.reaches(0.5) for item in found] == [False, True, False, False]


def test_a_pruned_call_has_the_losses_that_prove_it() -> None:
    calls = [executed(reason="division_by_zero"), executed("5"), executed(""), executed("7")]
    *_, pruned = scored(calls)
    assert (pruned.reason, pruned.loss_without_call, pruned.loss_without_result) == (PRUNED, 2.0, None)
    assert (pruned.loss_with_result, pruned.reduction_bound, pruned.loss_reduction) == (2.25, -0.25, None)
    assert not pruned.reaches(-1.0)


def test_losses_that_are_not_finite_are_left_out_with_a_reason() -> None:
    [found] = scored([executed("5")], text="nan " + SUM)
    assert found == ScoredCall(result_rank=0, result="5", reason=NOT_FINITE, number_format="float32")
    assert not found.reaches(0.0)


def test_the_engine_is_asked_to_verify_as_the_run_chose() -> None:
    seen: list[dict[str, Any]] = []

    class Watched(FakeLanguageModel):
        def score_texts(self, texts: Any, **options: Any) -> Any:
            seen.append(options)
            found = super().score_texts(texts, **options)
            return [[replace(one, within_rounding=True) for one in of_text] for of_text in found]

    model: Any = Watched()
    choices = ScoringChoices(verify_in_float32="off", prune_below=0.25, scoring_context_tokens=16)
    [[found]] = score_texts(lambda: model, choices, 0.5, [ExecutedText(SUM, [executed("5")], None)])
    assert seen == [
        {
            "prune_below": 0.25,
            "keep_threshold": 0.5,
            "context_tokens": 16,
            "verify": "off",
            "keep_rule": "paper",
        }
    ]
    assert found.within_rounding
    assert (found.loss_without_call_full_context, found.loss_reduction) == (FULL_CONTEXT, FULL_CONTEXT - 1.0)


def test_a_call_that_no_release_takes_is_scored() -> None:
    ahead = replace(executed("5"), input_only_after=True)
    assert [item.loss_reduction for item in scored([ahead])] == [1.0]


def test_a_model_is_not_loaded_where_no_call_has_a_result() -> None:
    texts = [ExecutedText(SUM, [executed(reason="timed_out")], None), ExecutedText(SUM, [], None)]
    found = score_texts(lambda: pytest.fail("loaded"), ScoringChoices(), 0.5, texts)
    assert [[item.reason for item in of_text] for of_text in found] == [["timed_out"], []]
