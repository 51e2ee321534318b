"""The rules of the method as SQL functions: equal to the stored column and to Python, and inlined."""

import itertools
import math
import uuid

import pytest
from sqlalchemy import text

from tests.run_sql import run_sql
from toolformer_ops.annotation.placebo import gain_of
from toolformer_ops.annotation.scoring import ScoredCall
from toolformer_ops.language_model.losses import PROBABILITY_TOKENS, is_kept, probability
from toolformer_ops.records import CallLosses
from toolformer_ops.storage.postgres import database, partitions

RECIPE = "0123456789abcdef"


def test_the_function_loss_reduction_is_the_stored_column_on_every_edge(engine):
    edges = (None, 0.0, 5e-324, 0.5, 1.0, 1.7976931348623157e308, math.inf, math.nan)
    losses = list(itertools.product(edges, repeat=4))
    columns = (
        "scoring_recipe_id", "call_id", "document_id", "reason", "loss_without_call", "loss_without_result",
        "loss_with_result", "loss_without_call_full_context",
    )  # fmt: skip
    finite_or_none = [
        row for row in losses if row[3] is None or math.isfinite(row[3])
    ]  # as the table demands
    with database.transaction(engine) as connection:
        partitions.ensure_partition(connection, "call_losses", RECIPE)
        rows = [
            (RECIPE, uuid.UUID(int=number), uuid.UUID(int=0), "pruned_below", *values)
            for number, values in enumerate(finite_or_none)
        ]
        database.copy_insert(connection, "call_losses", columns, rows)
    compared = (
        "select count(*), count(loss_reduction), count(*) filter (where loss_reduction is distinct from loss_reduction("
        "loss_without_call, loss_without_result, loss_without_call_full_context, loss_with_result)) from call_losses"
    )
    assert len(finite_or_none) == 8 * 8 * 8 * 6
    # Without and with the result and without the call there must be numbers: 7 of 8 edges each.
    assert run_sql(engine, compared) == [(8 * 8 * 8 * 6, 7 * 7 * 7 * 6, 0)]


def test_the_loss_reduction_of_sql_is_that_of_python(engine):
    finite = (0.0, 5e-324, 0.1, 0.5, 1.0, 1.7976931348623157e308)
    statement = text(
        "select loss_reduction(cast(:nothing as double precision), cast(:without as double precision), "
        "cast(:whole as double precision), cast(:result as double precision))"
    )
    with engine.connect() as connection:
        for nothing, without, result in itertools.product(finite, repeat=3):
            for whole in (None, 0.25):
                in_python = CallLosses(nothing, without, result, whole)
                values = {"nothing": nothing, "without": without, "whole": whole, "result": result}
                assert connection.execute(statement, values).scalar_one() == in_python.reduction_bound
                pruned = CallLosses(nothing, None, result, whole)
                assert pruned.pruned
                assert connection.execute(statement, {**values, "without": None}).scalar_one() is None


def test_the_keep_rule_of_sql_is_that_of_python(engine):
    reductions = (
        -math.inf,
        -1.0,
        0.0,
        0.4999999999999999,
        0.5,
        0.5000000000000001,
        1e308,
        math.inf,
        math.nan,
    )
    thresholds = (0.0, 0.5, 1.0, math.inf, math.nan)  # run_tools takes none below 0
    with engine.connect() as connection:
        statement = text(
            "select is_kept(null, cast(:reduction as double precision), cast(:threshold as double precision))"
        )
        for reduction, threshold in itertools.product(reductions, thresholds):
            found = connection.execute(
                statement, {"reduction": reduction, "threshold": threshold}
            ).scalar_one()
            assert found is is_kept(reduction, threshold), (reduction, threshold)


PROBABILITIES = (None, 0.01, 0.25, 0.5, 0.75, 1.0)


def scored_calls() -> list[tuple[ScoredCall, float | None]]:
    """Calls of both keep rules, scored and not, each with the probability of its placebo."""
    calls: list[tuple[ScoredCall, float | None]] = [
        (ScoredCall(result="5", reason=reason, reduction_bound=reduction), None)
        for reason, reduction in (
            (None, 0.5),
            (None, 0.4999999999999999),
            ("pruned_below", 2.0),
            ("no_result", None),
        )
    ]
    for without, with_result, placebo in itertools.product(PROBABILITIES[1:], PROBABILITIES, PROBABILITIES):
        reason = "pruned_below" if with_result is None else None
        scored = ScoredCall(
            result="5",
            reason=reason,
            reduction_bound=1.0,
            probability_without=without,
            probability_with=with_result,
        )
        calls.append((scored, placebo))
    return calls


