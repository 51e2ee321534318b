"""Seeds whose calls are in the repository are trained without being annotated again."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies.__main__ import ANSWERS
from studies.answers import gather, read_answers, write_lines
from studies.arms import chosen_texts
from studies.plan import StudyPlan
from studies.stored_calls import place_stored_calls, stored_records
from studies.study import annotated_records
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.tools.registry import get_tool

pytestmark = pytest.mark.slow
CALLS = ANSWERS / "calculator-calls.jsonl.bz2"
PLAN = StudyPlan(arms=("paper", "foretold", "any_call", "right_call"), model="SmolLM2-135M-Instruct")
"""With the numbers by which the repository's seeds were annotated."""

read_once = functools.cache(read_answers)
"""The repository's calls take a second to read."""


@pytest.fixture(autouse=True)
def _read_once(monkeypatch):
    monkeypatch.setattr("studies.stored_calls.read_answers", read_once)


def lines_of_seed(file: Path, seed: int) -> list[dict[str, Any]]:
    """The lines of raw answers of one seed."""
    return [line for line in read_once(file) if line.get("seed") == seed]


def placed(folder: Path) -> Path:
    """The folder of a seed with its calls out of the repository."""
    PLAN.write(folder)
    place_stored_calls(Settings(), CALLS, [(PLAN, folder)])
    return folder


def test_stored_calls_are_gathered_as_the_lines_that_they_came_from(tmp_path):
    placed(tmp_path / "calculator" / "seed-0")
    _, gathered = gather(tmp_path / "calculator", tmp_path)
    assert read_answers(gathered) == lines_of_seed(CALLS, 0)


@pytest.mark.parametrize(("seed", "annotated"), [(0, (158, 501)), (7, (138, 501))])
def test_hundredths_of_a_nat_change_the_texts_of_an_arm_by_at_most_one(seed, annotated):
    """`annotated` are the texts that the arms had where their calls were annotated; other arms had calls of the other sign then."""
    plan = replace(PLAN, arms=("paper", "any_call"), seed=seed)
    answers = {str(item.document.document_id): item.answer for item in plan.training}
    records = [
        {**record, "answer": answers[record["document_id"]]}
        for record in stored_records(Settings(), plan, lines_of_seed(CALLS, seed))
    ]
    _, eligible = chosen_texts(plan.arms, records, get_tool(plan.tool), seed)
    changes = [abs(eligible[arm] - texts) for arm, texts in zip(plan.arms, annotated, strict=True)]
    assert max(changes) <= 1


def test_a_seed_with_stored_calls_asks_no_model_for_them(tmp_path):
    folder = placed(tmp_path / "seed-0")
    records, _ = annotated_records(Settings(), "a model that is not there", PLAN, folder)
    assert sum(len(record["calls"]) for record in records) == len(lines_of_seed(CALLS, 0))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"texts": 64}, "texts 512 and not 64"),
        ({"model": "another"}, "model 'SmolLM2-135M-Instruct' and not 'another'"),
        ({"study": "calendar"}, "study 'calculator' and not 'calendar'"),
        ({"seed": 10}, "expected calls of seed 10, found none"),
        ({"arms": ("paper", "other_result")}, "found other_result"),
    ],
)
def test_calls_that_do_not_fit_the_plan_are_refused(changed, reason, tmp_path):
    with pytest.raises(UsageError, match=reason):
        place_stored_calls(Settings(), CALLS, [(replace(PLAN, **changed), tmp_path)])


def test_a_stored_call_without_a_result_is_refused(tmp_path):
    line, *_ = lines_of_seed(CALLS, 0)
    write_lines(tmp_path / "calculator-calls.jsonl.bz2", [{**line, "call": "Calculator(no sum)"}])
    write_lines(tmp_path / "calculator.jsonl.bz2", read_answers(ANSWERS / "calculator.jsonl.bz2")[:1])
    with pytest.raises(UsageError, match=r"result of Calculator\(no sum\), found none"):
        place_stored_calls(Settings(), tmp_path / "calculator-calls.jsonl.bz2", [(PLAN, tmp_path)])


def test_a_stored_call_of_another_text_is_refused():
    lines = lines_of_seed(CALLS, 0)
    foretelling = next(line for line in lines if line["foretells"])
    moved = {**foretelling, "text": foretelling["text"] + 1}
    with pytest.raises(UsageError, match="as it was annotated, found another text"):
        stored_records(Settings(), PLAN, [moved])


def test_a_file_of_answers_is_refused_as_one_of_calls(tmp_path):
    with pytest.raises(UsageError, match=r"expected a file of calls, NAME-calls\.jsonl\.bz2"):
        place_stored_calls(Settings(), ANSWERS / "calculator.jsonl.bz2", [(PLAN, tmp_path)])


def test_calls_that_a_seed_has_stay_as_they_are(tmp_path):
    folder = placed(tmp_path / "seed-0")
    first, *_ = (folder / "calls.jsonl").read_text().splitlines()
    (folder / "calls.jsonl").write_text(json.dumps({**json.loads(first), "text": "another"}) + "\n")
    place_stored_calls(Settings(), CALLS, [(PLAN, folder)])
    assert json.loads((folder / "calls.jsonl").read_text())["text"] == "another"
