"""Release: weave the kept calls of all tools into their texts and publish them as Parquet on S3 (Toolformer, section 2).

Owns `dataset_releases`, `release_calls` and `run_releases`. A release is named by what it holds, so releasing twice gives the same
one. The released text is the whole document, also where a tool annotates paragraphs (MT): calls of different tools in one
document belong in one text, and the paper finetunes on the same texts as its plain data set. Which calls are chosen is said in
`sql/queries/release_choose_calls.sql`. Does not decide thresholds, and does not judge the release: `stages/checking.py` does.
"""

import hashlib
import itertools
import json
import logging
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import NothingToReleaseError, ParameterError, QualityError
from toolformer_ops.release.card import ReleaseCounts, dataset_card
from toolformer_ops.release.format import ReleasedCall, ReleasedText, ReleaseWriter, read_release
from toolformer_ops.runs.choices import ReleaseChoices, RunChoices
from toolformer_ops.storage import database
from toolformer_ops.storage.object_store import ObjectStore
from toolformer_ops.storage.publication import Manifest

logger = logging.getLogger(__name__)

RELEASE_VERSION = 2
"""Raised when equal calls would give other texts or columns."""
PREFIX = "releases"
CARD = "README.md"
PAGE_TEXTS = 500
CALL_COLUMNS = ("release_id", "document_id", "call_id", "scoring_recipe_id", "tool")
_BEFORE_ALL = uuid.UUID(int=0)


@dataclass(frozen=True)
class ToolOfRelease:
    """A tool whose rows are complete and passed their check."""

    tool: str
    sampling_recipe_id: str
    execution_recipe_id: str
    scoring_recipe_id: str
    keep_threshold: float
    """tau_f, in nats."""


@dataclass(frozen=True)
class ToolsOfRun:
    """What a run can release."""

    present: tuple[ToolOfRelease, ...]
    lacking: dict[str, str]
    """Why a tool is left out, by its name."""
    model_identity: str


@dataclass(frozen=True)
class WrittenRelease:
    """A release that lies in a local folder."""

    release_id: str
    counts: ReleaseCounts
    files: dict[str, Path]


def release_prefix(release_id: str) -> str:
    """Where a release lies in the bucket."""
    return f"{PREFIX}/{release_id}"


def release(settings: Settings, run_id: str) -> str:
    """Publish what the run kept and register it; returns the release's id.

    Raises:
        ParameterError: there is no such run.
        NothingToReleaseError: no tool is complete, or none of their calls was kept.
        QualityError: a text does not come back when its calls are taken out.
        ObjectStoreError, DatabaseError: S3 or Postgres refuse.
    """
    store = ObjectStore(settings)
    store.require_bucket()
    engine = database.connect(settings)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-", dir=settings.state_dir) as folder:
        with database.transaction(engine) as connection:
            tools = tools_of_run(connection, run_id)
            written = _write(connection, run_id, tools, Path(folder))
        manifest = _publish(store, written)
        with database.transaction(engine) as connection:
            _register(connection, store, run_id, tools, written, manifest)
    counts = written.counts
    by_tool = ", ".join(f"{tool.tool} {counts.calls_by_tool[tool.tool]}" for tool in tools.present)
    logger.info(
        "released %d texts with %d calls (%s) as %s%s",
        counts.texts,
        counts.calls,
        by_tool,
        store.uri(manifest.folder),
        f"; it lacks {', '.join(tools.lacking)}" if tools.lacking else "",
    )
    return written.release_id


def tools_of_run(connection: Connection, run_id: str) -> ToolsOfRun:
    """Which tools of a run are complete: every document filtered, every kept one scored, and no failed check.

    Raises:
        ParameterError: there is no such run.
        NothingToReleaseError: no tool is complete.
    """
    rows = database.fetch_all(connection, "release_tools", run_id=run_id)
    if not rows:
        raise ParameterError(f"--run: expected a started run, found {run_id!r}. Run `toolformer-ops stage start-run`.")
    lacking = {row.tool: reason for row in rows if (reason := _lacking(row)) is not None}
    for tool, reason in lacking.items():
        logger.warning("the release of run %s lacks %s: %s", run_id, tool, reason)
    present = tuple(
        ToolOfRelease(
            row.tool, row.sampling_recipe_id, row.execution_recipe_id, row.scoring_recipe_id, row.keep_threshold
        )
        for row in rows
        if row.tool not in lacking
    )
    if not present:
        reasons = "; ".join(f"{tool}: {reason}" for tool, reason in lacking.items())
        raise NothingToReleaseError(
            f"run {run_id}: expected at least one complete tool, found none ({reasons}). "
            "Mend the failed stages and run them again: what is done stays done."
        )
    return ToolsOfRun(present, lacking, rows[0].model_identity)


def _lacking(row: Row[Any]) -> str | None:
    if row.scoring_recipe_id is None:
        return "it was never registered"
    if row.filtered < row.documents:
        return f"{row.filtered} of {row.documents} documents are filtered"
    if row.scored < row.to_score:
        return f"{row.scored} of {row.to_score} documents are scored"
    if row.failed_checks:
        return f"failed checks {', '.join(row.failed_checks)}"
    return None


