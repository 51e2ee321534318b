"""The graph of `finetune_release`: order, what is skipped, what a failing suite holds up, and what the first stage is given."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException, ParamValidationError
from jinja2 import Environment

from tests.dags.test_forms import validated
from toolformer_ops.airflow_tasks.approval import APPROVALS
from toolformer_ops.airflow_tasks.model_tasks import SUITES, ReportEvaluation, not_asked_for
from toolformer_ops.airflow_tasks.run_ids import RUN_ID
from toolformer_ops.runs.choices import RunChoices

RELEASE = "0123456789abcdef"


@pytest.fixture
def dag(local_dags: dict[str, DAG]) -> DAG:
    return local_dags["finetune_release"]


def test_a_release_is_finetuned_published_evaluated_and_reported_in_this_order(dag: DAG) -> None:
    tasks = dag.task_dict
    assert tasks["start_finetuning"].upstream_task_ids == set()
    assert tasks["approve_finetuning"].upstream_task_ids == {"start_finetuning"}
    assert tasks["finetune"].upstream_task_ids == {"start_finetuning", "approve_finetuning"}
    assert tasks["approve_publishing"].upstream_task_ids == {"start_finetuning", "finetune"}
    assert tasks["publish"].upstream_task_ids == {"finetune", "approve_publishing"}
    for suite in SUITES:
        assert tasks[f"evaluation.{suite}"].upstream_task_ids == {
            "start_finetuning",
            "publish",
            "publish_without_calls",
            *APPROVALS.values(),
        }
        assert tasks[f"evaluation.{suite}"].arguments == [
            "stage",
            "evaluate",
            "--run",
            RUN_ID,
            "--suite",
            suite,
        ]
    suites = {f"evaluation.{suite}" for suite in SUITES}
    assert tasks["evaluation.report"].upstream_task_ids == {"start_finetuning", *suites, *APPROVALS.values()}
    assert tasks["finish_run"].upstream_task_ids == {"evaluation.report", "publish", "publish_without_calls"}
    assert [task.task_id for task in dag.leaves] == ["finish_run"]


def test_the_baseline_is_the_same_commands_without_calls_and_only_where_asked_for(dag: DAG) -> None:
    tasks = dag.task_dict
    for stage in ("finetune", "publish"):
        assert tasks[f"{stage}_without_calls"].arguments == [*tasks[stage].arguments, "--without-calls"]
    # Behind the first model, since each training takes all GPUs of a machine; and behind the task that may skip it.
    assert tasks["finetune_without_calls"].upstream_task_ids == {"publish", "start_finetuning"}
    assert tasks["publish_without_calls"].upstream_task_ids == {"finetune_without_calls"}


def test_suites_stand_beside_each_other_and_wait_for_no_baseline_that_was_not_asked_for(dag: DAG) -> None:
    for suite in SUITES:
        task = dag.task_dict[f"evaluation.{suite}"]
        assert task.trigger_rule == TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
        assert task.pool == "gpu"
        assert task.downstream_task_ids == {"evaluation.report"}
    assert dag.task_dict["evaluation.report"].trigger_rule == TriggerRule.ALL_DONE
    assert dag.task_dict["finish_run"].trigger_rule == TriggerRule.ALL_DONE


@pytest.mark.parametrize(
    ("baseline", "suites", "expected"),
    [
        (True, list(SUITES), set()),
        (False, list(SUITES), {"finetune_without_calls"}),
        (True, ["math"], {f"evaluation.{suite}" for suite in SUITES if suite != "math"}),
        (True, None, {"evaluation.report", *(f"evaluation.{suite}" for suite in SUITES)}),
    ],
)
def test_what_the_form_does_not_ask_for_is_skipped_with_the_reason(
    dag: DAG, baseline: bool, suites: list[str] | None, expected: set[str]
) -> None:
    asked = {"finetune_baseline": baseline, "evaluation_suites": suites, "evaluation_data": "data"}
    reasons = not_asked_for(RunChoices.parse({**asked, "corpus": "-", "model": "-"}))
    assert set(reasons) == expected | set(APPROVALS.values())
    assert all(reason.startswith("not asked for: ") for reason in reasons.values())
    assert set(reasons) <= dag.task_dict["start_finetuning"].downstream_task_ids  # the scheduler skips no others


def report(states: dict[str, str]) -> Any:
    """What the task that reports does where the suites ended so."""
    uri = '{"uri": "s3://toolformer/reports/r/index.html"}'
    task = ReportEvaluation(
        task_id="report", suites=["evaluation.math", "evaluation.lama"], arguments=[], returns_result=True,
        command=[sys.executable, "-c", f"print({uri!r})"],
    )  # fmt: skip
    instance = SimpleNamespace(dag_id="d", run_id="r", get_task_states=lambda dag_id, run_ids: {"r": states})
    return task.execute({"ti": instance, "params": {}, "outlet_events": {}})  # type: ignore[arg-type]


def test_one_suite_is_enough_for_a_report_and_none_is_none() -> None:
    found = report({"evaluation.math": "success", "evaluation.lama": "failed"})
    assert found == {"uri": "s3://toolformer/reports/r/index.html"}
    with pytest.raises(AirflowSkipException, match="no suite was evaluated"):
        report({"evaluation.math": "skipped", "evaluation.lama": "failed"})


def test_the_form_asks_for_a_release_and_offers_what_can_be_chosen_anew(dag: DAG) -> None:
    chosen = {"approve", "finetune_steps", "finetune_batch", "finetune_learning_rate", "finetune_baseline"}
    assert set(dag.params) == {"release", "evaluation_suites", "evaluation_data", "evaluation_inputs"} | chosen
    with pytest.raises(ParamValidationError, match="release"):
        validated(dag)
    for wrong in ("", "0" * 2001, 16, None):  # any other text that is no release's id start-finetuning refuses by name
        with pytest.raises(ParamValidationError):
            validated(dag, release=wrong)
    assert validated(dag, release=RELEASE)["finetune_steps"] == 2000


def test_the_first_stage_gets_the_form_without_the_release_as_json(dag: DAG) -> None:
    values = validated(dag, release=RELEASE, finetune_steps=7, finetune_baseline=True, finetune_warmup=0.2)
    arguments = dag.task_dict["start_finetuning"].arguments
    rendered = [
        Environment(autoescape=True)
        .from_string(argument)
        .render(params=values, dag=SimpleNamespace(dag_id="finetune_release"), run_id="r")
        for argument in arguments
    ]
    assert rendered[:7] == ["stage", "start-finetuning", "--run", "r", "--release", RELEASE, "--parameters"]
    given = json.loads(rendered[7])
    assert given == {name: value for name, value in values.items() if name != "release"}
    assert (given["finetune_steps"], given["finetune_warmup"]) == (7, 0.2)  # the second is not in the form
