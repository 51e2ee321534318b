"""The history on S3: what it holds is what Postgres shows, and stays true when texts are forgotten or files go."""

import dataclasses
import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.annotated_runs import STAGES, AnnotatedRun, recipe_id, release
from tests.integration.test_numbers import changed_tool, finish, night
from tests.run_sql import engine_of, run_sql
from tests.written_nights import Nights, Record, Tool, draw
from toolformer_ops.__main__ import app
from toolformer_ops.audit import repairing
from toolformer_ops.audit.running import audit
from toolformer_ops.config import REPOSITORY, Settings, load_settings
from toolformer_ops.errors import (
    BusyError,
    DatabaseLockedError,
    HistoryError,
    ObjectStoreUnreachableError,
    UsageError,
)
from toolformer_ops.runs.claims import retry_failed
from toolformer_ops.runs.numbers import store_numbers
from toolformer_ops.storage.history import history, history_queries, retention
from toolformer_ops.storage.history import merging as history_merging
from toolformer_ops.storage.history.files import (
    MANIFEST_KEY,
    TABLES,
    HistoryFile,
    arrow_schema,
    key_of,
    manifest_bytes,
    read_manifest,
)
from toolformer_ops.storage.history.forgetting import forget
from toolformer_ops.storage.history.history_queries import UnknownNameError, ask, opened, tables_of
from toolformer_ops.storage.objects.s3 import Objects
from toolformer_ops.storage.postgres import database, partitions, queries, schema, sessions

VIEWS = (
    "scored_calls",
    "kept_calls",
    "candidates",
    "threshold_counts",
    "yield_by_stage",
    "gain_histogram",
    "run_documents",
    "run_tool_documents",
)
TOOLS = (
    Tool("Calculator", placebos=True, keep_rule="probability"),
    Tool("Calendar", reads_record=True),
    Tool("QA", threshold=0.5),
)
NO_NEXT_NIGHT = retention.Uses(schedules=())
SECRET = "Ms Secret of Elm Street earned 400 of 1400 crowns, that is 29 %, says the clerk."


def plain(value: object) -> object:
    """Floats to twelve digits, and ids as texts."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    return str(value) if isinstance(value, uuid.UUID) else value


def sorted_rows(rows: list[Any]) -> list[tuple[object, ...]]:
    return sorted((tuple(map(plain, row)) for row in rows), key=repr)


Shown = dict[str, list[tuple[object, ...]]]
"""The columns of a view, and its rows."""


def of_postgres(settings: Settings, view: str) -> Shown:
    """The columns of a view, and its rows of the runs that the history holds."""
    statement = f"select * from {view} where run_id in (select run_id from history_runs)"
    with engine_of(settings).begin() as connection:
        found = connection.exec_driver_sql(statement)
        return {"columns": [tuple(found.keys())], "rows": sorted_rows(list(found))}


def of_history(settings: Settings, view: str) -> Shown:
    return views_of_history(settings, [view])[view]


def views_of_history(settings: Settings, views: Sequence[str] = VIEWS) -> dict[str, Shown]:
    """Asked on one connection: to open it takes longer than most questions."""
    shown = {}
    with opened(settings, tables_of(" ".join(views))) as connection:
        for view in views:
            rows = connection.execute(f"select * from {view}")
            columns = tuple(column[0] for column in connection.description)
            shown[view] = {"columns": [columns], "rows": sorted_rows(rows.fetchall())}
    return shown


def differing_views(settings: Settings) -> list[str]:
    of_files = views_of_history(settings)
    return [view for view in VIEWS if of_postgres(settings, view) != of_files[view]]


def files(settings: Settings, table: str) -> list[HistoryFile]:
    return [file for file in read_manifest(Objects(settings)) if file.table_name == table]


def objects_with(settings: Settings, needle: str) -> list[str]:
    """Keys of the history's objects of which a row or the bytes hold a text; every row is read."""
    objects = Objects(settings)
    found = []
    for key in objects.list("history/"):
        body = objects.get(key)
        text = body.decode("utf-8", "replace")
        if key.endswith(".parquet"):
            rows = pq.read_table(pa.BufferReader(body)).to_pylist()
            text += json.dumps(rows, default=str, ensure_ascii=False)
        if needle in text:
            found.append(key)
    return found


class Corpus(AnnotatedRun):
    """A finished run over the text to forget and another, in the history."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, {"Calculator": 0.5})
        self.secret = self.add_text(SECRET)
        self.other = self.add_text("Out of 1400 people, 400 passed, that is 29 % of them all.")
        first = self.add_call("Calculator", self.secret, " 29", "400 / 1400", "0.29", saves=1.25)
        self.own_call = self.add_call("Calculator", self.secret, " crowns", "1400 - 400", "1000", saves=0.25)
        other = self.add_call("Calculator", self.other, " 29", "400 / 1400", "0.29", saves=1.0)
        self.kept = {first, other}
        self.complete("Calculator")
        release(settings, self.run_id)
        self.end()

    def end(self) -> None:
        with database.transaction(self.engine) as connection:
            database.execute(connection, queries.runs.finish, run_id=self.run_id, state="success", problem="")
            store_numbers(connection, self.run_id)


def write(settings: Settings) -> Corpus:
    corpus = Corpus(settings)
    history.write(settings)
    return corpus


@pytest.fixture
def corpus(settings, written):
    """The written corpus in the test's own database."""
    return written.value.in_copy(settings)