def _write(connection: Connection, run_id: str, tools: ToolsOfRun, folder: Path) -> WrittenRelease:
    """Choose the calls, weave them, prove that they come out again, and write the files."""
    [run] = database.fetch_all(connection, "run_by_id", run_id=run_id)
    choices = RunChoices.parse(run.parameters).part(ReleaseChoices)
    database.execute(
        connection,
        "release_choose_calls",
        run_id=run_id,
        tools=[tool.tool for tool in tools.present],
        sampling_recipe_ids=[tool.sampling_recipe_id for tool in tools.present],
        scoring_recipe_ids=[tool.scoring_recipe_id for tool in tools.present],
        keep_thresholds=[tool.keep_threshold for tool in tools.present],
        max_examples=choices.max_examples_per_tool,
    )
    database.execute(connection, "release_index_chosen_calls")
    definition = release_definition(tools, choices)
    names = [tool.tool for tool in tools.present]
    digest = hashlib.sha256(json.dumps(definition, sort_keys=True).encode("ascii"))
    counts = ReleaseCounts()
    with ReleaseWriter(folder) as writer:
        for text in _texts(connection, tools):
            if not text.gives_text_back(names):
                raise QualityError(
                    f"text {text.document_id}: expected the text back after taking its {len(text.calls)} calls out, found "
                    f"another one. Nothing was released. Calls: {', '.join(call.call_id for call in text.calls)}."
                )
            digest.update(text.document_id.bytes)
            digest.update(b"".join(uuid.UUID(call.call_id).bytes for call in text.calls))
            counts.add(text)
            writer.write(text)
    if not counts.texts:
        thresholds = ", ".join(f"{tool.tool} {tool.keep_threshold}" for tool in tools.present)
        raise NothingToReleaseError(
            f"run {run_id}: expected at least one kept call that may be released (its input not only after it), found none at "
            f"the thresholds {thresholds} (nats). No release and no model is published. The view threshold_counts shows what "
            "lower thresholds would keep (releasable_calls), down to the run's prune_below; start a run with those."
        )
    release_id = digest.hexdigest()[:16]
    card = folder / CARD
    card.write_text(dataset_card(release_id, definition, counts), encoding="utf-8")
    return WrittenRelease(release_id, counts, {**writer.files, CARD: card})


def release_definition(tools: ToolsOfRun, choices: ReleaseChoices) -> dict[str, Any]:
    """What decides a release besides its calls; part of its id."""
    return {
        "release_version": RELEASE_VERSION,
        "model": tools.model_identity,
        "tools": [vars(tool) for tool in tools.present],
        "lacking_tools": sorted(tools.lacking),
        **choices.deciding(),
    }


def _texts(connection: Connection, tools: ToolsOfRun) -> Iterator[ReleasedText]:
    """The texts that hold a chosen call, by id; at most `PAGE_TEXTS` are in memory."""
    recipes = {
        "sampling_recipe_ids": [tool.sampling_recipe_id for tool in tools.present],
        "scoring_recipe_ids": [tool.scoring_recipe_id for tool in tools.present],
    }
    execution_recipe = {tool.tool: tool.execution_recipe_id for tool in tools.present}
    after = _BEFORE_ALL
    while page := database.fetch_all(connection, "release_texts", after=after, page_size=PAGE_TEXTS):
        until = page[-1].document_id
        calls: dict[uuid.UUID, list[ReleasedCall]] = defaultdict(list)
        for row in database.fetch_all(connection, "release_calls_of_texts", after=after, until=until, **recipes):
            calls[row.document_id].append(_released_call(row, execution_recipe[row.tool]))
        for row in page:
            yield ReleasedText.of(row.document_id, row.text, calls[row.document_id], row.url)
        after = until


def _released_call(row: Row[Any], execution_recipe_id: str) -> ReleasedCall:
    return ReleasedCall(
        str(row.call_id),
        row.tool,
        row.call_input,
        row.result,
        row.position_char,
        row.position_probability,
        row.loss_without_call,
        row.loss_without_result,
        row.loss_with_result,
        row.loss_reduction,
        row.sampling_recipe_id,
        execution_recipe_id,
        row.scoring_recipe_id,
        row.loss_without_call_full_context,
    )


def _publish(store: ObjectStore, written: WrittenRelease) -> Manifest:
    """Publish, or take the earlier publication of the same release: its bytes may differ by the version of the Parquet writer."""
    published = store.read_manifest(release_prefix(written.release_id))
    if published is not None:
        logger.info("release %s is on S3 already: nothing to upload", written.release_id)
        return published
    return store.publish(release_prefix(written.release_id), written.files)


def _register(
    connection: Connection,
    store: ObjectStore,
    run_id: str,
    tools: ToolsOfRun,
    written: WrittenRelease,
    manifest: Manifest,
) -> None:
    database.execute(
        connection,
        "release_register",
        release_id=written.release_id,
        run_id=run_id,
        uri=store.uri(manifest.prefix),
        manifest_sha256=manifest.sha256,
        documents=written.counts.texts,
        calls=written.counts.calls,
        lacking_tools=sorted(tools.lacking),
    )
    [part, *_] = [path for name, path in written.files.items() if name != CARD]
    rows = itertools.chain.from_iterable(_call_rows(written.release_id, text) for text in read_release(part.parent))
    database.copy_insert(connection, "release_calls", CALL_COLUMNS, rows)
    database.execute(connection, "release_of_run_set", run_id=run_id, release_id=written.release_id)


def _call_rows(release_id: str, text: ReleasedText) -> Sequence[tuple[Any, ...]]:
    return [
        (release_id, text.document_id, uuid.UUID(call.call_id), call.scoring_recipe_id, call.tool)
        for call in text.calls
    ]
