"""The method's rules as SQL functions: equal to the stored column and to Python, inlined, and no partition is read in vain."""

import itertools
import math
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from pydantic import SecretStr
from sqlalchemy import Connection, Engine, text

from tests.annotated_runs import AnnotatedRun, recipe_id
from tests.run_sql import run_sql
from tests.servers import RunningPostgres, copied_database
from toolformer_ops.config import Settings
from toolformer_ops.language_model.losses import is_kept
from toolformer_ops.records import CallLosses
from toolformer_ops.storage import database

RECIPE = "0123456789abcdef"


@pytest.fixture
def engine(postgres_dsn: str) -> Engine:
    return database.connect_dsn(postgres_dsn, database.DSN_SETTING)


def test_the_function_loss_reduction_is_the_stored_column_on_every_edge(engine: Engine) -> None:
    edges = (None, 0.0, 5e-324, 0.5, 1.0, 1.7976931348623157e308, math.inf, math.nan)
    losses = list(itertools.product(edges, repeat=4))
    columns = (
        "scoring_recipe_id", "call_id", "document_id", "reason", "loss_without_call", "loss_without_result",
        "loss_with_result", "loss_without_call_full_context",
    )  # fmt: skip
    finite_or_none = [row for row in losses if row[3] is None or math.isfinite(row[3])]  # as the table demands
    with database.transaction(engine) as connection:
        database.ensure_partition(connection, "call_losses", RECIPE)
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


def test_the_loss_reduction_is_the_same_in_sql_and_in_python(engine: Engine) -> None:
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


def test_the_keep_rule_is_the_same_in_sql_and_in_python(engine: Engine) -> None:
    reductions = (-math.inf, -1.0, 0.0, 0.4999999999999999, 0.5, 0.5000000000000001, 1e308, math.inf, math.nan)
    thresholds = (0.0, 0.5, 1.0, math.inf, math.nan)  # run_tools takes none below 0
    with engine.connect() as connection:
        statement = text(
            "select is_kept(null, cast(:reduction as double precision), cast(:threshold as double precision))"
        )
        for reduction, threshold in itertools.product(reductions, thresholds):
            found = connection.execute(statement, {"reduction": reduction, "threshold": threshold}).scalar_one()
            assert found is is_kept(reduction, threshold), (reduction, threshold)
    for unscored in ("'pruned_below', 2.0", "'no_result', null", "null, null"):
        assert run_sql(engine, f"select is_kept({unscored}, 0.5) is not true") == [(True,)]


def test_postgres_inlines_the_rules(engine: Engine) -> None:
    statement = (
        "explain verbose select loss_reduction(loss_without_call, loss_without_result, loss_without_call_full_context, "
        "loss_with_result) as saved from call_losses where is_kept(reason, loss_reduction, 0.5)"
    )
    with database.transaction(engine) as connection:
        database.ensure_partition(connection, "call_losses", RECIPE)
        plan = "\n".join(connection.execute(text(statement)).scalars())
    assert "reason IS NULL" in plan or "loss_reducti_idx" in plan  # the partial index needs the condition to be seen
    assert "LEAST(" in plan
    assert "is_kept(" not in plan
    assert "loss_reduction(" not in plan


# Partitions

TOOLS = ("Calculator", "QA", "Calendar")


@pytest.fixture(scope="module")
def run(postgres_server: RunningPostgres, migrated_template: str) -> Iterator[AnnotatedRun]:
    """One text, with a kept call of each of three tools at its own place, in partitions of their own; not to be written to."""
    with copied_database(postgres_server, migrated_template) as name:
        dsn = SecretStr(postgres_server.address.dsn(name))
        run = AnnotatedRun(Settings(_env_file=None, database_dsn=dsn), dict.fromkeys(TOOLS, 0.5))  # type: ignore[call-arg]
        document = run.add_text("Out of 1400 people, 400 passed on a Friday, that is 29 %.")
        for tool, before in zip(TOOLS, (" 29", " people", " Friday"), strict=True):
            run.add_call(tool, document, before, "1 + 1", "2", saves=1.25)
        run.complete(*TOOLS)
        yield run
        run.engine.dispose()


OF_ONE_TOOL = "where run_id = 'run-1' and tool = 'QA'"
READS = [
    f"select * from scored_calls {OF_ONE_TOOL}",
    f"select * from kept_calls {OF_ONE_TOOL} order by loss_reduction desc limit 10",
    f"select * from threshold_counts {OF_ONE_TOOL}",
    f"select * from yield_by_stage {OF_ONE_TOOL}",
    f"select * from reduction_histogram {OF_ONE_TOOL}",
    f"select call_text, loss_reduction from candidates {OF_ONE_TOOL}",
    f"select * from retrieved {OF_ONE_TOOL}",
]


@pytest.mark.parametrize("statement", READS)
def test_what_reads_one_tool_scans_only_the_partitions_of_its_recipes(run: AnnotatedRun, statement: str) -> None:
    with run.engine.connect() as connection:
        before = _scans(connection)
        connection.execute(text(statement))
        scanned = _scans(connection) - before
    partitions = {name for name in scanned if name.startswith(tuple(database.PARTITIONED_TABLES))}
    of_stage = {stage: recipe_id(stage, "QA") for stage in ("sample", "score")}
    tables = {"call_losses": "score", "candidate_calls": "sample", "pruned_positions": "sample"}
    assert set() < partitions <= {f"{table}_{of_stage[stage]}" for table, stage in tables.items()}


def _scans(connection: Connection) -> Counter[str]:
    """How often the transaction has scanned each table, or one of its indexes; inside of functions too."""
    statement = (
        "select relname, sum(pg_stat_get_xact_numscans(relation)) as scans from pg_class cross join lateral "
        "(select oid union all select indexrelid from pg_index where indrelid = oid) scanned (relation) "
        "where relkind = 'r' group by relname"
    )
    return Counter({row.relname: int(row.scans) for row in connection.execute(text(statement))})
