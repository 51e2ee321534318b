"""A run in Postgres as the stages before the release leave it, made of texts and calls that a test writes down."""

import copy
import hashlib
import math
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from sqlalchemy import Connection
from sqlalchemy import text as sql

from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.records import Document, content_uuid
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.run_tools import NO_LIMIT, DocumentOutcome, RunTool, load_run_tool, write_ledger
from toolformer_ops.stages.release import release_of_run
from toolformer_ops.storage.postgres import database, partitions, queries

RECIPE_COLUMNS = {
    "filter": "filter_recipe_id",
    "sample": "sampling_recipe_id",
    "execute": "execution_recipe_id",
    "score": "scoring_recipe_id",
}
STAGES = tuple(RECIPE_COLUMNS)
WITHOUT_CALL = 3.0
WITHOUT_RESULT = 0.125
"""By the rule `probability`, the probability of the next tokens without the result of any call."""


def recipe_id(stage: str, tool: str) -> str:
    return hashlib.sha256(f"{stage} {tool}".encode()).hexdigest()[:16]


def unregistered(tool: str = "Calculator", **choices: object) -> RunTool:
    """A tool in a run that no database knows, to compute what needs none; its recipes are named by their stages."""
    return RunTool(
        run_id="r", tool=tool, corpus_id="c", corpus_version=1, ordinal_limit=NO_LIMIT,
        choices=RunChoices.parse({"corpus": "c", "model": "m"} | choices), model_identity="m", tool_version="1",
        keep_threshold=0.5, reads_record=False, filter_recipe_id="filter", sampling_recipe_id="sample",
        execution_recipe_id="execute", scoring_recipe_id="score", placebo_recipe_id="placebo",
    )  # fmt: skip


def register_run(
    connection: Connection, run_id: str, corpus_id: str, uri: str, tools: Iterable[str], parameters: str,
    *, model_identity: str, limit: int | None, version: int = 1, schedule: str | None = None,
) -> None:  # fmt: skip
    """A run over a version of a corpus."""
    of_corpus = {"corpus_id": corpus_id, "corpus_uri": uri, "corpus_version": version}
    of_corpus |= {"ordinal_limit": limit, "document_limit": limit}
    of_run = {"run_id": run_id, "tools": list(tools), "parameters": parameters, "schedule": schedule}
    of_run |= {
        "model_identity": model_identity,
        "code_version": "test",
        "image": "",
        "chained_release_id": None,
        "dag_id": None,
        "dag_run_after": None,
    }
    database.execute(connection, queries.runs.insert, **of_corpus, **of_run)


def register_tool(
    connection: Connection, run_id: str, tool: str, recipes: Mapping[str, str], **values: object
) -> None:
    """A tool of a run, with its recipes by stage, and the partitions that these need."""
    ids = {column: recipes[stage] for stage, column in RECIPE_COLUMNS.items()}
    values = {"tool_version": "1", "keep_rule": "paper"} | values
    database.execute(connection, queries.runs.insert_tool, run_id=run_id, tool=tool, **ids, **values)
    for stage in RECIPE_COLUMNS:
        partitions.ensure_partitions(connection, stage, recipes[stage])


def register_pool(
    connection: Connection, run_id: str, tool: str, corpus_id: str, placebo: str, scoring: str
) -> None:
    """An empty pool of placebos, with its recipe, which the run uses."""
    partitions.ensure_partitions(connection, "placebo", placebo)
    recipe = {
        "recipe_id": placebo,
        "stage": "placebo",
        "tool": tool,
        "definition": {},
        "parent_recipe_id": None,
    }
    database.execute(connection, queries.runs.insert_recipe, **recipe)
    pool = {"placebo_recipe_id": placebo, "scoring_recipe_id": scoring, "corpus_id": corpus_id}
    pool |= dict.fromkeys(("placebos", "placebo_sample", "documents", "calls", "sample_share"), 1)
    database.execute(connection, queries.placebo_pools.insert, **pool)
    database.execute(
        connection, queries.placebo_pools.use, run_id=run_id, tool=tool, placebo_recipe_id=placebo
    )


