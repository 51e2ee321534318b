"""The statements by which stages find their work, on data/small_annotation.sql: d1 to d3 are r1's documents, d1 and d2 have a
paragraph that Calculator's filter kept.
"""

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine

from tests.run_sql import run_sql
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.queries import Statement

OTHER = "ffffffffffffffff"  # a recipe that nothing was done under
D1, D2, D3, D4 = (UUID(f"d{number}000000-0000-0000-0000-000000000000") for number in range(1, 5))


def _fetch(engine: Engine, statement: Statement, **parameters: object) -> list[Any]:
    with database.transaction(engine) as connection:
        return database.fetch_all(connection, statement, **parameters)


def _ids(engine: Engine, statement: Statement, **parameters: object) -> list[UUID]:
    return [row.document_id for row in _fetch(engine, statement, **parameters)]


def _members(run_id: str) -> dict[str, object]:
    """All documents of a run, where nothing is finished."""
    return {
        "corpus_id": "c000000000000000",
        "at_version": 1,
        "below_ordinal": 3 if run_id == "r1" else 2**31 - 1,
        "base_version": 0,
        "base_ordinal": 0,
        "reads_record": False,
    }


def _undone(
    engine: Engine, run_id: str, stage: str, recipe_id: str, previous: tuple[str, str], index: int = 0, count: int = 1
) -> list[UUID]:
    parameters = {"members": _members(run_id), "recipe_id": recipe_id, "shard_index": index, "shard_count": count}
    if stage == "filter":
        return _ids(engine, queries.undone.to_filter, **parameters)
    before = {"previous_stage": previous[0], "previous_recipe_id": previous[1]}
    return _ids(engine, queries.undone.after_stage, **parameters, stage=stage, filter_recipe_id="f1", **before)


FILTERED = ("filter", "f1")


UNDONE = (
    ("r1", "filter", OTHER, FILTERED, [D1, D2, D3]),  # all documents of the run, and no more
    ("r2", "filter", OTHER, FILTERED, [D1, D2, D3, D4]),
    ("r1", "filter", "f1", FILTERED, []),  # without those that the ledger holds
    ("r1", "filter", "f3", FILTERED, [D2, D3]),
    ("r1", "sample", OTHER, FILTERED, [D1, D2]),  # those with a kept paragraph
    ("r2", "sample", OTHER, FILTERED, [D1, D2, D4]),
    ("r2", "sample", "51", FILTERED, []),
    ("r2", "execute", OTHER, ("sample", "51"), [D1, D4]),  # what the stage before has finished
    ("r2", "execute", "e1", ("sample", "51"), []),
    ("r2", "execute", OTHER, ("sample", OTHER), []),
)


def test_a_stage_finds_its_undone_documents_each_in_one_shard(annotated: Engine) -> None:
    for *asked, documents in UNDONE:
        if asked[1] == "execute":
            run_sql(annotated, "delete from stage_ledger where stage = 'sample' and document_id::text like 'd2%'")
        for count in (1, 2, 3, 7, 64):
            shards = [_undone(annotated, *asked, index, count) for index in range(count)]
            assert sorted(document for shard in shards for document in shard) == documents


def test_documents_of_a_micro_batch_that_another_process_has_done_are_left_out(annotated: Engine) -> None:
    rows = _fetch(annotated, queries.undone.without_ledger, stage="filter", recipe_id="f3", document_ids=[D3, D1, D2])
    assert [(row.document_id, row.url) for row in rows] == [(D2, None), (D3, "https://x.org/2023/01/30/a")]
    assert _fetch(annotated, queries.undone.without_ledger, stage="filter", recipe_id="f3", document_ids=[]) == []


def test_kept_paragraphs_come_in_the_order_of_the_text(annotated: Engine) -> None:
    rows = _fetch(annotated, queries.undone.kept_paragraphs, filter_recipe_id="f3", document_ids=[D2, D1])
    assert [tuple(row) for row in rows] == [(D1, 0, 0, 20), (D1, 1, 20, 55)]
    assert _fetch(annotated, queries.undone.kept_paragraphs, filter_recipe_id="f1", document_ids=[D3]) == []


def test_calls_come_by_document_in_the_order_of_the_text(annotated: Engine) -> None:
    rows = _fetch(annotated, queries.undone.calls, sampling_recipe_id="51", document_ids=[D2, D1])
    assert [str(row.call_id)[:2] for row in rows] == ["c3", "c1", "c2", "c5", "c4", "c8"]


def test_only_inputs_with_a_row_are_known(annotated: Engine) -> None:
    keys = [UUID(f"0{number}000000-0000-0000-0000-000000000000") for number in (1, 3, 9)]
    rows = _fetch(annotated, queries.undone.known_results, tool="Calculator", tool_version="1", input_keys=keys)
    assert sorted((row.results, row.reason) for row in rows) == [([], "divides_by_zero"), (["0.29"], None)]
    assert _fetch(annotated, queries.undone.known_results, tool="Calculator", tool_version="2", input_keys=keys) == []


def test_executed_calls_carry_their_paragraph_and_their_result(annotated: Engine) -> None:
    rows = _fetch(
        annotated,
        queries.undone.executed_calls,
        filter_recipe_id="f1",
        sampling_recipe_id="51",
        tool="Calculator",
        tool_version="1",
        document_ids=[D1, D4],
    )
    assert [(row.call_text, row.start_char, row.end_char, row.results, row.reason) for row in rows] == [
        ("Calculator(400 / 0)", 0, 55, [], "divides_by_zero"),
        ("Calculator(400 / 1400)", 0, 55, ["0.29"], None),
        ("Calculator(1400 / 400)", 0, 55, ["3.50"], None),
        ("Calculator(7 * 12)", 0, 43, None, None),  # never asked
    ]


def test_remaining_work_counts_unscored_documents_and_averages_measured_seconds_a_token(annotated: Engine) -> None:
    run_sql(
        annotated,
        "insert into micro_batches (run_id, tool, stage, recipe_id, documents, tokens, rows_written, seconds) values "
        "('r2', 'Calculator', 'sample', '51', 2, 20, 6, 5), ('r1', 'Calculator', 'sample', '51', 1, 10, 1, 4), "
        "('r2', 'Calculator', 'execute', 'e1', 2, 20, 7, 1), ('r1', 'Calculator', 'score', 'a1', 9, null, 9, 99), "
        "('r2', 'Calculator', 'score', 'a1', 3, 30, 7, 9), ('r1', 'Calculator', 'score', 'a1', 0, 0, 0, 0)",
    )
    recipes = {"filter_recipe_id": "f1", "sampling_recipe_id": "51", "execution_recipe_id": "e1"}

    def remaining(run_id: str, scoring_recipe_id: str) -> tuple[int, int, float | None]:
        [found] = _fetch(
            annotated,
            queries.planning.remaining_work,
            members=_members(run_id),
            **recipes,
            scoring_recipe_id=scoring_recipe_id,
        )
        return found.documents, found.tokens, found.seconds_per_token

    # (5 + 4) / (20 + 10) + 1 / 20 + 9 / 30; a micro-batch from before tokens were counted says nothing
    assert remaining("r2", "a1") == (0, 0, pytest.approx(0.65))
    assert remaining("r2", OTHER) == (3, 37, pytest.approx(0.35))
    recipes["sampling_recipe_id"] = OTHER
    documents, _, seconds_per_token = remaining("r1", OTHER)
    assert (documents, seconds_per_token) == (2, None)
