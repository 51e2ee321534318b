"""Release: put the kept calls of all tools into their texts and publish them as Parquet on S3 (Toolformer, section 2).

Owns `dataset_releases`, `release_calls`, `release_choices`, `run_releases` and `run_overlaps`. A release is named by its
content, so releasing twice gives the same one. A false-discovery rate is not part of that content: it
describes a run at one moment, and changes with texts that keep no call. The card keeps the rates of the
moment at which the release was first made; `threshold_counts` has each run's.

The released text is the whole document, also if a tool annotates paragraphs (MT): calls of different tools
in one document belong in one text, and the paper finetunes on the same texts as its plain data set.
`release/choosing.py` chooses the calls, and `evaluation/overlap.py` finds the texts that hold evaluation
data; a text that is left out for it is not replaced by another. Does not decide thresholds, and does not
judge the release: `audit/checking.py` does.
"""

import hashlib
import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.call_syntax import take_out
from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    AlreadyPublishedError,
    CorruptObjectError,
    NoKeptCallError,
    NoResultError,
    ObjectNotFoundError,
)
from toolformer_ops.evaluation.overlap import EvaluationNgrams, Overlap, question_sets
from toolformer_ops.release.card import ReleaseCounts, dataset_card
from toolformer_ops.release.choosing import ReleaseTool, choose_calls, chosen_texts, leave_out, own_texts
from toolformer_ops.release.format import ReleasedText, read_released_calls, write_texts
from toolformer_ops.release.refusals import HeldEvaluationData
from toolformer_ops.runs.changes import previous_run
from toolformer_ops.runs.choices import ReleaseChoices, RunChoices
from toolformer_ops.runs.placebo_rates import store_missing_rates
from toolformer_ops.runs.run_tools import load_run_tool, require_run, unfinished_documents
from toolformer_ops.storage.machine.shared_files import file_sha256
from toolformer_ops.storage.machine.temporary_folders import temporary_folder
from toolformer_ops.storage.objects.publication import (
    Manifest,
    ObjectStore,
    registered_sha256,
    require_registered,
)
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.registry import tool_names

logger = logging.getLogger(__name__)

RATE_COLUMNS = ("false_discovery_rate", "rate_low", "rate_high", "placebos_scored")
Rates = Mapping[str, Mapping[str, Any]]
"""The false-discovery rate of each tool for which it is known: the values of `RATE_COLUMNS`, by tool."""
UNFINISHED = ("not filtered", "not scored", "without placebos")
"""What documents lack, for each count of `unfinished_documents`."""
RELEASE_VERSION = 3
"""Raised when equal calls would give other texts or columns, or another id; a column that follows from the others may
be added."""
FOLLOWING_VERSION = 3
"""Raised when `result_follows` in SQL would call equal calls `equal` otherwise; it decides a release with
`require_following`."""
PREFIX = "releases"
CARD = "README.md"
HOLDS_EVALUATION_DATA = "holds_evaluation_data"
"""The reason under which `yield_by_stage` counts the calls of a text that is left out for it."""
CALL_COLUMNS = ("release_id", "document_id", "call_id", "scoring_recipe_id", "tool")
OVERLAP_COLUMNS = ("run_id", *(field.name for field in fields(Overlap)), "is_left_out")


@dataclass(frozen=True)
class ToolsOfRun:
    """What a run can release."""

    present: tuple[ReleaseTool, ...]
    """The tools whose rows are complete and passed their checks."""
    lacking: dict[str, str]
    """Why a tool is left out, by its name."""
    model_identity: str
    rates: Rates
    """The rates of the present tools in this run."""
    proposer_identity: str | None = None
    """The model that proposed the calls, if another scored them; the choice `proposer` if tools did."""
    endpoint: Mapping[str, str] | None = None
    """For a proposer behind an endpoint: `model`, `licence`, and the first and last day on which it
    answered."""


@dataclass(frozen=True)
class WrittenRelease:
    """A release in a local folder."""

    release_id: str
    definition: dict[str, Any]
    """What decides its id in addition to its texts and calls."""
    rates: Rates
    """The rates on its card."""
    counts: ReleaseCounts
    left_out: dict[str, dict[str, int]]
    """Kept calls that are not in it, by tool and reason."""
    overlaps: Sequence[Overlap]
    """What texts share with evaluation data, those included that are left out for it."""
    parts: dict[str, Path]
    """The Parquet files by name."""
    card: Path