@contextmanager
def without_s3(monkeypatch: pytest.MonkeyPatch, operation: str = "put") -> Iterator[None]:
    """S3 that does not answer to one operation."""

    def refuse(*_: object) -> None:
        raise ObjectStoreUnreachableError("S3 does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Objects, operation, refuse)
        yield


# What it holds


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_all_views_agree_on_random_nights_with_forgetting(nights, settings, seed):
    drawn = draw("history", seed)
    records = [Record(f"text {n}", f"https://x.org/{n}", f"r{n}") for n in range(30)]
    tools = TOOLS
    for number in range(4):
        records = nights.change(drawn, number, records)
        nights.ingest(*records)
        if drawn.random() < 0.6:
            position = drawn.randrange(len(tools))
            tools = (*tools[:position], changed_tool(drawn, number, tools[position]), *tools[position + 1 :])
        night(
            nights, f"night-{number}", *tools,
            share=drawn.choice([1.0, 1.0, 0.6]), killed=drawn.choice([0.0, 0.1]), limit=drawn.choice([None, None, 20]),
        )  # fmt: skip
        if drawn.random() < 0.7:
            history.write(settings)
        if number:
            record = drawn.choice(records)
            [[document]] = run_sql(settings, "select document_id from documents where text = :text and variant_of is null",
                                   text=record.text)  # fmt: skip
            forget(settings, [document])
            records.remove(record)
    history.write(settings)
    assert differing_views(settings) == []
    assert len(of_history(settings, "candidates")["rows"]) > 100
    names = [schema.made_name(f"{example}.sql") for example in history_queries.EXAMPLES]
    with opened(settings, tables_of(" ".join(names))) as connection:
        for night_id, name in itertools.product(("night-0", "night-3"), names):
            question = f"select * from {name}('{night_id}')"
            rows = connection.execute(question).fetchall()
            assert sorted_rows(rows) == sorted_rows(run_sql(settings, question))
    assert run_sql(settings, "select count(*) from history_files where state <> 'whole'") == [(0,)]
    # What Postgres drops since the history has it changes no answer of the history.
    before = views_of_history(settings)
    retention.drop_written(settings, NO_NEXT_NIGHT)
    history.write(settings)
    assert views_of_history(settings) == before


REASONS_OF_RELEASES = {
    "released",
    "input_only_after",
    "better_call_at_position",
    "no_release",
    "not_in_release",
    "above_max_examples",
}


def three_nights_with_other_releases(nights: Nights) -> None:
    """Over one corpus: few examples a tool and one tool lacking; results that follow; no release."""
    nights.ingest(*(Record(f"text {n} 1", f"https://x.org/{n}", f"r{n}") for n in range(60)))
    for run_id, parameters in (
        ("few", {"max_examples_per_tool": 6}),
        ("following", {"require_following": True}),
        ("none", {}),
    ):
        nights.start(run_id, *TOOLS, corpus="c", model="m", **parameters)
        nights.work(run_id, *TOOLS, killed=0.1)
        if run_id == "few":
            nights.release(run_id, lacking=("QA",), max_examples=6)
        elif run_id == "following":
            nights.release(run_id)
        finish(nights, run_id, *TOOLS)


def test_what_releases_do_with_kept_calls_is_the_same_in_the_history(nights, settings):
    three_nights_with_other_releases(nights)
    history.write(settings)
    candidates = of_postgres(settings, "candidates")
    assert of_history(settings, "candidates") == candidates
    place = candidates["columns"][0].index("release_outcome")
    assert {row[place] for row in candidates["rows"]} == REASONS_OF_RELEASES | {None}


def test_a_release_that_another_run_made_before_gets_the_choices_of_this_run(nights, settings):
    nights.ingest(*(Record(f"text {n} 1") for n in range(30)))
    night(nights, "night-0", *TOOLS)
    history.write(settings)
    choice = {"left_out": "holds_evaluation_data", "call_id": uuid.UUID(int=1)}
    run_sql(
        settings,
        "insert into release_choices select release_id, document_id, cast(:call_id as uuid), :left_out from release_calls limit 1",
        **choice,
    )
    night(nights, "night-1", *TOOLS)
    history.write(settings)
    asked = "select count(*), count(left_out) from release_choices"
    assert ask(settings, asked).rows == [tuple(row) for row in run_sql(settings, asked)]


def test_a_second_night_writes_the_rows_of_new_texts_alone(nights, settings):
    records = [Record(f"text {n}") for n in range(30)]
    nights.ingest(*records)
    night(nights, "night-0", Tool("Calculator"))
    history.write(settings)
    before = set(files(settings, "call_losses"))
    nights.ingest(*records, Record("a new text"), Record("another new text"))
    night(nights, "night-1", Tool("Calculator"))
    history.write(settings)
    new = set(files(settings, "call_losses")) - before
    [[rows]] = run_sql(
        settings,
        "select count(*) from call_losses join documents using (document_id) where text like '%new text'",
    )
    assert before < set(files(settings, "call_losses"))
    assert sum(file.rows for file in new) == rows > 0


def test_a_recipe_of_several_pages_has_all_of_its_rows_in_the_history(nights, settings, monkeypatch):
    monkeypatch.setattr(history, "ROWS_PER_PAGE", 7)
    nights.ingest(*(Record(f"text {n}") for n in range(30)))
    night(nights, "night-0", Tool("Calculator"))
    history.write(settings)
    for table in ("candidate_calls", "call_losses", "corpus_joined"):
        count = "corpus_documents" if table == "corpus_joined" else table
        [[rows]] = run_sql(settings, f"select count(*) from {count}")
        assert sum(file.rows for file in files(settings, table)) == rows > 7


def test_nothing_is_written_twice(corpus, settings):
    listed = read_manifest(Objects(settings))
    again = history.write(settings)
    assert (again.runs, again.files) == ([], 0)
    assert read_manifest(Objects(settings)) == listed


def test_rows_that_are_computed_again_are_written_again(nights, settings):
    nights.ingest(*(Record(f"text {n}") for n in range(30)))
    night(nights, "night-0", Tool("Calculator"), killed=0.5)
    history.write(settings)
    assert retry_failed(settings, "night-0")
    nights.ingest(*(Record(f"text {n}") for n in range(31)))
    night(nights, "night-1", Tool("Calculator"))
    history.write(settings)
    assert differing_views(settings) == []


def test_rows_that_retention_drops_stay_in_the_history(corpus, settings):
    before = of_history(settings, "scored_calls")
    run_sql(settings, "update dataset_releases set withdrawn_at = now()")
    run_sql(settings, "update annotation_runs set schedule = 'gone'")
    assert retention.drop_unused(settings, retention.Uses(schedules=())).recipes
    history.write(settings)
    assert of_postgres(settings, "scored_calls")["rows"] == []
    assert of_history(settings, "scored_calls") == before


# What the history alone has

CALLS_AND_LOSSES = [
    ("sample", recipe_id("sample", "Calculator")),
    ("score", recipe_id("score", "Calculator")),
]


def end_schedule(settings: Settings) -> None:
    """The run of the corpus has a release and is continued by no night: its schedule is gone."""
    run_sql(settings, "update annotation_runs set schedule = 'gone'")
    insert = (
        "insert into recipes (recipe_id, stage, tool, definition, parent_recipe_id) "
        "values (:id, :stage, 'Calculator', '{}', :parent)"
    )
    parent = None
    for stage in STAGES:
        run_sql(settings, insert, id=recipe_id(stage, "Calculator"), stage=stage, parent=parent)
        parent = recipe_id(stage, "Calculator")
    history.write(settings)


@pytest.fixture
def old(corpus, settings):
    end_schedule(settings)
    return corpus


def calls_in_postgres(settings: Settings) -> int:
    return len(run_sql(settings, "select from scored_calls"))


def test_calls_of_a_release_that_the_history_holds_are_dropped(old, settings):
    assert retention.unused(settings, NO_NEXT_NIGHT).recipes == []
    before = views_of_history(settings)
    dropped = retention.drop_written(settings, NO_NEXT_NIGHT)
    assert [(recipe.stage, recipe.recipe_id) for recipe in dropped] == CALLS_AND_LOSSES
    assert all(recipe.bytes > 0 for recipe in dropped)
    assert calls_in_postgres(settings) == 0
    history.write(settings)
    assert views_of_history(settings) == before


def test_what_the_history_lacks_stays_in_postgres(old, settings):
    tables = ("stage_ledger", "filter_decisions", "release_calls", "documents", "finished_run_yield")
    counts = "select " + ", ".join(f"(select count(*) from {table})" for table in tables)
    [before] = run_sql(settings, counts)
    assert all(before)
    retention.drop_written(settings, NO_NEXT_NIGHT)
    assert run_sql(settings, counts) == [before]


def test_calls_that_the_history_does_not_hold_stay(settings):
    Corpus(settings)
    run_sql(settings, "update annotation_runs set schedule = 'gone'")
    assert retention.drop_written(settings, NO_NEXT_NIGHT) == []
    assert calls_in_postgres(settings) == 3


def test_calls_that_the_next_night_needs_stay(corpus, settings):
    assert retention.drop_written(settings, retention.Uses()) == []
    assert calls_in_postgres(settings) == 3


@pytest.mark.parametrize(
    "damage", ["gone", "other bytes", "not in the manifest", "a row too few", "unregistered"]
)
def test_calls_of_which_a_file_is_not_whole_stay(old, settings, damage):
    objects = Objects(settings)
    [calls], [losses] = files(settings, "candidate_calls"), files(settings, "call_losses")
    if damage == "gone":
        objects.delete(losses.file_key)
    if damage == "other bytes":
        objects.put(losses.file_key, objects.get(losses.file_key)[::-1], "application/octet-stream")
    if damage == "not in the manifest":
        objects.put(MANIFEST_KEY, manifest_bytes([calls]), "application/json")
    if damage == "a row too few":
        run_sql(
            settings, "update history_files set rows = rows - 1 where file_key = :key", key=losses.file_key
        )
    if damage == "unregistered":
        run_sql(settings, "delete from history_documents where file_key = :key", key=losses.file_key)
    assert [recipe.stage for recipe in retention.drop_written(settings, NO_NEXT_NIGHT)] == ["sample"]
    assert run_sql(settings, "select count(*) from call_losses") == [(3,)]


def test_calls_stay_where_s3_does_not_answer(old, settings, monkeypatch):
    def refuse(*_: object) -> None:
        raise ObjectStoreUnreachableError("S3 does not answer")

    monkeypatch.setattr(Objects, "sha256", refuse)
    with pytest.raises(ObjectStoreUnreachableError):
        retention.drop_written(settings, NO_NEXT_NIGHT)
    assert calls_in_postgres(settings) == 3


def test_a_run_that_uses_a_recipe_again_finds_none_of_its_work_done(old, settings):
    retention.drop_written(settings, NO_NEXT_NIGHT)
    with database.transaction(old.engine) as connection:
        for stage, recipe in CALLS_AND_LOSSES:
            partitions.ensure_partitions(connection, stage, recipe)
    stages = run_sql(settings, "select distinct stage from stage_ledger order by 1")
    assert stages == [("execute",), ("filter",)]


def test_an_audit_misses_no_call_that_the_history_has(old, settings):
    retention.drop_written(settings, NO_NEXT_NIGHT)
    outcome = audit(settings)
    lost = "select place from audit_findings where audit_id = :id and kind = 'lost' and relation like 'ca%'"
    assert run_sql(settings, lost, id=outcome.audit_id) == []
    assert "filter rows" in [check.name for check in outcome.checks]


def test_calls_in_the_history_alone_are_not_computed_again_by_an_audit(old, settings):
    retention.drop_written(settings, NO_NEXT_NIGHT)
    checks = audit(settings, sample=3).checks
    assert [check.items for check in checks if check.name == "calls computed again"] == []


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["select count(*) from kept_calls"], True),
        (["select count(*) from kept_calls where run_id = 'run-1'"], True),
        (["--run", "run-1", "select count(*) from kept_calls"], True),
        (["select count(*) from kept_calls where run_id = 'run-2'"], False),
        (["select count(*) from documents"], False),
    ],
)
def test_a_question_about_calls_that_were_dropped_is_told_where_they_are(old, settings, words, is_told):
    retention.drop_written(settings, NO_NEXT_NIGHT)
    done = CliRunner().invoke(app, ["sql", *words])
    assert ("Postgres lacks calls of run run-1: retention dropped them on 2" in done.stderr) is is_told


