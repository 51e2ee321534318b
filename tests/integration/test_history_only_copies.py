"""Files of the history that are the only copies of their rows: no empty bucket, exchanged file or lost row drops them."""

import dataclasses
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.annotated_runs import AnnotatedRun, recipe_id
from tests.integration.test_history import (
    CALLS_AND_LOSSES,
    NO_NEXT_NIGHT,
    Corpus,
    end_schedule,
    files,
    of_history,
    views_of_history,
)
from tests.run_sql import run_sql
from toolformer_ops.__main__ import app
from toolformer_ops.audit.running import audit
from toolformer_ops.config import Settings
from toolformer_ops.errors import HistoryError
from toolformer_ops.storage.history import history, history_queries, retention
from toolformer_ops.storage.history.files import (
    MANIFEST_KEY,
    HistoryFile,
    key_of,
    manifest_bytes,
    read_manifest,
)
from toolformer_ops.storage.history.forgetting import forget
from toolformer_ops.storage.history.history_queries import ask
from toolformer_ops.storage.history.registering import register
from toolformer_ops.storage.objects.s3 import Objects
from toolformer_ops.storage.postgres import database, partitions


def write(settings: Settings) -> Corpus:
    corpus = Corpus(settings)
    history.write(settings)
    end_schedule(settings)
    return corpus


@pytest.fixture
def old(settings, written):
    """The corpus in the test's own database; its schedule is gone."""
    return written.value.in_copy(settings)


@pytest.fixture
def only_copies(old, settings):
    """The corpus, whose calls and losses are in the history alone."""
    retention.drop_written(settings, NO_NEXT_NIGHT)
    return old


def put_manifest(settings: Settings, *listed: HistoryFile) -> None:
    Objects(settings).put(MANIFEST_KEY, manifest_bytes(listed), "application/json")


def findings(settings: Settings, **options: Any) -> list[tuple[str, str]]:
    """Kind and relation of what an audit found about the history."""
    outcome = audit(settings, **options)
    statement = "select kind, relation from audit_findings where audit_id = :id and check_name like '%history%' order by 1, 2"
    return [tuple(row) for row in run_sql(settings, statement, id=outcome.audit_id)]


# Manifests that were exchanged


@pytest.mark.parametrize(
    "changes",
    [
        {"sha256": "../../../outside"},
        {"sha256": "A" * 64},
        {"file_key": "history/run_tools/catalog/another.parquet"},
        {"owner_id": "../catalog"},
        {"table_name": "no_table"},
        {"rows": -1},
        {"size_bytes": "5"},
        {"rows": True},
    ],
    ids=str,
)
def test_a_manifest_names_files_by_their_content_alone(
    old,
    settings,
    changes,
):
    [file] = files(settings, "run_tools")
    put_manifest(settings, dataclasses.replace(file, **changes))
    with pytest.raises(HistoryError, match="expected files that are named by their content"):
        ask(
            settings.model_copy(update={"database_dsn": type(settings.database_dsn)("")}),
            "select 1 from run_tools",
        )


def test_no_path_is_made_of_a_manifest_that_was_written_by_another(
    old,
    settings,
    tmp_path,
):
    [file] = files(settings, "run_tools")
    outside = tmp_path / "outside"
    named = dataclasses.replace(file, sha256=str(outside))
    put_manifest(settings, dataclasses.replace(named, file_key=key_of("run_tools", "catalog", str(outside))))
    with pytest.raises(HistoryError):
        ask(settings, "select 1 from run_tools")
    assert not outside.with_suffix(".parquet").exists()


def exchanged(settings: Settings, file: HistoryFile, change: Callable[[pa.Table], pa.Table]) -> HistoryFile:
    """A file in place of another, in the bucket and in the manifest."""
    objects = Objects(settings)
    body = io.BytesIO()
    pq.write_table(change(pq.read_table(io.BytesIO(objects.get(file.file_key)))), body)
    settings.state_dir.mkdir(exist_ok=True)
    path = settings.state_dir / "exchanged.parquet"
    path.write_bytes(body.getvalue())
    sha256 = history.file_sha256(path)
    new = dataclasses.replace(
        file,
        file_key=key_of(file.table_name, file.owner_id, sha256),
        sha256=sha256,
        size_bytes=path.stat().st_size,
    )
    objects.put(new.file_key, body.getvalue(), "application/octet-stream")
    others = [other for other in read_manifest(objects) if other != file]
    put_manifest(settings, *others, new)
    return new


