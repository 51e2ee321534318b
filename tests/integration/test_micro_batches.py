"""Micro-batches in Postgres: what a stage that fails leaves behind, and that equal inputs are run once while batches overlap."""

import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy import text as sql

from tests.annotated_runs import AnnotatedRun
from tests.fake_language_model import StoppedError
from tests.run_sql import run_sql
from toolformer_ops.config import Settings
from toolformer_ops.errors import DatabaseError
from toolformer_ops.language_model.throughput import WORK, Cards
from toolformer_ops.records import content_uuid
from toolformer_ops.runs import micro_batches
from toolformer_ops.runs.claims import retry_failed
from toolformer_ops.runs.micro_batches import MicroBatch, work_off
from toolformer_ops.runs.run_tools import DocumentOutcome, Shard, load_run_tool, write_ledger
from toolformer_ops.stages.execution import CallInputs, ExecuteWork
from toolformer_ops.storage.history.forgetting import forget
from toolformer_ops.storage.history.retention import Uses, drop_unused
from toolformer_ops.storage.postgres import database, partitions, queries
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.tools.base import ToolOutput

DOCUMENTS = 7
ASKED = ("1 + 1", "2 + 2")


@dataclass
class CountingRunner:
    """A tool that answers everything and remembers what it was given at a time."""

    seen: list[list[str]] = field(default_factory=list)

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        self.seen.append(list(inputs))
        return [ToolOutput((f"answer to {item}",)) for item in inputs]


def write(settings: Settings) -> None:
    """Sampled documents of which each asks two things that all ask and one of its own; nothing is executed."""
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    for number in range(DOCUMENTS):
        document = run.add_text(f"text {number} has no end")
        for place, call_input in zip(("has", "no", "end"), (*ASKED, f"{number} + 0"), strict=True):
            run.add_call("Calculator", document, place, call_input, "1")
    run.complete("Calculator")
    forget_execution(run.engine)


@pytest.fixture
def engine(settings, written):
    return database.connect(settings)


def forget_execution(engine: Engine) -> None:
    run_sql(engine, "delete from stage_ledger where stage in ('execute', 'score')")
    run_sql(engine, "truncate call_results")


def written(engine: Engine) -> list[tuple[Any, ...]]:
    """Results, and the ledger of the execution."""
    done = (
        "select document_id::text, rows_written::text, counts::text from stage_ledger where stage = 'execute'"
    )
    return run_sql(
        engine, f"select input, results::text, reason from call_results union all {done} order by 1"
    )


def execution(engine: Engine, runner: CountingRunner | None = None) -> ExecuteWork:
    with database.transaction(engine) as connection:
        run = load_run_tool(connection, "run-1", "Calculator")
    chosen = runner or CountingRunner()
    return ExecuteWork(run=run, shard=Shard(), runner=lambda: chosen, time_limit_seconds=30.0)


@pytest.mark.parametrize("documents", [1, 3, DOCUMENTS])
def test_equal_inputs_are_run_once_however_micro_batches_are_cut(settings, engine, documents):
    runner = CountingRunner()
    work = execution(engine, runner)
    totals = work_off(settings.model_copy(update={"micro_batch_documents": documents}), engine, work)
    ran = [item for batch in runner.seen for item in batch]
    assert sorted(ran) == sorted({*ASKED, *(f"{number} + 0" for number in range(DOCUMENTS))})
    assert (totals["inputs"], totals["executed"], totals["from_cache"]) == (
        21,
        9,
        12,
    )  # 7 x 3, 7 + 2, the rest
    assert len(runner.seen) == -(-DOCUMENTS // documents)  # each micro-batch goes to the tool as one


def test_what_the_two_micro_batches_before_ran_is_not_run_again_though_neither_is_in_postgres(engine):
    """A micro-batch is read before the two that precede it are written."""
    runner = CountingRunner()
    work = execution(engine, runner)
    asked = [(1, "1 + 1"), (2, "2 + 2"), (3, "1 + 1")]
    batches = [
        CallInputs({uuid.UUID(int=document): [content_uuid(one)]}, {content_uuid(one): one}, answered={})
        for document, one in asked
    ]
    counts = [work.compute(batch).outcomes[0].counts for batch in batches]
    assert runner.seen == [["1 + 1"], ["2 + 2"]]
    assert [(of["executed"], of["from_cache"], of["with_result"]) for of in counts] == [
        (1, 0, 1),
        (1, 0, 1),
        (0, 1, 1),
    ]


class ReadingRunner(CountingRunner):
    """A tool that is a model: it reads a hundred tokens an input."""

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        WORK.add_tokens(100 * len(inputs), 2.0)
        return super().run(inputs)


def network_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("execute network: ")]


def test_a_stage_says_at_its_end_how_many_tokens_its_models_read_a_second(settings, engine, caplog):
    with caplog.at_level(logging.INFO, logger="toolformer_ops"):
        work_off(settings, engine, execution(engine, ReadingRunner()))
    [line] = network_lines(caplog)
    assert re.fullmatch(r"execute network: read 900 tokens, [\d,]+ tokens/s", line)


