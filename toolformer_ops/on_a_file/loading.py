"""Load what `annotate --out PREFIX` wrote into Postgres, as a run of its parameters.

1. The prefix is finished, and its recipes are those that a run has here: model, tools, code and choices.
2. With `only_kept` the texts with a kept call, and those that the false-discovery rate is measured on, are
   written below the prefix as a corpus; else the corpus is that of the prefix.
3. The corpus is ingested, a run over it registered, and its texts are filtered, as in any run.
4. The pool of placebos becomes the run's. A later run over the corpus draws from it, too.
5. Each file is a micro-batch: its rows and its ledger rows are one transaction. What is in the ledger already
   is passed over, so that a load that was killed, or is repeated, continues.
6. Of a prefix until enough calls were kept the run ends with its last text.

A text is loaded whole, with all of its calls. A text that the corpus no longer holds, since it was forgotten
or left out, is not loaded. Times are unknown: `seconds` are 0.
"""

import dataclasses
import hashlib
import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, CorruptObjectError, UsageError
from toolformer_ops.on_a_file.annotate.annotator import PRINTED, read_corpus
from toolformer_ops.on_a_file.annotate.call_parts import calls_of_texts, ledger_of
from toolformer_ops.on_a_file.annotate.pooled_placebos import PLACEBO_LOSSES
from toolformer_ops.on_a_file.annotate.text_annotator import (
    OF_ANSWER,
    OF_CANDIDATE,
    OF_LOSSES,
    OF_LOST_SAMPLE,
    OF_POSITION,
    Row,
)
from toolformer_ops.on_a_file.annotate.workers import (
    PARAMETERS,
    finished_shards,
    pool_name,
    read_header,
)
from toolformer_ops.records import content_uuid
from toolformer_ops.runs.choices import PlaceboChoices, RunChoices
from toolformer_ops.runs.claims import DEATHS, OUT_OF_MEMORY, PROCESS_KILLED
from toolformer_ops.runs.placebo_pools import Pool, PooledResult, store_pool
from toolformer_ops.runs.run_tools import (
    DocumentOutcome,
    RunTool,
    load_run_tool,
    members_of_run,
    write_ledger,
)
from toolformer_ops.stages.filtering import filter_stage
from toolformer_ops.stages.ingestion import ingest_corpus
from toolformer_ops.stages.run_setup import RunDefinition, start_run
from toolformer_ops.stages.sampling import SmallestKeys
from toolformer_ops.storage.corpora.record_rules import Record
from toolformer_ops.storage.objects.parts import Parts, open_parts
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.database import TableRow
from toolformer_ops.storage.postgres.in_use import keep_results

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

KEPT = "kept/"
"""The folder of the corpus of kept texts, below the prefix."""
TEXTS_A_FILE = 10_000
"""Texts of a file of that corpus."""


@dataclasses.dataclass
class LoadedRun:
    """What a load has put into Postgres."""

    run_id: str
    texts: int = 0
    """Texts that a tool was asked about, over all tools, those of earlier loads not included."""
    calls: int = 0
    left_out: int = 0
    """Texts of the files that are not in the run, or were there already."""


