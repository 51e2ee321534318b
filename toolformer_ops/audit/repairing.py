"""Mend what can be derived again: stored numbers, releases from Postgres, a document's rows by the next run, orphans.

`planned` says what would be done; `repair` does it. Objects come first, since a release is made from rows, and a document's damaged
rows are deleted last. Nothing is mended from what is damaged itself: a release whose rows give another one waits for them.
"""

import logging
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.audit.auditing import Auditing, ToolOfRun, findings_of
from toolformer_ops.audit.objects import delete_folder
from toolformer_ops.errors import ToolformerError
from toolformer_ops.release.format import read_released_calls
from toolformer_ops.runs.numbers import store_numbers
from toolformer_ops.runs.run_tools import RECIPE_OF_STAGE
from toolformer_ops.stages import release as release_stage
from toolformer_ops.stages.run_setup import finish_run
from toolformer_ops.storage import database

logger = logging.getLogger(__name__)

WORDS = {
    "delete_objects": "delete it",
    "release": "make it again from Postgres",
    "release_calls": "write the calls again from the release's files",
    "delete_folder": "delete it",
    "finish_run": "end the run as failed",
    "store_numbers": "count them again",
    "read_again": "have the next ingestion read the files again",
    "delete_document": "delete the text",
    "rows": "delete the document's rows, so that the next run computes them again",
}
"""What is done, in the order in which it is done."""
ROWS_AT_ONCE = 500
"""Documents whose rows are deleted in one transaction."""


def planned(auditing: Auditing) -> Iterator[str]:
    """One line for each thing that `repair` would do, in its order."""
    for action, rows in _by_action(auditing).items():
        for row in rows:
            yield f"{WORDS[action]}: {row.relation} {row.place}"


def repair(auditing: Auditing) -> int:
    """Repair what can be repaired; returns the number of findings that are."""
    done = 0
    found = _by_action(auditing)
    for action, rows in found.items():
        if action == "rows":
            done += _delete_rows(auditing, rows)
            continue
        if action == "release" and found["rows"] and rows:
            logger.warning(
                "%d objects of releases are not repaired: rows are damaged, and a release is made from them. Run the stages again, "
                "and then audit again.",
                len(rows),
            )
            continue
        for row in rows:
            try:
                _repair_one(auditing, action, row.repair)
            except ToolformerError as error:
                logger.warning("%s %s is not repaired: %s", row.relation, row.place, error)
                continue
            _mark(auditing, [row.finding_id])
            done += 1
    return done


def _by_action(auditing: Auditing) -> dict[str, list[Row[Any]]]:
    found: dict[str, list[Row[Any]]] = {action: [] for action in WORDS}
    for row in findings_of(auditing.engine, auditing.audit_id):
        if row.repair is not None and not row.is_repaired:
            found[row.repair["action"]].append(row)
    return found


def _repair_one(auditing: Auditing, action: str, repair: dict[str, Any]) -> None:
    store = auditing.store
    match action:
        case "delete_objects":
            keys = list(store.list(f"{repair['prefix']}/")) if repair["prefix"] else repair["keys"]
            for key in keys:
                store.delete(key)
        case "release":
            _release_again(auditing, repair)
        case "release_calls":
            _write_release_calls(auditing, repair["release_id"])
        case "delete_folder":
            delete_folder(auditing, repair["path"])
        case "finish_run":
            finish_run(auditing.settings, repair["run_id"], "failed")
        case "store_numbers":
            with database.transaction(auditing.engine) as connection:
                store_numbers(connection, repair["run_id"])
        case "read_again":
            with database.transaction(auditing.engine) as connection:
                database.execute(connection, "audit_repair_files", corpus_id=repair["corpus_id"])
        case "delete_document":
            with database.transaction(auditing.engine) as connection:
                database.execute(connection, "audit_repair_document", document_id=uuid.UUID(repair["document_id"]))


