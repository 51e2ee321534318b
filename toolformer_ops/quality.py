"""Quality checks by Great Expectations: what a check is, running checks over rows, and saying what was found.

Rows come from a statement of `sql/queries` (Great Expectations counts in Postgres and fetches a few examples, whatever the
number of rows) or from a data frame. A statement's parameters travel as settings of the connection, which it reads by
`current_setting('toolformer.run_id')`, since Great Expectations binds none. Importing it takes 3 to 11 s, so only `run_checks`
does.

Writes no table, and does not know what is checked: `stages/checking.py` does both.
"""

import logging
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Engine

from toolformer_ops.errors import DatabaseError
from toolformer_ops.storage import database

if TYPE_CHECKING:
    import pandas as pd

Severity = Literal["fail", "warn"]
EXAMPLES = 5
"""Rows that a message names."""
LARGEST_FINITE = 1e300


@dataclass(frozen=True)
class Expectation:
    """One of Great Expectations' expectations, by its class name, and its arguments."""

    kind: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """A claim about all rows, and what happens where it does not hold."""

    name: str
    """In snake_case, as it stands in `quality_results`."""
    expected: str
    """The claim in words, such as `probabilities in [0, 1]`."""
    expectations: tuple[Expectation, ...]
    """All must hold."""
    severity: Severity = "fail"


@dataclass(frozen=True)
class QueryRows:
    """Rows of `sql/queries/NAME.sql`; its parameters as `toolformer.NAME` settings."""

    query: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Subject:
    """Rows, the column that names one, and the checks on them."""

    rows: "QueryRows | pd.DataFrame"
    key: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    check: Check
    success: bool
    observed: Mapping[str, Any] = field(default_factory=dict)
    """`rows`, `unexpected` and `examples`; JSON values only."""
    message: str = ""


def between(column: str, lowest: float | None = None, highest: float | None = None) -> Expectation:
    """Values lie in [lowest, highest]; a missing value is passed over."""
    return Expectation("ExpectColumnValuesToBeBetween", {"column": column, "min_value": lowest, "max_value": highest})


def unique(column: str) -> Expectation:
    """No value appears twice."""
    return Expectation("ExpectColumnValuesToBeUnique", {"column": column})


def present(column: str) -> Expectation:
    """No value is missing."""
    return Expectation("ExpectColumnValuesToNotBeNull", {"column": column})


def finite(column: str) -> tuple[Expectation, Expectation]:
    """No value is missing, infinite, below zero or not a number."""
    return present(column), between(column, 0.0, LARGEST_FINITE)


def equal(column: str, other: str) -> Expectation:
    """The two columns are equal in each row."""
    return Expectation("ExpectColumnPairValuesToBeEqual", {"column_A": column, "column_B": other})


def greater(column: str, other: str) -> Expectation:
    """The first column is greater than the second in each row."""
    return Expectation("ExpectColumnPairValuesAToBeGreaterThanB", {"column_A": column, "column_B": other})


def among(column: str, values: Iterable[object]) -> Expectation:
    """Values are among these."""
    return Expectation("ExpectColumnValuesToBeInSet", {"column": column, "value_set": list(values)})