def with_other_losses(table: pa.Table) -> pa.Table:
    position = table.schema.get_field_index("loss_with_result")
    other = pc.add(table["loss_with_result"], 0.5)
    return table.set_column(position, "loss_with_result", other)


def with_other_reductions(table: pa.Table) -> pa.Table:
    position = table.schema.get_field_index("loss_reduction")
    return table.set_column(position, "loss_reduction", pc.add(table["loss_reduction"], 9.0))


def test_an_exchanged_manifest_answers_nothing(old, settings):
    [losses] = files(settings, "call_losses")
    exchanged(settings, losses, with_other_losses)
    with pytest.raises(HistoryError, match="expected the files of history_files in Postgres, found 1 others"):
        ask(settings, "select * from kept_calls")


def test_a_manifest_that_lacks_a_file_answers_nothing(old, settings):
    listed = read_manifest(Objects(settings))
    put_manifest(settings, *(file for file in listed if file.table_name != "call_losses"))
    with pytest.raises(
        HistoryError, match="expected the files of history_files in Postgres, found 1 lacking"
    ):
        ask(settings, "select * from kept_calls")


def test_a_question_that_meets_a_write_reads_the_new_manifest(
    old,
    settings,
    monkeypatch,
):
    listed = read_manifest(Objects(settings))
    [tools] = [file for file in listed if file.table_name == "run_tools"]
    earlier = dataclasses.replace(tools, sha256="0" * 64, file_key=key_of("run_tools", "catalog", "0" * 64))
    manifests = [[earlier], listed, listed]
    monkeypatch.setattr("toolformer_ops.storage.history.files.read_manifest", lambda _: manifests.pop(0))
    assert ask(settings, "select tool from run_tools").rows == [("Calculator",)]


# A bucket that is empty, or another one


def empty(settings: Settings) -> dict[str, bytes]:
    """Take all objects of the history away; returns them."""
    objects = Objects(settings)
    taken = {key: objects.get(key) for key in objects.list("history/")}
    for key in taken:
        objects.delete(key)
    return taken


def test_a_write_into_an_empty_bucket_drops_no_only_copy(only_copies, settings):
    before = views_of_history(settings)
    copies = files(settings, "candidate_calls") + files(settings, "call_losses")
    taken = empty(settings)
    written = history.write(settings)
    assert sorted(written.only_copies) == sorted(file.file_key for file in copies)
    for key, body in taken.items():
        Objects(settings).put(key, body, "application/octet-stream")
    history.write(settings)
    assert views_of_history(settings) == before


def test_the_command_fails_while_an_only_copy_is_missing(only_copies, settings):
    [losses] = files(settings, "call_losses")
    Objects(settings).delete(losses.file_key)
    done = CliRunner().invoke(app, ["history", "write", "--all"])
    assert done.exit_code == 1
    assert f"is not there, and Postgres has not all of its rows: {losses.file_key}" in done.stdout


def test_a_lost_only_copy_is_given_up_when_a_person_says_so(only_copies, settings):
    [losses] = files(settings, "call_losses")
    Objects(settings).delete(losses.file_key)
    done = CliRunner().invoke(app, ["history", "write", "--all", "--give-up-lost"])
    assert f"was not there as it was written: {losses.file_key}" in done.stdout
    assert files(settings, "call_losses") == []


def test_forgetting_drops_no_only_copy_that_is_missing(only_copies, settings):
    taken = empty(settings)
    with pytest.raises(HistoryError, match="expected 2 files of the history that hold forgotten texts"):
        forget(settings, [only_copies.secret.document_id])
    for key, body in taken.items():
        Objects(settings).put(key, body, "application/octet-stream")
    forget(settings)
    history.write(settings)
    assert len(of_history(settings, "scored_calls")["rows"]) == 1