def test_a_micro_batch_has_what_its_models_read_beside_what_their_card_could_compute(
    settings, engine, monkeypatch
):
    monkeypatch.setattr(micro_batches, "cards_of", lambda _: Cards("NVIDIA H200"))
    work_off(settings, engine, execution(engine, ReadingRunner()))
    [row] = run_sql(
        engine,
        "select network_tokens, network_operations, peak_operations / network_seconds, cards from micro_batches "
        "where stage = 'execute' and network_tokens is not null",
    )
    assert row == (900, 1800.0, pytest.approx(989.5e12), "NVIDIA H200")


def test_a_micro_batch_on_a_cpu_has_no_peak(settings, engine):
    work_off(settings, engine, execution(engine, ReadingRunner()))
    rows = "select network_tokens, peak_operations, cards from micro_batches where network_tokens is not null"
    assert run_sql(engine, rows) == [(900, None, "cpu")]


def test_a_micro_batch_without_a_model_has_no_tokens(settings, engine):
    work_off(settings, engine, execution(engine))
    assert run_sql(engine, "select count(*) from micro_batches where cards is not null") == [(0,)]


def test_a_stage_without_a_model_says_nothing_of_tokens(settings, engine, caplog):
    with caplog.at_level(logging.INFO, logger="toolformer_ops"):
        work_off(settings, engine, execution(engine))
    assert network_lines(caplog) == []


def test_what_is_given_up_answers_the_inputs_alone_that_nothing_has_answered_yet(engine):
    work = execution(engine)
    known, failed, open_one = map(content_uuid, ("1 + 1", "7 / 0", "2 + 2"))
    inputs = {known: "1 + 1", failed: "7 / 0", open_one: "2 + 2"}
    asked = CallInputs(
        {uuid.UUID(int=1): [known, failed, open_one]},
        inputs,
        answered={known: None, failed: "divides_by_zero"},
    )
    given_up = work.give_up(asked, "out_of_memory")
    [row] = [row.values for row in given_up.rows]
    assert (row["input"], row["results"], row["reason"]) == ("2 + 2", [], "out_of_memory")
    counts = {name: count for name, count in given_up.outcomes[0].counts.items() if count}
    assert counts == {
        "calls": 3, "inputs": 3, "executed": 1, "from_cache": 2, "with_result": 1, "divides_by_zero": 1, "out_of_memory": 1,
    }  # fmt: skip


def compute_that_breaks(
    work: ExecuteWork, batches: int, error: type[Exception]
) -> Callable[[CallInputs], MicroBatch]:
    """After so many micro-batches it stops, or its rows are refused by Postgres."""
    done = iter(range(batches))
    compute = work.compute
    bad = {"tool": "Calculator", "tool_version": "1", "input_key": "no uuid", "input": "x", "seconds": 0.0}

    def broken(loaded: CallInputs) -> MicroBatch:
        computed = compute(loaded)
        if next(done, None) is not None:
            return computed
        if error is StoppedError:
            raise StoppedError
        return MicroBatch(
            computed.outcomes, [*computed.rows, TableRow.of("call_results", ToolOutput.of("y"), **bad)]
        )

    return broken


@pytest.mark.parametrize("error", [StoppedError, DatabaseError])
def test_a_stage_that_fails_keeps_whole_micro_batches_which_a_later_run_completes(
    settings, engine, monkeypatch, error
):
    small = settings.model_copy(update={"micro_batch_documents": 2})
    work_off(small, engine, execution(engine))
    undisturbed = written(engine)
    forget_execution(engine)

    work = execution(engine)
    monkeypatch.setattr(work, "compute", compute_that_breaks(work, 2, error))
    with pytest.raises(error):
        work_off(small, engine, work)
    # Two micro-batches of two; what was computed after the failure is not written.
    assert run_sql(engine, "select count(*) from stage_ledger where stage = 'execute'") == [(4,)]
    assert run_sql(engine, "select count(*) from micro_batch_tries") == [(0,)]
    assert set(written(engine)) < set(undisturbed)
    work_off(small, engine, execution(engine))
    assert written(engine) == undisturbed


def test_a_micro_batch_has_the_sums_of_its_documents_but_those_that_another_process_finished_first(engine):
    with database.transaction(engine) as connection:
        connection.execute(sql("delete from micro_batches"))
        run = load_run_tool(connection, "run-1", "Calculator")
        ids = connection.execute(sql("select document_id from documents order by 1")).scalars().all()
    for documents in (ids[:3], ids[1:5]):
        outcomes = [DocumentOutcome(item, 2, Counter(calls=3), 0.5) for item in documents]
        with database.transaction(engine) as connection:
            write_ledger(connection, run, "execute", outcomes)
    columns = "run_id, documents, rows_written, counts, seconds"
    assert run_sql(
        engine, f"select {columns} from micro_batches where stage = 'execute' order by batch_id"
    ) == [
        ("run-1", 3, 6, {"calls": 9}, 1.5),
        ("run-1", 2, 4, {"calls": 6}, 1.0),
    ]
    ledger = run_sql(
        engine, "select document_id, batch_id from stage_ledger where stage = 'execute' order by 1"
    )
    first, *others = (row.batch_id for row in ledger)
    assert others == [first, first, first + 1, first + 1]


