"""Variants are asked as the paper says, judged without their calls, and not scored where a tool is down."""

import datetime
import logging
import math
from pathlib import Path

import pytest

from tests.unit.evaluation import published_files as published
from tests.unit.evaluation.fake_writing_model import FakeWritingModel, made_call
from toolformer_ops.config import load_settings
from toolformer_ops.decoding.records import DecodingSettings, MadeCall, Prompt
from toolformer_ops.errors import ParameterError, ToolError
from toolformer_ops.evaluation import running
from toolformer_ops.evaluation.comparing import compare
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.records import CALENDAR_DATE, Question, SuiteScore, Variant
from toolformer_ops.evaluation.running import ModelVariant, evaluate_data_set
from toolformer_ops.evaluation.session import Entrant, Outcome, evaluate, load_suites
from toolformer_ops.evaluation.statistics import wilson_interval
from toolformer_ops.evaluation.suites import SUITES
from toolformer_ops.evaluation.suites.base import LoadedDataSet

MATH = SUITES["math"]


def questions(*answers: str) -> LoadedDataSet:
    found = tuple(
        Question("gsm8k", number, f"Sum {number}? The answer is", (answer,))
        for number, answer in enumerate(answers, start=1)
    )
    return LoadedDataSet(MATH.data_sets[3], found, "0" * 64)


def number_of(prompt: Prompt) -> int:
    return int(prompt.text.split("?")[0].removeprefix("Sum "))


def asked(model: FakeWritingModel, variant: Variant = "with_tools", rank: int = 10) -> ModelVariant:
    return ModelVariant(model, model.identity, variant, rank)


def test_a_score_counts_what_is_right_with_and_without_a_call() -> None:
    # Right answers 1, 2, 3, 4. Questions 1 and 2 are asked with a call: one right, one wrong. 3 is right, 4 wrong without.
    # Question 4 tried the calculator in vain, which is no call that stands in the text.
    calls: dict[int, tuple[MadeCall, ...]] = {
        1: (made_call("Calculator", "1"),),
        2: (made_call("Calculator", "9"), made_call("Calendar", "Today")),
        3: (),
        4: (made_call("Calculator", None, "not_a_calculation"),),
    }
    texts = {1: " 1.", 2: " 9.", 3: " 3.", 4: " no idea"}
    model = FakeWritingModel(lambda prompt, _: (texts[number_of(prompt)], calls[number_of(prompt)]))
    found = evaluate_data_set(asked(model), MATH, questions("1", "2", "3", "4"))
    interval = wilson_interval(2, 4)
    assert found.score == SuiteScore(
        suite="math",
        subset="gsm8k",
        model="fake@1",
        variant="with_tools",
        call_start_rank=10,
        inputs=4,
        metric="share_correct",
        score=0.5,
        low=interval.low,
        high=interval.high,
        call_shares={"Calculator": 0.5, "Calendar": 0.25},
        inputs_with_call=2,
        score_with_call=0.5,
        score_without_call=0.5,
        seconds=found.score.seconds,
        data_sha256="0" * 64,
    )
    assert [(one.number, one.predicted, one.correct, one.has_call) for one in found.inputs] == [
        (1, "1", True, True),
        (2, "9", False, True),
        (3, "3", True, False),
        (4, "", False, False),
    ]
    assert found.inputs[0].written == " [Calculator(input) -> 1] 1."


def test_a_number_inside_a_call_is_not_the_answer() -> None:
    model = FakeWritingModel(lambda *_: (" not known", (made_call("Calculator", "7"),)))
    assert not evaluate_data_set(asked(model), MATH, questions("7")).inputs[0].correct


def test_without_calls_there_is_no_score_with_a_call() -> None:
    model = FakeWritingModel(lambda *_: (" 1", ()))
    score = evaluate_data_set(asked(model, "base", 0), MATH, questions("1", "2")).score
    assert (score.score_with_call, score.score_without_call, score.call_shares) == (None, 0.5, {})


def test_each_variant_is_asked_with_its_k_and_one_call_an_input() -> None:
    model = FakeWritingModel(lambda *_: (" 1", ()))
    evaluate_data_set(asked(model, "disabled", 0), MATH, questions("1"))
    evaluate_data_set(asked(model, "with_tools", 3), MATH, questions("1"))
    # The same room for text in both, so that calls leave the metric no more words to look at.
    assert model.settings == [
        DecodingSettings(max_new_tokens=64, call_start_rank=0, calls_per_input=1, max_call_tokens=64),
        DecodingSettings(max_new_tokens=64, call_start_rank=3, calls_per_input=1, max_call_tokens=64),
    ]