# Registering again


def lose_registration(settings: Settings) -> None:
    """Delete what Postgres knows of the files, as a restored backup may have it."""
    run_sql(settings, "delete from history_documents")
    run_sql(settings, "delete from history_work")
    run_sql(settings, "delete from history_runs")
    run_sql(settings, "delete from history_files")


def test_files_that_postgres_no_longer_knows_are_registered_again(only_copies, settings):
    before = views_of_history(settings)
    lose_registration(settings)
    assert len(register(settings).files) == 2
    history.write(settings)
    assert views_of_history(settings) == before


def test_the_command_registers_files_again(only_copies, settings):
    lose_registration(settings)
    done = CliRunner().invoke(app, ["history", "register"])
    assert "2 files registered; `history write --all` adds their runs" in done.stdout


def test_a_forgotten_text_is_not_registered_again(only_copies, settings):
    copies = files(settings, "candidate_calls") + files(settings, "call_losses")
    bodies = {file.file_key: Objects(settings).get(file.file_key) for file in copies}
    forget(settings, [only_copies.secret.document_id])
    lose_registration(settings)
    for key in Objects(settings).list("history/"):
        Objects(settings).delete(key)
    for key, body in bodies.items():
        Objects(settings).put(key, body, "application/octet-stream")
    register(settings)
    history.write(settings)
    assert len(of_history(settings, "scored_calls")["rows"]) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "update recipes set recipe_id = 'f' || substr(recipe_id, 2) where stage = 'score'",
            "expected a recipe of Postgres",
        ),
        ("delete from corpus_documents", None),
    ],
)
def test_a_file_is_registered_only_with_its_recipe(only_copies, settings, change, reason):
    lose_registration(settings)
    run_sql(settings, change)
    refused = list(register(settings).refused.values())
    assert [reason in text for text in refused if reason] == [True] * len(refused)


def test_a_file_under_another_name_is_not_registered(only_copies, settings):
    [losses] = files(settings, "call_losses")
    key = key_of("call_losses", recipe_id("score", "Calculator"), "0" * 64)
    Objects(settings).put(key, Objects(settings).get(losses.file_key), "application/octet-stream")
    assert "expected a file that is named by its content" in register(settings).refused[key]


# What the audit sees


def test_an_audit_of_only_copies_is_sound(only_copies, settings):
    history.write(settings)
    assert findings(settings) == []


def test_an_audit_misses_a_file_that_left_no_trace(only_copies, settings):
    [losses] = files(settings, "call_losses")
    Objects(settings).delete(losses.file_key)
    run_sql(settings, "delete from history_documents where file_key = :key", key=losses.file_key)
    run_sql(settings, "delete from history_files where file_key = :key", key=losses.file_key)
    put_manifest(settings, *(file for file in read_manifest(Objects(settings)) if file != losses))
    assert findings(settings) == [("lost", "call_losses")]


def test_an_audit_finds_that_no_file_is_registered(only_copies, settings):
    lose_registration(settings)
    assert ("lost", "candidate_calls") in findings(settings)


@pytest.mark.parametrize("change", [with_other_losses, with_other_reductions])
def test_an_audit_finds_changed_rows_of_a_file(only_copies, settings, change):
    [losses] = files(settings, "call_losses")
    new = exchanged(settings, losses, change)
    run_sql(settings, "alter table history_documents drop constraint history_documents_file_key_fkey")
    columns = ", ".join(f"{field} = :{field}" for field in ("file_key", "sha256", "size_bytes"))
    run_sql(
        settings, f"update history_files set {columns} where file_key = :old", old=losses.file_key,
        file_key=new.file_key, sha256=new.sha256, size_bytes=new.size_bytes,
    )  # fmt: skip
    run_sql(settings, "update history_documents set file_key = :new where file_key = :old",
            new=new.file_key, old=losses.file_key)  # fmt: skip
    assert ("changed", "object") in findings(settings)


