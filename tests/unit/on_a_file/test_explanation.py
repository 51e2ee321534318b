"""`explain`: one call scored token by token, on a tiny model with the real calculator."""

import json
from pathlib import Path

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.language_model.losses import is_kept
from toolformer_ops.on_a_file.explanation import explain_call, explanation_table, token_at
from toolformer_ops.records import content_uuid

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."
AT = SUM.index(" 5")


def test_the_tokens_add_up_to_the_losses(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = explain_call(Settings(), SUM, AT, "[Calculator(2 + 3)]", None, str(tiny_model_dir))
    assert (found["call"], found["result"], found["reason"]) == ("Calculator(2 + 3)", "5", None)
    for name in ("without_call", "without_result", "with_result"):
        added = -sum(token["weight"] * token[f"log_p_{name}"] for token in found["tokens"])
        assert added == pytest.approx(found[f"loss_{name}"], abs=1e-4)
    reduction = min(found["loss_without_call"], found["loss_without_result"]) - found["loss_with_result"]
    assert found["loss_reduction"] == pytest.approx(reduction)
    assert found["kept"] == is_kept(reduction, found["keep_threshold"])
    explanation_table(found)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"[Calculator(2 + 3) -> 5] lowers the loss by {reduction:.3f} nats" in shown
    # A stored call has the text around it and no words for its tokens; one that was pruned has a bound and no losses.
    token = {"text": None, "weight": 1 / 3, "log_p_without_call": -6.0, "log_p_without_result": None}
    stored = {"run_id": "r", "document_id": "d", "call_id": "c", "text_before": "2 and 3", "text_after": " make 5."}
    pruned = {"reason": "pruned_below", "loss_without_result": None, "reduction_bound": 0.25}
    explanation_table({**found, **stored, **pruned, "tokens": [{**token, "log_p_with_result": -3.0}]})
    shown = capsys.readouterr().out
    assert "...2 and 3[Calculator(2 + 3)] make 5...." in shown
    assert "│1│0.333│-6.000│-│-3.000│" in shown.replace(" ", "")
    assert "not scored to the end (pruned_below): it saves at most 0.250 nats" in shown
    explanation_table({**found, "tokens": [], "result": None, "reason": "divides_by_zero"})
    assert "no result (divides_by_zero)" in capsys.readouterr().out


def test_other_results_of_a_file_are_scored_in_the_place_of_the_call(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = tmp_path / "printed.jsonl"
    common = {"position_token": 3, "reason": "pruned_below"}
    with printed.open("w") as file:
        for n in (2, 4, 5):
            ids = {"call_id": str(content_uuid(f"call {n}")), "document_id": str(content_uuid(f"text {n}"))}
            file.write(json.dumps({**common, **ids, "call": f"Calculator({n} + 3)", "result": f"{n + 3}"}) + "\n")
    found = explain_call(Settings(), SUM, AT, "Calculator(2 + 3)", None, str(tiny_model_dir), pool_file=printed)
    assert sorted(one["result"] for one in found["placebos"]) == ["7", "8"]  # 5 is the call's own
    for one in found["placebos"]:
        assert one["information"] == pytest.approx(one["loss_with_result"] - found["loss_with_result"])
    assert found["information"] == pytest.approx(sum(one["information"] for one in found["placebos"]) / 2)
    explanation_table(found)
    assert f"information of the result: {found['information']:.3f} nats" in " ".join(capsys.readouterr().out.split())
    printed.write_text('{"call": "Calculator(1 + 1)"}\n')
    with pytest.raises(UsageError, match="annotate FILE --all"):
        explain_call(Settings(), SUM, AT, "Calculator(2 + 3)", None, str(tiny_model_dir), pool_file=printed)


def test_a_call_without_a_result_gives_its_reason(tiny_model_dir: Path) -> None:
    found = explain_call(Settings(), SUM, AT, "Calculator(cats + 3)", None, str(tiny_model_dir))
    assert (found["result"], found["reason"]) == (None, "invalid_expression")
    with pytest.raises(UsageError, match="2023-01-30"):
        explain_call(Settings(), SUM, AT, "Calendar()", "yesterday", str(tiny_model_dir))


def test_an_offset_is_that_of_a_token_or_of_the_word_behind_its_space() -> None:
    starts, text = (0, 5, 10), "There were two"
    assert [token_at(starts, text, at) for at in (5, 6, 10, 11)] == [1, 1, 2, 2]
    with pytest.raises(UsageError, match=r"found 8\. The nearest are 10, 5\."):
        token_at(starts, text, 8)
    with pytest.raises(UsageError, match="one token"):
        token_at((0,), "There", 0)


def test_an_offset_that_cannot_be_used_is_refused_before_the_model_is_loaded(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolformer_ops.on_a_file.explanation.load_scoring_model", lambda *_: pytest.fail("loaded"))
    for at in (999, -1, 0):
        with pytest.raises(UsageError, match=rf"--at: expected .* {len(SUM)} characters, found {at}\."):
            explain_call(Settings(), SUM, at, "Calculator(2 + 3)", None, str(tiny_model_dir))
