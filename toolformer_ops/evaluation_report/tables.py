"""Scores as tables of the paper's form: one table a suite, a row a model, a column a subset, the best in bold.

Also its Table 9 (section 5, "Decoding Strategy"): scores with and without a call, by k. Pure values.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolformer_ops.evaluation.records import VARIANT_NAMES, VARIANTS, SuiteScore

PERPLEXITY = "perplexity"
METRIC_NAMES = {
    "share_correct": "share correct",
    "perplexity_by_token": "perplexity by token",
    "perplexity_by_byte": "perplexity by byte",
}


@dataclass(frozen=True)
class Cell:
    """One score."""

    score: float
    low: float
    high: float
    inputs: int
    best: bool
    """Whether no other row of its column is better."""
    shown: str
    """The score as text: in per cent, or a perplexity."""
    interval: str


@dataclass(frozen=True)
class Column:
    """One subset under one metric."""

    subset: str
    metric: str
    inputs: str
    """`n` of its rows: one number, or the smallest and the largest."""


@dataclass(frozen=True)
class Row:
    """One model in one variant; a cell a column, None where it was not evaluated."""

    name: str
    series: int
    """Which of the four variants it is, from 0: decides its colour."""
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class SuiteTable:
    """One suite."""

    suite: str
    lower_is_better: bool
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class CallRow:
    """One row of Table 9: when calls were made, and what they went with."""

    suite: str
    subset: str
    k: int
    inputs: int
    score: str
    with_call: str
    without_call: str
    share_with_call: str
    by_tool: tuple[str, ...]
    """Share of the inputs with a call of each tool of `called_tools`."""


def is_perplexity(metric: str) -> bool:
    """Whether a score under this metric is a perplexity, of which less is better."""
    return metric.startswith(PERPLEXITY)


def suite_tables(scores: Sequence[SuiteScore]) -> list[SuiteTable]:
    """One table a suite, in the order in which the suites come."""
    suites = list(dict.fromkeys(score.suite for score in scores))
    return [_table(suite, [score for score in scores if score.suite == suite]) for suite in suites]


def row_names(scores: Iterable[SuiteScore]) -> dict[tuple[int, str, int], str]:
    """Names of rows by (series, model, k), in the paper's order; k and the model are named only where they tell rows apart."""
    keys = sorted({_row_key(score) for score in scores})
    names = {}
    for series, model, k in keys:
        alike = [key for key in keys if key[0] == series]
        name = VARIANT_NAMES[VARIANTS[series]]
        several_k = len({key[2] for key in alike}) > 1
        several_models = len({key[1] for key in alike}) > 1
        names[series, model, k] = name + (f", k = {k}" if several_k else "") + (f" ({model})" if several_models else "")
    return names


def called_tools(scores: Sequence[SuiteScore]) -> list[str]:
    """Names of the tools that were called at all, sorted."""
    return sorted({tool for score in scores for tool in score.call_shares})


def call_rows(scores: Sequence[SuiteScore]) -> list[CallRow]:
    """Table 9 for all rows in which calls were allowed, by suite, subset and k."""
    tools = called_tools(scores)
    return [
        CallRow(
            score.suite,
            score.subset,
            score.call_start_rank,
            score.inputs,
            percent(score.score),
            percent(score.score_with_call),
            percent(score.score_without_call),
            percent(score.inputs_with_call / score.inputs if score.inputs else None),
            tuple(percent(score.call_shares.get(tool)) for tool in tools),
        )
        for score in scores
        if score.variant == "with_tools" and not is_perplexity(score.metric)
    ]


def percent(share: float | None) -> str:
    """`12.5` for 0.125; an en dash where there is none."""
    return "\u2013" if share is None else f"{100 * share:.1f}"


def _row_key(score: SuiteScore) -> tuple[int, str, int]:
    return VARIANTS.index(score.variant), score.model, score.call_start_rank


def _table(suite: str, scores: Sequence[SuiteScore]) -> SuiteTable:
    keys = list(dict.fromkeys((score.subset, score.metric) for score in scores))
    names = row_names(scores)
    cells = {(_row_key(score), (score.subset, score.metric)): score for score in scores}
    best = {key: _best([score for score in scores if (score.subset, score.metric) == key]) for key in keys}
    columns = tuple(
        Column(subset, METRIC_NAMES.get(metric, metric), _inputs(scores, subset, metric)) for subset, metric in keys
    )
    rows = tuple(
        Row(name, key[0], tuple(_cell(cells.get((key, column)), best[column]) for column in keys))
        for key, name in names.items()
    )
    return SuiteTable(suite, all(is_perplexity(metric) for _, metric in keys), columns, rows)


def _best(scores: Sequence[SuiteScore]) -> float:
    values = [score.score for score in scores]
    return min(values) if is_perplexity(scores[0].metric) else max(values)


def _inputs(scores: Sequence[SuiteScore], subset: str, metric: str) -> str:
    found = sorted({score.inputs for score in scores if (score.subset, score.metric) == (subset, metric)})
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,}\u2013{found[-1]:,}"


def _cell(score: SuiteScore | None, best: float) -> Cell | None:
    if score is None:
        return None
    if is_perplexity(score.metric):
        shown, interval = f"{score.score:.2f}", f"{score.low:.2f}\u2013{score.high:.2f}"
    else:
        shown, interval = percent(score.score), f"{percent(score.low)}\u2013{percent(score.high)}"
    return Cell(score.score, score.low, score.high, score.inputs, score.score == best, shown, interval)
