"""Whether what a trigger form holds can become a run, by DAG; and which of its tasks nobody asked for."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from toolformer_ops.config import load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.orchestration.model_tasks import MODEL_TASKS, PUBLISHED_BY, not_asked_for
from toolformer_ops.orchestration.run_ids import ANNOTATE, FINETUNE, NIGHTLY
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.requests import require_annotation, require_finetuning, require_known_fields, require_there
from toolformer_ops.tools.registry import tool_names

if TYPE_CHECKING:
    from airflow.sdk import Context

FIELDS = {"ingest_corpus": ("corpus", "accept_shrink"), "build_wiki_index": ("source",)}
"""By DAG without choices, the fields of its form; the first holds an address."""


def check_request(dag_id: str, sent: Mapping[str, Any]) -> RunChoices | None:
    """The choices of a run of this DAG, if it can start; None for a DAG that makes no choices.

    Raises:
        UsageError: it cannot; the message says what was expected, what was found, and the remedy.
    """
    settings = load_settings()
    if dag_id == ANNOTATE or dag_id.startswith(NIGHTLY):
        return require_annotation(settings, sent)
    if dag_id == FINETUNE:
        return require_finetuning(settings, sent)
    if dag_id in FIELDS:
        address, *_ = FIELDS[dag_id]
        require_known_fields(sent, FIELDS[dag_id])
        require_there(settings, str(sent[address]), address)
    return None


def check_before_first_task(context: "Context") -> None:
    """Check what the run was given once more, in its first task: not every run was made where the policy could refuse it.

    Raises:
        AirflowFailException: the run cannot start, however often it is tried.
    """
    try:
        check_request(context["dag"].dag_id, context["params"])
    except UsageError as error:
        raise AirflowFailException(str(error)) from error


def tasks_left_out(task_ids: Iterable[str], choices: RunChoices) -> list[str]:
    """Of the tasks of a DAG, those that a run with these choices does not need: of other tools, of models, of suites."""
    groups = {tool for tool in tool_names() if tool not in choices.tools}
    tasks = set(not_asked_for(choices) if choices.finetune else MODEL_TASKS)
    tasks |= {PUBLISHED_BY[task] for task in tasks if task in PUBLISHED_BY}
    return [task for task in task_ids if task in tasks or task.partition(".")[0] in groups]
