"""Scores as tables of the paper's form, for a terminal and for the page.

A table is a suite, a row a model, a column a subset. The best of a column is marked (Tables 3 to 8). Also the
paper's Table 9 (section 5, "Decoding Strategy"): scores with and without a call, by k; and texts from outside
made visible.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from toolformer_ops.evaluation.comparing import Comparison
from toolformer_ops.evaluation.records import VARIANT_NAMES, VARIANTS, SuiteScore, variant_title

NOTHING = "\u2013"
WIDTH = 160
METRIC_NAMES = {
    "share_correct": "share correct",
    "perplexity_by_token": "perplexity by token",
    "perplexity_by_byte": "perplexity by byte",
}
COMPARISONS = (
    "Toolformer against the others on the same inputs: points, how many only one of them gets right, p of "
    "McNemar's test,\nand from how many points on so many inputs show a difference (80 % power at the 5 % "
    "level)"
)


@dataclass(frozen=True)
class Cell:
    """One score."""

    score: SuiteScore
    best: bool
    """Whether no other row of its column is better."""

    def show(self, value: float) -> str:
        """The score, or an end of its interval, as text: in per cent, or a perplexity."""
        return f"{value:.2f}" if is_perplexity(self.score.metric) else percent(value)

    @property
    def shown(self) -> str:
        """The score as text."""
        return self.show(self.score.score)

    @property
    def interval(self) -> str:
        """Its 95 % interval as text."""
        return f"{self.show(self.score.low)}{NOTHING}{self.show(self.score.high)}"

    @property
    def with_interval(self) -> str:
        """The score and its 95 % interval in words."""
        return f"{self.shown} ({self.show(self.score.low)} to {self.show(self.score.high)})"


@dataclass(frozen=True)
class Column:
    """One subset under one metric."""

    subset: str
    metric: str
    inputs: str
    """`n` of its rows: one number, or the smallest and the largest."""


@dataclass(frozen=True)
class ModelRow:
    """One model in one variant; a cell a column, None if it was not evaluated."""

    name: str
    series: int
    """Which of the four variants it is, from 0: decides its colour."""
    k: int
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class SuiteTable:
    """One suite."""

    suite: str
    lower_is_better: bool
    columns: tuple[Column, ...]
    rows: tuple[ModelRow, ...]


def is_perplexity(metric: str) -> bool:
    """Whether a score under this metric is a perplexity: less is better."""
    return metric.startswith("perplexity")


def percent(share: float | None) -> str:
    """`12.5` for 0.125; an en dash if there is none."""
    return NOTHING if share is None else f"{100 * share:.1f}"


def suite_tables(scores: Sequence[SuiteScore]) -> list[SuiteTable]:
    """One table a suite, in the order in which the suites come.

    Rows are in the paper's order; k and the model are named only if they tell rows apart.
    """
    by_suite: dict[str, dict[tuple[str, str], dict[tuple[int, str, int], SuiteScore]]] = {}
    for score in scores:
        by_column = by_suite.setdefault(score.suite, {})
        row_key = (VARIANTS.index(score.variant), score.model, score.call_start_rank)
        by_column.setdefault((score.subset, score.metric), {})[row_key] = score
    tables = []
    for suite, by_column in by_suite.items():
        # 1. Columns, in the order of the scores.
        columns, best = [], []
        for (subset, metric), scores_by_row in by_column.items():
            sizes = sorted({score.inputs for score in scores_by_row.values()})
            inputs = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,}{NOTHING}{sizes[-1]:,}"
            columns.append(Column(subset, METRIC_NAMES.get(metric, metric), inputs))
            best.append(
                (min if is_perplexity(metric) else max)(score.score for score in scores_by_row.values())
            )
        # 2. Rows.
        rows = []
        keys = sorted(set().union(*by_column.values()))
        for series, model, k in keys:
            alike = [key for key in keys if key[0] == series]
            name = VARIANT_NAMES[VARIANTS[series]]
            name += f", k = {k}" if len({key[2] for key in alike}) > 1 else ""
            name += f" ({model})" if len({key[1] for key in alike}) > 1 else ""
            cells = []
            for scores_by_row, most in zip(by_column.values(), best, strict=True):
                cell = scores_by_row.get((series, model, k))
                cells.append(Cell(cell, cell.score == most) if cell else None)
            rows.append(ModelRow(name, series, k, tuple(cells)))
        lower_is_better = all(is_perplexity(metric) for _, metric in by_column)
        tables.append(SuiteTable(suite, lower_is_better, tuple(columns), tuple(rows)))
    return tables


def called_tools(scores: Sequence[SuiteScore]) -> list[str]:
    """Names of the tools that were called at all, sorted."""
    return sorted(set().union(*(score.call_shares for score in scores)))


def scores_with_tools(scores: Sequence[SuiteScore]) -> list[SuiteScore]:
    """The rows of Table 9: the scores for which calls were allowed."""
    return [score for score in scores if score.variant == "with_tools" and not is_perplexity(score.metric)]


def print_tables(scores: Sequence[SuiteScore], comparisons: Sequence[Comparison]) -> None:
    """One table a suite, the scores with and without a call (Table 9), and the paired differences.

    A table without rows is left out. A terminal is taken as it is; a file or a pipe is wide enough for every
    table.
    """
    from toolformer_ops.evaluation.suites import SUITES

    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)

    def show(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if not rows:
            return
        table = Table()
        for name in columns:
            is_text = name in {"model", "suite", "subset", "against", "by tool"}
            table.add_column(name, justify="left" if is_text else "right")
        for row in rows:
            table.add_row(*row)
        console.print(heading, soft_wrap=True, markup=False, highlight=False)
        console.print(table)

    # 1. The suites, in the order in which they come.
    for table in suite_tables(scores):
        columns = ["model"]
        for column in table.columns:
            by = column.metric.removeprefix("perplexity ") + ", " if table.lower_is_better else ""
            columns.append(f"{column.subset} ({by}n {column.inputs})")
        rows: list[tuple[str, ...]] = []
        for row in table.rows:
            cells = [cell.with_interval if cell else NOTHING for cell in row.cells]
            rows.append((variant_title(VARIANTS[row.series], row.k), *cells))
        told = "calls disabled, 95 % interval over texts"
        if not table.lower_is_better:
            told = f"% right: {SUITES[table.suite].metric.name}"
        show(f"{table.suite}: {told}", columns, rows)

    # 2. With and without a call, by k, of the subsets that were evaluated with tools.
    by_call = []
    for score in scores_with_tools(scores):
        shares = (f"{tool} {percent(share)}" for tool, share in score.call_shares.items())
        by_call.append(
            (
                score.suite,
                score.subset,
                str(score.call_start_rank),
                percent(score.score),
                percent(score.score_with_call),
                percent(score.score_without_call),
                percent(score.inputs_with_call / score.inputs),
                ", ".join(shares) or NOTHING,
            )
        )
    columns = ["suite", "subset", "k", "all", "with a call", "without", "% with a call", "by tool"]
    show("With and without a call, % right", columns, by_call)

    # 3. Paired differences, in points, with their intervals and McNemar's test.
    differences = []
    for compared in comparisons:
        paired = compared.paired
        differences.append(
            (
                compared.subset, str(compared.call_start_rank), compared.other, str(compared.inputs),
                f"{100 * paired.difference:+.1f}", f"{100 * paired.interval.low:+.1f} to {100 * paired.interval.high:+.1f}",
                f"{paired.only_first} : {paired.only_second}", f"{paired.p_value:.2g}", percent(paired.detectable),
            )
        )  # fmt: skip
    columns = ["subset", "k", "against", "n", "points", "95 % interval", "only one", "p", "shows from"]
    show(COMPARISONS, columns, differences)
