"""Mend what can be derived from what is older: releases from Postgres, a document's rows by the next run, orphans.

`planned` says what would be done; `repair` does it. Objects come first, since a release is made from rows,
and a document's damaged rows are deleted last. Nothing is mended from what is damaged itself, or was not
looked at: a release waits for its rows, rows for text and recipes. Stored numbers are never mended by
themselves: a person accepts what the rows give.
"""

import logging
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from toolformer_ops.audit.auditing import Auditing, findings_of
from toolformer_ops.audit.rows import count_again, relation_of, replace_numbers
from toolformer_ops.errors import CorruptObjectError, NoResultError, ToolformerError
from toolformer_ops.runs.run_tools import RECIPE_OF_STAGE
from toolformer_ops.stages import release as release_stage
from toolformer_ops.stages.run_setup import finish_run
from toolformer_ops.storage.history import history
from toolformer_ops.storage.machine.temporary_folders import temporary_folder
from toolformer_ops.storage.objects.publication import Manifest
from toolformer_ops.storage.postgres import database, partitions, queries
from toolformer_ops.storage.postgres.in_use import take_results

logger = logging.getLogger(__name__)

WORDS = {
    "attach": "attach it again",
    "delete_objects": "delete it",
    "release": "make it again from Postgres",
    "release_calls": "write the calls again from the release's files",
    "delete_folder": "delete it",
    "finish_run": "end the run as failed",
    "read_again": "have the next ingestion read the files again",
    "delete_document": "delete the text",
    "rows": "delete the document's rows, so that the next run computes them again",
}
"""What is done, in the order in which it is done."""
CHOICE = "store_numbers"
"""The action that only a person chooses: which of two sides is right does not follow from either."""
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
    rows_by_action = _by_action(auditing)
    relations = defaultdict(set)
    for row in findings_of(auditing.engine, auditing.audit_id):
        relations[row.relation].add(row.place)
    for action, rows in rows_by_action.items():
        if action == "rows":
            # 1. What rows are computed again from has to be sound: their text and their recipes.
            sound = [row for row in rows if row.repair["document_id"] not in relations["documents"]]
            if relations["recipes"] or relations["run_tools"]:
                sound = []
            if len(sound) < len(rows):
                logger.warning(
                    "%d findings in rows are not repaired: the texts or recipes that they follow from are "
                    "damaged.",
                    len(rows) - len(sound),
                )
            done += _delete_rows(auditing, sound)
            continue
        if (
            action == "delete_document"
            and rows
            and any(row.repair["lacks_members"] for row in rows_by_action["read_again"])
        ):
            logger.warning(
                "%d texts that no corpus holds stay: members of a corpus are lost. Ingest it again.",
                len(rows),
            )
            continue
        if action == "release" and not auditing.subjects.has_rows and rows:
            logger.warning(
                "%d objects of releases are not repaired: a release is made from rows, and this audit "
                "looked at none. Audit its run: `toolformer-ops audit --run RUN --repair --yes`.",
                len(rows),
            )
            continue
        if action == "release" and rows_by_action["rows"] and rows:
            logger.warning(
                "%d objects of releases are not repaired: rows are damaged, and a release is made from "
                "them. Run the stages again, and then audit again.",
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
    rows_by_action: dict[str, list[Row[Any]]] = {action: [] for action in WORDS}
    for row in findings_of(auditing.engine, auditing.audit_id):
        if row.repair is not None and not row.is_repaired and row.repair["action"] != CHOICE:
            rows_by_action[row.repair["action"]].append(row)
    return rows_by_action


def accept_numbers(auditing: Auditing, run_id: str) -> int:
    """Store what the rows give instead of a run's numbers that the audit found to differ.

    Returns the number of findings.

    Raises:
        NoResultError: the audit found something else, by which the rows may be wrong.
    """
    findings = list(findings_of(auditing.engine, auditing.audit_id))
    others = [row for row in findings if row.repair is None or row.repair["action"] != CHOICE]
    if others:
        raise NoResultError(
            f"run {run_id}: expected rows that nothing speaks against, found {len(others)} other findings, "
            f"such as {others[0].relation} {others[0].place}. No number was changed: mend these first."
        )
    if findings:
        with auditing.engine.connect() as connection:
            counted = count_again(connection, run_id)
            connection.rollback()
        with database.transaction(auditing.engine) as connection:
            relations = {row.relation for row in findings}
            for table, rows in counted.items():
                if relation_of(table) in relations:
                    replace_numbers(connection, run_id, table, rows)
        _mark(auditing, [row.finding_id for row in findings])
    return len(findings)


def _repair_one(auditing: Auditing, action: str, repair: dict[str, Any]) -> None:
    store = auditing.store
    match action:
        case "attach":
            with database.transaction(auditing.engine) as connection:
                partitions.attach_detached(connection, repair["table"], repair["recipe_id"])
        case "delete_objects":
            store.remove(store.list(f"{repair['prefix']}/") if repair["prefix"] else repair["keys"])
        case "release":
            _release_again(auditing, repair)
        case "release_calls":
            row = next(row for row in auditing.subjects.releases if row.release_id == repair["release_id"])
            with temporary_folder(auditing.settings.state_dir, "audit") as folder:
                store.fetch(store.key_of(row.uri), folder, row.manifest_sha256)
                with database.transaction(auditing.engine) as connection:
                    database.execute(connection, queries.repairs.release_calls, release_id=row.release_id)
                    release_stage.insert_calls(connection, row.release_id, folder)
        case "delete_folder":
            left_folder, state = Path(repair["path"]), auditing.settings.state_dir
            if left_folder.parent in (state, state / "finetuning"):  # where the check `left_folders` looks
                shutil.rmtree(left_folder, ignore_errors=True)
        case "finish_run":
            finish_run(auditing.settings, repair["run_id"], "failed", was_opened=False)
        case "read_again":
            database.execute(auditing.engine, queries.repairs.files, corpus_id=repair["corpus_id"])
        case "delete_document":
            database.execute(
                auditing.engine, queries.repairs.document, document_id=uuid.UUID(repair["document_id"])
            )


def _release_again(auditing: Auditing, repair: dict[str, Any]) -> None:
    """Delete a release's wrong objects and write them from Postgres, if the rows there still give this very release.

    The registration stays, but for calls that are lost, and the manifest's hash if this version writes other
    bytes.

    Raises:
        ToolformerError: they give another one, or the manifest that they give exists, and another one is
        registered.
    """
    run_id, store = repair["run_id"], auditing.store
    row = next(row for row in auditing.subjects.releases if row.release_id == repair["release_id"])
    with temporary_folder(auditing.settings.state_dir, "audit") as folder:
        evaluation_data = release_stage.evaluation_ngrams(auditing.settings, run_id)
        with database.transaction(auditing.engine) as connection:
            tools = release_stage.tools_of_run(connection, run_id)
            written = release_stage.write_release(connection, run_id, tools, folder, evaluation_data)
        if written.release_id != row.release_id:
            if written.definition.get("evaluation_data") != (row.definition or {}).get("evaluation_data"):
                raise ToolformerError(
                    f"expected the evaluation data with which the release {row.release_id} was compared, "
                    f"found others, with which the rows give {written.release_id}. Put the first ones back "
                    "(the release's definition has their hashes), and then audit again."
                )
            raise ToolformerError(
                f"expected rows that give the release {row.release_id}, found others, which give "
                f"{written.release_id}. Repair the rows first, run the stages again, and then audit again."
            )
        expected = Manifest.of(store.key_of(row.uri), {**written.parts, release_stage.CARD: written.card})
        try:
            has_manifest = store.read_manifest(expected.prefix) == expected
        except CorruptObjectError:
            has_manifest = False
        for key in repair["keys"]:
            if key != expected.key or not has_manifest:
                store.delete(key)
        manifest = release_stage.publish(auditing.settings, store, written)
        with database.transaction(auditing.engine) as connection:
            if manifest.sha256 != row.manifest_sha256:
                database.execute(
                    connection,
                    queries.repairs.release_again,
                    release_id=row.release_id,
                    manifest_sha256=manifest.sha256,
                )
            # Lost objects; the files were not compared.
            release_stage.insert_calls(connection, row.release_id, folder)


def _delete_rows(auditing: Auditing, rows: Sequence[Row[Any]]) -> int:
    """Delete the rows of damaged documents from the damaged stage on, stage and recipe by stage and recipe.

    Waits while another process writes the history, which may be reading these rows.
    """
    if not rows:
        return 0
    grouped: dict[tuple[str, str], list[Row[Any]]] = defaultdict(list)
    for row in rows:
        grouped[row.repair["stage"], row.repair["recipe_id"]].append(row)
    stages = list(RECIPE_OF_STAGE)
    done = 0
    with history.writing(auditing.engine):
        for stage, recipe_id in sorted(grouped, key=lambda group: stages.index(group[0])):
            done += _delete_rows_of_recipe(auditing, stage, recipe_id, grouped[stage, recipe_id])
    return done


def _delete_rows_of_recipe(auditing: Auditing, stage: str, recipe_id: str, rows: Sequence[Row[Any]]) -> int:
    with database.transaction(auditing.engine) as connection:
        later = database.fetch_all(connection, queries.repairs.later_recipes, recipe_id=recipe_id)
        recipe_ids = sorted(row.recipe_id for row in later)  # this recipe, and all that are built on it
        running = database.fetch_all(connection, queries.repairs.runs_at_work, recipe_ids=recipe_ids)
    if running:
        named = ", ".join(row.run_id for row in running)
        logger.warning("%s rows under %s are not deleted: %s works by this recipe", stage, recipe_id, named)
        return 0
    [recipe] = (row for row in later if row.recipe_id == recipe_id)
    tool_version = recipe.definition.get("tool_version")
    executions = database.fetch_all(
        auditing.engine, queries.repairs.executions, tool=recipe.tool, tool_version=tool_version
    )
    for first in range(0, len(rows), ROWS_AT_ONCE):
        page = rows[first : first + ROWS_AT_ONCE]
        with database.transaction(auditing.engine) as connection:
            take_results(connection)
            database.execute(
                connection,
                queries.repairs.rows,
                document_ids=[uuid.UUID(row.repair["document_id"]) for row in page],
                recipe_ids=recipe_ids,
                deletes_results=stage == "execute",
                asked_in=recipe.parent_recipe_id,
                tool=recipe.tool,
                tool_version=tool_version,
                execution_recipe_ids=[row.recipe_id for row in executions],
                sampling_recipe_ids=[row.parent_recipe_id for row in executions],
            )
        _mark(auditing, [row.finding_id for row in page])
    return len(rows)


def _mark(auditing: Auditing, finding_ids: Sequence[int]) -> None:
    database.execute(auditing.engine, queries.audits.repaired, finding_ids=list(finding_ids))