def load_prefix(
    settings: Settings, address: str, run_id: str = "", corpus: str = "", *, only_kept: bool = False
) -> LoadedRun:
    """Load the files of a folder or s3:// prefix.

    Args:
        settings: of the deployment.
        address: the folder or prefix.
        run_id: of the run; empty: a name that the content of the prefix decides.
        corpus: where the texts are now; empty: where the workers read them.
        only_kept: load the texts with a kept call, and those that the false-discovery rate is measured on.

    Raises:
        UsageError: the folder holds no finished annotation, or one of another version.
        ConfigurationError: a run has other recipes here: another model, tool, dtype or version of the code.
        CorruptObjectError: a file is damaged, or of something else.
        Also as `ingest_corpus` and `start_run`.
    """
    # 1. Whether it can be loaded.
    parts = open_parts(settings, address)
    header = read_header(parts, address)
    choices = RunChoices.parse({**header[PARAMETERS], **({"corpus": corpus} if corpus else {})})
    finished, counts = finished_shards(parts, choices.tools)
    if finished < header["shards"]:
        raise UsageError(
            f"expected {header['shards']} finished shards in {address}, found {finished}. Start the workers "
            "again."
        )
    recipes = RunDefinition.of(settings, choices).recipes
    for tool, recipe_id in header["recipes"].items():
        if recipes[tool][-1].recipe_id != recipe_id:
            raise ConfigurationError(
                f"{tool}: expected the recipe {recipe_id} of {address}, found {recipes[tool][-1].recipe_id}: the model, "
                "the tool, TOOLFORMER_DTYPE or the version of toolformer-ops is another one. Load where these are "
                "the same."
            )
    # 2. The corpus.
    run_id = run_id or _run_id_of(header, only_kept=only_kept)
    if only_kept:
        _write_kept_texts(settings, parts, choices)
        kept = {"corpus": f"{address.rstrip('/')}/{KEPT}", "document_limit": None}
        choices = choices.model_copy(update=kept)
    ingest_corpus(settings, choices.corpus_address)
    # 3. The run.
    start_run(settings, run_id, choices)
    engine, loaded = database.connect(settings), LoadedRun(run_id)
    for name in choices.tools:
        filter_stage(settings, run_id, name)
        with database.transaction(engine) as connection:
            run = load_run_tool(connection, run_id, name)
        load = _Load(engine=engine, run=run, parts=parts, loaded=loaded)
        # 4. The pool.
        if choices.wants_placebos:
            load.take_pool(scored=counts.tools[name].scored)
        # 5. The files.
        for file in _files_of(parts, name):
            load.load_file(file)
        # 6. With `until_kept` the last text, if enough calls are kept.
        if choices.until_kept and counts.tools[name].kept >= choices.until_kept:
            ids = {**run.ids, "last_document_id": load.last}
            database.execute(engine, queries.until_kept.end, **ids)
    return loaded


def _run_id_of(header: Mapping[str, Any], *, only_kept: bool) -> str:
    content = json.dumps([header["recipes"], header["corpus_files"], header["document_limit"], only_kept])
    return f"loaded-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _files_of(parts: Parts, tool: str) -> list[str]:
    return parts.names(f"calls/{tool}-")