def test_the_gain_of_a_call_in_sql_is_that_of_python(engine):
    statement = text(
        "select call_gain(cast(:gain_bound as double precision), cast(:with_result as double precision), "
        "cast(:placebo as double precision))"
    )
    differing = []
    with engine.connect() as connection:
        for scored, placebo in scored_calls():
            if scored.reason is None:
                values = {
                    "gain_bound": scored.gain_bound,
                    "with_result": scored.probability_with,
                    "placebo": placebo,
                }
                gain = gain_of(scored, placebo)
                if connection.execute(statement, values).scalar_one() != (
                    gain and pytest.approx(gain, abs=1e-12)
                ):
                    differing.append((scored, placebo))
    assert differing == []


def test_the_keep_rule_of_a_run_in_sql_is_that_of_python(engine):
    statement = text(
        "select run_keeps(cast(:reason as text), cast(:gain_bound as double precision), 0.25, "
        "cast(:with_result as double precision), cast(:placebo as double precision)) is true"
    )
    differing = []
    kept = 0
    with engine.connect() as connection:
        for scored, placebo in scored_calls():
            values = {
                "reason": scored.reason,
                "gain_bound": scored.gain_bound,
                "with_result": scored.probability_with,
                "placebo": placebo,
            }
            gain = gain_of(scored, placebo)
            of_python = gain is not None and is_kept(gain, 0.25)
            kept += of_python
            if connection.execute(statement, values).scalar_one() is not of_python:
                differing.append((scored, placebo))
    assert differing == []
    # Both of `paper`, and of each probability with the result the pairs of smaller ones.
    assert kept == 2 + 1 + 4 + 9 + 16


def test_the_stored_bound_of_a_gain_is_that_of_python(engine):
    columns = (
        "scoring_recipe_id", "call_id", "document_id", "reason", "loss_without_call", "loss_without_result",
        "loss_with_result", "probability_without", "probability_with",
    )  # fmt: skip
    cases = list(itertools.product((None, 0.01, 0.25, 1.0), (None, 0.01, 0.5, 1.0), (None, 0.5)))
    with database.transaction(engine) as connection:
        partitions.ensure_partition(connection, "call_losses", RECIPE)
        rows = [
            (
                RECIPE,
                uuid.UUID(int=number),
                uuid.UUID(int=0),
                "pruned_below",
                1.0,
                None,
                with_result,
                *probabilities,
            )
            for number, (*probabilities, with_result) in enumerate(cases)
        ]
        database.copy_insert(connection, "call_losses", columns, rows)
    stored = run_sql(engine, "select gain_bound from call_losses order by call_id")
    assert [bound for [bound] in stored] == [
        pytest.approx(
            CallLosses(1.0, None, loss, probability_without=without, probability_with=with_result).gain_bound
        )
        for without, with_result, loss in cases
    ]


@pytest.mark.parametrize("tokens", [1, 3, PROBABILITY_TOKENS, 10])
def test_the_probability_of_the_next_tokens_in_sql_is_that_of_python(engine, tokens):
    log_probabilities = [-0.5, -2.0, -0.0, -11.25, -1e-5, -3.0, -0.125, -7.0, -0.25, -1.0][:tokens]
    in_sql = run_sql(
        engine,
        "select next_tokens_probability(array[cast(:line as real[]), null], 1, :tokens)".replace(
            "array[cast(:line as real[]), null]", "array[cast(:line as real[])]"
        ),
        line=log_probabilities,
        tokens=PROBABILITY_TOKENS,
    )
    assert in_sql == [(pytest.approx(probability(log_probabilities), abs=1e-6),)]


def test_an_unscored_call_is_not_kept_in_sql(engine):
    for unscored in ("'pruned_below', 2.0", "'no_result', null", "null, null"):
        assert run_sql(engine, f"select is_kept({unscored}, 0.5) is not true") == [(True,)]


def test_postgres_inlines_the_rules(engine):
    statement = (
        "explain verbose select call_gain(gain_bound, probability_with, 0.5) as gain "
        "from call_losses where is_kept(reason, gain_bound, 0.5)"
    )
    with database.transaction(engine) as connection:
        partitions.ensure_partition(connection, "call_losses", RECIPE)
        plan = "\n".join(connection.execute(text(statement)).scalars())
    assert (
        "reason IS NULL" in plan or "gain_bound" in plan
    )  # the partial index needs the condition to be seen
    assert "LEAST(" in plan
    assert "is_kept(" not in plan
    assert "call_gain(" not in plan
