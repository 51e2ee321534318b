"""The rules of the method as SQL functions: equal to the stored column and to Python, and inlined."""

import itertools
import math
import uuid

from sqlalchemy import text

from tests.run_sql import run_sql
from toolformer_ops.annotation.placebo import PlaceboLoss, information, run_keeps
from toolformer_ops.annotation.scoring import ScoredCall
from toolformer_ops.language_model.losses import is_kept
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


INFORMATION_OF_PLACEBOS = ((), (None,), (0.5,), (0.25, 0.75), (0.25, None), (0.4999999999999999,), (-1.0,))
"""Of each placebo of a call, nats."""


def test_the_keep_rule_of_a_run_in_sql_is_that_of_python(engine):
    statement = text(
        "select run_keeps(cast(:reason as text), cast(:reduction as double precision), 0.5, "
        "cast(:information as double precision), cast(:tau as double precision)) is true"
    )
    cases = itertools.product(
        INFORMATION_OF_PLACEBOS,
        ((None, 0.5), (None, 0.4999999999999999), ("pruned_below", 2.0), ("no_result", None)),
        (None, 0.25, 0.5, 0.51),
    )
    differing = []
    kept = 0
    with engine.connect() as connection:
        for nats_of_placebos, (reason, reduction), tau in cases:
            placebos = [
                PlaceboLoss(
                    number, 0, is_sampled=False, loss_with_result=1.0, reduction_bound=0.5, information=nats
                )
                for number, nats in enumerate(nats_of_placebos, start=1)
            ]
            values = {
                "reason": reason,
                "reduction": reduction,
                "information": information(placebos),
                "tau": tau,
            }
            of_sql = connection.execute(statement, values).scalar_one()
            scored = ScoredCall(result="5", reason=reason, reduction_bound=reduction)
            of_python = run_keeps(scored, placebos, 0.5, tau)
            kept += of_python
            if of_sql is not of_python:
                differing.append((nats_of_placebos, reason, reduction, tau))
    assert differing == []
    assert kept == 7 + 4 + 2 + 0  # without a tau, from 0.25, 0.5 and 0.51 nats on


def test_an_unscored_call_is_not_kept_in_sql(engine):
    for unscored in ("'pruned_below', 2.0", "'no_result', null", "null, null"):
        assert run_sql(engine, f"select is_kept({unscored}, 0.5) is not true") == [(True,)]


def test_postgres_inlines_the_rules(engine):
    statement = (
        "explain verbose select loss_reduction(loss_without_call, loss_without_result, loss_without_call_full_context, "
        "loss_with_result) as saved from call_losses where is_kept(reason, loss_reduction, 0.5)"
    )
    with database.transaction(engine) as connection:
        partitions.ensure_partition(connection, "call_losses", RECIPE)
        plan = "\n".join(connection.execute(text(statement)).scalars())
    assert (
        "reason IS NULL" in plan or "loss_reducti_idx" in plan
    )  # the partial index needs the condition to be seen
    assert "LEAST(" in plan
    assert "is_kept(" not in plan
    assert "loss_reduction(" not in plan