@pytest.mark.parametrize(
    ("words", "answer", "calls"),
    [
        (["--yes"], "0 recipes dropped: ", 3),
        (["--in-history"], "2 recipes would be dropped (--yes does it): ", 3),
        (["--in-history", "--yes"], "2 recipes dropped: ", 0),
    ],
)
def test_the_command_drops_what_the_history_holds_only_if_told_so(
    old, settings, monkeypatch, tmp_path, words, answer, calls
):
    monkeypatch.setenv("TOOLFORMER_SCHEDULES_DIR", str(tmp_path))  # without a file of the run's schedule
    load_settings.cache_clear()
    assert answer in CliRunner().invoke(app, ["retention", "--older-than", "0", *words]).stdout
    assert calls_in_postgres(settings) == calls


# Forgetting


def test_a_forgotten_text_is_in_no_object_of_the_history(corpus, settings):
    assert len(objects_with(settings, "Elm Street")) == 1
    assert len(objects_with(settings, str(corpus.secret.document_id))) > 1
    forgotten = forget(settings, [corpus.secret.document_id])
    assert forgotten.history_files > 0
    assert objects_with(settings, "Elm Street") == []
    # The record of where it was.
    of_release = {
        file.file_key for table in ("release_calls", "release_choices") for file in files(settings, table)
    }
    assert set(objects_with(settings, str(corpus.secret.document_id))) == of_release
    assert differing_views(settings) == []


