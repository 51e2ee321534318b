"""Micro-batches in Postgres: what a stage that fails leaves behind, and that equal inputs are run once while batches overlap."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy import text as sql

from tests.annotated_runs import AnnotatedRun
from toolformer_ops.config import Settings
from toolformer_ops.errors import DatabaseError
from toolformer_ops.runs.micro_batches import MicroBatch, Shard, load_run_tool, work_off
from toolformer_ops.stages.execution import Asked, CallResultRow, ExecuteWork
from toolformer_ops.storage import database
from toolformer_ops.tools.base import ToolOutput

DOCUMENTS = 7
ASKED = ("1 + 1", "2 + 2")
A_RESULT = CallResultRow(
    tool="Calculator", tool_version="1", input_key=uuid.UUID(int=1), input="x", results=["y"], reason=None, seconds=0.0
)


class StoppedError(Exception):
    """Raised in place of a kill."""


@dataclass
class CountingRunner:
    """A tool that answers everything and remembers what it was given at a time."""

    seen: list[list[str]] = field(default_factory=list)

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        self.seen.append(list(inputs))
        return [ToolOutput((f"answer to {item}",)) for item in inputs]


@pytest.fixture
def engine(settings: Settings) -> Engine:
    """Sampled documents of which each asks two things that all ask and one of its own; nothing is executed."""
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    for number in range(DOCUMENTS):
        document = run.add_text(f"text {number} has no end")
        for place, call_input in zip(("has", "no", "end"), (*ASKED, f"{number} + 0"), strict=True):
            run.add_call("Calculator", document, place, call_input, "1")
    run.complete("Calculator")
    forget_execution(run.engine)
    return run.engine


def forget_execution(engine: Engine) -> None:
    with database.transaction(engine) as connection:
        connection.execute(sql("delete from stage_ledger where stage in ('execute', 'score')"))
        connection.execute(sql("truncate call_results"))


def execution(engine: Engine, runner: CountingRunner | None = None) -> ExecuteWork:
    with database.transaction(engine) as connection:
        run = load_run_tool(connection, "run-1", "Calculator")
    chosen = runner or CountingRunner()
    return ExecuteWork(run=run, shard=Shard(), runner=lambda: chosen, time_limit_seconds=30.0)


def rows(engine: Engine) -> list[tuple[Any, ...]]:
    with database.transaction(engine) as connection:
        results = connection.execute(sql("select input, results::text, reason from call_results order by 1"))
        ledger = connection.execute(
            sql("select document_id, rows_written, counts::text from stage_ledger where stage = 'execute' order by 1")
        )
        return [tuple(row) for row in (*results, *ledger)]


def documents_done(engine: Engine) -> int:
    with database.transaction(engine) as connection:
        done: int = connection.execute(sql("select count(*) from stage_ledger where stage = 'execute'")).scalar_one()
        return done


@pytest.mark.parametrize("documents", [1, 2, 3, DOCUMENTS])
def test_equal_inputs_are_run_once_however_micro_batches_are_cut(
    settings: Settings, engine: Engine, documents: int
) -> None:
    runner = CountingRunner()
    work = execution(engine, runner)
    totals = work_off(settings.model_copy(update={"micro_batch_documents": documents}), engine, work)
    ran = [item for batch in runner.seen for item in batch]
    assert sorted(ran) == sorted({*ASKED, *(f"{number} + 0" for number in range(DOCUMENTS))})
    assert (totals["inputs"], totals["executed"], totals["from_cache"]) == (21, 9, 12)  # 7 x 3, 7 + 2, the rest
    assert len(runner.seen) == -(-DOCUMENTS // documents)  # each micro-batch goes to the tool as one


def compute_that_stops(work: ExecuteWork, batches: int) -> Callable[[Asked], MicroBatch]:
    done = iter(range(batches))
    compute = work.compute

    def stop(loaded: Asked) -> MicroBatch:
        if next(done, None) is None:
            raise StoppedError
        return compute(loaded)

    return stop


def compute_whose_rows_are_refused(work: ExecuteWork, batches: int) -> Callable[[Asked], MicroBatch]:
    done = iter(range(batches))
    compute = work.compute

    def refused(loaded: Asked) -> MicroBatch:
        computed = compute(loaded)
        if next(done, None) is not None:
            return computed
        row = replace(A_RESULT, input_key="no uuid")
        return MicroBatch(computed.outcomes, [*computed.rows, row])

    return refused


@pytest.mark.parametrize(
    ("broken", "error"), [(compute_that_stops, StoppedError), (compute_whose_rows_are_refused, DatabaseError)]
)
def test_a_stage_that_fails_keeps_whole_micro_batches_and_run_again_gives_the_rows_of_an_undisturbed_one(
    settings: Settings,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[ExecuteWork, int], Callable[[Asked], MicroBatch]],
    error: type[Exception],
) -> None:
    small = settings.model_copy(update={"micro_batch_documents": 2})
    work_off(small, engine, execution(engine))
    undisturbed = rows(engine)
    forget_execution(engine)

    work = execution(engine)
    monkeypatch.setattr(work, "compute", broken(work, 2))
    with pytest.raises(error):
        work_off(small, engine, work)
    assert documents_done(engine) == 4  # two micro-batches of two; what was computed after the failure is not written
    assert set(rows(engine)) < set(undisturbed)
    work_off(small, engine, execution(engine))
    assert rows(engine) == undisturbed


def test_the_end_says_what_share_of_the_time_the_database_took(
    settings: Settings, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        work_off(settings.model_copy(update={"micro_batch_documents": 3}), engine, execution(engine))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(", ")[0] for line in lines if " of 7 documents" in line] == [
        "execute: 3 of 7 documents",
        "execute: 6 of 7 documents",
        "execute: 7 of 7 documents",
    ]
    assert any(line.startswith("execute feeding: computed") and "% of the time" in line for line in lines)
