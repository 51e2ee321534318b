"""The calculator study draws honest sums, and continues where it was killed."""

import json
from pathlib import Path

from toolformer_ops.call_syntax import take_out
from toolformer_ops.decoding.records import MadeCall, Prompt, WrittenText
from toolformer_ops.demo.calculator import study
from toolformer_ops.demo.calculator.study import StudyPlan
from toolformer_ops.demo.calculator.sums import Sum, fresh_sums, training_sums
from toolformer_ops.evaluation.numbers import first_number

COMPUTED = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left // right,
}


def test_every_sentence_holds_its_sum_and_the_right_result() -> None:
    for item in [*training_sums(200, 0), *fresh_sums(100, 0, [])]:
        assert COMPUTED[item.operator](item.left, item.right) == item.result
        assert item.operator != "/" or item.left % item.right == 0
        assert item.text.startswith(item.prompt + f" {item.result}")
        assert all(str(number) in item.prompt for number in (item.left, item.right))
        assert "{" not in item.text


def test_the_same_seed_draws_the_same_sums_and_more_texts_only_add() -> None:
    assert training_sums(40, 3) == training_sums(40, 3) == training_sums(80, 3)[:40]
    assert training_sums(40, 3) != training_sums(40, 4)


def test_fresh_sums_are_none_of_those_trained_on_and_half_use_new_templates() -> None:
    trained = training_sums(300, 0)
    fresh = fresh_sums(200, 0, trained)
    assert len({item.key for item in fresh}) == len(fresh) == 200
    assert not {item.key for item in trained} & {item.key for item in fresh}
    assert sum(item.held_out for item in fresh) == 100
    assert not any(item.held_out for item in trained)
    assert {item.operator for item in fresh} == set(COMPUTED)


def call(at: int, result: str, reduction: float) -> dict[str, object]:
    return {
        "document_id": "0b9f9c9a-0d2e-5d6d-8f9d-111111111111",
        "position_char": at,
        "position_probability": 0.25,
        "call": "Calculator(520 - 187)" if result == "333" else "Calculator(520 + 187)",
        "result": result,
        "loss_without_call": 4.0,
        "loss_without_result": 4.5,
        "loss_with_result": 4.0 - reduction,
        "loss_reduction": reduction,
        "kept": True,
    }


def test_the_release_holds_the_best_call_of_a_position_and_no_text_without_one() -> None:
    text = "It had 520 and sold 187, so it has 333 left."
    at = text.index(" 333")
    document = "0b9f9c9a-0d2e-5d6d-8f9d-111111111111"
    [released] = study.released_texts(
        [
            {"document_id": document, "text": text, "calls": [call(at, "707", 0.6), call(at, "333", 2.0)]},
            {"document_id": document, "text": "Nothing here.", "calls": []},
        ]
    )
    assert released.text == "It had 520 and sold 187, so it has [Calculator(520 - 187) -> 333] 333 left."
    assert take_out(released.text, ["Calculator"]) == text


def test_a_killed_study_goes_on_after_its_last_whole_group(tmp_path: Path) -> None:
    file = tmp_path / "annotated.jsonl"
    records = [{"document_id": str(number), "text": "", "calls": []} for number in range(37)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"document_id": "3', encoding="utf-8")
    assert study.read_whole_groups(file) == records[:32]
    assert study.read_whole_groups(file) == records[:32]
    assert study.read_whole_groups(tmp_path / "none.jsonl") == []


def test_right_answers_and_calls_are_counted_by_template_and_operator() -> None:
    sums = [
        Sum("It has 5 left.", "-", 7, 2, 5, held_out=False),
        Sum("It has 6 now.", "+", 4, 2, 6, held_out=True),
        Sum("It has 9 now.", "+", 4, 5, 9, held_out=True),
    ]
    made = MadeCall("Calculator", "7 - 2", "5", None, 1, 24, 0.0)
    failed = MadeCall("Calculator", "4 +", None, "not_a_sum", 0, 0, 0.0)
    written = [
        WrittenText(Prompt("It has"), " [Calculator(7 - 2) -> 5] 5 left", " 5 left", (made,), (), (), 9, "length"),
        WrittenText(Prompt("It has"), " 4 + 2 = 6 now", " 4 + 2 = 6 now", (failed,), (), (), 9, "length"),
        WrittenText(Prompt("It has"), " 8 now", " 8 now", (), (), (), 9, "length"),
    ]
    found = study.counted("with calls", sums, written)
    assert [found[name] for name in ("right", "called", "right_held_out", "called_held_out")] == [2, 1, 1, 0]
    assert found["by_operator"] == {"+": "1 of 2", "-": "1 of 1"}
    assert first_number(written[1].without_calls) == 6


def test_the_plan_asks_for_the_calculator_alone() -> None:
    parameters = StudyPlan(texts=32, steps=7).choices("model")
    assert (parameters.tools, parameters.finetune_steps, parameters.call_prefix) == (("Calculator",), 7, "tool_name")