def test_a_forgotten_text_is_in_no_copy_on_this_machine(corpus, settings):
    ask(settings, "select * from candidates")
    copies = settings.cache_folder / "history"
    assert any("Elm Street" in str(pq.read_table(path).to_pylist()) for path in copies.glob("*.parquet"))
    forget(settings, [corpus.secret.document_id])
    assert not any("Elm Street" in str(pq.read_table(path).to_pylist()) for path in copies.glob("*.parquet"))


def texts_of_copies(settings: Settings) -> str:
    """All rows of the copies of the history in the cache of a machine."""
    paths = sorted((settings.cache_folder / "history").rglob("*.parquet"))
    return str([pq.read_table(path).to_pylist() for path in paths])


def during_download(monkeypatch: pytest.MonkeyPatch, table: str, act: Callable[[], object]) -> None:
    """Act once: when a file of the table has come from S3, and before its copy has its name."""
    fetch, acts = Objects.sha256, [act]

    def fetched(objects: Objects, key: str, copy: Path | None = None) -> str:
        content = fetch(objects, key, copy)
        if f"/{table}/" in key and acts:
            acts.pop()()
        return content

    monkeypatch.setattr(Objects, "sha256", fetched)


def test_another_machine_removes_its_copies_of_a_forgotten_text_when_it_asks_next(corpus, settings, tmp_path):
    other = settings.model_copy(update={"cache_dir": tmp_path / "other"})
    ask(other, "select * from candidates")
    forget(settings, [corpus.secret.document_id])
    assert "Elm Street" in texts_of_copies(other)
    ask(other, "select tool from run_tools")
    assert "Elm Street" not in texts_of_copies(other)


def test_copies_that_the_manifest_names_are_fetched_once(corpus, settings, monkeypatch):
    before = of_history(settings, "candidates")
    ask(settings, "select tool from run_tools")
    monkeypatch.setattr(Objects, "sha256", None)
    assert of_history(settings, "candidates") == before


def test_files_with_the_same_bytes_are_fetched_once(corpus, settings, monkeypatch):
    objects = Objects(settings)
    [file] = files(settings, "run_tools")
    other = dataclasses.replace(file, owner_id="other", file_key=key_of("run_tools", "other", file.sha256))
    objects.put(other.file_key, objects.get(file.file_key), "application/octet-stream")
    columns = dataclasses.asdict(other) | {"version": None}
    database.execute(corpus.engine, queries.history.add_file, **columns)
    objects.put(MANIFEST_KEY, manifest_bytes([*read_manifest(objects), other]), "application/json")
    fetched, fetch = [], Objects.sha256

    def recorded(objects: Objects, key: str, copy: Path | None = None) -> str:
        fetched.append(key)
        return fetch(objects, key, copy)

    monkeypatch.setattr(Objects, "sha256", recorded)
    assert len(ask(settings, "select * from run_tools").rows) == 2
    assert len(fetched) == 1


