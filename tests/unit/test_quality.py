"""What a check says of rows in a data frame: when it holds, when it does not, and which rows it names."""

import math
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import create_engine

from toolformer_ops import quality
from toolformer_ops.errors import DatabaseError
from toolformer_ops.quality import Check, CheckResult, Expectation, Subject, run_checks

NOBODY = create_engine("postgresql+psycopg2://nobody@127.0.0.1:1/none")


def _run(frame: pd.DataFrame, *expectations: Expectation) -> CheckResult:
    check = Check("claim", "what is claimed", expectations)
    [result] = run_checks(NOBODY, [Subject(frame, "id", (check,))])
    return result


@pytest.mark.parametrize(
    ("values", "expectations", "holds"),
    [
        ([0.0, 0.5, 1.0], (quality.between("x", 0, 1),), True),
        ([0.0, 0.5, 1.1], (quality.between("x", 0, 1),), False),
        ([-0.1, 0.5, 1.0], (quality.between("x", 0, 1),), False),
        ([1.0, 2.0, 3.0], quality.finite("x"), True),
        ([1.0, math.nan, 3.0], quality.finite("x"), False),
        ([1.0, math.inf, 3.0], quality.finite("x"), False),
        ([1.0, -1.0, 3.0], quality.finite("x"), False),
        (["a", "b", "c"], (quality.unique("x"),), True),
        (["a", "b", "a"], (quality.unique("x"),), False),
        (["a", "b", "c"], (quality.among("x", ["a", "b", "c"]),), True),
        (["a", "b", "d"], (quality.among("x", ["a", "b", "c"]),), False),
        (["a", None, "c"], (quality.present("x"),), False),
        ([1, 2, 3], (quality.equal("x", "number"),), True),
        ([1, 2, 4], (quality.equal("x", "number"),), False),
        ([2, 3, 4], (quality.greater("x", "number"),), True),
        ([2, 3, 3], (quality.greater("x", "number"),), False),
    ],
)
def test_check_holds_exactly_where_every_row_fulfils_it(
    values: list[Any], expectations: tuple[Expectation, ...], holds: bool
) -> None:
    frame = pd.DataFrame({"id": ["r1", "r2", "r3"], "x": values, "number": [1, 2, 3]})
    assert _run(frame, *expectations).success is holds


def test_message_counts_the_rows_and_names_the_first_few() -> None:
    frame = pd.DataFrame({"id": [f"r{n}" for n in range(20)], "x": [0.5] * 10 + [2.5] * 10})
    result = _run(frame, quality.between("x", 0, 1))
    assert result.message == (
        "expected what is claimed, found otherwise in 10 of 20 rows: "
        "id r10 (x 2.5); id r11 (x 2.5); id r12 (x 2.5); id r13 (x 2.5); id r14 (x 2.5)"
    )
    assert result.observed["rows"] == 20
    assert result.observed["unexpected"] == 10
    assert result.observed["examples"][0] == {"id": "r10", "x": 2.5}


def test_no_rows_fulfil_every_check() -> None:
    result = _run(pd.DataFrame({"id": [], "x": []}), quality.between("x", 0, 1))
    assert result.success
    assert result.observed == {"rows": 0, "unexpected": 0, "examples": []}


def test_check_that_cannot_be_run_is_an_error_and_not_a_pass() -> None:
    with pytest.raises(DatabaseError, match="check claim could not be run"):
        _run(pd.DataFrame({"id": ["r1"]}), quality.between("no_such_column", 0, 1))


def test_parameters_of_a_statement_keep_their_spaces_and_backslashes() -> None:
    options = quality._connection_options({"run_id": "manual run\\1", "tool": "QA"})
    assert options == r"-c enable_nestloop=off -c toolformer.run_id=manual\ run\\1 -c toolformer.tool=QA"


def test_comment_before_a_statement_is_left_out() -> None:
    assert quality._select("-- What it reads.\n-- And why.\nselect 1\n-- the end\n") == "select 1\n-- the end"