def release_prefix(release_id: str) -> str:
    """The prefix of a release in the bucket."""
    return f"{PREFIX}/{release_id}"


@dataclass(frozen=True)
class ReleaseOfRun:
    """What a run released."""

    release_id: str | None
    """None if it kept no call."""
    changed_examples: int = 0
    """Texts that differ from the release that a run of the same schedule was finetuned on last."""
    unchanged_since: str | None = None
    """The run whose release it took, since nothing has changed; None if it made its own."""
    reason: str = ""
    """Why it has no release; empty if it has one."""


def release_of_run(settings: Settings, run_id: str) -> ReleaseOfRun:
    """Publish what the run kept and register it.

    If nothing has changed since the run before, its release becomes this run's, and is not made again. A run
    that kept no call has no release, which is no error.

    Raises:
        UsageError: there is no such run.
        NoResultError: no tool is complete, or a text does not come back when its calls are taken out.
        EvaluationDataError: it is to be compared with evaluation data, and they are not there, or of another
        format.
        ObjectStoreError, DatabaseError: S3 or Postgres refuse.
    """
    store = ObjectStore(settings)
    store.require_bucket()
    engine = database.connect(settings)
    evaluation_data = evaluation_ngrams(settings, run_id)
    # 1. The tools, and whether anything changed. A night without new texts skips the checks, which count the
    #    rates.
    with database.transaction(engine) as connection:
        store_missing_rates(connection, run_id)
        tools = tools_of_run(connection, run_id)
        earlier = unchanged_release(connection, run_id, tools, evaluation_data)
    if earlier is not None and _is_whole(store, earlier.uri, earlier.manifest_sha256):
        with database.transaction(engine) as connection:
            changed = set_release(
                connection, run_id, earlier.release_id, earlier.left_out, earlier_run_id=earlier.run_id
            )
        logger.info(
            "nothing changed since run %s: its release %s is not made again",
            earlier.run_id,
            earlier.release_id,
        )
        return ReleaseOfRun(earlier.release_id, changed, earlier.run_id)
    with temporary_folder(settings.state_dir, "release") as folder:
        # 2. Choose the calls, write the files, and publish.
        try:
            with database.transaction(engine) as connection:
                written = write_release(connection, run_id, tools, folder, evaluation_data)
        except NoKeptCallError as error:
            logger.warning("%s", error)
            return ReleaseOfRun(None, reason=str(error))
        manifest = publish(settings, store, written)
        has_our_card = file_sha256(written.card) in {file.sha256 for file in manifest.files}
        # 3. Register it with its calls, which are read from the files again: they need not fit into memory.
        with database.transaction(engine) as connection:
            database.execute(
                connection,
                queries.releases.register,
                release_id=written.release_id,
                run_id=run_id,
                uri=store.uri(manifest.prefix),
                manifest_sha256=manifest.sha256,
                documents=written.counts.texts,
                calls=written.counts.calls,
                lacking_tools=sorted(tools.lacking),
                definition=written.definition,
                rates=written.rates if has_our_card else None,
            )
            insert_calls(connection, written.release_id, folder)
            without_them = _leaves_out(written.definition)
            overlaps = [(run_id, *vars(item).values(), without_them) for item in written.overlaps]
            changed = set_release(connection, run_id, written.release_id, written.left_out, overlaps)
    counts = written.counts
    logger.info(
        "released %d texts with %d calls (%s) as %s%s",
        counts.texts,
        counts.calls,
        ", ".join(f"{tool.tool} {counts.calls_by_tool[tool.tool]}" for tool in tools.present),
        store.uri(manifest.folder),
        f"; it lacks {', '.join(tools.lacking)}" if tools.lacking else "",
    )
    return ReleaseOfRun(written.release_id, changed)


def evaluation_ngrams(settings: Settings, run_id: str) -> EvaluationNgrams | None:
    """The evaluation data that the run's release is compared with; None if it is compared with none.

    Raises:
        UsageError: there is no such run, or it names no evaluation data.
        EvaluationDataError: the data are not there, or of another format.
    """
    choices = RunChoices.of_run(require_run(database.connect(settings), run_id).parameters)
    address = choices.compared_with()
    return None if address is None else EvaluationNgrams(question_sets(settings, address))