def test_a_query_that_fetches_while_a_text_is_forgotten_leaves_no_copy_of_it(corpus, settings, monkeypatch):
    during_download(monkeypatch, "candidate_calls", lambda: forget(settings, [corpus.secret.document_id]))
    assert len(ask(settings, "select * from scored_calls").rows) == 1
    assert "Elm Street" not in texts_of_copies(settings)


def test_a_file_that_is_being_fetched_is_not_removed(corpus, settings, monkeypatch):
    during_download(
        monkeypatch,
        "candidate_calls",
        lambda: history_queries.remove_from_cache(settings, read_manifest(Objects(settings))),
    )
    assert len(ask(settings, "select * from scored_calls").rows) == 3


def test_a_query_whose_folder_is_removed_meanwhile_says_so(corpus, settings, monkeypatch):
    folder = settings.cache_folder / "history"
    # Other threads still write into it, so that deleting its files one by one may fail.
    during_download(monkeypatch, "candidate_calls", lambda: folder.rename(folder.with_name("removed")))
    with pytest.raises(HistoryError, match=r"expected .* as it was fetched, found none: .* Ask again\."):
        ask(settings, "select * from scored_calls")


@pytest.mark.parametrize("name", ["part-killed/old.parquet", "tmpkilled.part"])
def test_a_download_of_a_killed_process_is_removed(corpus, settings, name):
    left = settings.cache_folder / "history" / name
    left.parent.mkdir(parents=True)
    left.write_text("a text")
    ask(settings, "select tool from run_tools")
    assert not left.exists()


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, place: object, function: str) -> Iterator[None]:
    """Code that never returns from a call of this function."""
    with monkeypatch.context() as patch:
        patch.setattr(place, function, Mock(side_effect=KeyboardInterrupt))
        yield


def test_forgetting_goes_on_where_it_was_killed_before_the_small_tables(corpus, settings, monkeypatch):
    run_sql(
        settings,
        "insert into failed_documents (recipe_id, document_id, stage, tool, reason, deaths, run_id) "
        "values ('r', :document, 'score', 'Calculator', 'process_killed', 3, 'run-1')",
        document=corpus.secret.document_id,
    )
    history.write(settings)
    with killed_at(monkeypatch, history.Writer, "conclude"), pytest.raises(KeyboardInterrupt):
        forget(settings, [corpus.secret.document_id])
    forget(settings)
    assert ask(settings, "select * from failed_documents").rows == []


def test_forgetting_goes_on_where_it_was_killed_before_the_copies_went(corpus, settings, monkeypatch):
    ask(settings, "select * from candidates")
    with killed_at(monkeypatch, history_queries, "remove_from_cache"), pytest.raises(KeyboardInterrupt):
        forget(settings, [corpus.secret.document_id])
    assert "Elm Street" in texts_of_copies(settings)
    forget(settings)
    assert "Elm Street" not in texts_of_copies(settings)


def test_forgetting_goes_on_where_s3_was_away(corpus, settings, monkeypatch):
    with without_s3(monkeypatch), pytest.raises(ObjectStoreUnreachableError):
        forget(settings, [corpus.secret.document_id])
    forget(settings)
    assert objects_with(settings, "Elm Street") == []


def test_forgetting_goes_on_after_a_file_that_s3_did_not_take(corpus, settings, monkeypatch):
    with without_s3(monkeypatch, "put_if_absent"), pytest.raises(ObjectStoreUnreachableError):
        forget(settings, [corpus.secret.document_id])
    assert objects_with(settings, "Elm Street") != []
    forget(settings)
    assert objects_with(settings, "Elm Street") == []
    assert differing_views(settings) == []


def test_texts_whose_rows_retention_dropped_are_taken_out_of_the_history(corpus, settings):
    run_sql(settings, "update dataset_releases set withdrawn_at = now()")
    run_sql(settings, "update annotation_runs set schedule = 'gone'")
    retention.drop_unused(settings, retention.Uses(schedules=()))
    forget(settings, [corpus.secret.document_id])
    assert objects_with(settings, "Elm Street") == []
    assert len(of_history(settings, "scored_calls")["rows"]) == 1


def test_forgetting_without_a_history_asks_nothing_of_s3(settings, monkeypatch):
    corpus = Corpus(settings)
    monkeypatch.setattr(history, "Objects", None)
    assert forget(settings, [corpus.secret.document_id]).history_files == 0


# What goes wrong while it is written


def test_a_file_that_a_killed_process_left_is_deleted(corpus, settings):
    objects = Objects(settings)
    key = "history/call_losses/left/left.parquet"
    objects.put(key, b"left", "application/octet-stream")
    of_file = {"file_key": key, "table_name": "call_losses", "owner_id": "left", "sha256": "0" * 64}
    database.execute(corpus.engine, queries.history.add_file, **of_file, size_bytes=4, rows=1, version=None)
    history.write(settings)
    assert not objects.exists(key)
    assert run_sql(settings, "select count(*) from history_files where state <> 'whole'") == [(0,)]


