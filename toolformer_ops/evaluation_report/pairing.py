"""Toolformer beside every other row of its tables, on the inputs that both answered; formulas: `evaluation/statistics.py`."""

from collections import defaultdict
from collections.abc import Iterable

from toolformer_ops.evaluation.records import VARIANT_NAMES, VARIANTS, EvaluatedInput
from toolformer_ops.evaluation.statistics import paired_difference
from toolformer_ops.evaluation_report.contents import RowDifference

Row = tuple[int, str, int]
"""Of a table: (variant's place, model, k)."""


def row_differences(inputs: Iterable[EvaluatedInput]) -> list[RowDifference]:
    """One a subset and other row, in the order of the inputs; of Toolformer the row with the largest k."""
    answers: dict[tuple[str, str], dict[Row, dict[int, bool]]] = defaultdict(lambda: defaultdict(dict))
    for found in inputs:
        row = (VARIANTS.index(found.variant), found.model, found.call_start_rank)
        answers[found.suite, found.subset][row][found.number] = found.correct
    return [
        _difference(suite, subset, left, right, rows)
        for (suite, subset), rows in answers.items()
        for left, right in _pairs(rows)
        if rows[left].keys() & rows[right].keys()
    ]


def _pairs(rows: Iterable[Row]) -> list[tuple[Row, Row]]:
    with_tools = sorted((row for row in rows if VARIANTS[row[0]] == "with_tools"), key=lambda row: row[2])
    return [(with_tools[-1], row) for row in sorted(rows) if row not in with_tools] if with_tools else []


def _difference(suite: str, subset: str, left: Row, right: Row, rows: dict[Row, dict[int, bool]]) -> RowDifference:
    shared = sorted(rows[left].keys() & rows[right].keys())
    found = paired_difference([rows[left][number] for number in shared], [rows[right][number] for number in shared])
    return RowDifference(
        suite,
        subset,
        VARIANT_NAMES[VARIANTS[left[0]]],
        VARIANT_NAMES[VARIANTS[right[0]]],
        len(shared),
        found.difference,
        found.interval.low,
        found.interval.high,
        found.p_value,
    )
