"""Every column that a stage or a registration writes is part of the hash by which an audit knows the row."""

import pytest

from tests.run_sql import run_sql

KEYS = frozenset({"document_id"})
"""Of the ledger's row, which keeps the hash; beside it the recipe, which is the first column of each table."""
OF_A_RUNS_END = (
    "state",
    "finished_at",
    "estimate",
    "cost",
    "previous_run_id",
    "numbers_stored_at",
    "numbers_batch_id",
    "problem",
    "ended_hash",
)
OWNER = ("dag_id", "dag_run_after")
"""Which DAG run opened a run: claims of audits compare it with the end."""
HASHED: dict[str, tuple[str, frozenset[str]]] = {
    "filter_row_text": ("filter_decisions", KEYS | {"filter_recipe_id"}),
    "call_row_text": ("candidate_calls", KEYS | {"sampling_recipe_id"}),
    "pruned_row_text": ("pruned_positions", KEYS | {"sampling_recipe_id"}),
    # Of which process answered an input, and when, nothing follows.
    "result_row_text": ("call_results", frozenset({"tool", "tool_version", "seconds", "created_at"})),
    "losses_row_text": ("call_losses", KEYS | {"scoring_recipe_id"}),
    "placebo_row_text": ("placebo_losses", KEYS | {"placebo_recipe_id"}),
    "registration_hash": ("annotation_runs", frozenset({*OF_A_RUNS_END, *OWNER, "registered_hash"})),
    "tool_registration_hash": (
        "run_tools",
        frozenset({"placebo_recipe_id", "last_document_id", "registered_hash"}),
    ),
}
"""By function, its table, and the columns that are not part of its hash."""
A_VALUE = {
    "uuid": '"00000000-0000-0000-0000-000000000001"',
    "jsonb": '{"a": 1}',
    "boolean": "true",
    "timestamp with time zone": '"2026-01-01"',
    "text[]": '["a"]',
    "real[]": "[1]",
    "text": '"a"',
}
"""By type, as JSON; of the others 1."""
COLUMNS = """
select attname, format_type(atttypid, atttypmod) as type
from pg_attribute
where attrelid = '{}'::regclass and attnum > 0 and not attisdropped and attgenerated = ''
"""
CHANGES = """
select {0}(jsonb_populate_record(null::{1}, '{{"{2}": {3}}}')) is distinct from {0}(jsonb_populate_record(null::{1}, '{{}}'))
    as changes
"""


@pytest.mark.parametrize("function", HASHED)
def test_a_hash_holds_every_column_but_those_that_are_named(engine, function):
    table, others = HASHED[function]
    columns = run_sql(engine, COLUMNS.format(table))
    hashed = set()
    for column in columns:
        statement = CHANGES.format(function, table, column.attname, A_VALUE.get(column.type, "1"))
        if run_sql(engine, statement)[0].changes:
            hashed.add(column.attname)
    assert hashed == {column.attname for column in columns} - others


def test_every_function_that_hashes_rows_is_compared_with_its_table(engine):
    functions = run_sql(
        engine,
        "select proname from pg_proc where pronamespace = current_schema::regnamespace "
        "and (proname like '%\\_row\\_text' or proname like '%registration\\_hash')",
    )
    assert {row.proname for row in functions} == set(HASHED)