def test_two_files_with_the_same_bytes_are_one(settings, monkeypatch):
    monkeypatch.setattr(history, "DOCUMENTS_PER_FILE", 1)
    Corpus(settings)
    run_sql(settings, "delete from call_losses")
    assert history.write(settings).runs == ["run-1"]
    assert [file.rows for file in files(settings, "call_losses")] == [0]


def test_files_that_are_gone_are_written_again(corpus, settings):
    tables = ("candidate_calls", "call_losses", "corpus_joined", "release_choices", "run_tools")
    gone = {file.file_key for table in tables for file in files(settings, table)}
    for key in gone:
        Objects(settings).delete(key)
    with pytest.raises(HistoryError, match="found nothing: the history is damaged"):
        ask(settings, "select * from candidates")
    assert set(history.write(settings).lost) == gone
    assert differing_views(settings) == []


def test_the_end_of_a_run_is_not_failed_by_s3(settings, monkeypatch, caplog):
    Corpus(settings)
    with without_s3(monkeypatch):
        history.write_at_end(settings, "run-1")
    assert "run-1 is not in the history yet" in caplog.text
    history.write_at_end(settings, "run-1")
    assert history_queries.runs_of(settings) == ["run-1"]


def test_the_task_that_ends_a_run_writes_its_history(settings):
    corpus = Corpus(settings)
    corpus.change(
        "update annotation_runs set state = 'running', finished_at = null, numbers_stored_at = null"
    )
    done = CliRunner().invoke(app, ["stage", "finish-run", "--run", "run-1"])
    assert "summary" in json.loads(done.stdout.splitlines()[-1])
    assert history_queries.runs_of(settings) == ["run-1"]


def test_an_audit_does_not_take_a_write_at_work_for_damage(corpus, settings):
    run_sql(settings, "update history_files set state = 'leaving' where table_name = 'run_tools'")
    key = key_of("call_losses", "later", "0" * 64)
    of_file = {"file_key": key, "table_name": "call_losses", "owner_id": "later", "sha256": "0" * 64}
    database.execute(corpus.engine, queries.history.add_file, **of_file, size_bytes=4, rows=1, version=None)
    outcome = audit(settings)
    assert run_sql(settings, "select place from audit_findings where audit_id = :id and place like '%history%'",
                   id=outcome.audit_id) == []  # fmt: skip


def test_a_write_whose_time_is_over_is_continued_by_the_next(nights, settings, monkeypatch):
    monkeypatch.setattr(history, "DOCUMENTS_PER_FILE", 5)
    nights.ingest(*(Record(f"text {n}") for n in range(30)))
    night(nights, "night-0", Tool("Calculator"))
    assert history.write(settings, seconds=0).left == 1
    assert history_queries.runs_of(settings) == []
    assert history.write(settings).runs == ["night-0"]
    assert len(files(settings, "call_losses")) > 1
    assert differing_views(settings) == []


def test_a_run_that_ends_does_not_wait_for_another_writer(corpus):
    with (
        history.writing(corpus.engine),
        pytest.raises(BusyError),
        history.writing(corpus.engine, waits=False),
    ):
        pass


def delete_damaged_rows(settings: Settings) -> None:
    """Delete rows of a document as `audit --repair` does."""
    stage, recipe = CALLS_AND_LOSSES[0]
    repair = {"stage": stage, "recipe_id": recipe, "document_id": str(uuid.UUID(int=1))}
    auditing = Mock(engine=database.connect(settings))
    repairing._delete_rows(auditing, [Mock(repair=repair, finding_id=1)])


@pytest.mark.parametrize(
    "delete",
    [
        lambda settings: retry_failed(settings, "run-1"),
        lambda settings: retention.drop_unused(settings, NO_NEXT_NIGHT),
        lambda settings: retention.drop_written(settings, NO_NEXT_NIGHT),
        forget,
        delete_damaged_rows,
    ],
    ids=["retry", "retention", "retention of the history", "forget", "repair"],
)
def test_rows_are_not_deleted_while_the_history_is_written(old, settings, monkeypatch, delete):
    monkeypatch.setattr(sessions, "OTHERS_SECONDS", 0.1)
    with history.writing(old.engine), pytest.raises(DatabaseLockedError):
        delete(settings)


def test_a_run_that_has_not_ended_is_refused(settings):
    with pytest.raises(UsageError, match="expected a finished run, found none of this id"):
        history.write(settings, "no-such-run")


# What bad history says


