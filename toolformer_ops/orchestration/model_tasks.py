"""Tasks that the annotation DAG and the finetuning DAG share: train and publish the models, evaluate them suite by suite, report.

A suite that cannot be evaluated (its data or a tool is not there) does not stop the others: the report is made of what there is,
and names what is not. The models are those that there are, so the suites wait for the baseline where one was asked for.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink, TaskGroup, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from toolformer_ops.orchestration.defaults import CPU_POOL, GPU_POOL, RUN_ID, TIME_LIMITS
from toolformer_ops.orchestration.local_process import StageProcess
from toolformer_ops.orchestration.report_plugin import ReportLink
from toolformer_ops.orchestration.run_outcome import SUCCESS, task_states
from toolformer_ops.orchestration.stage_tasks import stage
from toolformer_ops.runs.choices import SUITES

if TYPE_CHECKING:
    from airflow.sdk import Context

WITHOUT_CALLS = ("--run", RUN_ID, "--without-calls")


class ReportEvaluation(StageProcess):
    """Makes the page of what was evaluated, and links it; skipped where nothing was.

    Args:
        suites: ids of the tasks that evaluate.
    """

    operator_extra_links: Collection[BaseOperatorLink] = (ReportLink(),)

    def __init__(self, *, suites: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.suites = list(suites)

    def execute(self, context: "Context") -> Any:
        """Run the stage; returns the page's address on S3.

        Raises:
            AirflowSkipException: no suite was evaluated.
        """
        states = task_states(context)
        if not any(states.get(suite) == SUCCESS for suite in self.suites):
            raise AirflowSkipException("no suite was evaluated: there is nothing to report.")
        return super().execute(context)


def model_tasks(
    after: BaseOperator,
    *,
    only_where: Mapping[str, Any] | None = None,
    before: Callable[["Context"], None] | None = None,
) -> tuple[BaseOperator, BaseOperator]:
    """Train and publish the model, and then the baseline where it is asked for; the tasks that publish the two.

    One after the other: each training takes all GPUs of its machine. `before` may skip the training, and so all that follows.
    """
    finetune = stage("finetune", pool=GPU_POOL, only_where=only_where, before=before)
    publish = stage("publish")
    baseline = stage(
        "finetune",
        task_id="finetune_without_calls",
        arguments=WITHOUT_CALLS,
        pool=GPU_POOL,
        only_where={"finetune_baseline": True},
    )
    publish_baseline = stage("publish", task_id="publish_without_calls", arguments=WITHOUT_CALLS)
    after >> finetune >> publish >> baseline >> publish_baseline
    return publish, publish_baseline


def evaluation_group(models: Sequence[BaseOperator]) -> ReportEvaluation:
    """One task a suite behind the tasks that publish `models`, and the report behind all of them, which is returned."""
    with TaskGroup("evaluation", tooltip="The paper's evaluations, and the page of their scores"):
        suites = [
            stage(
                "evaluate",
                task_id=suite,
                arguments=("--run", RUN_ID, "--suite", suite),
                pool=GPU_POOL,
                only_where={"evaluation_suites": suite},
                trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,  # a baseline that was not asked for is skipped
            )
            for suite in SUITES
        ]
        report = ReportEvaluation(
            task_id="report",
            arguments=["stage", "report-evaluation", "--run", RUN_ID],
            suites=[suite.task_id for suite in suites],
            returns_result=True,
            pool=CPU_POOL,
            execution_timeout=TIME_LIMITS["report-evaluation"],
            trigger_rule=TriggerRule.ALL_DONE,
        )
    for suite in suites:
        suite.set_upstream(list(models))
        suite >> report
    return report
