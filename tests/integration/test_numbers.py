"""The numbers of a finished run: stored once, the same as the views compute, and untouched by what comes later."""

import math
import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests.run_sql import run_sql
from tests.written_nights import URI, Nights, Record, Tool, draw
from toolformer_ops.config import Settings
from toolformer_ops.runs.claims import retry_failed
from toolformer_ops.runs.numbers import count_kept, store_numbers, what_to_count
from toolformer_ops.runs.placebo_rates import store_rates
from toolformer_ops.runs.run_tools import load_run_tool
from toolformer_ops.storage.history import forgetting
from toolformer_ops.storage.postgres import database, queries

CALCULATOR = Tool("Calculator")
TOOLS = (CALCULATOR, Tool("Calendar", reads_record=True))
VIEWS = {
    "threshold_counts": "tool, threshold, is_keep_threshold, calls, texts, releasable_calls, placebos, placebos_scored, "
    "false_discovery_rate, rate_low, rate_high",
    "gain_histogram": "tool, bucket, at_least, calls, texts, releasable_calls, placebos",
    "annotation_progress": "tool, step, stage, done, total",
    "yield_by_stage": "tool, step, stage, reason, is_loss, count, documents",
    "run_work": "tool, step, stage, documents, documents_reused, micro_batches, rows_written, seconds",
}
COUNTED = {
    "placebo_counts": "tool, threshold, placebos, calls, documents",
    "checked_yields": "tool, judged_calls, kept_calls, kept_texts, releasable_calls",
}
Numbers = dict[str, list[tuple[Any, ...]]]
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]


def shown(connection: Connection, run_id: str, relations: dict[str, str] = VIEWS) -> Numbers:
    asked = {
        name: text(f"select {columns} from {name} where run_id = :run") for name, columns in relations.items()
    }
    return {name: sorted(map(tuple, connection.execute(of, {"run": run_id}))) for name, of in asked.items()}


def stored_and_computed(nights: Nights, run_id: str) -> tuple[Numbers, Numbers]:
    """What is stored of a finished run, and what is counted over all of its documents; the stored numbers stay."""
    with nights.engine.connect() as connection:
        stored = shown(connection, run_id, VIEWS | COUNTED)
        database.execute(connection, queries.numbers.forget, run_id=run_id)
        for counted in COUNTED:
            connection.execute(text(f"delete from {counted}"))
        count_as_a_check(connection, run_id, *(tool for tool, *_ in stored["checked_yields"]))
        computed = shown(connection, run_id, VIEWS | COUNTED)
        connection.rollback()
    return stored, computed


def count_as_a_check(connection: Connection, run_id: str, *tools: str) -> None:
    for tool in tools:
        run = load_run_tool(connection, run_id, tool)
        store_rates(connection, run)
        database.execute(
            connection,
            queries.checks.yield_record,
            run_id=run_id,
            tool=tool,
            **vars(count_kept(connection, run)),
        )
        bounds = {
            "corpus_id": run.corpus_id,
            "at_version": run.corpus_version,
            "below_ordinal": run.ordinal_limit,
        }
        if run.last_document_id is None:
            database.execute(
                connection, queries.checks.finished, run_id=run_id, recipe_ids=run.recipe_ids, **bounds
            )


def finish(nights: Nights, run_id: str, *tools: Tool, state: str = "success") -> list[str | None]:
    """End a run; returns the base of each tool."""
    with database.transaction(nights.engine) as connection:
        database.execute(connection, queries.runs.finish, run_id=run_id, state=state, problem="")
        bases = [
            what_to_count(connection, run_id, tool.name, "finished_run")["base_run_id"] for tool in tools
        ]
        store_numbers(connection, run_id)
    return bases


def night(
    nights: Nights, run_id: str, *tools: Tool, share: float = 1.0, killed: float = 0.0, **start: Any
) -> list[str | None]:
    nights.start(run_id, *tools, corpus="c", model="m", placebos=0, placebo_sample=0, **start)
    nights.work(run_id, *tools, share=share, killed=killed)
    if share == 1:
        with database.transaction(nights.engine) as connection:
            count_as_a_check(connection, run_id, *(tool.name for tool in tools))
    nights.release(run_id)
    return finish(nights, run_id, *tools)


def texts(*numbers: int) -> list[Record]:
    return [Record(f"text {number}", "https://x.org/2023/01/30", f"r{number}") for number in numbers]