def test_a_history_that_was_never_written_is_named_with_the_remedy(settings):
    with pytest.raises(
        HistoryError, match=r"found none: no finished run is written yet\. `toolformer-ops history write"
    ):
        ask(settings, "select 1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body.replace(b"history/1", b"history/9"), "expected a history of format .*history/1, found .*history/9"),
        (lambda body: body.replace(b'"rows": 1', b'"rows": 2'), "it is damaged"),
        (lambda body: body[: len(body) // 2], "it is damaged"),
    ],
    ids=["another version", "changed", "half written"],
)  # fmt: skip
def test_a_manifest_that_is_not_ours_is_named(corpus, settings, change, message):
    objects = Objects(settings)
    body = objects.get(MANIFEST_KEY)
    assert change(body) != body
    objects.put(MANIFEST_KEY, change(body), "application/json")
    with pytest.raises(HistoryError, match=message):
        ask(settings, "select 1 from run_tools")
    history.write(settings)
    assert ask(settings, "select tool from run_tools").rows == [("Calculator",)]


def test_a_file_with_other_bytes_is_named(corpus, settings):
    [file] = files(settings, "call_losses")
    body = Objects(settings).get(file.file_key)
    Objects(settings).put(file.file_key, body[:-9] + b"x" + body[-8:], "application/octet-stream")
    with pytest.raises(
        HistoryError, match=r"the history is damaged\. Remove it; then `toolformer-ops history write"
    ):
        ask(settings, "select * from kept_calls")


def test_a_damaged_copy_is_fetched_again(corpus, settings):
    before = of_history(settings, "kept_calls")
    for path in (settings.cache_folder / "history").glob("*.parquet"):
        path.write_bytes(path.read_bytes()[::-1])
    assert of_history(settings, "kept_calls") == before


# What an audit finds


def found_by_audit(settings: Settings) -> list[tuple[str, str]]:
    """The kind and place of what is wrong with the history, without the bucket and the content's hash."""
    outcome = audit(settings, orphans_after=timedelta(0))
    statement = "select kind, place from audit_findings where audit_id = :id and place like '%/history/%' order by 1, 2"
    rows = run_sql(settings, statement, id=outcome.audit_id)
    return [(kind, place.split("/history/")[1].split("/")[0]) for kind, place in rows]


def test_an_audit_finds_nothing_in_a_sound_history(corpus, settings):
    forget(settings, [corpus.secret.document_id])
    assert found_by_audit(settings) == []


@pytest.mark.parametrize("what", ["gone", "changed", "unregistered", "manifest", "orphan"])
def test_an_audit_finds_what_is_wrong_with_the_history(corpus, settings, what):
    objects = Objects(settings)
    [file] = files(settings, "call_losses")
    if what == "gone":
        objects.delete(file.file_key)
    if what == "changed":
        objects.put(file.file_key, objects.get(file.file_key)[::-1], "application/octet-stream")
    if what == "unregistered":
        run_sql(settings, "delete from history_documents where file_key = :key", key=file.file_key)
    if what == "manifest":
        objects.put(MANIFEST_KEY, manifest_bytes([file]), "application/json")
    if what == "orphan":
        objects.put("history/call_losses/orphan.parquet", b"rows", "application/octet-stream")
    assert (
        found_by_audit(settings)
        == {
            "gone": [("lost", "call_losses")],
            "changed": [("changed", "call_losses")],
            "unregistered": [("orphaned", "call_losses")],
            "manifest": [("changed", "manifest.json")],
            "orphan": [("orphaned", "call_losses")],
        }[what]
    )


def test_an_audit_names_a_manifest_that_is_lost(corpus, settings):
    Objects(settings).delete(MANIFEST_KEY)
    assert ("lost", "manifest.json") in found_by_audit(settings)


def test_an_audit_takes_a_first_write_that_ended_before_its_manifest_for_no_loss(corpus, settings):
    Objects(settings).delete(MANIFEST_KEY)
    outcome = audit(settings, orphans_after=timedelta(days=1))
    statement = "select place from audit_findings where audit_id = :id and place like '%manifest.json'"
    assert run_sql(settings, statement, id=outcome.audit_id) == []


# What a query may do


@pytest.mark.parametrize(
    "query",
    [
        "create table t (n int)",
        "copy (select 1) to 'out.csv'",
        "set threads = 64",
        "install httpfs",
        "attach 'other.db'",
        "select 1; select 2",
        "pragma version",
        "",
    ],
)
def test_what_does_not_only_read_is_refused(corpus, settings, query):
    with pytest.raises(UsageError, match="expected one query that reads, found"):
        ask(settings, query)


def test_a_query_on_the_history_without_end_is_ended(corpus, settings, monkeypatch):
    monkeypatch.setattr(history_queries, "QUERY_SECONDS", 0.5)
    with pytest.raises(UsageError, match=r"expected a query that takes at most 0\.5 s"):
        ask(
            settings,
            "select count(*) from range(10_000_000) a, range(10_000_000) b where a.range % 7 = b.range % 5",
        )


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/hostname')",
        "select * from glob('/etc/*')",
        "select * from read_parquet('s3://toolformer/history/x.parquet')",
        "select * from read_parquet('https://example.org/x.parquet')",
    ],
)
def test_a_query_reads_no_file_beside_the_history(corpus, settings, query):
    with pytest.raises(UsageError, match="the history: "):
        ask(settings, query)


def test_a_query_that_needs_more_memory_than_allowed_is_one_sentence(corpus, settings, monkeypatch):
    monkeypatch.setattr(history_queries, "MOST_MEMORY_GIB", 0.05)
    with pytest.raises(
        UsageError, match=r"takes at most 0\.05 GiB, found one that needs more: ask about one run"
    ):
        ask(settings, "select list(a.range * b.range) from range(10000) a, range(10000) b")


def test_a_name_that_the_history_lacks_is_told_apart(corpus, settings):
    with pytest.raises(UnknownNameError, match="stage_ledger"):
        ask(settings, "select * from stage_ledger")


def test_only_the_files_that_a_query_reads_are_fetched(corpus, settings):
    ask(settings, "select * from threshold_counts")
    assert len(list((settings.cache_folder / "history").glob("*.parquet"))) == 1
    assert "call_losses" in history_queries.tables_of("select * from how_many_calls_are_kept(), kept_calls")
    assert history_queries.tables_of("select * from how_many_calls_are_kept()") == {
        "annotation_runs", "run_tools", "threshold_counts",
    }  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_a_table_without_rows_has_the_types_of_its_files(table):
    with duckdb.connect() as connection:
        of_files = connection.from_arrow(arrow_schema(table).empty_table())
        connection.execute(history_queries.empty_table(table))
        empty = connection.table(table)
        assert (empty.columns, empty.types) == (of_files.columns, of_files.types)