def test_barred_tools_cannot_be_called_and_need_not_be_up(tmp_path: Path) -> None:
    published.write_qa(tmp_path)
    outcome = Outcome()
    suites = load_suites(DataFolder(load_settings(), str(tmp_path)), ["qa"], None, outcome)
    model = FakeWritingModel(lambda *_: (" Patois", ()), down=["QA"])
    evaluate([Entrant(lambda: model, (("with_tools", 10),))], suites, outcome)
    assert {setting.barred_tools for setting in model.settings} == {("QA",)}
    assert outcome.failures == {}
    assert [(score.subset, score.score) for score in outcome.scores] == [
        ("webquestions", 1.0),
        ("nq_open", 0.0),
        ("triviaqa", 0.0),
    ]


def test_the_current_date_reaches_the_model(tmp_path: Path) -> None:
    published.write_temporal(tmp_path)
    outcome = Outcome()
    suites = load_suites(DataFolder(load_settings(), str(tmp_path)), ["temporal:templama"], None, outcome)
    model = FakeWritingModel(lambda *_: (" Yamaha Motor Racing.", ()))
    evaluate([Entrant(lambda: model, (("with_tools", 10),))], suites, outcome)
    assert [prompt.date for prompt in model.asked] == [datetime.date(2010, 7, 1)]
    assert outcome.scores[0].score == 1.0


def test_an_input_without_a_date_is_always_asked_on_the_same_day() -> None:
    model = FakeWritingModel(lambda *_: (" 1", ()))
    found = evaluate_data_set(asked(model), MATH, questions("1"))
    assert [prompt.date for prompt in model.asked] == [CALENDAR_DATE] == [datetime.date(2023, 2, 9)]
    assert (found.score.calendar_date, found.inputs[0].date) == (CALENDAR_DATE, CALENDAR_DATE)


def test_prompts_that_begin_alike_are_asked_next_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "QUESTIONS_AT_ONCE", 2)
    heads = (("B", "B two"), ("A", "A one"), ("B", "B one"), ("A", "A two"))
    loaded = LoadedDataSet(
        MATH.data_sets[3],
        tuple(
            Question("gsm8k", number, prompt, (str(number),), None, head)
            for number, (head, prompt) in enumerate(heads, start=1)
        ),
        "0" * 64,
    )
    texts = {prompt: str(number) for number, (_, prompt) in enumerate(heads, start=1)}
    model = FakeWritingModel(lambda prompt, _: (texts[prompt.text], ()))
    found = evaluate_data_set(asked(model), MATH, loaded)
    assert [(one.text, one.shared_head) for one in model.asked] == [
        ("A one", "A"),
        ("A two", "A"),
        ("B one", "B"),
        ("B two", "B"),
    ]
    assert [one.number for one in found.inputs] == [1, 2, 3, 4]  # and given back in the order of the data
    assert found.score.score == 1.0


def test_a_prompt_longer_than_the_window_is_wrong_and_said(caplog: pytest.LogCaptureFixture) -> None:
    model = FakeWritingModel(lambda *_: (" 1", ()), window=20)
    with caplog.at_level(logging.WARNING):
        found = evaluate_data_set(asked(model), MATH, questions("1", "1"))
    assert found.score.score == 0.0
    assert model.asked == []
    assert "2 prompts are longer than the model's window of 20 tokens" in caplog.text


@pytest.mark.parametrize(
    ("reason", "questions_asked"),
    [("tool_not_available", 1), ("tool_error", 3), ("timed_out", 3)],
)
def test_a_suite_whose_tool_is_down_has_no_score(reason: str, questions_asked: int) -> None:
    model = FakeWritingModel(lambda *_: (" 1", (made_call("Calculator", None, reason),)))
    with pytest.raises(ToolError, match=r"suite math is not scored, since Calculator is down: of \d calls"):
        evaluate_data_set(asked(model), MATH, questions(*["1"] * questions_asked))


def test_some_failing_calls_are_no_tool_that_is_down() -> None:
    def script(prompt: Prompt, _: DecodingSettings) -> tuple[str, tuple[MadeCall, ...]]:
        failed = made_call("Calculator", None, "tool_error")
        return " 1", ((made_call("Calculator", "1"),) if number_of(prompt) == 4 else (failed,))

    assert evaluate_data_set(asked(FakeWritingModel(script)), MATH, questions(*["1"] * 4)).score.inputs == 4
    two = FakeWritingModel(lambda *_: (" 1", (made_call("Calculator", None, "timed_out"),)))
    assert evaluate_data_set(asked(two), MATH, questions("1", "1")).score.inputs == 2


