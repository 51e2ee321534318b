"""Scores as tables of the paper's form: one table a suite, a row a model, a column a subset, the best in bold.

Also its Table 9 (section 5, "Decoding Strategy"): scores with and without a call, by k; and texts from outside made visible. Pure
values.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolformer_ops.evaluation.records import VARIANT_NAMES, VARIANTS, SuiteScore

PERPLEXITY = "perplexity"
METRIC_NAMES = {
    "share_correct": "share correct",
    "perplexity_by_token": "perplexity by token",
    "perplexity_by_byte": "perplexity by byte",
}
# Control characters but tab and line break, marks and overrides of direction, line separators, and half surrogates, which UTF-8
# cannot write.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


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
class ModelRow:
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
    rows: tuple[ModelRow, ...]


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
            suite=score.suite,
            subset=score.subset,
            k=score.call_start_rank,
            inputs=score.inputs,
            score=percent(score.score),
            with_call=percent(score.score_with_call),
            without_call=percent(score.score_without_call),
            share_with_call=percent(score.inputs_with_call / score.inputs if score.inputs else None),
            by_tool=tuple(percent(score.call_shares.get(tool)) for tool in tools),
        )
        for score in scores
        if score.variant == "with_tools" and not is_perplexity(score.metric)
    ]


def percent(share: float | None) -> str:
    """`12.5` for 0.125; an en dash where there is none."""
    return "\u2013" if share is None else f"{100 * share:.1f}"


def visible(text: str) -> str:
    """`text` with each character that does not show, or that turns the direction of a line, as `⟨U+202E⟩`. Does not escape."""
    return _UNSEEN.sub(lambda match: f"\u27e8U+{ord(match.group()):04X}\u27e9", text)


def _row_key(score: SuiteScore) -> tuple[int, str, int]:
    return VARIANTS.index(score.variant), score.model, score.call_start_rank


def _table(suite: str, scores: Sequence[SuiteScore]) -> SuiteTable:
    by_column: dict[tuple[str, str], list[SuiteScore]] = {}
    for score in scores:
        by_column.setdefault((score.subset, score.metric), []).append(score)
    names = row_names(scores)
    cells: dict[tuple[int, str, int], list[Cell | None]] = {key: [] for key in names}
    columns = []
    for (subset, metric), found in by_column.items():
        sizes = sorted({score.inputs for score in found})
        inputs = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,}\u2013{sizes[-1]:,}"
        columns.append(Column(subset, METRIC_NAMES.get(metric, metric), inputs))
        values = [score.score for score in found]
        best = min(values) if is_perplexity(metric) else max(values)
        by_row = {}
        for score in found:
            show = "{:.2f}".format if is_perplexity(metric) else percent
            by_row[_row_key(score)] = Cell(
                score=score.score,
                low=score.low,
                high=score.high,
                inputs=score.inputs,
                best=score.score == best,
                shown=show(score.score),
                interval=f"{show(score.low)}\u2013{show(score.high)}",
            )
        for key, row in cells.items():
            row.append(by_row.get(key))
    return SuiteTable(
        suite=suite,
        lower_is_better=all(is_perplexity(metric) for _, metric in by_column),
        columns=tuple(columns),
        rows=tuple(ModelRow(name, key[0], tuple(cells[key])) for key, name in names.items()),
    )
