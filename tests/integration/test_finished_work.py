"""What is finished is not looked at again: against the plain computation, over random histories of a corpus.

Each step of a history makes a version (documents join, leave, or get another url), or starts a run at some version with some
limit, which does all of its undone documents and passes its check, or is killed after some of them.
"""

import random
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy import text as sql

from tests.annotated_runs import AnnotatedRun, recipe_id
from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.release.choosing import count_kept
from toolformer_ops.runs.micro_batches import DocumentOutcome, write_ledger
from toolformer_ops.runs.run_tools import (
    RunTool,
    Shard,
    documents_after,
    load_run_tool,
    members_beyond_finished,
    members_of_run,
)
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.database import TableRow

TOOLS = {"Calculator": 0.5, "Calendar": 0.5}  # one that reads the text alone, one that reads url and date too
NOTHING_COUNTED = dict.fromkeys(
    ("counted_version", "counted_ordinal", "judged_calls", "kept_calls", "releasable_calls", "kept_texts"), 0
)


@dataclass
class History:
    """A corpus and its runs, by random numbers from a seed."""

    run: AnnotatedRun
    random: random.Random
    version: int = 1
    runs: int = 0
    alive: dict[uuid.UUID, Document] = field(default_factory=dict)

    def make_version(self, connection: Connection) -> None:
        """Each document stays, leaves, or gets another url; some join, of which some were there before."""
        self.version += 1
        for document in list(self.run.documents):
            chance = self.random.random()
            if document.document_id in self.alive and chance < 0.35:
                connection.execute(
                    sql(
                        "update corpus_documents set left_version = :v where document_id = :d and left_version is null"
                    ),
                    {"v": self.version, "d": document.document_id},
                )
                del self.alive[document.document_id]
                if chance < 0.15:
                    self._join(connection, document, f"https://x.org/{self.version}")
            elif document.document_id not in self.alive and chance < 0.4:
                self._join(connection, document, None)
        for _ in range(self.random.randrange(3)):
            self._join(connection, Document.of(f"text {len(self.run.documents)}"), None)

    def _join(self, connection: Connection, document: Document, url: str | None) -> None:
        if document not in self.run.documents:
            self.run.documents.append(document)
        variant = uuid.uuid5(document.document_id, url) if url else None
        rows = [(document.document_id, document.text, None, None)]
        if variant:
            rows.append((variant, document.text, url, document.document_id))
        database.copy_insert(connection, "documents", ("document_id", "text", "url", "variant_of"), rows)
        places = connection.execute(sql("select document_id, ordinal from corpus_documents")).all()
        known = {row.document_id: row.ordinal for row in places}
        ordinal = known.get(document.document_id, max(known.values(), default=-1) + 1)
        database.copy_insert(
            connection,
            "corpus_documents",
            ("corpus_id", "document_id", "ordinal", "file_uri", "line", "first_version", "variant_id"),
            [(self.run.corpus_id, document.document_id, ordinal, "file:///f", 1, self.version, variant)],
        )
        self.alive[document.document_id] = document

    def start(self, connection: Connection, tool: str) -> RunTool:
        """A run of the newest version, or an earlier one that is cleared and runs again; with or without a limit."""
        self.runs += 1
        name = f"night-{self.runs}"
        limit = self.random.choice([None, None, self.random.randrange(1, 12)])
        version = self.random.choice([self.version, self.version, self.random.randrange(1, self.version + 1)])
        connection.execute(
            sql(
                "insert into annotation_runs (run_id, corpus_id, corpus_uri, corpus_version, ordinal_limit, tools, parameters, "
                "model_identity) select :name, corpus_id, corpus_uri, :version, :limit, tools, parameters, model_identity "
                "from annotation_runs where run_id = 'run-1'"
            ),
            {"name": name, "version": version, "limit": limit},
        )
        connection.execute(
            sql(
                "insert into run_tools select :name, tool, filter_recipe_id, sampling_recipe_id, execution_recipe_id, "
                "scoring_recipe_id, tool_version, keep_threshold, prune_below, reads_record from run_tools where run_id = 'run-1'"
            ),
            {"name": name},
        )
        return load_run_tool(connection, name, tool)


def plainly_undone(connection: Connection, run: RunTool, stage: str) -> list[uuid.UUID]:
    """Documents of the run without a ledger row, of those with a kept paragraph but for the filter itself."""
    rows = connection.execute(
        sql(
            "select member.variant_id from run_tool_documents member where member.run_id = :run and member.tool = :tool "
            "and (:stage = 'filter' or exists (select from filter_decisions f where f.filter_recipe_id = :filter "
            "and f.document_id = member.variant_id and f.kept)) "
            "and not exists (select from stage_ledger l where l.stage = :stage and l.recipe_id = :recipe "
            "and l.document_id = member.variant_id) order by 1"
        ),
        {
            "run": run.run_id,
            "tool": run.tool,
            "stage": stage,
            "filter": run.filter_recipe_id,
            "recipe": run.recipe_of(stage),
        },
    )
    return list(rows.scalars())


def undone(connection: Connection, run: RunTool, stage: str) -> list[uuid.UUID]:
    """As the stages find them."""
    if stage != "filter":
        return documents_after(connection, run, Shard(), stage, "filter")
    members = members_beyond_finished(connection, run, run.filter_recipe_id)
    shard = {"recipe_id": run.filter_recipe_id, "shard_index": 0, "shard_count": 1}
    return [row.document_id for row in database.fetch_all(connection, queries.undone.to_filter, **members, **shard)]