# The commands


def test_an_answer_is_printed_as_psql_prints_it(corpus, settings):
    query = "select tool, calls, threshold, is_keep_threshold from threshold_counts where threshold = 0.5"
    done = CliRunner().invoke(app, ["sql", "--history", query])
    assert done.stdout.splitlines() == [
        "tool       | calls | threshold | is_keep_threshold",
        "-----------+-------+-----------+------------------",
        "Calculator | 2     | 0.5       | t",
        "(1 row)",
    ]


@pytest.mark.parametrize("words", [[], ["--history"]], ids=["Postgres", "history"])
def test_a_number_is_printed_with_six_digits(corpus, settings, capfd, words):
    done = CliRunner().invoke(app, ["sql", *words, "select cast(2 as double precision) / 3 as share"])
    assert "0.666667" in (done.stdout + capfd.readouterr().out).split()


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select state from annotation_runs", "expected the manifest of the history at"),
        ("select count(*) from stage_ledger", "the history: "),
    ],
)
def test_postgres_is_asked_what_the_history_cannot_answer(settings, capfd, query, reason):
    corpus = Corpus(settings)
    if "stage_ledger" in query:
        history.write(settings)
    done = CliRunner().invoke(app, ["sql", "--history", query])
    assert done.exit_code == 0
    assert reason in done.stderr
    assert done.stderr.endswith("Postgres is asked instead.\n")
    assert "(1 row)" in capfd.readouterr().out
    assert corpus.run_id == "run-1"


def test_the_command_says_what_it_wrote(settings):
    Corpus(settings)
    done = CliRunner().invoke(app, ["history", "write", "--run", "run-1"])
    assert done.stdout.startswith("1 runs written: ")


def test_the_command_takes_one_run_or_all(settings):
    refused = CliRunner().invoke(app, ["history", "write"])
    assert "expected --run or --all, found neither" in str(refused.exception)


def test_the_snippets_of_the_documentation_read_the_files_without_us(corpus, settings, monkeypatch):
    key, secret = settings.s3_access_key_id, settings.s3_secret_access_key
    assert key is not None
    assert secret is not None
    assert settings.s3_endpoint_url is not None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key.get_secret_value())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret.get_secret_value())
    monkeypatch.setenv("AWS_REGION", settings.s3_region)
    monkeypatch.setenv("AWS_DEFAULT_REGION", settings.s3_region)
    page = (REPOSITORY / "docs" / "database.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    listing, duckdb, polars = blocks[:3]
    endpoint = settings.s3_endpoint_url
    listing = listing.replace('"toolformer"', repr(settings.s3_bucket))
    listing = listing.replace('client("s3")', f'client("s3", endpoint_url={endpoint!r})')
    host = endpoint.removeprefix("http://")
    duckdb = duckdb.replace("FileSystem()", f'FileSystem(endpoint_override={host!r}, scheme="http")')
    options = {
        "aws_endpoint_url": endpoint,
        "aws_allow_http": "true",
        "aws_virtual_hosted_style_request": "false",
    }
    polars = polars.replace(
        'for path in paths("call_losses")]', f'for path in paths("call_losses")], storage_options={options!r}'
    )
    names: dict[str, Any] = {}
    exec(listing + duckdb + polars, names)  # noqa: S102 - our own page
    assert names["mean"] == [(recipe_id("score", "Calculator"), pytest.approx(2.5 / 3))]
    assert sorted(names["kept"].rows()) == [(str(call), "0.29") for call in sorted(corpus.kept)]


# Small files of many nights


@pytest.fixture
def many_nights(nights, settings, monkeypatch):
    """Four nights, each with new texts, whose files are small."""
    monkeypatch.setattr(history_merging, "FEWEST_FILES", 3)
    records = [Record(f"text {n}") for n in range(30)]
    for number in range(4):
        records += [Record(f"text {n} of night {number}") for n in range(8)]
        nights.ingest(*records)
        night(nights, f"night-{number}", Tool("Calculator", placebos=True))
        history.write(settings)
    return nights


def test_a_merge_of_small_files_changes_no_row(many_nights, settings, monkeypatch):
    before = views_of_history(settings)
    assert len(files(settings, "call_losses")) == 4
    # 1. Killed, and concluded by the next write.
    with killed_at(monkeypatch, history.Writer, "conclude"), pytest.raises(KeyboardInterrupt):
        history_merging.merge(settings)
    history.write(settings)
    assert views_of_history(settings) == before
    # 2. Merged to its end.
    history_merging.merge(settings)
    merged = ("candidate_calls", "call_losses", "corpus_joined")
    assert [len(files(settings, table)) for table in merged] == [1, 1, 1]
    assert views_of_history(settings) == before
    # 3. A second merge does nothing.
    assert history_merging.merge(settings) == 0


def test_a_night_after_a_merge_writes_its_own_rows_alone(many_nights, settings):
    history_merging.merge(settings)
    many_nights.ingest(*(Record(f"text {n}") for n in range(40)))
    night(many_nights, "night-4", Tool("Calculator", placebos=True))
    history.write(settings)
    assert len(files(settings, "call_losses")) == 2
    assert differing_views(settings) == []


def test_a_text_is_forgotten_in_a_merged_file(corpus, settings, monkeypatch):
    monkeypatch.setattr(history_merging, "FEWEST_FILES", 1)
    history_merging.merge(settings)
    forget(settings, [corpus.secret.document_id])
    assert objects_with(settings, "Elm Street") == []
