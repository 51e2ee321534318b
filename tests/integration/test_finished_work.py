"""What is finished is not looked at again: against the plain computation, over random histories of a corpus.

Each step of a history makes a version, or starts a run at some version with some limit, which does all of its
undone documents and passes its check, or is killed after some of them.
"""

import uuid

import pytest
from sqlalchemy import Connection, text

from tests.written_nights import Nights, Record, Tool, draw
from toolformer_ops.runs.run_tools import (
    RunTool,
    Shard,
    documents_after,
    load_run_tool,
    members_beyond_finished,
)
from toolformer_ops.storage.postgres import database, queries

TOOLS = (Tool("Calculator"), Tool("Calendar", reads_record=True))
STAGES = {"filter": "", "sample": "filter", "execute": "sample", "score": "execute"}
"""Each with the stage before it."""


@pytest.fixture
def nights(nights):
    nights.ingest(*(Record(f"text {number}", record_id=f"r{number}") for number in range(12)))
    return nights


def start(
    nights: Nights, connection: Connection, run_id: str, tool: Tool, version: int, limit: int | None = None
) -> RunTool:
    nights.start(run_id, tool, limit=limit, corpus="c", model="m")
    connection.execute(
        text("update annotation_runs set corpus_version = :version where run_id = :run"),
        {"version": version, "run": run_id},
    )
    return load_run_tool(connection, run_id, tool.name)


def plainly_undone(connection: Connection, run: RunTool, stage: str) -> list[uuid.UUID]:
    """Documents without a ledger row; but for the filter those with a kept paragraph that the stage before has done."""
    rows = connection.execute(
        text(
            "select member.variant_id from run_tool_documents member where member.run_id = :run and member.tool = :tool "
            "and (:stage = 'filter' or exists (select from filter_decisions f where f.filter_recipe_id = :filter "
            "and f.document_id = member.variant_id and f.kept) and exists (select from stage_ledger l "
            "where l.stage = :before and l.recipe_id = :recipe_before and l.document_id = member.variant_id)) "
            "and not exists (select from stage_ledger l where l.stage = :stage and l.recipe_id = :recipe "
            "and l.document_id = member.variant_id) order by 1"
        ),
        {
            "run": run.run_id, "tool": run.tool, "filter": run.filter_recipe_id, "stage": stage, "recipe": run.recipe_of(stage),
            "before": STAGES[stage], "recipe_before": run.recipe_of(STAGES[stage] or stage),
        },
    )  # fmt: skip
    return list(rows.scalars())


def undone(connection: Connection, run: RunTool, stage: str) -> list[uuid.UUID]:
    """As the stages find them."""
    if stage != "filter":
        return documents_after(connection, run, Shard(), stage, STAGES[stage])
    members = members_beyond_finished(connection, run, run.filter_recipe_id)
    shard = {"recipe_id": run.filter_recipe_id, "shard_index": 0, "shard_count": 1}
    return [
        row.document_id
        for row in database.fetch_all(connection, queries.undone.to_filter, members=members, **shard)
    ]


def pass_check(connection: Connection, run: RunTool) -> None:
    bounds = {
        "corpus_id": run.corpus_id,
        "at_version": run.corpus_version,
        "below_ordinal": run.ordinal_limit,
    }
    database.execute(
        connection, queries.checks.finished, run_id=run.run_id, recipe_ids=run.recipe_ids, **bounds
    )


def kill_before_the_end(connection: Connection, run: RunTool) -> None:
    """Of half of the documents that the run did, some stages are not done."""
    for stage, divisor in (("score", 2), ("execute", 4), ("sample", 8)):
        connection.execute(
            text(
                "delete from stage_ledger l using micro_batches b where b.batch_id = l.batch_id and b.run_id = :run "
                "and l.stage = :stage and document_shard(l.document_id, :divisor) = 0"
            ),
            {"run": run.run_id, "stage": stage, "divisor": divisor},
        )


@pytest.mark.parametrize("seed", range(4))
def test_undone_documents_are_those_of_the_plain_computation(nights, seed):
    drawn = draw("undone", seed)
    records = [record for record, _ in nights.members.values()]
    spared = killed = 0
    for number in range(16):
        if drawn.random() < 0.5:
            records = nights.change(drawn, number, records)
            nights.ingest(*records)
        tool = drawn.choice(TOOLS)
        version = drawn.choice([nights.version, nights.version, drawn.randint(1, nights.version)])
        limit = drawn.choice([None, None, drawn.randrange(1, 20)])
        with nights.engine.begin() as connection:
            run = start(nights, connection, f"run-{number}", tool, version, limit)
        with nights.engine.connect() as connection:
            for stage in STAGES:
                assert undone(connection, run, stage) == plainly_undone(connection, run, stage)
                spared += members_beyond_finished(connection, run, run.recipe_of(stage))["base_version"] != 0
        is_killed = number % 3 == 1
        nights.work(run.run_id, tool, share=drawn.random() if is_killed else 1.0)
        with nights.engine.begin() as connection:
            if is_killed:
                kill_before_the_end(connection, run)
                killed += bool(undone(connection, run, "sample") + undone(connection, run, "score"))
            else:
                pass_check(connection, run)
    assert spared > 20  # the history is one in which finished work was used,
    assert killed  # and left undone
