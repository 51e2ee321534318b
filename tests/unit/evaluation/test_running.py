"""Variants are asked as the paper says, judged without their calls, and not scored where a tool is down."""

import datetime
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.unit.evaluation import published_files as published
from tests.unit.evaluation.fake_writing_model import FakeWritingModel, made_call
from toolformer_ops.config import load_settings
from toolformer_ops.decoding.records import DecodingSettings, MadeCall, Prompt
from toolformer_ops.errors import ToolError, UsageError
from toolformer_ops.evaluation import running
from toolformer_ops.evaluation.comparing import compare
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.records import CALENDAR_DATE, Question, Variant
from toolformer_ops.evaluation.running import Evaluation, ModelVariant, evaluate_data_set
from toolformer_ops.evaluation.session import Entrant, LoadedSuites, Outcome, evaluate, load_suites
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


def says(text: str, *calls: MadeCall, **more: Any) -> FakeWritingModel:
    return FakeWritingModel(lambda *_: (text, calls), **more)


def evaluated(
    model: FakeWritingModel, asked: LoadedDataSet, variant: Variant = "with_tools", rank: int = 10
) -> Evaluation:
    return evaluate_data_set(ModelVariant(model, model.identity, variant, rank), MATH, asked)


def loaded(data: Path, outcome: Outcome, *suites: str) -> LoadedSuites:
    return load_suites(DataFolder(load_settings(), str(data)), suites, None, outcome)


def outcome_of(data: Path, suite: str, model: FakeWritingModel, *variants: tuple[Variant, int]) -> Outcome:
    """What comes of evaluating a model, as some variants, on a suite of a data folder."""
    outcome = Outcome()
    return evaluate([Entrant(lambda: model, variants)], loaded(data, outcome, suite), outcome)


def test_a_score_counts_right_answers_by_whether_a_call_was_made():
    # Right answers 1, 2, 3, 4. Questions 1 and 2 are asked with a call: one right, one wrong. 3 is right, 4
    # wrong without. Question 4 tried the calculator in vain, which is no call that stands in the text.
    scripts: dict[int, tuple[str, tuple[MadeCall, ...]]] = {
        1: (" 1.", (made_call("Calculator", "1"),)),
        2: (
            " 9.",
            (made_call("Calculator", "2"), made_call("Calendar", "Today")),
        ),  # a number in a call is no answer
        3: (" 3.", ()),
        4: (" no idea", (made_call("Calculator", None, "not_a_calculation"),)),
    }
    found = evaluated(
        FakeWritingModel(lambda prompt, _: scripts[number_of(prompt)]), questions("1", "2", "3", "4")
    )
    score, interval = found.score, wilson_interval(2, 4)
    assert (score.score, score.low, score.high, score.inputs) == (0.5, interval.low, interval.high, 4)
    assert score.call_shares == {"Calculator": 0.5, "Calendar": 0.25}
    assert (score.inputs_with_call, score.score_with_call, score.score_without_call) == (2, 0.5, 0.5)
    assert [one.predicted for one in found.inputs] == ["1", "9", "3", ""]
    assert [one.correct for one in found.inputs] == [True, False, True, False]
    assert [one.has_call for one in found.inputs] == [True, True, False, False]
    assert found.inputs[0].written == " [Calculator(input) -> 1] 1."


def test_a_score_without_any_call_has_no_share_of_calls():
    none = evaluated(says(" 1"), questions("1", "2"), "base", 0).score
    assert (none.score_with_call, none.score_without_call, none.call_shares) == (None, 0.5, {})


def test_each_variant_is_asked_with_its_own_k():
    model = says(" 1")
    evaluated(model, questions("1"), "disabled", 0)
    evaluated(model, questions("1"), "with_tools", 3)
    # The same room for text in both, so that calls leave the metric no more words to look at.
    assert model.settings == [
        DecodingSettings(max_new_tokens=64, call_start_rank=rank, calls_per_input=1, max_call_tokens=64)
        for rank in (0, 3)
    ]


def test_every_variant_is_asked_on_the_same_day():
    model = says(" 1")
    evaluated(model, questions("1"), "disabled", 0)
    found = evaluated(model, questions("1"), "with_tools", 3)
    day = datetime.date(2023, 2, 9)
    assert [prompt.date for prompt in model.asked] == [CALENDAR_DATE] * 2 == [day] * 2
    assert (found.score.calendar_date, found.inputs[0].date) == (day, day)


def test_barred_tools_cannot_be_called(tmp_path):
    model = says(" Patois", down=["QA"])  # suites of questions bar the tool that answers them
    data = published.write(tmp_path, "webquestions")
    outcome_of(data, "qa:webquestions", model, ("with_tools", 10))
    assert {setting.barred_tools for setting in model.settings} == {("QA",)}