def release(settings: Settings, run_id: str) -> str:
    """Release a run that keeps a call; returns the release's id."""
    release_id = release_of_run(settings, run_id).release_id
    assert release_id is not None
    return release_id


class AnnotatedRun:
    """One run over documents with calls; `complete` writes the ledger of a tool."""

    settings: Settings

    def __init__(
        self,
        settings: Settings,
        thresholds: dict[str, float],
        run_id: str = "run-1",
        model: str = "no-such-model",
        **parameters: object,
    ) -> None:
        self.settings, self.engine = settings, database.connect(settings)
        self.run_id = run_id
        self.keep_rule = parameters.get("keep_rule", "paper")
        self.documents: list[Document] = []
        self.calls: Counter[tuple[str, uuid.UUID]] = Counter()
        corpus = f"file:///corpora/{run_id}"
        self.corpus_id = hashlib.sha256(corpus.encode()).hexdigest()[:16]
        # Without placebos, but for those of `add_placebo`.
        without = {"placebos": int(parameters.get("keep_rule") == "probability"), "placebo_sample": 0}
        parameters = without | parameters
        chosen = RunChoices(corpus=corpus, model=model, tools=tuple(thresholds), **parameters)
        with database.transaction(self.engine) as connection:
            database.copy_insert(connection, "corpora", ("corpus_id", "uri"), [(self.corpus_id, corpus)])
            register_run(
                connection, run_id, self.corpus_id, corpus, thresholds, chosen.model_dump_json(),
                model_identity=f"{model}@1", limit=chosen.document_limit,
            )  # fmt: skip
            for tool, threshold in thresholds.items():
                register_tool(
                    connection, run_id, tool, {stage: recipe_id(stage, tool) for stage in STAGES},
                    keep_threshold=threshold, prune_below=chosen.prune_below, reads_record=tool == "Calendar",
                    keep_rule=chosen.keep_rule,
                )  # fmt: skip

    def rows(self, statement: str, **parameters: object) -> list[Any]:
        with database.transaction(self.engine) as connection:
            return list(connection.execute(sql(statement), parameters))

    def change(self, statement: str, **parameters: object) -> None:
        with database.transaction(self.engine) as connection:
            connection.execute(sql(statement), parameters)

    def write(self, table: str, *records: Mapping[str, object]) -> None:
        with database.transaction(self.engine) as connection:
            database.copy_insert(connection, table, [*records[0]], [[*record.values()] for record in records])

    def in_copy(self, settings: Settings) -> Self:
        """The run in a copy of its database."""
        other = copy.copy(self)
        other.settings, other.engine = settings, database.connect(settings)
        other.documents, other.calls = list(self.documents), Counter(self.calls)
        return other

    def add_text(self, text: str, url: str | None = None) -> Document:
        """A document of the run's corpus."""
        document = Document.of(text, url)
        ordinal = len(self.documents)
        self.documents.append(document)
        key = {"document_id": document.document_id}
        self.write("documents", {**key, "text": text, "url": url})
        place = {"ordinal": ordinal, "file_uri": "file:///f", "line": ordinal + 1}
        self.write("corpus_documents", {**key, "corpus_id": self.corpus_id, **place})
        return document

    def correct_url(self, document: Document, url: str) -> Document:
        """The variant of a document whose record has another url in the corpus than in `documents`."""
        variant_id = content_uuid(str(document.document_id), url, "")
        variant = {
            "document_id": variant_id,
            "text": document.text,
            "url": url,
            "variant_of": document.document_id,
        }
        self.write("documents", variant)
        corrected = "update corpus_documents set variant_id = :variant where document_id = :document"
        self.change(corrected, variant=variant_id, document=document.document_id)
        return Document(variant_id, document.text, url)

    def add_call(
        self,
        tool: str,
        document: Document,
        before: str,
        call_input: str,
        result: str | None,
        saves: float = 0.0,
        *,
        reason: str | None = None,
        input_only_after: bool = False,
    ) -> uuid.UUID:
        """A call before the first appearance of `before`, which gains `saves` by the run's keep rule.

        By the rule `paper` it lowers a loss of `WITHOUT_CALL` by so many nats.
        """
        position = document.text.index(before)
        call = Call(tool, call_input)
        sampling, scoring = recipe_id("sample", tool), recipe_id("score", tool)
        call_id = content_uuid(sampling, str(document.document_id), str(position), str(call))
        self.calls[tool, document.document_id] += 1
        of_call = {"call_id": call_id, "document_id": document.document_id}
        asked = {"call_input": call_input, "call_text": str(call), "effective_input": call_input}
        place = {"paragraph": 0, "position_token": 1, "position_char": position, "position_probability": 0.25}
        candidate = {"sampling_recipe_id": sampling, "input_key": content_uuid(call_input), "sample_count": 1}
        self.write(
            "candidate_calls", of_call | asked | place | candidate | {"input_only_after": input_only_after}
        )
        losses = dict.fromkeys(("loss_without_call", "loss_without_result", "loss_with_result"))
        if reason is None:
            losses = dict(zip(losses, (WITHOUT_CALL, WITHOUT_CALL + 0.5, WITHOUT_CALL - saves), strict=True))
            if self.keep_rule == "probability":
                losses |= {
                    "probability_without": WITHOUT_RESULT,
                    "probability_with": WITHOUT_RESULT * math.exp(saves),
                }
        found = {"scoring_recipe_id": scoring, "result_rank": 0, "result": result, "reason": reason}
        self.write("call_losses", of_call | found | losses)
        return call_id

    def add_placebo(
        self,
        tool: str,
        document: Document,
        call_id: uuid.UUID,
        information: float,
        probability: float | None = None,
    ) -> None:
        """A placebo of a call that `add_call` made; the tool has a pool from then on."""
        recipe = recipe_id("placebo", tool)
        with database.transaction(self.engine) as connection:
            register_pool(connection, self.run_id, tool, self.corpus_id, recipe, recipe_id("score", tool))
        key = {"placebo_recipe_id": recipe, "document_id": document.document_id, "call_id": call_id}
        placebo = {"number": 1, "is_sampled": False, "reason": "only_compared"}
        self.write(
            "placebo_losses", key | placebo | {"information": information, "probability_with": probability}
        )
        means = {"information": information, "placebos": 1, "probability": probability}
        self.write("call_information", key | means)

    def complete(
        self, *tools: str, without: Document | None = None, documents: Sequence[Document] | None = None
    ) -> None:
        """Write filter decisions and the ledger of these tools for all documents, or these (but the score of `without`)."""
        documents = self.documents if documents is None else documents
        with database.transaction(self.engine) as connection:
            for tool in tools:
                columns = (
                    "filter_recipe_id",
                    "document_id",
                    "paragraph",
                    "start_char",
                    "end_char",
                    "kept",
                    "reason",
                )
                decisions = [
                    (recipe_id("filter", tool), item.document_id, 0, 0, len(item.text), True, "test")
                    for item in documents
                ]
                database.copy_insert(connection, "filter_decisions", columns, decisions)
                run = load_run_tool(connection, self.run_id, tool)
                for stage in STAGES:
                    outcomes = [
                        self._outcome(stage, tool, item)
                        for item in documents
                        if stage != "score" or item != without
                    ]
                    write_ledger(connection, run, stage, outcomes)

    def _outcome(self, stage: str, tool: str, document: Document) -> DocumentOutcome:
        calls = self.calls[tool, document.document_id]
        counts = {
            "filter": {"paragraphs": 1, "kept": 1, "test": 1},
            "sample": {"paragraphs": 1, "positions": calls, "samples": calls, "candidates": calls},
            "execute": {"calls": calls},
            "score": {"calls": calls, "scored": calls},
        }
        rows_written = 1 if stage == "filter" else calls
        return DocumentOutcome(document.document_id, rows_written, Counter(counts[stage]))