def find_overlaps(texts: Iterable[tuple[uuid.UUID, str]], evaluation_data: EvaluationNgrams) -> list[Overlap]:
    """What texts share with evaluation data by their own words: calls that texts of a chain hold are taken out."""
    tools = tool_names()
    return evaluation_data.overlaps((document_id, take_out(text, tools)) for document_id, text in texts)


def compared_with_evaluation_data(
    settings: Settings, run_id: str, texts: Iterable[tuple[uuid.UUID, str]]
) -> HeldEvaluationData:
    """Return which of these texts share word n-grams with the evaluation data that the run compares its release with.

    Raises:
        UsageError: there is no such run, or it names no evaluation data.
        EvaluationDataError: they are not there, or of another format.
    """
    parameters = require_run(database.connect(settings), run_id).parameters
    decontaminate = RunChoices.of_run(parameters).decontaminate
    document_ids: set[uuid.UUID] = set()
    if (evaluation_data := evaluation_ngrams(settings, run_id)) is not None:
        document_ids = {overlap.document_id for overlap in find_overlaps(texts, evaluation_data)}
    return HeldEvaluationData(decontaminate, frozenset(document_ids))


def set_release(
    connection: Connection,
    run_id: str,
    release_id: str,
    left_out: Mapping[str, Any],
    overlaps: Sequence[Sequence[Any]] = (),
    *,
    earlier_run_id: str | None = None,
) -> int:
    """Write which release a run has, which kept calls it leaves out, and what its texts share with evaluation data.

    What is stored is replaced. `overlaps` are rows of `run_overlaps`; with `earlier_run_id` they are those
    of that run. Returns `ReleaseOfRun.changed_examples`.
    """
    database.execute(
        connection, queries.releases.set_of_run, run_id=run_id, release_id=release_id, left_out=left_out
    )
    database.execute(connection, queries.releases.set_overlaps, run_id=run_id, earlier_run_id=earlier_run_id)
    database.copy_insert(connection, "run_overlaps", OVERLAP_COLUMNS, overlaps)
    changed = database.fetch_one(connection, queries.releases.changed_examples, run_id=run_id)
    return int(changed.examples)


def insert_calls(connection: Connection, release_id: str, folder: Path) -> None:
    """Write the calls of a release's files into `release_calls`, which keeps the rows that are there."""
    calls = ((release_id, *call) for call in read_released_calls(folder, CALL_COLUMNS[2:]))
    database.copy_insert(connection, "release_calls", CALL_COLUMNS, calls)


def _leaves_out(definition: Mapping[str, Any]) -> bool:
    return definition.get("decontaminate") == "leave_out"


def unchanged_release(
    connection: Connection, run_id: str, tools: ToolsOfRun, evaluation_data: EvaluationNgrams | None
) -> Row[Any] | None:
    """The release of the run before, if a release of this run would be the same: a row of `release_unchanged`.

    It would be the same if both release the same tools by the same recipes, thresholds and choices (the
    definition), the corpus is at the same version, and no row was written since.
    """
    if (before := previous_run(connection, run_id)) is None:
        return None
    run = database.fetch_one(connection, queries.runs.by_id, run_id=run_id)
    choices = RunChoices.of_run(run.parameters).part(ReleaseChoices)
    definition = json.loads(
        json.dumps(release_definition(tools, choices, run.chained_release_id, evaluation_data))
    )
    definitions = database.fetch_all(
        connection, queries.releases.unchanged, run_id=run_id, before_run_id=before
    )
    return definitions[0] if definitions and definitions[0].definition == definition else None


def _is_whole(store: ObjectStore, uri: str, manifest_sha256: str) -> bool:
    """Whether a registered release is on S3 with all of its files."""
    try:
        return not store.lacking(store.published(store.key_of(uri), manifest_sha256))
    except (ObjectNotFoundError, CorruptObjectError) as error:
        logger.warning("the release of the run before is not taken as it is: %s", error)
        return False


