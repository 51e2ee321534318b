"""The graph of `finetune_release`: order, what is skipped, what a failing suite holds up, and what the first stage is given."""

import datetime as dt
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import TriggerRule
from airflow.sdk.exceptions import AirflowSkipException, ParamValidationError
from jinja2 import Environment

from tests.dags.test_forms import validated
from toolformer_ops.airflow_tasks.approval import APPROVALS
from toolformer_ops.airflow_tasks.model_tasks import SUITES, ReportEvaluation, not_asked_for
from toolformer_ops.runs.choices import RunChoices

RELEASE = "0123456789abcdef"


@pytest.fixture
def dag(local_dags):
    return local_dags["finetune_release"]


def test_a_release_goes_through_its_stages_in_this_order(dag):
    tasks = dag.task_dict
    start, suites, yes = (
        "start_finetuning",
        {f"evaluation.{suite}" for suite in SUITES},
        {*APPROVALS.values()},
    )
    behind = {
        start: set(),
        "approve_finetuning": {start},
        "finetune": {start, "approve_finetuning"},
        "approve_publishing": {start, "finetune"},
        "publish": {"finetune", "approve_publishing"},
        # Behind the first model, since each training takes all GPUs of a machine; and behind the task that
        # may skip it.
        "finetune_without_calls": {"publish", start},
        "publish_without_calls": {"finetune_without_calls"},
        **{suite: {start, "publish", "publish_without_calls", *yes} for suite in suites},
        "evaluation.report": {start, *suites, *yes},
        "finish_run": {"evaluation.report", "publish", "publish_without_calls"},
    }
    assert {name: task.upstream_task_ids for name, task in tasks.items()} == behind


def test_the_baseline_has_the_arguments_of_the_model(dag):
    tasks = dag.task_dict
    for stage in ("finetune", "publish"):
        assert tasks[f"{stage}_without_calls"].arguments == [*tasks[stage].arguments, "--without-calls"]


def test_suites_wait_for_no_baseline_that_was_not_asked_for(dag):
    tasks = dag.task_dict
    suites = {f"evaluation.{suite}" for suite in SUITES}
    for suite in suites:
        assert (tasks[suite].trigger_rule, tasks[suite].pool) == (
            TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
            "gpu",
        )


def test_the_report_comes_whatever_the_stages_before_end_with(dag):
    tasks = dag.task_dict
    assert tasks["evaluation.report"].trigger_rule == tasks["finish_run"].trigger_rule == TriggerRule.ALL_DONE


def test_what_the_form_does_not_ask_for_is_skipped_with_the_reason(dag):
    suites = {f"evaluation.{suite}" for suite in SUITES}
    for baseline, asked, expected in (
        (True, list(SUITES), set()),
        (False, list(SUITES), {"finetune_without_calls"}),
        (True, ["math"], suites - {"evaluation.math"}),
        (True, None, {"evaluation.report", *suites}),
    ):
        chosen = {"finetune_baseline": baseline, "evaluation_suites": asked, "evaluation_data": "data"}
        reasons = not_asked_for(RunChoices.parse({**chosen, "corpus": "-", "model": "-"}))
        assert set(reasons) == expected | set(APPROVALS.values())
        assert (
            set(reasons) <= dag.task_dict["start_finetuning"].downstream_task_ids
        )  # the scheduler skips no others


def report(states: dict[str, str]) -> Any:
    """What the task that reports does where the suites ended so."""
    uri = '{"uri": "s3://toolformer/reports/r/index.html"}'
    task = ReportEvaluation(
        task_id="report", suites=["evaluation.math", "evaluation.lama"], arguments=[], returns_result=True,
        command=[sys.executable, "-c", f"print({uri!r})"],
    )  # fmt: skip
    instance = SimpleNamespace(dag_id="d", run_id="r", get_task_states=lambda dag_id, run_ids: {"r": states})
    return task.execute({"ti": instance, "params": {}, "outlet_events": {}})  # type: ignore[arg-type]


def test_a_report_needs_one_suite_at_least():
    found = report({"evaluation.math": "success", "evaluation.lama": "failed"})
    assert found == {"uri": "s3://toolformer/reports/r/index.html"}
    with pytest.raises(AirflowSkipException, match="no suite was evaluated"):
        report({"evaluation.math": "skipped", "evaluation.lama": "failed"})


def test_the_form_asks_for_a_release(dag):
    with pytest.raises(ParamValidationError, match="release"):
        validated(dag)
    for wrong in (
        "",
        "0" * 2001,
        16,
        None,
    ):  # any other text that is no release's id start-finetuning refuses by name
        with pytest.raises(ParamValidationError):
            validated(dag, release=wrong)


def test_the_first_stage_gets_the_rest_of_the_form_as_json(dag):
    values = validated(
        dag, release=RELEASE, finetune_steps=7, finetune_checkpoint_steps=9
    )  # the last is not in the form
    named = {
        "params": values,
        "dag": SimpleNamespace(dag_id="finetune_release"),
        "run_id": "r",
        "dag_run": SimpleNamespace(run_after=dt.datetime(2026, 11, 26, 2, tzinfo=dt.UTC)),
    }
    template = Environment(autoescape=True)
    rendered = [
        template.from_string(item).render(**named) for item in dag.task_dict["start_finetuning"].arguments
    ]
    assert rendered[:7] == ["stage", "start-finetuning", "--run", "r", "--release", RELEASE, "--parameters"]
    assert json.loads(rendered[7]) == {name: value for name, value in values.items() if name != "release"}
    assert rendered[8:] == ["--dag-run", "finetune_release@2026-11-26T02:00:00+00:00"]
