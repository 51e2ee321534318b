"""Tasks that the annotation DAG and the finetuning DAG share: train and publish the models, evaluate them suite by suite, report.

A suite that cannot be evaluated (its data or a tool is not there) does not stop the others: the report is
made of what exists, and names what is missing. The suites take the models that exist, so they wait for the
baseline if one was asked for.
"""

from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink, Context, TaskGroup, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.types import TaskInstanceKey

from toolformer_ops.airflow_tasks.approval import APPROVALS, AskForApproval
from toolformer_ops.airflow_tasks.defaults import CPU_POOL, GPU_POOL, TIME_LIMITS
from toolformer_ops.airflow_tasks.local_process import StageProcess
from toolformer_ops.airflow_tasks.run_ends.run_outcome import SUCCESS, choices_of, task_states
from toolformer_ops.airflow_tasks.run_ids import RUN_ID
from toolformer_ops.airflow_tasks.stage_tasks import FINETUNE, stage
from toolformer_ops.config import load_settings
from toolformer_ops.runs.choices import SUITES, RunChoices

BASELINE = "finetune_without_calls"
EVALUATION = "evaluation"
REPORT = "report"
MODEL_TASKS = (
    *APPROVALS.values(),
    FINETUNE,
    BASELINE,
    *(f"{EVALUATION}.{name}" for name in (*SUITES, REPORT)),
)
"""The tasks that a run without a finetuning does not need; those that publish are skipped with those before
them."""
MIN_ONE_SUCCESS = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
"""The rule of tasks after some that may be skipped."""
WITHOUT_CALLS = ("--run", RUN_ID, "--without-calls")


class ReportLink(BaseOperatorLink):
    """A button on the task that made a run's evaluation report.

    The page in the Airflow UI serves it (`run_page/evaluation.py`).
    """

    name = "Evaluation report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The report's address; holds no secret."""
        path = f"/toolformer/reports/{quote(ti_key.dag_id, safe='')}/{quote(ti_key.run_id, safe='')}"
        return f"{load_settings().airflow_url.rstrip('/')}{path}"


class ReportEvaluation(StageProcess):
    """Makes the page of what the tasks `suites` evaluated, and links it; skipped if nothing was."""

    operator_extra_links: Collection[BaseOperatorLink] = (ReportLink(),)

    def __init__(self, *, suites: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.suites = list(suites)

    def execute(self, context: Context) -> Any:
        """Run the stage; returns the page's address on S3.

        Raises:
            AirflowSkipException: no suite was evaluated.
        """
        states = task_states(context)
        if not any(states.get(suite) == SUCCESS for suite in self.suites):
            raise AirflowSkipException("no suite was evaluated: there is nothing to report.")
        return super().execute(context)


def not_asked_for(choices: RunChoices) -> dict[str, str]:
    """What was not asked for, by task with the reason: approvals, the baseline, suites, and the report if no suite is named."""
    reasons = {}
    for step, task in APPROVALS.items():
        if step != choices.approve:
            reasons[task] = f"not asked for: approve is {choices.approve}"
    if not choices.finetune_baseline:
        reasons[BASELINE] = "not asked for: finetune_baseline is false"
    for suite in SUITES:
        if suite not in choices.evaluation_suites:
            reasons[f"{EVALUATION}.{suite}"] = f"not asked for: evaluation_suites does not name {suite}"
    if not choices.evaluation_suites:
        reasons[f"{EVALUATION}.{REPORT}"] = "not asked for: evaluation_suites is empty"
    return reasons


def not_needed_on_release(context: Context, _: object) -> dict[str, str]:
    """The tasks of a run on a release that were not asked for, with the reasons."""
    return not_asked_for(choices_of(context))


def model_tasks(after: BaseOperator, *, chosen_by: BaseOperator) -> tuple[list[BaseOperator], BaseOperator]:
    """Train, publish and evaluate the model, and the baseline if it is asked for.

    It returns the tasks that publish the two, with that of the report. One after the other: each training
    takes all GPUs of its machine. `chosen_by` may skip the baseline, or both, and suites that were not asked
    for; a person who is asked and says no skips what follows.
    """
    # 1. The models.
    yes, yes_to_publish = (AskForApproval(step=step, trigger_rule=MIN_ONE_SUCCESS) for step in APPROVALS)
    # What is after `chosen_by` may be skipped, such as the check of a release that was checked before.
    finetune = stage(FINETUNE, pool=GPU_POOL, trigger_rule=MIN_ONE_SUCCESS)
    publish = stage("publish", trigger_rule=MIN_ONE_SUCCESS)
    baseline = stage(
        FINETUNE,
        task_id=BASELINE,
        arguments=WITHOUT_CALLS,
        pool=GPU_POOL,
    )
    publish_baseline = stage("publish", task_id="publish_without_calls", arguments=WITHOUT_CALLS)
    after >> yes >> finetune >> yes_to_publish >> publish >> baseline >> publish_baseline
    after >> finetune >> publish
    chosen_by >> [yes_to_publish, baseline]
    if after is not chosen_by:
        chosen_by >> [yes, finetune]
    # 2. A task for each suite after those that publish, and the report after all suites.
    with TaskGroup(EVALUATION, tooltip="The paper's evaluations, and the page of their scores"):
        suites = [
            stage(
                "evaluate",
                task_id=suite,
                arguments=("--run", RUN_ID, "--suite", suite),
                pool=GPU_POOL,
                trigger_rule=MIN_ONE_SUCCESS,  # a baseline that was not asked for is skipped
            )
            for suite in SUITES
        ]
        report = ReportEvaluation(
            task_id=REPORT,
            arguments=["stage", "report-evaluation", "--run", RUN_ID],
            suites=[suite.task_id for suite in suites],
            returns_result=True,
            pool=CPU_POOL,
            execution_timeout=TIME_LIMITS["report-evaluation"],
            trigger_rule=TriggerRule.ALL_DONE,
        )
    published, may_skip = [publish, publish_baseline], [chosen_by, yes, yes_to_publish]
    for suite in suites:
        [*published, *may_skip] >> suite >> report
    may_skip >> report
    return published, report
