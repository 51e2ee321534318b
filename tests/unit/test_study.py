"""A study draws honest sentences, gives each arm equally many texts, and continues where it was killed."""

import datetime
import json
import operator
import re
from pathlib import Path
from typing import Any

import pytest

from studies import study
from studies.sentences import DATES, SUMS, Sentence, SentenceSource
from studies.study import StudyPlan
from toolformer_ops.call_syntax import take_out
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import MadeCall, Prompt, WrittenText
from toolformer_ops.errors import NoResultError, UsageError
from toolformer_ops.evaluation.numbers import first_number
from toolformer_ops.records import content_uuid
from toolformer_ops.release.format import read_release
from toolformer_ops.tools.calendar import write_day

COMPUTED = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


def test_every_sum_holds_its_numbers_and_the_right_result() -> None:
    for item in [*SUMS.training(200, 0), *SUMS.fresh(100, 0, [])]:
        sign, left, right = item.fact  # type: ignore[misc]
        assert str(COMPUTED[sign](left, right)) == item.answer  # type: ignore[has-type]
        assert sign != "/" or left % right == 0  # type: ignore[has-type]
        assert item.text.startswith(item.prompt + f" {item.answer}")
        assert all(str(number) in item.prompt for number in (left, right))  # type: ignore[has-type]


def test_every_dated_sentence_says_what_the_calendar_says() -> None:
    for item in [*DATES.training(200, 0), *DATES.fresh(100, 0, [])]:
        assert item.date is not None
        assert item.document.document_date == item.date
        assert re.search(rf"\b{item.answer}\b", item.prompt) is None
        if item.kind == "days until":
            other = item.date + datetime.timedelta(days=int(item.answer))
            assert other.strftime("%B ") + str(other.day) in item.prompt
        else:
            assert item.answer in write_day(item.date)


@pytest.mark.parametrize("source", [SUMS, DATES])
def test_the_same_seed_draws_the_same_sentences_and_more_texts_only_add(source: SentenceSource) -> None:
    assert source.training(40, 3) == source.training(80, 3)[:40] != source.training(40, 4)


@pytest.mark.parametrize("source", [SUMS, DATES])
def test_fresh_sentences_have_other_facts_and_half_use_new_templates(source: SentenceSource) -> None:
    trained = source.training(300, 0)
    fresh = source.fresh(200, 0, trained)
    assert len({item.fact for item in fresh}) == len(fresh) == 200
    assert not {item.fact for item in trained} & {item.fact for item in fresh}
    assert sum(item.held_out for item in fresh) == 100
    assert not any(item.held_out for item in trained)
    assert {item.kind for item in fresh} == {item.kind for item in trained}
    for item in [*trained, *fresh]:
        assert "{" not in item.text
        assert item.is_right(item.text.removeprefix(item.prompt))


@pytest.mark.parametrize(
    ("kind", "answer", "written", "right"),
    [
        ("weekday", "Tuesday", " Tuesday, not Monday", True),
        ("weekday", "Tuesday", " Monday, not Tuesday", False),
        ("weekday", "Tuesday", " some day", False),
        ("date", "May 5", " May 5, 2020", True),
        ("date", "May 5", " May 50", False),
        ("date", "May 5", " June 5, and May 5", False),
        ("days until", "12", " 12 days", True),
        ("days until", "12", " May 5, so 12", False),
    ],
)
def test_the_first_weekday_date_or_number_is_the_answer(kind: str, answer: str, written: str, right: bool) -> None:
    asked = Sentence(f"It is {answer}.", answer, kind, fact=kind, held_out=False)
    assert asked.is_right(written) is right


DOCUMENTS = [f"0b9f9c9a-0d2e-5d6d-8f9d-{number:012}" for number in range(5)]
TEXT = "It had 520 and sold 187, so it has 333 left."


def annotated(number: int, *calls: tuple[str, float | None, float | None], only_after: bool = False) -> dict[str, Any]:
    """A text with calls: the result, what it saves in nats, and of that what other results would not save."""
    return {
        "document_id": DOCUMENTS[number],
        "text": TEXT,
        "calls": [
            {
                "input_only_after": only_after,
                "document_id": DOCUMENTS[number],
                "position_char": TEXT.index(" 333"),
                "position_probability": 0.25,
                "call": "Calculator(520 - 187)" if result == "333" else "Calculator(520 + 187)",
                "result": result,
                "loss_without_call": 4.0,
                "loss_without_result": None if reduction is None else 4.5,
                "loss_with_result": None if reduction is None else 4.0 - reduction,
                "loss_reduction": reduction,
                "kept": reduction is not None and reduction >= 0.5,
                "information": information,
            }
            for result, reduction, information in calls
        ],
    }


INFORMED = [
    annotated(0, ("707", 0.6, 0.3), ("333", 2.0, 1.5)),
    annotated(1, ("707", 0.9, 0.1)),
    annotated(2, ("707", None, None)),
    annotated(3, ("333", 3.0, 2.0), only_after=True),
    annotated(4, ("333", 0.7, None)),
]


