"""How a stored call is shown: with the text around it, its tokens numbered, and what was not computed left open."""

from typing import Any

import pytest

from toolformer_ops.on_a_file.explanation import explanation_table

STORED: dict[str, Any] = {
    "run_id": "r", "document_id": "d", "call_id": "c", "call": "Calculator(2 + 3)", "at": 7,
    "text_before": "2 and 3", "text_after": " make 5.", "result": "5", "reason": None, "context_tokens": None,
    "loss_without_call": 2.0, "loss_without_result": 2.5, "loss_with_result": 1.0, "loss_without_call_full_context": None,
    "loss_reduction": 1.0, "reduction_bound": 1.0, "keep_threshold": 0.5, "kept": True,
    "placebos": [], "information": None, "tau_information": None,
    "tokens": [
        {"text": None, "weight": 1 / 3, "log_p_without_call": -6.0, "log_p_without_result": -7.5, "log_p_with_result": -3.0}
    ],
}  # fmt: skip


def shown(capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    explanation_table(STORED | changes)
    return capsys.readouterr().out


def test_a_stored_call_is_shown_in_its_text_with_its_tokens_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys)
    assert "...2 and 3[Calculator(2 + 3)] make 5...." in out
    [token] = [line for line in out.splitlines() if "-7.500" in line]
    assert token.replace(" ", "") == "│1│0.333│-6.000│-7.500│-3.000│"
    assert "lowers the loss by 1.000 nats: kept at 0.5" in out


def test_what_was_not_computed_or_stored_is_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    token = STORED["tokens"][0] | {"log_p_without_result": None}
    changes = {"loss_without_result": None, "loss_reduction": None, "reduction_bound": 0.25, "tokens": [token]}
    out = shown(capsys, reason="pruned_below", kept=False, **changes)
    assert "not scored to the end (pruned_below): it saves at most 0.250 nats" in out
    assert "│1│0.333│-6.000│-│-3.000│" in out.replace(" ", "")
    assert "2.500" in shown(capsys, tokens=[])
    assert "no result (divides_by_zero)" in shown(capsys, tokens=[], result=None, reason="divides_by_zero")