def filter_documents(connection: Connection, run: RunTool, documents: list[uuid.UUID]) -> None:
    """Every third document is refused."""
    decisions = [
        TableRow.of(
            "filter_decisions",
            filter_recipe_id=run.filter_recipe_id,
            document_id=document,
            paragraph=0,
            start_char=0,
            end_char=1,
            kept=document.int % 3 > 0,
            reason="test",
        )
        for document in documents
    ]
    database.insert_rows(connection, decisions)
    write_ledger(connection, run, "filter", [DocumentOutcome(document, rows_written=1) for document in documents])


def score_documents(connection: Connection, run: RunTool, documents: list[uuid.UUID]) -> None:
    """Two calls a document, of which none, one or both are kept."""
    losses = [
        TableRow.of(
            "call_losses",
            scoring_recipe_id=run.scoring_recipe_id,
            call_id=uuid.uuid5(document, str(call)),
            document_id=document,
            result_rank=0,
            result="x",
            reason=None,
            loss_without_call=2.0,
            loss_without_result=2.0,
            loss_with_result=1.0 if document.int % 5 > call else 1.75,
            loss_without_call_full_context=None,
            number_format=None,
        )
        for document in documents
        for call in range(2)
    ]
    calls = [
        TableRow.of(
            "candidate_calls",
            sampling_recipe_id=run.sampling_recipe_id,
            call_id=loss.values["call_id"],
            document_id=loss.values["document_id"],
            paragraph=0,
            position_token=0,
            position_char=0,
            position_probability=0.5,
            call_input="x",
            call_text="x",
            input_key=uuid.UUID(int=1),
            effective_input="x",
            sample_count=1,
            input_only_after=loss.values["document_id"].int % 2 > 0,
        )
        for loss in losses
    ]
    database.insert_rows(connection, [*calls, *losses])
    for stage in ("sample", "execute", "score"):
        write_ledger(connection, run, stage, [DocumentOutcome(document, rows_written=2) for document in documents])


def pass_check(connection: Connection, run: RunTool) -> bool:
    """What a passed check of the tool writes, with counts from an earlier one; returns whether there was one."""
    parameters: dict[str, Any] = {**members_of_run(run), "tool": run.tool, **run.keep_rule}
    parameters |= {"sampling_recipe_id": run.sampling_recipe_id, "scoring_recipe_id": run.scoring_recipe_id}
    bases = database.fetch_all(connection, queries.choosing.kept_counts_base, **parameters)
    [plain] = database.fetch_all(connection, queries.choosing.kept_counts, **parameters, **NOTHING_COUNTED)
    counted = count_kept(connection, run)
    assert vars(counted) == plain._asdict()
    bounds = {"corpus_id": run.corpus_id, "at_version": run.corpus_version, "below_ordinal": run.ordinal_limit}
    database.execute(connection, queries.checks.finished, run_id=run.run_id, recipe_ids=run.recipe_ids, **bounds)
    database.execute(connection, queries.checks.yield_record, run_id=run.run_id, tool=run.tool, **vars(counted))
    return bool(bases)


@pytest.fixture
def history(settings: Settings) -> History:
    run = AnnotatedRun(settings, TOOLS)
    for number in range(6):
        run.add_text(f"text {number}")
    with database.transaction(run.engine) as connection:
        for tool in TOOLS:
            rows = [(recipe_id(stage, tool), stage, tool, "{}") for stage in ("filter", "sample", "execute", "score")]
            database.copy_insert(connection, "recipes", ("recipe_id", "stage", "tool", "definition"), rows)
    alive = {document.document_id: document for document in run.documents}
    return History(run, random.Random(), alive=alive)  # noqa: S311 - a test's numbers, seeded


@pytest.mark.parametrize("seed", range(6))
def test_undone_documents_and_yields_are_those_of_the_plain_computation(history: History, seed: int) -> None:
    history.random.seed(seed)
    spared = from_before = 0
    for _ in range(24):
        with database.transaction(history.run.engine) as connection:
            if history.random.random() < 0.4:
                history.make_version(connection)
                continue
            run = history.start(connection, history.random.choice(list(TOOLS)))
            killed = history.random.random() < 0.3
            for stage, work in (("filter", filter_documents), ("score", score_documents)):
                found = undone(connection, run, stage)
                assert found == plainly_undone(connection, run, stage)
                base = members_beyond_finished(connection, run, run.recipe_of(stage))
                spared += base["base_version"] != 0
                work(connection, run, found[: history.random.randrange(len(found) + 1)] if killed else found)
            if not killed:
                from_before += pass_check(connection, run)
    assert spared > 2  # the history is one in which finished work was used
    assert from_before > 1


def test_rows_that_were_dropped_since_do_not_count_as_finished(history: History) -> None:
    with database.transaction(history.run.engine) as connection:
        run = load_run_tool(connection, "run-1", "Calculator")
        every = undone(connection, run, "filter")
        filter_documents(connection, run, every)
        score_documents(connection, run, undone(connection, run, "score"))
        pass_check(connection, run)
        connection.execute(sql("update finished_work set finished_at = now() - interval '1 minute'"))
    with database.transaction(history.run.engine) as connection:
        assert members_beyond_finished(connection, run, *run.recipe_ids)["base_version"] == 1
        connection.execute(
            sql("update recipes set dropped_at = now() where recipe_id = :id"), {"id": run.sampling_recipe_id}
        )
        connection.execute(sql("delete from stage_ledger where recipe_id = :id"), {"id": run.sampling_recipe_id})
        assert members_beyond_finished(connection, run, *run.recipe_ids)["base_version"] == 0
        assert members_beyond_finished(connection, run, run.filter_recipe_id)["base_version"] == 1
        assert undone(connection, run, "sample") == plainly_undone(connection, run, "sample") != []