@dataclasses.dataclass
class _Load:
    """The load of one tool's files."""

    engine: Engine
    run: RunTool
    parts: Parts
    loaded: LoadedRun
    last: uuid.UUID | None = None
    """The text with the largest id in the files."""

    def __post_init__(self) -> None:
        self._smallest_keys = SmallestKeys()
        with database.transaction(self.engine) as connection:
            rows = database.fetch_all(connection, queries.loading.members, members=members_of_run(self.run))
        self._documents: dict[str, uuid.UUID] = {str(row.document_id): row.variant_id for row in rows}
        """By text, the document whose rows the tool's are."""

    def take_pool(self, *, scored: int) -> None:
        """Write the pool of the prefix, and have the run use it.

        Its share is that of all calls of the prefix, `scored` in number, of which the workers sampled some of
        those in the first texts.
        """
        choices = self.run.choices.part(PlaceboChoices)
        stored, whole = self._stored_pool(choices)
        recipe = whole.recipe(self.run.scoring_recipe_id, self.run.tool, choices)
        names = self.parts.names(f"pools/{self.run.tool}-")
        if names != [pool_name(self.run.tool, recipe.recipe_id)]:
            raise CorruptObjectError(
                f"pools/: expected one pool of {self.run.tool}, of the content that its name says, found "
                f"{', '.join(names) or 'none'}. Remove it, and start the workers again."
            )
        with database.transaction(self.engine) as connection:
            forgotten = database.fetch_all(
                connection,
                queries.loading.forgotten,
                document_ids=[item.document_id for item in whole.results],
            )
            gone = {row.document_id for row in forgotten}
            pool = Pool(
                whole.placebos,
                whole.sample_share * stored["calls"] / max(scored, stored["calls"]),
                [item for item in whole.results if item.document_id not in gone],
            )
            store_pool(connection, self.run, pool, recipe, calls=scored, documents=len(self._documents))
        self.run = dataclasses.replace(self.run, placebo_recipe_id=recipe.recipe_id)

    def _stored_pool(self, choices: PlaceboChoices) -> tuple[Mapping[str, Any], Pool]:
        """The pool of the prefix, as its file says and as a run has it; empty if the file is not there."""
        stored: dict[str, Any] = {"calls": 0, "sample_share": 1.0, "results": []}
        for name in self.parts.names(f"pools/{self.run.tool}-"):
            stored = json.loads(self.parts.get(name) or b"{}")
        results = [
            PooledResult(
                source=item["source"],
                call_id=uuid.UUID(item["call_id"]),
                document_id=uuid.UUID(item["document_id"]),
                result=item["result"],
            )
            for item in stored["results"]
        ]
        return stored, Pool(choices.placebos, stored["sample_share"], results)

    def load_file(self, name: str) -> None:
        """Write the rows of a file whose texts are in the run and not in the ledger."""
        ledger, table = ledger_of(name, self.parts.get(name) or b"")
        run = self.run
        if (ledger["tool"], ledger["recipe_id"]) != (run.tool, run.recipe_ids[-1]):
            raise CorruptObjectError(
                f"{name}: expected calls of {run.tool} under the recipe {run.recipe_ids[-1]}, found those of "
                f"{ledger['tool']} under {ledger['recipe_id']}. Remove it from the prefix."
            )
        texts = dict(_texts_of(ledger, table))
        self.last = max(filter(None, (self.last, *map(uuid.UUID, texts))))
        last_stage = "placebo" if run.placebo_recipe_id else "score"
        with database.transaction(self.engine) as connection:
            keep_results(connection)
            undone = database.fetch_all(
                connection,
                queries.undone.without_ledger,
                stage=last_stage,
                recipe_id=run.recipe_of(last_stage),
                document_ids=[self._documents[text] for text in texts if text in self._documents],
            )
            ids = {row.document_id for row in undone}
            rows: list[TableRow] = []
            outcomes: dict[str, list[DocumentOutcome]] = {}
            for text, loaded in texts.items():
                document_id = self._documents.get(text)
                if document_id is None or document_id not in ids:
                    self.loaded.left_out += 1
                    continue
                rows += loaded.rows(run, document_id, self._smallest_keys)
                self.loaded.texts += 1
                self.loaded.calls += len(loaded.calls)
                for stage, outcome in loaded.outcomes(document_id).items():
                    outcomes.setdefault(stage, []).append(outcome)
            database.insert_rows(connection, rows)
            for stage, stage_outcomes in outcomes.items():
                if stage != "placebo" or run.placebo_recipe_id:
                    write_ledger(connection, run, stage, stage_outcomes)