def test_one_suite_that_fails_keeps_no_score_and_stops_no_other(tmp_path: Path) -> None:
    published.write_all(tmp_path)
    outcome = Outcome()
    suites = load_suites(DataFolder(load_settings(), str(tmp_path)), ["lama", "qa", "perplexity"], None, outcome)
    toolformer = FakeWritingModel(lambda *_: (" Oslo", ()), "tuned@1", down=["QA"])
    base = FakeWritingModel(lambda *_: (" blue", ()), "base@1")
    entrants = [
        Entrant(lambda: toolformer, (("disabled", 0), ("with_tools", 10))),
        Entrant(lambda: base, (("base", 0),)),
    ]
    evaluate(entrants, suites, outcome)
    assert list(outcome.failures) == ["lama"]  # which may use QA; the suite qa may not
    assert "suite lama is not evaluated, since a tool is down: QA" in outcome.failures["lama"]
    assert {score.suite for score in outcome.scores} == {"qa", "perplexity"}
    assert {one.score.suite for one in outcome.evaluations} == {"qa"}


def test_a_whole_suite_goes_on_without_a_data_set_but_a_named_one_must_be_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published.write_math(tmp_path)
    (tmp_path / "svamp" / "SVAMP.json").unlink()
    folder = DataFolder(load_settings(), str(tmp_path))
    outcome = Outcome()
    (whole,) = load_suites(folder, ["math"], None, outcome)
    assert [loaded.data_set.name for loaded in whole.questions] == ["asdiv", "mawps", "gsm8k"]
    assert "suite math is evaluated without a data set. svamp: expected" in caplog.text
    (named,) = load_suites(folder, ["math:gsm8k", "math:asdiv"], None, outcome)
    assert [loaded.data_set.name for loaded in named.questions] == ["gsm8k", "asdiv"]
    assert outcome.failures == {}
    assert load_suites(folder, ["math:svamp", "qa"], None, outcome) == []
    assert set(outcome.failures) == {"math", "qa"}
    assert "webq-test.jsonl" in outcome.failures["qa"]


@pytest.mark.parametrize("name", ["maths", "math:squad", "", "perplexity:lama"])
def test_a_suite_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ParameterError, match="--suite: expected"):
        load_suites(DataFolder(load_settings(), str(tmp_path)), [name], None, Outcome())


def test_perplexity_is_of_all_texts_together_by_token_and_by_byte(tmp_path: Path) -> None:
    published.write_texts(tmp_path)
    outcome = Outcome()
    suites = load_suites(DataFolder(load_settings(), str(tmp_path)), ["perplexity:documents"], None, outcome)
    model = FakeWritingModel(lambda *_: ("", ()))
    evaluate([Entrant(lambda: model, (("disabled", 0), ("with_tools", 10)))], suites, outcome)
    by_token, by_byte = outcome.scores  # once, although k is 0 and 10
    assert (by_token.metric, by_byte.metric) == ("perplexity_by_token", "perplexity_by_byte")
    assert (by_token.variant, by_token.call_start_rank, by_token.inputs) == ("disabled", 0, 2)
    assert by_token.score == pytest.approx(math.e)  # one nat a token
    assert by_byte.score == pytest.approx(math.exp(0.5))  # two bytes a token
    assert (by_token.low, by_token.high) == pytest.approx((math.e, math.e))


def test_the_model_with_tools_is_compared_with_each_other_on_the_same_inputs() -> None:
    loaded = questions("1", "2", "3", "4")
    good = FakeWritingModel(lambda prompt, _: (f" {min(3, number_of(prompt))}", ()))  # right on 1, 2, 3
    bad = FakeWritingModel(lambda *_: (" 4", ()))  # right on 4
    evaluations = [
        evaluate_data_set(asked(good), MATH, loaded),
        evaluate_data_set(asked(bad, "base", 0), MATH, loaded),
        evaluate_data_set(asked(bad, "disabled", 0), MATH, questions("1")),  # other inputs: not compared
    ]
    (found,) = compare(evaluations)
    assert (found.suite, found.subset, found.call_start_rank, found.other, found.inputs) == (
        "math",
        "gsm8k",
        10,
        "M",
        4,
    )
    assert (found.found.only_first, found.found.only_second, found.found.difference) == (3, 1, 0.5)
    assert found.found.p_value == pytest.approx(2 * (1 + 4) / 16)