def run_checks(engine: Engine, subjects: Sequence[Subject]) -> list[CheckResult]:
    """One result a check, in order.

    Raises:
        DatabaseError: a statement could not be run; nothing is known then, and no check counts as passed.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # it is read when the package is imported
    import great_expectations as gx
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    # Nothing on disk: without this configuration a folder for its HTML reports is made.
    config = DataContextConfig(store_backend_defaults=InMemoryStoreBackendDefaults())
    context = gx.get_context(mode="ephemeral", project_config=config)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    results: list[CheckResult] = []
    for number, subject in enumerate(subjects):
        batch = _batch(context, engine, f"subject_{number}", subject.rows)
        results += _validate(gx, batch, subject)
    return results


def _batch(context: Any, engine: Engine, name: str, rows: "QueryRows | pd.DataFrame") -> Any:
    if isinstance(rows, QueryRows):
        with warnings.catch_warnings():
            # It recommends its Postgres source, which refuses an address with a socket.
            warnings.filterwarnings("ignore", message="You are using a generic SQLDatasource")
            source = context.data_sources.add_sql(
                name,
                connection_string=engine.url.render_as_string(hide_password=False),
                create_temp_table=False,
                kwargs={"connect_args": {"options": _connection_options(rows.parameters)}},
            )
        asset = source.add_query_asset(name, query=_select(database.query(rows.query)))
        return asset.add_batch_definition_whole_table(name).get_batch()
    asset = context.data_sources.add_pandas(name).add_dataframe_asset(name)
    return asset.add_batch_definition_whole_dataframe(name).get_batch({"dataframe": rows})


def _select(statement: str) -> str:
    """The statement from its first `select` on: Great Expectations takes no comment before it."""
    lines = statement.rstrip().splitlines()
    start = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    return "\n".join(lines[start:])


def _connection_options(parameters: Mapping[str, str]) -> str:
    """Settings of a Postgres connection; a backslash keeps a space or a backslash in a value.

    Checks read all rows. Looking for the first five offending ones, Postgres would else expect to find them at once and join
    row by row (a minute in place of a second for 160,000 rows).
    """
    escaped = {name: value.replace("\\", r"\\").replace(" ", r"\ ") for name, value in parameters.items()}
    return " ".join(["-c enable_nestloop=off", *(f"-c toolformer.{name}={value}" for name, value in escaped.items())])


def _validate(gx: Any, batch: Any, subject: Subject) -> list[CheckResult]:
    suite = gx.ExpectationSuite(
        name="checks",
        expectations=[
            getattr(gx.expectations, expectation.kind)(**expectation.arguments, meta={"check": check.name})
            for check in subject.checks
            for expectation in check.expectations
        ],
    )
    outcome = batch.validate(
        suite,
        result_format={
            "result_format": "SUMMARY",
            "unexpected_index_column_names": [subject.key],
            "partial_unexpected_count": EXAMPLES,
        },
    )
    found: dict[str, list[Any]] = {check.name: [] for check in subject.checks}
    for result in outcome.results:
        name = result.expectation_config.meta["check"]
        if raised := _raised(result.exception_info or {}):
            raise DatabaseError(f"check {name} could not be run: {raised}")
        found[name].append(result)
    return [_result(check, subject.key, found[check.name]) for check in subject.checks]


def _raised(information: Mapping[str, Any]) -> str | None:
    """The message of an error inside an expectation; GX reports it flat, or by metric."""
    entries = [information] if "raised_exception" in information else list(information.values())
    messages = [str(entry["exception_message"]) for entry in entries if entry.get("raised_exception")]
    return messages[0] if messages else None


def _result(check: Check, key: str, results: Sequence[Any]) -> CheckResult:
    if len(results) != len(check.expectations):
        raise DatabaseError(f"check {check.name}: expected {len(check.expectations)} outcomes, found {len(results)}.")
    details = [dict(result.result) for result in results if not result.success]
    rows = max((int(result.result.get("element_count", 0)) for result in results), default=0)
    unexpected = max((int(detail.get("unexpected_count", 0)) for detail in details), default=0)
    examples: list[dict[str, Any]] = []
    for detail in details:
        for row in detail.get("partial_unexpected_index_list") or ():
            example = {name: _json_value(value) for name, value in row.items()}
            if example not in examples:
                examples.append(example)
    examples = examples[:EXAMPLES]
    observed = {"rows": rows, "unexpected": unexpected, "examples": examples}
    if not details:
        return CheckResult(check, True, observed, f"{check.expected}: so in all {rows} rows")
    named = "; ".join(_named(key, example) for example in examples)
    message = f"expected {check.expected}, found otherwise in {unexpected} of {rows} rows: {named}"
    return CheckResult(check, False, observed, message)


def _named(key: str, example: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name} {value}" for name, value in example.items() if name != key)
    return f"{key} {example.get(key)} ({values})" if values else f"{key} {example.get(key)}"


def _json_value(value: object) -> object:
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)
