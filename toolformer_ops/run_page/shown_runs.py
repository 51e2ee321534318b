"""The run that is shown, from `annotation_runs`; or the reason why there is none."""

import datetime
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from toolformer_ops.airflow_tasks.run_ids import KEEPS_PARAMETERS, dag_of, dag_run_of, is_ours
from toolformer_ops.errors import NoSuchRunError
from toolformer_ops.run_page.reading import Counted, Reader
from toolformer_ops.run_page.rights import AskedRun
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import fetch_all

SECONDS_WHILE_RUNNING = 4.0
"""How long an answer about a run that works holds; that of a finished run holds longer, since its numbers are
stored."""
SECONDS_WHEN_FINISHED = 60.0


@dataclass(frozen=True)
class RunTool:
    """A tool of a run, with the keys of its rows."""

    tool: str
    keep_threshold: float
    prune_below: float
    reads_record: bool
    sampling_recipe_id: str
    execution_recipe_id: str
    scoring_recipe_id: str
    tool_version: str
    placebo_recipe_id: str | None
    """None if the run asks for no placebos, or none were drawn yet."""
    keep_rule: str
    """In whose unit the two numbers above are."""


@dataclass(frozen=True)
class ShownRun:
    """A run that the visitor may see."""

    run_id: str
    dag_id: str
    dag_run_id: str
    """Airflow's id."""
    state: str
    """running, success or failed."""
    corpus_id: str
    corpus_uri: str
    corpus_version: int
    ordinal_limit: int | None
    schedule: str | None
    model_identity: str | None
    proposer_identity: str | None
    """None: the language model proposed its calls itself."""
    code_version: str | None
    image: str | None
    parameters: dict[str, Any]
    estimate: dict[str, Any] | None
    started_at: datetime.datetime
    finished_at: datetime.datetime | None
    problem: str | None
    """Which tasks failed, or how the run was ended; None for a success, and before the end."""
    has_stored_numbers: bool
    """Whether its numbers are stored, and no repair is under way."""
    tools: tuple[RunTool, ...]
    """Empty for a run that only finetunes."""

    @property
    def address(self) -> dict[str, str]:
        """The ids that every link to a view of this run has."""
        return {"dag_id": self.dag_id, "run_id": self.dag_run_id}

    @property
    def seconds_to_keep(self) -> float:
        """How long an answer about it holds."""
        return SECONDS_WHEN_FINISHED if self.has_stored_numbers else SECONDS_WHILE_RUNNING

    def tool(self, name: str) -> RunTool | None:
        """The tool of this name."""
        return next((tool for tool in self.tools if tool.tool == name), None)


def load_run(connection: Connection, run_address: AskedRun) -> ShownRun:
    """The run that was asked for.

    Raises:
        NoSuchRunError: there is none, or it belongs to another DAG.
    """
    if not is_ours(run_address.dag_id):
        raise NoSuchRunError(
            f"The DAG {run_address.dag_id} annotates nothing, so that its runs have no such page."
        )
    run = find_run(connection, run_address.run_id, (run_address.dag_id,))
    if run is None:
        for ended in fetch_all(connection, queries.runs.not_started, run_id=run_address.run_id, at_most=1):
            raise NoSuchRunError(
                f"The run {run_address.dag_run_id} never started; {ended.problem} {KEEPS_PARAMETERS}",
                title="This run never started",
            )
        raise NoSuchRunError(
            f"{run_address.dag_id} has no run {run_address.dag_run_id} in the database of annotations. "
            "A run gets there by its task start_run; this page looks again by itself. "
            "If a task before is red, it is below, with its reason.",
            title="This run has not started",
            dag_run=(run_address.dag_id, run_address.dag_run_id),
        )
    return run


def find_run(connection: Connection, run_id: str, dag_ids: Collection[str]) -> ShownRun | None:
    """The annotation run of this id, if it belongs to one of these DAGs."""
    for row in fetch_all(connection, queries.page.run, run_id=run_id):
        dag_id = dag_of(row.schedule, annotates=bool(row.tools))
        if dag_id in dag_ids:
            fields = {**row._mapping, "tools": tuple(RunTool(**tool) for tool in row.tools)}
            return ShownRun(**fields, dag_id=dag_id, dag_run_id=dag_run_of(run_id, dag_id))
    return None


def numbers_of(
    reader: Reader,
    connection: Connection,
    run: ShownRun,
    name: str,
    count: Callable[[Connection, ShownRun], Any],
) -> Counted | None:
    """What `count` reads of a run, now if its numbers are stored.

    Otherwise it is the newest count of this name, or None: `Reader.counted`.
    """
    if run.has_stored_numbers:
        return Counted(count(connection, run), time.time(), 0.0)
    return reader.counted((name, run.run_id), lambda connection: count(connection, run))