def changed_tool(drawn: random.Random, number: int, tool: Tool) -> Tool:
    changes: list[dict[str, Any]] = [
        {"threshold": drawn.choice([0.5, 1.0, 0.7])},
        {"index": f"i{number}"},
        {"model": "m@2"},
        {"keep_rule": drawn.choice(["paper", "probability"]), "placebos": True},
        {"placebos": not tool.placebos},
        {
            "last_document": drawn.choice(
                [None, f"{drawn.randrange(16):x}fffffff-ffff-ffff-ffff-ffffffffffff"]
            )
        },
    ]
    return replace(tool, **drawn.choice(changes))


@pytest.mark.parametrize("seed", SEEDS)
def test_stored_numbers_are_those_that_are_counted_over_all_documents(nights, settings, seed):
    drawn = draw("numbers", seed)
    records = texts(*range(30))
    tools = [replace(tool, placebos=drawn.random() < 0.5) for tool in TOOLS]
    at_the_end: dict[str, Numbers] = {}
    bases: list[str | None] = []
    for number in range(8):
        records = nights.change(drawn, number, records)
        nights.ingest(*records)
        if drawn.random() < 0.4:
            which = drawn.randrange(2)
            tools[which] = changed_tool(drawn, number, tools[which])
        if number and drawn.random() < 0.4:
            retry_failed(settings, f"night-{number - 1}")
        share, limit = drawn.choice([1.0, 1.0, 1.0, 0.8]), drawn.choice([None, None, None, 20, 25])
        run_id = f"night-{number}"
        bases += night(nights, run_id, *tools, share=share, killed=drawn.choice([0.0, 0.1]), limit=limit)
        stored, computed = stored_and_computed(nights, run_id)
        assert stored == computed
        assert all(stored[view] for view in VIEWS)
        at_the_end[run_id] = {view: stored[view] for view in VIEWS}
        best = run_sql(nights.engine, "select call_id from best_kept_calls(:run, 'Calendar', 3)", run=run_id)
        kept = "select call_id from kept_calls where run_id = :run and tool = 'Calendar' order by gain desc, call_id"
        assert best == run_sql(nights.engine, f"{kept} limit 3", run=run_id)
    assert any(base is not None for base in bases)
    # Nothing that comes later changes an earlier night.
    for table in ("stage_ledger", "call_losses", "filter_decisions", "corpus_documents"):
        run_sql(nights.engine, f"delete from {table}")
    with nights.engine.connect() as connection:
        assert {earlier: shown(connection, earlier) for earlier in at_the_end} == at_the_end


def test_the_second_night_counts_only_what_changed_in_the_partitions_of_its_recipes(nights):
    nights.ingest(*texts(*range(30)))
    night(nights, "other", replace(CALCULATOR, model="m@0"))
    assert night(nights, "one", *TOOLS) == [None, None]
    nights.ingest(*texts(*range(3, 33)))
    nights.start("two", *TOOLS)
    nights.work("two", *TOOLS)
    nights.release("two")
    with database.transaction(nights.engine) as connection:
        database.execute(connection, queries.runs.finish, run_id="two", state="success", problem="")
        expected = shown(connection, "two")
    # Nothing of the documents that stay is read again: without their rows the numbers are the same.
    stay = "document_id in (select document_id from corpus_documents where first_version = 1 and left_version is null)"
    for table in ("stage_ledger", "call_losses", "filter_decisions"):
        run_sql(nights.engine, f"delete from {table} where {stay}")
    partitions = (
        "select relname from pg_locks join pg_class on pg_class.oid = relation join pg_inherits on inhrelid = relation "
        "where pid = pg_backend_pid() and relkind = 'r'"
    )
    with database.transaction(nights.engine) as connection:
        store_numbers(connection, "two")
        locked = {*connection.execute(text(partitions)).scalars()}
        assert shown(connection, "two") == expected
    of_tools = [{stage: recipe["recipe_id"] for stage, recipe in tool.recipes().items()} for tool in TOOLS]
    read = {"filter_decisions": "filter", "candidate_calls": "sample", "call_losses": "score"}
    of_recipes = {f"{table}_{ids[stage]}" for ids in of_tools for table, stage in read.items()}
    assert locked == of_recipes | {f"stage_ledger_{recipe}" for ids in of_tools for recipe in ids.values()}


