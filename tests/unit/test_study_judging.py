"""Calls of a study's arms are read by who does not know the arm, twice."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from studies.evidence import judged_table
from studies.judging import (
    ChosenCall,
    JudgedCalls,
    chosen_calls,
    read_verdicts,
    write_judged,
    write_sheets,
)
from studies.plan import StudyPlan
from toolformer_ops.errors import NoResultError, UsageError

TEXT = "Of 520 lamps 187 broke, so it left 333 lamps."


def scored_call(result: str, saved: float) -> dict[str, Any]:
    """A call as `studies/calls.py` stores it, whose own result saves so many nats."""
    return {
        "input_only_after": False,
        "position_char": TEXT.index(" 333"),
        "call": "Calculator(520 - 187)",
        "result": result,
        "loss_without_call": 4.0,
        "log_p": {
            "without_call": [-4.0] * 10,
            "without_result": [-4.0] * 10,
            "with_result": [saved - 4.0] * 10,
            "with_placebo": None,
        },
    }


@pytest.fixture
def annotated(tmp_path):
    """The folder of a study with one seed of two texts: the first has a kept and a refused call, the second a refused one."""
    StudyPlan(texts=2).write(tmp_path / "seed-0")
    records = [
        {
            "document_id": "a",
            "text": TEXT,
            "answer": "333",
            "calls": [scored_call("333", 2.0), scored_call("707", 0.1)],
        },
        {"document_id": "b", "text": f"{TEXT} Yes.", "answer": "333", "calls": [scored_call("12", 0.1)]},
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    (tmp_path / "seed-0" / "calls.jsonl").write_text("".join(lines), encoding="utf-8")
    return tmp_path


def write_verdicts(folder: Path, reading: int, verdicts: dict[str, str]) -> None:
    """Write the file of a reading."""
    lines = [json.dumps({"id": name, "verdict": verdict}) + "\n" for name, verdict in verdicts.items()]
    (folder / f"verdicts-{reading}.jsonl").write_text("".join(lines), encoding="utf-8")


def of_arm(calls: Sequence[ChosenCall], arm: str) -> list[str]:
    """The results of the calls that an arm chose."""
    return [call.result for call in calls if arm in call.arms]


def test_the_arm_of_the_paper_shows_its_kept_call_alone(annotated):
    assert of_arm(chosen_calls(annotated), "paper") == ["333"]


def test_a_call_of_several_arms_is_shown_once(annotated):
    [kept] = [call for call in chosen_calls(annotated) if call.result == "333"]
    assert {"paper", "tau_0.25", "foretold"} <= set(kept.arms)


def test_an_arm_shows_no_more_calls_than_are_read(annotated):
    assert len(of_arm(chosen_calls(annotated, ["any_call"], at_most=1), "any_call")) == 1


def test_a_sheet_shows_texts_with_calls_alone(annotated):
    first, _ = write_sheets(annotated, chosen_calls(annotated))
    lines = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    assert {tuple(line) for line in lines} == {("id", "text")}


def test_a_sheet_shows_a_call_at_its_place(annotated):
    first, _ = write_sheets(annotated, chosen_calls(annotated, ["paper"]))
    [line] = first.read_text(encoding="utf-8").splitlines()
    woven = "Of 520 lamps 187 broke, so it left [Calculator(520 - 187) -> 333] 333 lamps."
    assert json.loads(line)["text"] == woven


def test_a_folder_without_annotated_seeds_is_refused(tmp_path):
    with pytest.raises(NoResultError, match="expected annotated seeds with calls"):
        chosen_calls(tmp_path)


def test_verdicts_that_are_not_there_are_refused_with_where_they_belong(annotated):
    with pytest.raises(UsageError, match=r"verdicts-1\.jsonl"):
        read_verdicts(annotated, chosen_calls(annotated))


@pytest.mark.parametrize(
    ("verdicts", "reason"),
    [
        (["good"], "expected useful, useless, wrong, skip"),
        ([], "expected one verdict for each call"),
    ],
)
def test_verdicts_that_fit_no_sheet_are_refused(annotated, verdicts, reason):
    calls = chosen_calls(annotated, ["paper"])
    write_verdicts(annotated, 1, dict(zip([call.id for call in calls], verdicts, strict=False)))
    with pytest.raises(UsageError, match=reason):
        read_verdicts(annotated, calls)


def test_the_table_counts_each_reading(annotated):
    calls = chosen_calls(annotated, ["any_call"])
    names = [call.id for call in calls]
    write_verdicts(annotated, 1, dict(zip(names, ("useful", "useless"), strict=True)))
    write_verdicts(annotated, 2, dict(zip(names, ("useful", "wrong"), strict=True)))
    write_judged(annotated / "judged.jsonl", calls, read_verdicts(annotated, calls))
    row = judged_table(JudgedCalls.read(annotated / "judged.jsonl")).splitlines()[-1]
    # Wilson's interval of 1 in 2.
    assert row == "| `any_call` | 2 | 0.50 (0.09 to 0.91) | 0.50 (0.09 to 0.91) | 1, 0 | 0, 1 |"