def test_tables_that_have_grown_are_analysed_with_their_parents(engine):
    with database.transaction(engine) as connection:
        partitions.ensure_partition(connection, "pruned_positions", "0123456789abcdef")
        rows = "select '0123456789abcdef', gen_random_uuid(), 0, 1, 1, 0.5, 1.0 from generate_series(1, 2000)"
        connection.execute(sql(f"insert into pruned_positions {rows}"))
        connection.execute(sql("select pg_stat_force_next_flush()"))
    assert partitions.analyze_grown(engine) == ["pruned_positions_0123456789abcdef", "pruned_positions"]
    run_sql(engine, "select pg_stat_force_next_flush()")
    assert partitions.analyze_grown(engine) == []


def delete_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, deletes: Callable[[], object], before: str
) -> None:
    """Run `deletes` once, just before the first call of a method of `ExecuteWork`."""
    method = getattr(ExecuteWork, before)

    def deleted_first(*arguments: Any) -> Any:
        monkeypatch.setattr(ExecuteWork, before, method)
        deletes()
        return method(*arguments)

    monkeypatch.setattr(ExecuteWork, before, deleted_first)


def unanswered(engine: Engine) -> list[Any]:
    """Inputs of calls of executed documents that have no result."""
    return run_sql(
        engine,
        "select distinct call.effective_input from candidate_calls call "
        "join stage_ledger done using (document_id) "
        "left join call_results result using (input_key) "
        "where done.stage = 'execute' and result.input_key is null",
    )


@pytest.mark.parametrize("documents", [4, DOCUMENTS])
def test_documents_whose_results_are_deleted_meanwhile_are_executed_again(
    settings, engine, monkeypatch, documents
):
    small = settings.model_copy(update={"micro_batch_documents": documents})
    work_off(small, engine, execution(engine))
    run_sql(engine, "delete from stage_ledger where stage = 'execute'")
    results = "delete from call_results where input = '1 + 1'"
    delete_once(engine, monkeypatch, lambda: run_sql(engine, results), before="compute")
    runner = CountingRunner()
    totals = work_off(small, engine, execution(engine, runner), most_documents=documents)
    assert runner.seen == [["1 + 1"]]
    assert (totals["documents"], totals["executed"], unanswered(engine)) == (DOCUMENTS, 1, [])


def test_answers_of_a_micro_batch_that_was_dropped_are_asked_again(settings, engine, monkeypatch):
    """Of nine inputs one has a result, which is deleted before the answers to the others are written."""
    known = {"tool": "Calculator", "tool_version": "1", "input": "1 + 1", "results": ["2"], "seconds": 0.0}
    with database.transaction(engine) as connection:
        row = TableRow.of("call_results", input_key=content_uuid("1 + 1"), **known)
        database.insert_rows(connection, [row])
    delete_once(engine, monkeypatch, lambda: run_sql(engine, "truncate call_results"), before="is_current")
    runner = CountingRunner()
    totals = work_off(settings, engine, execution(engine, runner), most_documents=DOCUMENTS)
    assert [len(inputs) for inputs in runner.seen] == [8, 9]
    assert (totals["documents"], totals["executed"], unanswered(engine)) == (DOCUMENTS, 9, [])
    assert run_sql(engine, "select try_id from micro_batch_tries") == []


DELETIONS_ARE_FREE = "select pg_try_advisory_xact_lock(hashtextextended('toolformer call results', 0))"
KEEPS_ARE_FREE = DELETIONS_ARE_FREE.replace("xact_lock", "xact_lock_shared")


def answers_at(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, step: queries.Statement, question: str
) -> list[Any]:
    """What another session is told whenever a statement is about to run; filled later."""
    answers: list[Any] = []
    for name in ("execute", "fetch_all"):
        original = getattr(database, name)

        def watched(on: Any, statement: Any, /, original: Any = original, **parameters: object) -> Any:
            if statement is step:
                answers.extend(run_sql(engine, question))
            return original(on, statement, **parameters)

        monkeypatch.setattr(database, name, watched)
    return answers


def test_no_result_is_deleted_while_a_micro_batch_that_counts_on_it_is_committed(
    settings, engine, monkeypatch
):
    answers = answers_at(engine, monkeypatch, queries.undone.lacks_results, DELETIONS_ARE_FREE)
    work_off(settings, engine, execution(engine), most_documents=DOCUMENTS)
    assert answers == [(False,)]


@pytest.mark.parametrize(
    ("step", "delete"),
    [
        (("forgetting", "results"), forget),
        (("retention", "unused_results"), lambda settings: drop_unused(settings, Uses())),
        (("tries", "retry_failed"), lambda settings: retry_failed(settings, "run-1")),
    ],
    ids=["forget", "retention", "retry-failed"],
)
def test_results_are_deleted_while_no_execution_is_committed(settings, engine, monkeypatch, step, delete):
    topic, name = step
    answers = answers_at(engine, monkeypatch, getattr(queries, topic)[name], KEEPS_ARE_FREE)
    delete(settings)
    assert answers[-1:] == [(False,)]