@pytest.mark.parametrize("what", ["threshold", "model", "unfinished", "forgotten", "dropped", "tried again"])
def test_without_a_run_that_counted_the_same_rows_all_are_counted(nights, settings, what):
    nights.ingest(*texts(*range(20)))
    killed = 0.5 if what == "tried again" else 0.0
    night(nights, "one", CALCULATOR, share=0.5 if what == "unfinished" else 1.0, killed=killed)
    changed = {"threshold": {"threshold": 0.5}, "model": {"model": "m@2"}}.get(what, {})
    statements = {
        "forgotten": "insert into forgotten_documents (document_id, removed_at) "
        "select document_id, now() + interval '1 minute' from corpus_documents limit 1",
        "dropped": "update recipes set dropped_at = now() + interval '1 minute' where stage = 'score'",
    }
    if what in statements:
        run_sql(nights.engine, statements[what])
    if what == "tried again":
        assert retry_failed(settings, "one")
    assert night(nights, "two", replace(CALCULATOR, **changed)) == [None]
    stored, computed = stored_and_computed(nights, "two")
    assert stored == computed


def test_a_run_that_is_repaired_stores_its_numbers_again_after_its_progress(nights):
    nights.ingest(*texts(*range(30)))
    nights.start("one", *TOOLS)
    nights.work("one", *TOOLS, share=0.5)
    finish(nights, "one", *TOOLS, state="failed")
    stored, computed = stored_and_computed(nights, "one")
    assert stored == computed
    assert any(done < total for *_, done, total in stored["annotation_progress"])
    # It is repaired: its own work is seen at once, and stored with its next end.
    nights.work("one", *TOOLS)
    with nights.engine.connect() as connection:
        assert all(done == total for *_, done, total in shown(connection, "one")["annotation_progress"])
    finish(nights, "one", *TOOLS)
    stored, computed = stored_and_computed(nights, "one")
    assert stored == computed
    assert all(done == total for *_, done, total in stored["annotation_progress"])


@pytest.mark.parametrize("a_unit", [20, 100])
def test_a_bound_of_the_histogram_is_the_number_that_its_decimals_are_read_as(nights, a_unit):
    places = list(range(-40, 2000))
    bounds = [float(f"{place / a_unit:.2f}") for place in places]
    numbers = [*bounds, *(math.nextafter(bound, -math.inf) for bound in bounds), 1e300, math.inf]
    statement = (
        "select gain_bucket(nats, :a_unit) from unnest(cast(:numbers as double precision[])) with ordinality as one (nats, n) "
        "order by n"
    )
    with nights.engine.connect() as connection:
        buckets = list(connection.execute(text(statement), {"numbers": numbers, "a_unit": a_unit}).scalars())
    assert buckets == [*places, *(place - 1 for place in places), 1_000_000 * a_unit, 1_000_000 * a_unit]


def test_two_runs_that_store_the_numbers_of_one_at_once_wait_for_each_other(nights):
    nights.ingest(*texts(*range(10)))
    night(nights, "one", CALCULATOR)
    stored, _ = stored_and_computed(nights, "one")

    def store() -> None:
        with database.transaction(nights.engine) as connection:
            store_numbers(connection, "one")

    with ThreadPoolExecutor(1) as other, database.transaction(nights.engine) as connection:
        store_numbers(connection, "one")
        waiting = other.submit(store)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.5)
        connection.commit()
        waiting.result()
    assert stored_and_computed(nights, "one")[0] == stored


# Texts that were forgotten


def forget_some(
    nights: Nights, settings: Settings, drawn: random.Random, records: list[Record]
) -> list[Record]:
    """Forget two texts of the newest version; returns the records that are left."""
    chosen = drawn.sample(sorted(nights.members), 2)
    forgetting.forget(settings, chosen, texts_per_transaction=1)
    gone = {nights.members.pop(document_id)[0].text for document_id in chosen}
    return [record for record in records if record.text not in gone]


@pytest.mark.parametrize("seed", SEEDS)
def test_stored_numbers_after_forgetting_are_those_that_are_counted_over_all_documents(
    nights, settings, seed
):
    drawn = draw("forgotten numbers", seed)
    records = texts(*range(30))
    tools = [replace(tool, placebos=drawn.random() < 0.5) for tool in TOOLS]
    for number in range(8):
        records = nights.change(drawn, number, records)
        nights.ingest(*records)
        if drawn.random() < 0.3:
            which = drawn.randrange(2)
            tools[which] = changed_tool(drawn, number, tools[which])
        run_id = f"night-{number}"
        limit = drawn.choice([None, None, None, 20])
        night(
            nights,
            run_id,
            *tools,
            share=drawn.choice([1.0, 1.0, 0.8]),
            killed=drawn.choice([0.0, 0.1]),
            limit=limit,
        )
        stored, computed = stored_and_computed(nights, run_id)
        assert stored == computed
        if drawn.random() < 0.6:
            records = forget_some(nights, settings, drawn, records)