def test_an_audit_finds_a_wrong_number_of_rows(only_copies, settings):
    run_sql(settings, "update history_files set rows = rows + 1 where table_name = 'call_losses'")
    history.write(settings)
    assert ("changed", "history_files") in findings(settings)


def test_an_audit_does_not_say_that_an_only_copy_may_be_deleted(only_copies, settings):
    [losses] = files(settings, "call_losses")
    body = Objects(settings).get(losses.file_key)
    Objects(settings).put(losses.file_key, body[::-1], "application/octet-stream")
    lose_registration_of_calls = "delete from history_documents where file_key like 'history/candidate%'"
    run_sql(settings, lose_registration_of_calls)
    run_sql(settings, "delete from history_files where file_key like 'history/candidate%'")
    outcome = audit(settings)
    remedies = "select remedy from audit_findings where audit_id = :id and relation = 'object'"
    texts = [row[0] for row in run_sql(settings, remedies, id=outcome.audit_id)]
    assert any("Put the object back from a version of the bucket" in text for text in texts)
    assert not any("elete the object" in text for text in texts)


# A later run over a part of the texts


@pytest.fixture
def used_again(only_copies, settings):
    """The corpus, of which a later run has made the calls of one text again."""
    with database.transaction(only_copies.engine) as connection:
        for stage, recipe in CALLS_AND_LOSSES:
            partitions.ensure_partitions(connection, stage, recipe)
    again = AnnotatedRun(settings, {"Calculator": 0.5}, "run-2")
    again.documents = [only_copies.other]
    again.add_call("Calculator", only_copies.other, " 29", "400 / 1400", "0.29", saves=1.0)
    run_sql(
        settings, "delete from filter_decisions where document_id = :id", id=only_copies.other.document_id
    )
    run_sql(settings, "delete from stage_ledger where document_id = :id", id=only_copies.other.document_id)
    again.complete("Calculator")
    return only_copies


def test_a_run_of_which_a_part_was_made_again_is_told_where_its_calls_are(used_again, settings):
    done = CliRunner().invoke(app, ["sql", "select count(*) from kept_calls where run_id = 'run-1'"])
    assert "Postgres lacks calls of run run-1" in done.stderr


def test_the_run_that_made_a_part_again_lacks_no_call(used_again, settings):
    engine = database.connect(settings)
    assert history_queries.where_older_rows_are(engine, "select * from kept_calls", "run-2") == ""


def test_an_audit_misses_no_row_of_which_a_part_was_made_again(used_again, settings):
    outcome = audit(settings)
    lost = "select place, what from audit_findings where audit_id = :id and relation = 'stage_ledger'"
    assert run_sql(settings, lost, id=outcome.audit_id) == []


# Partitions that were detached


def detach(settings: Settings, table: str, stage: str) -> None:
    run_sql(
        settings, f"alter table {table} detach partition partitions.{table}_{recipe_id(stage, 'Calculator')}"
    )


@pytest.mark.parametrize(
    ("table", "stage"), [("candidate_calls", "sample"), ("call_losses", "score"), ("stage_ledger", "score")]
)
def test_a_detached_partition_is_attached_by_a_repair(
    old,
    settings,
    table,
    stage,
):
    rows = run_sql(settings, f"select count(*) from {table}")
    detach(settings, table, stage)
    audit(settings, repairs=True)
    assert run_sql(settings, f"select count(*) from {table}") == rows


def test_a_run_attaches_a_detached_partition(old, settings):
    detach(settings, "call_losses", "score")
    with database.transaction(old.engine) as connection:
        partitions.ensure_partitions(connection, "score", recipe_id("score", "Calculator"))
    assert run_sql(settings, "select count(*) from call_losses") == [(3,)]


def test_a_detached_partition_comes_back_without_what_was_forgotten(old, settings):
    detach(settings, "call_losses", "score")
    forget(settings, [old.secret.document_id])
    with database.transaction(old.engine) as connection:
        partitions.ensure_partitions(connection, "score", recipe_id("score", "Calculator"))
    assert run_sql(settings, "select count(*) from call_losses") == [(1,)]