def test_barred_tools_need_not_be_up(tmp_path):
    model = says(" Patois", down=["QA"])  # suites of questions bar the tool that answers them
    data = published.write(tmp_path, "webquestions")
    outcome = outcome_of(data, "qa:webquestions", model, ("with_tools", 10))
    assert (outcome.failures, outcome.scores[0].score) == ({}, 1.0)


def test_prompts_that_begin_alike_are_asked_next_to_each_other(monkeypatch):
    monkeypatch.setattr(running, "QUESTIONS_AT_ONCE", 2)
    heads = (("B", "B two"), ("A", "A one"), ("B", "B one"), ("A", "A two"))
    today = datetime.date(2010, 7, 1)
    texts = {prompt: str(number) for number, (_, prompt) in enumerate(heads, start=1)}
    asked = tuple(
        Question("gsm8k", int(texts[prompt]), prompt, (texts[prompt],), today, head) for head, prompt in heads
    )
    model = FakeWritingModel(lambda prompt, _: (texts[prompt.text], ()))
    found = evaluated(model, LoadedDataSet(MATH.data_sets[3], asked, "0" * 64))
    assert [(one.shared_head, one.text, one.date) for one in model.asked] == [
        (*one, today) for one in sorted(heads)
    ]
    assert [one.number for one in found.inputs] == [1, 2, 3, 4]  # and given back in the order of the data
    assert found.score.score == 1.0


def test_a_prompt_longer_than_the_window_counts_as_wrong_with_a_warning(caplog):
    model = says(" 1", window=20)
    assert evaluated(model, questions("1", "1")).score.score == 0.0
    assert model.asked == []
    assert "2 prompts are longer than the model's window of 20 tokens" in caplog.text


def test_a_suite_whose_tool_is_down_has_no_score():
    for reason, inputs, is_down in (
        ("tool_not_available", 1, True),
        ("tool_error", 3, True),
        ("timed_out", 2, False),  # too few to say so
        ("tool_error", 4, False),  # of the fourth input there is a result
    ):
        calls = [made_call("Calculator", None, reason)] * 3 + [made_call("Calculator", "1")]
        model = FakeWritingModel(lambda prompt, _, calls=calls: (" 1", (calls[number_of(prompt) - 1],)))
        with (
            pytest.raises(ToolError, match="math is not scored, since Calculator")
            if is_down
            else nullcontext()
        ):
            assert evaluated(model, questions(*["1"] * inputs)).score.inputs == inputs


def test_a_whole_suite_may_lack_a_data_set_but_a_named_one_must_be_there(tmp_path, caplog):
    published.write(tmp_path, *published.MATH)
    (tmp_path / "svamp" / "SVAMP.json").unlink()
    outcome = Outcome()
    whole = loaded(tmp_path, outcome, "math")["math"]
    assert [found.data_set.name for found in whole] == ["asdiv", "mawps", "gsm8k"]
    assert "svamp: expected" in caplog.text
    for name in ("", "math:squad"):
        with pytest.raises(UsageError, match="--suite: expected"):
            loaded(tmp_path, outcome, name)
    named = loaded(tmp_path, outcome, "math:gsm8k", "math:asdiv")["math"]
    assert [found.data_set.name for found in named] == ["gsm8k", "asdiv"]
    assert outcome.failures == {}
    assert loaded(tmp_path, outcome, "math:svamp", "qa") == {}
    assert set(outcome.failures) == {"math", "qa"}


def test_perplexity_is_of_all_texts_together_once_by_token_once_by_byte(tmp_path):
    data = published.write(tmp_path, "documents")
    outcome = outcome_of(data, "perplexity:documents", says(""), ("disabled", 0), ("with_tools", 10))
    by_token, by_byte = outcome.scores  # once, although k is 0 and 10
    assert (by_token.metric, by_byte.metric) == ("perplexity_by_token", "perplexity_by_byte")
    assert (by_token.variant, by_token.call_start_rank, by_token.inputs) == ("disabled", 0, 2)
    assert by_token.score == pytest.approx(math.e)  # one nat a token
    assert by_byte.score == pytest.approx(math.exp(0.5))  # two bytes a token
    assert (by_token.low, by_token.high) == pytest.approx((math.e, math.e))


def test_the_model_with_tools_is_compared_with_each_other_on_the_same_inputs():
    same = questions("1", "2", "3", "4")
    good = FakeWritingModel(lambda prompt, _: (f" {min(3, number_of(prompt))}", ()))  # right on 1, 2, 3
    bad = says(" 4")  # right on 4
    on_other_inputs = evaluated(bad, questions("1"), "disabled", 0)
    (found,) = compare([evaluated(good, same), evaluated(bad, same, "base", 0), on_other_inputs])
    assert (found.subset, found.call_start_rank, found.other, found.inputs) == ("gsm8k", 10, "M", 4)
    assert (found.paired.only_first, found.paired.only_second, found.paired.difference) == (3, 1, 0.5)
