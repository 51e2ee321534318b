"""What a run came to, as one line of JSON that a pipeline reads: `toolformer-ops run --json`."""

import json
from typing import Any

from sqlalchemy import Connection

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolformerError
from toolformer_ops.release.format import DATA
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, queries

NOT_STARTED = "not_started"


def outcome_line(settings: Settings, run_id: str, exit_status: int, reason: str | None) -> str:
    """Return the line; docs/operations.md lists its keys.

    `reason` is what the command says of a run that did not end well. Where Postgres does not answer, the line
    says so as its reason, without what only Postgres knows.
    """
    outcome: dict[str, Any] = {
        "run": run_id,
        "exit_status": exit_status,
        "state": None,
        "reason": reason,
        "corpus": None,
        "release": None,
        "model": None,
        "tools": {},
    }
    try:
        with database.transaction(database.connect(settings)) as connection:
            outcome |= _stored(connection, run_id)
        if outcome["release"]:
            store = ObjectStore(settings)
            manifest = store.read_manifest(store.key_of(outcome["release"]["uri"]))
            # With the slash that some readers of the folder need.
            data_folder = store.uri(f"{manifest.folder}/{DATA}/") if manifest else None
            outcome["release"]["data"] = data_folder
    except ToolformerError as error:
        outcome["reason"] = outcome["reason"] or str(error)
    return json.dumps(outcome)


def _stored(connection: Connection, run_id: str) -> dict[str, Any]:
    """What Postgres holds of a run."""
    runs = database.fetch_all(connection, queries.demo.outcome, run_id=run_id)
    if not runs:
        not_started = database.fetch_all(connection, queries.runs.not_started, run_id=run_id, at_most=1)
        return {"state": NOT_STARTED, "reason": not_started[0].problem} if not_started else {}
    [run] = runs
    tools = {
        row.tool: {
            "sampled_calls": row.calls,
            "scored_calls": row.scored,
            "keep_threshold": None,
            "kept_calls": None,
            "kept_texts": None,
        }
        for row in database.fetch_all(connection, queries.summary.scored_by_tool, run_id=run_id)
    }
    for row in database.fetch_all(connection, queries.summary.rates, run_id=run_id):
        kept = {"keep_threshold": row.threshold, "kept_calls": row.calls, "kept_texts": row.texts}
        tools[row.tool] |= kept
    stored: dict[str, Any] = {
        "state": run.state,
        "corpus": {"uri": run.corpus_uri, "version": run.corpus_version},
        "tools": tools,
    }
    if run.release_id:
        stored["release"] = {
            "id": run.release_id,
            "uri": run.release_uri,
            "data": None,
            "texts": run.released_texts,
            "calls": run.released_calls,
        }
    if run.model_id:
        stored["model"] = {"id": run.model_id, "uri": run.model_uri}
    if run.problem:
        stored["reason"] = run.problem
    return stored
