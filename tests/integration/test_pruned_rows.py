"""What was not computed is stored with its bound, and no view or function answers below the run's prune_below.

The rows are those of data/small_annotation.sql, which pruned nothing, and those that a test adds.
"""

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tests.run_sql import run_sql
from toolformer_ops.errors import DatabaseError
from toolformer_ops.storage.postgres import database


def _add_losses(engine: Engine, reason: str | None, *losses: float | None) -> None:
    """One more row of losses of the Calculator in d1: without call, without result, with result, without call in full context."""
    with database.transaction(engine) as connection:
        database.copy_insert(
            connection,
            "call_losses",
            (
                "scoring_recipe_id", "call_id", "document_id", "result_rank", "result", "reason", "number_format",
                "loss_without_call", "loss_without_result", "loss_with_result", "loss_without_call_full_context",
            ),
            [
                (
                    "a1", "c9000000-0000-0000-0000-000000000000", "d1000000-0000-0000-0000-000000000000", 0, "5", reason,
                    "float32", *losses,
                )
            ],
        )  # fmt: skip


NEW = "select reduction_bound, loss_reduction from call_losses where left(call_id::text, 2) = 'c9'"


@pytest.mark.parametrize(
    ("losses", "bound", "reduction"),
    [
        ((0.25, None, None, None), 0.25, None),  # L- is at most 0.25 and L+ at least 0
        ((2.0, None, 1.75, None), 0.25, None),  # L- is at most 2
        ((2.0, None, None, 0.375), 0.375, None),
        ((2.0, 1.75, 0.5, None), 1.25, 1.25),
        ((2.0, 1.75, 0.5, 1.5), 1.0, 1.0),  # the loss without a call in the full context is the least
    ],
)
def test_the_bound_is_the_least_known_loss_without_the_result_minus_the_loss_with_it(
    annotated, losses, bound, reduction
):
    _add_losses(annotated, None if reduction else "pruned_below", *losses)
    assert run_sql(annotated, NEW) == [(bound, reduction)]


def test_what_was_not_computed_needs_a_reason_not_to_be_kept(annotated):
    with pytest.raises(DatabaseError, match="a_scored_call_has_a_result_and_three_finite_losses"):
        _add_losses(annotated, None, 0.25, None, None, None)
    with pytest.raises(DBAPIError, match="what_a_run_keeps_was_not_pruned"):
        run_sql(annotated, "update run_tools set prune_below = 1.5 where run_id = 'r2'")  # it keeps from 1.0


def test_a_pruned_call_is_no_scored_call(annotated):
    before = run_sql(annotated, "select count(*) from scored_calls where run_id = 'r1'")
    _add_losses(annotated, "pruned_below", 2.0, None, 1.75, None)
    assert run_sql(annotated, "select count(*) from scored_calls where run_id = 'r1'") == before


def test_a_pruned_position_counts_as_a_loss_of_its_stage(annotated):
    run_sql(
        annotated,
        "update stage_ledger set counts = counts || '{\"positions_pruned_below\": 3}' "
        "where stage = 'sample' and document_id::text like 'd1%'",
    )
    assert run_sql(
        annotated,
        "select stage, is_loss, count from yield_by_stage "
        "where run_id = 'r1' and tool = 'Calculator' and reason = 'positions_pruned_below'",
    ) == [("sample", True, 3)]


def test_kept_calls_at_is_exact_from_prune_below_on(annotated):
    run_sql(annotated, "update run_tools set prune_below = 0.5 where run_id = 'r1' and tool = 'Calculator'")
    at = "select left(call_id::text, 2), gain, releasable from kept_calls_at('r1', 'Calculator', {}) order by 1"
    assert run_sql(annotated, at.format(0.5)) == [
        ("c1", 1.25, True),
        ("c4", 2.375, True),
        ("c5", 0.625, False),
    ]
    assert run_sql(annotated, at.format(1.25)) == [("c1", 1.25, True), ("c4", 2.375, True)]
    assert (
        run_sql(annotated, at.format("'NaN'")) == []
    )  # sorts above all numbers: nothing is kept from there on


def test_kept_calls_at_refuses_a_threshold_below_prune_below(annotated):
    run_sql(annotated, "update run_tools set prune_below = 0.5 where run_id = 'r1' and tool = 'Calculator'")
    at = "select left(call_id::text, 2), gain, releasable from kept_calls_at('r1', 'Calculator', {}) order by 1"
    for threshold in ("0.49", "null"):
        with pytest.raises(DBAPIError, match=r"expected a threshold of at least 0\.5 nats"):
            run_sql(annotated, at.format(threshold))
    with pytest.raises(DBAPIError, match="run r2: expected a started run with Calendar"):
        run_sql(annotated, "select * from kept_calls_at('r2', 'Calendar', 1.0)")


def test_below_prune_below_the_stored_bounds_say_what_a_lower_threshold_may_add(annotated):
    run_sql(annotated, "update run_tools set prune_below = 0.5 where run_id = 'r1' and tool = 'Calculator'")
    _add_losses(annotated, "pruned_below", 2.0, None, 1.75, None)  # it saves at most 0.25 nats
    with database.transaction(annotated) as connection:
        document = "d1000000-0000-0000-0000-000000000000"
        columns = ("sampling_recipe_id", "document_id", "paragraph", "position_token", "position_char",
                   "position_probability", "gain_bound")  # fmt: skip
        database.raw_cursor(connection).execute(
            "create table pruned_positions_1 partition of pruned_positions for values in ('51')"
        )
        pruned = [("51", document, 0, token, token, 0.5, loss) for token, loss in ((1, 0.125), (2, 0.375))]
        database.copy_insert(connection, "pruned_positions", columns, pruned)
    may_add = "select calls, positions from undecided_at('r1', 'Calculator', {})"
    found = [tuple(run_sql(annotated, may_add.format(at))[0]) for at in (0, 0.25, 0.3, 0.5)]
    assert found == [(1, 2), (1, 1), (0, 1), (0, 0)]
    with pytest.raises(DBAPIError) as caught:
        run_sql(annotated, "select * from kept_calls_at('r1', 'Calculator', 0.25)")
    assert "It may keep 1 more calls" in str(caught.value)
