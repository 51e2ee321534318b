"""The paper's tables in a terminal: a row for each variant, a column for each subset (Tables 3 to 8), and its Table 9."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from toolformer_ops.evaluation.comparing import Comparison
from toolformer_ops.evaluation.records import VARIANT_NAMES, VARIANTS, SuiteScore
from toolformer_ops.evaluation.suites import PERPLEXITY, SUITES

NOTHING = "\u2013"
WIDTH = 160
HEADING = (
    "Toolformer against the others on the same inputs: points, how many only one of them gets right, p of McNemar's test,\n"
    "and from how many points on so many inputs show a difference (80 % power at the 5 % level)"
)


def wide_console() -> Console:
    """A terminal as it is; a file or a pipe wide enough for every table."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def print_scores(console: Console, scores: Sequence[SuiteScore]) -> None:
    """One table a suite, in the order in which they come."""
    for suite in dict.fromkeys(score.suite for score in scores):
        heading = (
            "calls disabled, 95 % interval over texts"
            if suite == PERPLEXITY
            else f"% right: {SUITES[suite].metric.name}"
        )
        _print(console, f"{suite}: {heading}", _suite_table(suite, [score for score in scores if score.suite == suite]))


def print_call_table(console: Console, scores: Sequence[SuiteScore]) -> None:
    """Scores with and without a call, by k, for the subsets that were evaluated with tools (Table 9)."""
    called = [score for score in scores if score.variant == "with_tools"]
    if not called:
        return
    table = Table()
    for name in ("suite", "subset", "k", "all", "with a call", "without", "% with a call", "by tool"):
        table.add_column(name, justify="left" if name in {"suite", "subset", "by tool"} else "right")
    for score in called:
        by_tool = ", ".join(f"{tool} {100 * share:.1f}" for tool, share in score.call_shares.items())
        table.add_row(
            score.suite, score.subset, str(score.call_start_rank), _percent(score.score), _percent(score.score_with_call),
            _percent(score.score_without_call), _percent(score.inputs_with_call / score.inputs), by_tool or NOTHING,
        )  # fmt: skip
    _print(console, "With and without a call, % right", table)


def print_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Paired differences, in points, with their intervals and McNemar's test."""
    if not comparisons:
        return
    table = Table()
    for name in ("subset", "k", "against", "n", "points", "95 % interval", "only one", "p", "shows from"):
        table.add_column(name, justify="left" if name in {"subset", "against"} else "right")
    for one in comparisons:
        found = one.found
        table.add_row(
            one.subset, str(one.call_start_rank), one.other, str(one.inputs), f"{100 * found.difference:+.1f}",
            f"{100 * found.interval.low:+.1f} to {100 * found.interval.high:+.1f}",
            f"{found.only_first} : {found.only_second}", f"{found.p_value:.2g}",
            NOTHING if found.detectable is None else f"{100 * found.detectable:.1f}",
        )  # fmt: skip
    _print(
        console,
        HEADING,
        table,
    )


def _print(console: Console, heading: str, table: Table) -> None:
    console.print(heading, soft_wrap=True, markup=False, highlight=False)
    console.print(table)


def _suite_table(suite: str, scores: Sequence[SuiteScore]) -> Table:
    table = Table()
    columns = list(dict.fromkeys((score.subset, score.metric) for score in scores))
    table.add_column("model")
    for subset, metric in columns:
        counts = sorted({score.inputs for score in scores if (score.subset, score.metric) == (subset, metric)})
        by = metric.removeprefix("perplexity_").replace("_", " ") + ", " if suite == PERPLEXITY else ""
        table.add_column(f"{subset} ({by}n {'/'.join(map(str, counts))})", justify="right")
    show = "{:.2f}".format if suite == PERPLEXITY else _percent
    by_model: dict[tuple[int, int, str], dict[tuple[str, str], str]] = {}
    for score in scores:
        cells = by_model.setdefault((VARIANTS.index(score.variant), score.call_start_rank, score.model), {})
        cells[score.subset, score.metric] = f"{show(score.score)} ({show(score.low)} to {show(score.high)})"
    for (place, rank, _), cells in sorted(by_model.items()):
        variant = VARIANTS[place]
        name = VARIANT_NAMES[variant] + (f", k = {rank}" if variant == "with_tools" else "")
        table.add_row(name, *(cells.get(column, NOTHING) for column in columns))
    return table


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.1f}"