def _release_again(auditing: Auditing, repair: dict[str, Any]) -> None:
    """Delete a release's wrong objects and write them from Postgres, if the rows there still give this very release.

    Raises:
        ToolformerError: they give another one.
    """
    run_id = repair["run_id"]
    with (
        tempfile.TemporaryDirectory(prefix="audit-", dir=auditing.settings.state_dir) as folder,
        database.transaction(auditing.engine) as connection,
    ):
        tools = release_stage.tools_of_run(connection, run_id)
        found = release_stage.write_release(connection, run_id, tools, Path(folder)).release_id
    if found != repair["release_id"]:
        raise ToolformerError(
            f"expected rows that give the release {repair['release_id']}, found others, which give {found}. Repair the "
            "rows first, run the stages again, and then audit again."
        )
    for key in repair["keys"]:
        auditing.store.delete(key)
    release_stage.release(auditing.settings, run_id)


def _write_release_calls(auditing: Auditing, release_id: str) -> None:
    """Write `release_calls` from the files of the release."""
    row = next(row for row in auditing.subjects.releases if row.release_id == release_id)
    with tempfile.TemporaryDirectory(prefix="audit-", dir=auditing.settings.state_dir) as folder:
        auditing.store.fetch(auditing.store.key_of(row.uri), Path(folder), row.manifest_sha256)
        with database.transaction(auditing.engine) as connection:
            database.execute(connection, "audit_repair_release_calls", release_id=release_id)
            columns = release_stage.CALL_COLUMNS
            calls = ((release_id, *call) for call in read_released_calls(Path(folder), columns[2:]))
            database.copy_insert(connection, "release_calls", columns, calls)


def _delete_rows(auditing: Auditing, rows: Sequence[Row[Any]]) -> int:
    """Delete the rows of damaged documents from the damaged stage on, stage and recipe by stage and recipe."""
    grouped: dict[tuple[str, str], list[Row[Any]]] = defaultdict(list)
    for row in rows:
        grouped[row.repair["stage"], row.repair["recipe_id"]].append(row)
    done = 0
    for (stage, recipe_id), of_recipe in sorted(
        grouped.items(), key=lambda item: list(RECIPE_OF_STAGE).index(item[0][0])
    ):
        with database.transaction(auditing.engine) as connection:
            affected = _later_recipes(connection, stage, recipe_id)
            running = database.fetch_all(connection, "audit_running", recipe_ids=affected["recipe_ids"])
        if running:
            named = ", ".join(row.run_id for row in running)
            logger.warning("%s rows under %s are not deleted: %s works by this recipe", stage, recipe_id, named)
            continue
        for first in range(0, len(of_recipe), ROWS_AT_ONCE):
            some = of_recipe[first : first + ROWS_AT_ONCE]
            with database.transaction(auditing.engine) as connection:
                database.execute(
                    connection,
                    "audit_repair_rows",
                    document_ids=[uuid.UUID(row.repair["document_id"]) for row in some],
                    **affected,
                )
            _mark(auditing, [row.finding_id for row in some])
            done += len(some)
    return done


def _later_recipes(connection: Connection, stage: str, recipe_id: str) -> dict[str, Any]:
    """The arguments of audit_repair_rows.sql but for the documents: a stage's recipe, and all that are built on it."""
    fields = list(RECIPE_OF_STAGE.values())
    runs = database.fetch_all(connection, "audit_scope_runs", scope="all", scope_id="")
    tools = [
        ToolOfRun(**{name: getattr(row, name) for name in ToolOfRun.__dataclass_fields__})
        for row in runs
        if row.tool is not None and getattr(row, RECIPE_OF_STAGE[stage]) == recipe_id
    ]
    later = fields[fields.index(RECIPE_OF_STAGE[stage]) :]
    affected: dict[str, Any] = {
        f"{name}s": sorted({getattr(tool, name) for tool in tools} - {None}) if name in later else [] for name in fields
    }
    recipe_ids = sorted({recipe for ids in affected.values() for recipe in ids})
    del affected["execution_recipe_ids"]
    return affected | {
        "recipe_ids": recipe_ids,
        "deletes_results": stage == "execute",
        "asked_in": tools[0].sampling_recipe_id,
        "tool": tools[0].tool,
        "tool_version": tools[0].tool_version,
    }


def _mark(auditing: Auditing, finding_ids: Sequence[int]) -> None:
    with database.transaction(auditing.engine) as connection:
        database.execute(connection, "audit_repaired", finding_ids=list(finding_ids))
