"""Runs that start while other runs start, or while retention drops what no run uses."""

import json

import pytest
from sqlalchemy import Connection

from tests.annotated_runs import AnnotatedRun, recipe_id, register_pool
from tests.fake_language_model import FakeLanguageModel
from tests.run_sql import run_sql
from toolformer_ops.config import Settings
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.placebo_pools import known_pool
from toolformer_ops.runs.run_tools import RunTool, load_run_tool
from toolformer_ops.stages import run_setup
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import start_run
from toolformer_ops.storage.postgres import database, partitions, queries

LOCK_IS_FREE = "select pg_try_advisory_xact_lock(hashtextextended('toolformer call results', 0)) as free"
POOL = recipe_id("placebo", "Calculator")


@pytest.fixture
def corpus(settings, use_model, tmp_path):
    """The address of an ingested corpus of one text."""
    use_model(FakeLanguageModel())
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"text": "2 cats and 3 dogs, a total of 5 animals."}) + "\n")
    ingest_corpus(settings, str(path))
    return str(path)


def test_runs_take_the_partitions_of_their_tools_in_one_order(settings, corpus, monkeypatch):
    """Else two that start at once may wait for each other."""
    locked: list[str] = []
    lock_partition = partitions.lock_partition

    def noted(connection: Connection, table: str, recipe: str) -> None:
        locked.append(f"{table} {recipe}")
        lock_partition(connection, table, recipe)

    monkeypatch.setattr(partitions, "lock_partition", noted)
    orders = []
    for tools in (["Calculator", "Calendar"], ["Calendar", "Calculator"]):
        locked.clear()
        chosen = {"corpus": corpus, "model": "fake", "tools": tools}
        start_run(settings, tools[0], RunChoices.parse(chosen))
        orders.append(list(dict.fromkeys(locked)))
    assert orders[0] == orders[1]


def test_a_run_is_registered_while_no_result_of_its_tools_is_deleted(settings, corpus, monkeypatch):
    free: list[bool] = []
    require = run_setup.require_whole_texts

    def last_step(connection: Connection, run_id: str) -> None:
        require(connection, run_id)
        free.extend(row.free for row in run_sql(settings, LOCK_IS_FREE))

    monkeypatch.setattr(run_setup, "require_whole_texts", last_step)
    start_run(
        settings, "night", RunChoices.parse({"corpus": corpus, "model": "fake", "tools": ["Calculator"]})
    )
    assert free == [False]


@pytest.fixture
def run(settings):
    """A tool of a run that has no pool of placebos; an earlier run drew one that fits."""
    annotated = AnnotatedRun(settings, {"Calculator": 0.5}, placebos=1, placebo_sample=1)
    annotated.add_text("Out of 1400 people, 400 passed, that is 29 %.")
    with database.transaction(annotated.engine) as connection:
        scoring = recipe_id("score", "Calculator")
        register_pool(connection, annotated.run_id, "Calculator", annotated.corpus_id, POOL, scoring)
    annotated.change("update run_tools set placebo_recipe_id = null")
    with database.transaction(annotated.engine) as connection:
        return load_run_tool(connection, annotated.run_id, "Calculator")


def pools(settings: Settings, run: RunTool) -> tuple[str | None, str | None]:
    """The pool that `known_pool` returns, and that which the run uses then."""
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        pool = known_pool(connection, run, run.choices)
    with database.transaction(engine) as connection:
        return pool, load_run_tool(connection, run.run_id, run.tool).placebo_recipe_id


def test_a_run_takes_the_pool_of_an_earlier_run(settings, run):
    assert pools(settings, run) == (POOL, POOL)


def test_a_run_takes_no_pool_that_retention_drops_while_the_run_starts(settings, run, monkeypatch):
    lock_partition = partitions.lock_partition

    def drop_then_lock(connection: Connection, table: str, recipe: str) -> None:
        monkeypatch.setattr(partitions, "lock_partition", lock_partition)
        with database.transaction(database.connect(settings)) as retention:
            database.execute(retention, queries.retention.drop_rows, recipe_id=POOL)
        lock_partition(connection, table, recipe)

    monkeypatch.setattr(partitions, "lock_partition", drop_then_lock)
    assert pools(settings, run) == (None, None)