def publish(settings: Settings, store: ObjectStore, written: WrittenRelease) -> Manifest:
    """Publish a release, unless it is on S3 already; returns its manifest, whose objects are all there.

    An earlier publication of the same release is taken as it is: its bytes differ if another version of the
    Parquet writer made them, or another run the card, with its rates. What it lacks is written again; if that
    needs its very bytes and they cannot be made any more, all of it is.

    Raises:
        CorruptObjectError: the manifest on S3 is not the registered one.
    """
    prefix = release_prefix(written.release_id)
    files = {**written.parts, CARD: written.card}
    manifest = store.read_manifest(prefix)
    if manifest is not None:
        require_registered(manifest, registered_sha256(settings, store.uri(prefix)))
        lost = store.mend(manifest, files)
        if not lost:
            logger.info("release %s is on S3 already, with all of its files", written.release_id)
            return manifest
        logger.warning(
            "release %s has lost %s on S3, and this version writes other bytes: all of it is published anew",
            written.release_id,
            ", ".join(file.name for file in lost),
        )
        engine = database.connect(settings)
        database.execute(engine, queries.forgetting.withdraw_release, publication_id=written.release_id)
        store.delete(manifest.key)
    try:
        return store.publish(prefix, files)
    except AlreadyPublishedError:  # by another run, since the manifest was asked for
        return store.published(prefix, None)


def tools_of_run(connection: Connection, run_id: str) -> ToolsOfRun:
    """The tools that a run can release: every document filtered, every kept one scored, and no failed check.

    Raises:
        UsageError: there is no such run.
        NoResultError: no tool is complete.
    """
    model_identity = require_run(connection, run_id).model_identity
    rows = database.fetch_all(connection, queries.releases.tools, run_id=run_id)
    present: list[ReleaseTool] = []
    rates: dict[str, Mapping[str, Any]] = {}
    lacking: dict[str, str] = {}
    proposer = None  # all tools have the same
    for row in rows:
        if row.scoring_recipe_id is None:
            lacking[row.tool] = "it was never registered"
            continue
        run = load_run_tool(connection, run_id, row.tool)
        # The recipes of the tools hold what each proposes.
        proposer = run.choices.proposer if run.choices.tool_proposes else run.proposer_identity
        undone = zip(UNFINISHED, unfinished_documents(connection, run), strict=True)
        reasons = [f"documents {what}: {count}" for what, count in undone if count]
        if row.failed_checks:
            reasons.append(f"failed checks {', '.join(row.failed_checks)}")
        if reasons:
            lacking[row.tool] = reasons[0]
            continue
        tool = ReleaseTool(**{item.name: getattr(row, item.name) for item in fields(ReleaseTool)})
        present.append(tool if tool.keep_rule != "paper" else replace(tool, placebo_recipe_id=None))
        if row.false_discovery_rate is not None:
            rates[row.tool] = {name: getattr(row, name) for name in RATE_COLUMNS}
    for name, reason in lacking.items():
        logger.warning("the release of run %s lacks %s: %s", run_id, name, reason)
    if not present:
        lacks = "; ".join(f"{name}: {reason}" for name, reason in lacking.items())
        raise NoResultError(
            f"run {run_id}: expected at least one complete tool, found none ({lacks}). "
            "Repair the failed stages and run them again: finished documents are not computed again."
        )
    endpoints = database.fetch_all(connection, queries.proposers.of_run, run_id=run_id, proposer=proposer)
    endpoint = {name: str(value) for name, value in endpoints[0]._asdict().items()} if endpoints else None
    return ToolsOfRun(
        present=tuple(present),
        lacking=lacking,
        model_identity=model_identity,
        rates=rates,
        proposer_identity=proposer,
        endpoint=endpoint,
    )