def test_each_arm_has_equally_many_texts_with_one_call_that_its_rule_allows() -> None:
    plan = StudyPlan()
    eligible = study.eligible_texts(plan, INFORMED)
    assert {arm: [str(text.document_id) for text in texts] for arm, texts in eligible.items()} == {
        "paper": [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[4]],
        "information": [DOCUMENTS[0]],
        "random": [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[2], DOCUMENTS[4]],
        "without_calls": [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[4]],
    }
    assert all(len(text.calls) == 1 for texts in eligible.values() for text in texts)
    chosen = study.chosen_texts(plan, INFORMED)
    assert [len(texts) for texts in chosen.values()] == [1, 1, 1, 1]
    [released] = chosen["paper"]
    assert released.text == "It had 520 and sold 187, so it has [Calculator(520 - 187) -> 333] 333 left."
    assert take_out(released.text, ["Calculator"]) == TEXT
    with pytest.raises(NoResultError, match="none for information"):
        study.chosen_texts(plan, INFORMED[1:])


def test_a_killed_study_continues_after_its_last_whole_group(tmp_path: Path) -> None:
    file = tmp_path / "annotated.jsonl"
    records = [{"document_id": str(number), "text": "", "calls": []} for number in range(37)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"document_id": "3', encoding="utf-8")
    assert study.read_whole_groups(file) == records[:32]
    assert study.read_whole_groups(file) == records[:32]
    assert study.read_whole_groups(tmp_path / "none.jsonl") == []


def test_right_answers_and_calls_are_counted_by_template_and_kind() -> None:
    sentences = [
        Sentence("It has 5 left.", "5", "-", ("-", 7, 2), held_out=False),
        Sentence("It has 6 now.", "6", "+", ("+", 4, 2), held_out=True),
        Sentence("It has 9 now.", "9", "+", ("+", 4, 5), held_out=True),
    ]
    made = MadeCall("Calculator", "7 - 2", "5", None, 1, 24, 0.0)
    failed = MadeCall("Calculator", "4 +", None, "not_a_sum", 0, 0, 0.0)
    written = [
        WrittenText(Prompt("It has"), " [Calculator(7 - 2) -> 5] 5 left", " 5 left", (made,), (), (), 9, "length"),
        WrittenText(Prompt("It has"), " 4 + 2 = 6 now", " 4 + 2 = 6 now", (failed,), (), (), 9, "length"),
        WrittenText(Prompt("It has"), " 8 now", " 8 now", (), (), (), 9, "length"),
    ]
    found = study.counted("paper", sentences, written)
    assert [found[name] for name in ("right", "called", "right_held_out", "called_held_out")] == [2, 1, 1, 0]
    assert found["by_kind"] == {"+": "1 of 2", "-": "1 of 1"}
    assert first_number(written[1].without_calls) == 6
    right = {"paper": [True, True, False], "random": [False, True, False]}
    compared = study.compared(right, "paper", "random")
    assert compared["difference"] == pytest.approx(1 / 3)
    assert compared["interval"][0] < 0 < compared["interval"][1]


def test_the_plan_asks_for_one_tool_and_refuses_what_it_does_not_know() -> None:
    parameters = StudyPlan(tool="Calendar", texts=32, steps=7).choices("model")
    assert (parameters.tools, parameters.finetune_steps, parameters.call_prefix) == (("Calendar",), 7, "tool_name")
    with pytest.raises(UsageError, match="expected Calculator, Calendar, found QA"):
        StudyPlan(tool="QA")
    with pytest.raises(UsageError, match="found best"):
        StudyPlan(arms=("paper", "best"))


def test_each_arm_is_trained_and_measured_from_what_was_annotated(tmp_path: Path, tiny_gpt2_dir: Path) -> None:
    plan = StudyPlan(tool="Calendar", texts=16, test=4, steps=1, batch=2)
    records = []
    for item in DATES.training(16, 0):
        assert item.date is not None
        found = {
            "document_id": str(item.document.document_id),
            "call_id": str(content_uuid(item.text)),
            "position_char": len(item.prompt),
            "position_token": 3,
            "position_probability": 0.25,
            "call": "Calendar()",
            "result": write_day(item.date),
            "reason": None,
            "number_format": "float32",
            "reduction_bound": 13.0,
            "loss_without_call": 4.0,
            "loss_without_result": 4.5,
            "loss_with_result": -9.0,  # so that each placebo loses more
            "loss_reduction": 13.0,
            "kept": True,
            "input_only_after": False,
        }
        records.append({"document_id": found["document_id"], "text": item.text, "calls": [found]})
    (tmp_path / study.ANNOTATED).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    found = study.run_study(Settings(), str(tiny_gpt2_dir), plan, tmp_path)
    informed = [json.loads(line) for line in (tmp_path / study.INFORMED).read_text(encoding="utf-8").splitlines()]
    assert all(record["calls"][0]["information"] > 9.0 for record in informed)
    assert found["examples_an_arm"] == 16
    assert [item["way"] for item in found["measured"]] == ["before training", *study.ARMS]
    assert len(found["differences"]) == 6
    written = (tmp_path / study.WRITTEN).read_text(encoding="utf-8").splitlines()
    assert len(written) == 5 * plan.test
    plain, *_ = read_release(tmp_path / "release-without_calls")
    assert "[Calendar() -> Today is" in plain.text  # the training leaves the calls out, by its recipe
    models = sorted(path.name for path in tmp_path.glob("training-*"))
    assert len(models) == 2  # three arms have the same texts and calls here
    assert study.run_study(Settings(), str(tiny_gpt2_dir), plan, tmp_path)["measured"] == found["measured"]
    assert len(study.study_tables(found)) == 2