WITH_PLACEBOS = (replace(CALCULATOR, placebos=True), replace(TOOLS[1], placebos=True))


def test_numbers_follow_from_those_of_a_run_that_held_a_text_which_is_forgotten(nights, settings):
    records = texts(*range(30))
    nights.ingest(*records)
    night(nights, "before", *WITH_PLACEBOS)
    for number in range(3):
        records = forget_some(nights, settings, draw("forgotten", number), records)
        records += texts(100 + number)
        nights.ingest(*records)
        earlier = f"after-{number - 1}" if number else "before"
        assert set(night(nights, f"after-{number}", *WITH_PLACEBOS)) == {earlier}
        stored, computed = stored_and_computed(nights, f"after-{number}")
        assert stored == computed


def test_what_a_check_counted_is_not_counted_again_after_a_text_was_forgotten(nights, settings):
    records = texts(*range(30))
    nights.ingest(*records)
    night(nights, "before", *WITH_PLACEBOS)
    records = forget_some(nights, settings, draw("forgotten", "check"), records)
    nights.ingest(*records)
    nights.start("after", *WITH_PLACEBOS, corpus="c", model="m", placebos=0, placebo_sample=0)
    nights.work("after", *WITH_PLACEBOS)
    with nights.engine.connect() as connection:
        for kind in ("checked_yields", "placebo_counts"):
            assert what_to_count(connection, "after", "Calendar", kind)["base_run_id"] == "before"  # type: ignore[arg-type]


def test_the_numbers_of_a_finished_run_stay_when_one_of_its_texts_is_forgotten(nights, settings):
    records = texts(*range(30))
    nights.ingest(*records)
    night(nights, "before", *WITH_PLACEBOS)
    with nights.engine.connect() as connection:
        numbers = shown(connection, "before")
    forget_some(nights, settings, draw("forgotten", "stays"), records)
    with nights.engine.connect() as connection:
        assert shown(connection, "before") == numbers


def test_a_forgetting_that_is_killed_subtracts_each_text_once(nights, settings, monkeypatch):
    records = texts(*range(30))
    nights.ingest(*records)
    night(nights, "before", *WITH_PLACEBOS)
    chosen = sorted(nights.members)[:3]
    deleted: list[uuid.UUID] = []

    def count_and_die(*_: object) -> None:
        deleted.append(chosen[0])
        if len(deleted) == 2:  # rows of the second text are deleted, and not committed
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(forgetting, "_count", count_and_die)
        with pytest.raises(KeyboardInterrupt):
            forgetting.forget(settings, chosen, texts_per_transaction=1)
    assert run_sql(
        nights.engine, "select count(*) from forgotten_documents where removed_at is not null"
    ) == [(1,)]
    forgetting.forget(settings)
    gone = {nights.members.pop(document_id)[0].text for document_id in chosen}
    nights.ingest(*(record for record in records if record.text not in gone))
    assert set(night(nights, "after", *WITH_PLACEBOS)) == {"before"}
    stored, computed = stored_and_computed(nights, "after")
    assert stored == computed


def test_a_corpus_that_was_forgotten_is_counted_as_a_whole_when_it_comes_back(nights, settings):
    records = texts(*range(30))
    nights.ingest(*records)
    night(nights, "before", *WITH_PLACEBOS)
    # Another corpus holds all but one of the texts, so that these are not forgotten.
    run_sql(nights.engine, "insert into corpora (corpus_id, uri) values ('0123456789abcdef', 's3://b/other')")
    run_sql(
        nights.engine,
        "insert into corpus_documents (corpus_id, document_id, ordinal, file_uri, first_version) "
        "select '0123456789abcdef', document_id, ordinal, file_uri, 1 from corpus_documents where ordinal > 0",
    )
    forgetting.forget(settings, corpus=URI)
    nights.members = {}
    nights.ingest(*records[1:])
    assert set(night(nights, "after", *WITH_PLACEBOS)) == {None}
    stored, computed = stored_and_computed(nights, "after")
    assert stored == computed