def write_release(
    connection: Connection,
    run_id: str,
    tools: ToolsOfRun,
    folder: Path,
    evaluation_data: EvaluationNgrams | None,
) -> WrittenRelease:
    """Choose the calls, put them into their texts, prove that they can be taken out again, and write the files.

    Raises:
        NoKeptCallError: no call was kept.
        NoResultError: a text does not come back when its calls are taken out.
    """
    run = database.fetch_one(connection, queries.runs.by_id, run_id=run_id)
    choices = RunChoices.of_run(run.parameters).part(ReleaseChoices)
    definition = release_definition(tools, choices, run.chained_release_id, evaluation_data)
    digest = hashlib.sha256(json.dumps(definition, sort_keys=True).encode("ascii"))
    counts = ReleaseCounts()
    left_out = choose_calls(
        connection,
        run_id,
        tools.present,
        choices.max_examples_per_tool,
        require_following=choices.require_following,
    )
    overlaps: list[Overlap] = []
    if evaluation_data is not None:
        overlaps = find_overlaps(own_texts(connection), evaluation_data)
        holding = sorted({item.document_id for item in overlaps})
        counts.overlapping_texts = len(holding)
        if _leaves_out(definition):
            for tool, calls in leave_out(connection, holding, HOLDS_EVALUATION_DATA).items():
                left_out.setdefault(tool, {})[HOLDS_EVALUATION_DATA] = calls
        logger.info(
            "%d texts share word n-grams with evaluation data: %s", len(holding), choices.decontaminate
        )

    def texts() -> Iterable[ReleasedText]:
        for chosen in chosen_texts(connection, tools.present):
            text = ReleasedText.of(chosen.document_id, chosen.text, chosen.calls, chosen.url)
            names = [tool.tool for tool in tools.present]
            if not text.gives_text_back(names, chained=run.chained_release_id is not None):
                raise NoResultError(
                    f"text {text.document_id}: expected the text back after taking its {len(text.calls)} "
                    "calls out, found another one. Nothing was released. Calls: "
                    f"{', '.join(call.call_id for call in text.calls)}."
                )
            digest.update(text.hashed)
            counts.add(text)
            yield text

    parts = write_texts(folder, texts())
    if not counts.texts:
        totals: Counter[str] = Counter()
        for reasons in left_out.values():
            totals.update(reasons)
        raise _no_kept_call(run_id, tools, counts.overlapping_texts, totals)
    release_id = digest.hexdigest()[:16]
    database.execute(connection, queries.choosing.store, release_id=release_id)
    registered = database.fetch_all(connection, queries.releases.rates, release_id=release_id)
    rates: Rates = registered[0].rates if registered else tools.rates
    card = folder / CARD
    card.write_text(dataset_card(release_id, definition, counts, rates), encoding="utf-8")
    return WrittenRelease(
        release_id=release_id,
        definition=definition,
        rates=rates,
        counts=counts,
        left_out=left_out,
        overlaps=overlaps,
        parts=parts,
        card=card,
    )


def _no_kept_call(
    run_id: str, tools: ToolsOfRun, overlapping_texts: int, left_out: Mapping[str, int]
) -> NoKeptCallError:
    """The error of a run without a call to release, with what else left calls out."""
    thresholds = ", ".join(f"{tool.tool} {tool.keep_threshold}" for tool in tools.present)
    message = (
        f"run {run_id}: expected at least one kept call that may be released (its input not only after "
        f"it), found none at the thresholds {thresholds} (nats). No release and no model is published. "
        "The view threshold_counts shows what lower thresholds would keep (releasable_calls), down to "
        "the run's prune_below; start a run with those."
    )
    if overlapping_texts:
        message += f" {overlapping_texts} texts are left out for the evaluation data in them."
    if other_sign := left_out.get("result_has_other_sign", 0):
        message += (
            f" {other_sign} calls are left out, since the text continues with the number of the other sign."
        )
    if not_following := left_out.get("result_does_not_follow", 0):
        message += f" {not_following} calls are left out, since require_following is set."
    return NoKeptCallError(message)


def _definition_of_tool(tool: ReleaseTool) -> dict[str, Any]:
    """What decides the calls of a tool; placebos that decide nothing, and the paper's rule, are left out."""
    decided = {name: value for name, value in vars(tool).items() if value is not None}
    if tool.keep_rule == "paper":
        del decided["keep_rule"]
    return decided


def release_definition(
    tools: ToolsOfRun,
    choices: ReleaseChoices,
    chained_release: str | None = None,
    evaluation_data: EvaluationNgrams | None = None,
) -> dict[str, Any]:
    """What decides a release in addition to its calls; part of its id.

    It names a tool's placebos only if they decided which calls are released, and `chained_release`, the
    release whose calls the texts hold already, only in a run with chains. It names evaluation data, with
    their hashes, if the release was compared with them, and the version of the rule for results that follow
    if that rule decided.
    """
    chained = {} if chained_release is None else {"chained_release": chained_release}
    compared = {} if evaluation_data is None else {"evaluation_data": evaluation_data.definition}
    following = {"following_version": FOLLOWING_VERSION} if choices.require_following else {}
    return {
        **chained,
        "release_version": RELEASE_VERSION,
        "model": tools.model_identity,
        **({} if tools.proposer_identity is None else {"proposer": tools.proposer_identity}),
        **({} if tools.endpoint is None else {"proposer_endpoint": dict(tools.endpoint)}),
        "tools": list(map(_definition_of_tool, tools.present)),
        "lacking_tools": sorted(tools.lacking),
        **choices.deciding(),
        **following,
        **compared,
    }