@dataclasses.dataclass(frozen=True)
class _StoredText:
    """What a file holds of a text."""

    entry: Mapping[str, Any]
    """In its ledger."""
    calls: Sequence[Row]

    def outcomes(self, document_id: uuid.UUID) -> dict[str, DocumentOutcome]:
        """The ledger rows of the text, by stage."""
        counts = {"placebo": {}, **self.entry["counts"]}
        placebos = sum(len(call[PLACEBO_LOSSES] or ()) for call in self.calls)
        rows_written = {
            "sample": len(self.calls),
            "execute": counts["execute"].get("executed", 0),
            "score": len(self.calls),
            "placebo": placebos,
        }
        return {
            stage: DocumentOutcome(document_id, rows, Counter(counts[stage]))
            for stage, rows in rows_written.items()
        }

    def rows(self, run: RunTool, document_id: uuid.UUID, smallest_keys: SmallestKeys) -> Iterator[TableRow]:
        """The rows of the text, in the tables of a run."""
        sampled = {"sampling_recipe_id": run.sampling_recipe_id, "document_id": document_id}
        for reason, deaths in ((PROCESS_KILLED, DEATHS), (OUT_OF_MEMORY, 0)):
            if self.entry["counts"]["sample"].get(reason):
                yield TableRow.of(
                    "failed_documents",
                    stage="sample",
                    recipe_id=run.sampling_recipe_id,
                    run_id=run.run_id,
                    tool=run.tool,
                    document_id=document_id,
                    reason=reason,
                    deaths=deaths,
                )
        for values in self.entry["pruned"]:
            yield TableRow.of("pruned_positions", **sampled, **dict(zip(OF_POSITION, values, strict=True)))
        for values in self.entry["lost"]:
            lost = dict(zip(OF_LOST_SAMPLE, values, strict=True))
            if smallest_keys.takes(lost["reason"], uuid.UUID(lost["sample_key"])):
                yield TableRow.of("lost_samples", **sampled, **lost)
        for call in self.calls:
            input_key = content_uuid(call["effective_input"])
            yield TableRow.of(
                "candidate_calls",
                **sampled,
                call_id=call["call_id"],
                call_input=parse_call(call["call"]).input,
                call_text=call["call"],
                input_key=input_key,
                **{name: call[name] for name in OF_CANDIDATE},
            )
            yield TableRow.of(
                "call_results",
                tool=run.tool,
                tool_version=run.tool_version,
                input_key=input_key,
                input=call["effective_input"],
                reason=None if call["results"] else call["reason"],
                **{name: call[name] for name in OF_ANSWER},
            )
            key = {"document_id": document_id, "call_id": call["call_id"]}
            yield TableRow.of(
                "call_losses",
                scoring_recipe_id=run.scoring_recipe_id,
                **key,
                reason=call["reason"],
                number_format=call["number_format"],
                **{name: call[name] for name in (*OF_LOSSES, *PRINTED)},
            )
            if run.placebo_recipe_id is None:
                continue
            key["placebo_recipe_id"] = run.placebo_recipe_id
            for placebo in call[PLACEBO_LOSSES] or ():
                yield TableRow.of("placebo_losses", **key, **placebo)
            if call["information"] is not None:
                means = {name: call[name] for name in ("information", "placebo_reduction", "placebos")}
                probability = call["placebo_probability"]
                yield TableRow.of("call_information", **key, **means, probability=probability)


def _texts_of(ledger: Mapping[str, Any], table: "pyarrow.Table") -> Iterator[tuple[str, _StoredText]]:
    """What a file holds of each of its texts, by its id."""
    for entry, calls in zip(ledger["texts"], calls_of_texts(ledger, table), strict=True):
        yield entry["document_id"], _StoredText(entry, calls)


def _write_kept_texts(settings: Settings, parts: Parts, choices: RunChoices) -> None:
    """Put a corpus of the texts with a kept call, and of those in which calls are sampled, below the prefix."""
    ids = set[str]()
    for tool in choices.tools:
        for name in _files_of(parts, tool):
            for text, stored in _texts_of(*ledger_of(name, parts.get(name) or b"")):
                if any(call["kept"] or _is_sampled(call) for call in stored.calls):
                    ids.add(text)
    lines: list[str] = []
    written = 0
    for _, record in read_corpus(settings, choices.corpus_address):
        if isinstance(record, Record) and str(record.document_id) in ids:
            ids.remove(str(record.document_id))
            lines.append(_line_of(record))
        if len(lines) == TEXTS_A_FILE:
            _put_lines(parts, written, lines)
            written, lines = written + 1, []
    _put_lines(parts, written, lines)


def _put_lines(parts: Parts, number: int, lines: Sequence[str]) -> None:
    if lines:
        parts.put(f"{KEPT}{number:05d}.jsonl", "".join(lines).encode())


def _is_sampled(call: Row) -> bool:
    return any(placebo["is_sampled"] for placebo in call[PLACEBO_LOSSES] or ())


def _line_of(record: Record) -> str:
    """The record as a line of a corpus."""
    values = {
        "id": record.record_id,
        "text": record.text,
        "url": record.url,
        "date": record.document_date and record.document_date.isoformat(),
        "title": record.title,
    }
    present = {name: value for name, value in values.items() if value is not None}
    return f"{json.dumps(present, ensure_ascii=False)}\n"
