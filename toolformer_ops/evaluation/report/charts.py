"""Bars with 95 % intervals and loss curves, as SVG by matplotlib.

They have the colours of the page's style sheet, light and dark. Texts stay texts (in the page's font,
escaped, `$` is no mathematics). Each bar and curve has a title for pointers and screen readers. Equal input
makes equal bytes. Does not choose what is drawn.
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from defusedxml.ElementTree import fromstring

from toolformer_ops.evaluation.records import VARIANT_NAMES, VARIANTS
from toolformer_ops.evaluation.report.contents import TrainedModel
from toolformer_ops.evaluation.tables import SuiteTable, is_perplexity
from toolformer_ops.shown_text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 760
"""Points, as all sizes here; the page scales the whole."""
BAR = 17
AXIS_HEIGHT = 34
CURVE_HEIGHT = 290
LABEL_CHARACTERS = 24
SERIES = ("#a00000", "#a00001", "#a00002", "#a00003")
INK, LINE = "#a00004", "#a00005"
VARIABLES = {
    **{colour: f"var(--s{number})" for number, colour in enumerate(SERIES)},
    INK: "var(--ink)",
    LINE: "var(--line)",
}
"""matplotlib draws with placeholders of the style sheet's variables, which differ between light and dark."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "toolformer-ops",
    "text.parse_math": False,
    "font.size": 11,
    "axes.edgecolor": LINE,
    "grid.color": LINE,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.labelcolor": "black",  # which matplotlib leaves to the style sheet
    "ytick.labelcolor": "black",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def bar_chart(table: SuiteTable, metric: str) -> str:
    """Horizontal bars of one suite under one metric: a group a subset, a bar a model, with its interval."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    groups = []
    for place, column in enumerate(table.columns):
        if column.metric == metric:
            bars = []
            for row in table.rows:
                if (cell := row.cells[place]) is not None:
                    bars.append((row, cell))
            groups.append((column, bars))
    lines = sum(len(bars) + 1 for _, bars in groups)  # one between two groups
    titles: dict[str, str] = {}
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / 72, (AXIS_HEIGHT + BAR * lines) / 72), layout="constrained")
        axes = figure.subplots()
        ticks, labels, line = [], [], 0
        for column, bars in groups:
            name = column.subset
            short = name if len(name) <= LABEL_CHARACTERS else f"{name[: LABEL_CHARACTERS - 1]}\u2026"
            ticks.append(line + (len(bars) - 1) / 2)
            labels.append(visible(f"{short}\nn = {column.inputs}"))
            for row, cell in bars:
                gid = f"bar-{len(titles)}"
                titles[gid] = f"{row.name}, {name}: {cell.shown} ({cell.interval}), n = {cell.score.inputs}"
                [bar] = axes.barh(line, cell.score.score, height=0.8, color=SERIES[row.series], clip_on=False)
                bar.set_gid(gid)
                [interval] = axes.plot(
                    (cell.score.low, cell.score.high), (line, line), color=INK, marker="|", clip_on=False
                )
                interval.set_gid(f"interval-{len(titles) - 1}")
                weight = "bold" if cell.best else "normal"
                axes.annotate(
                    cell.shown,
                    (cell.score.high, line),
                    (6, 0),
                    textcoords="offset points",
                    va="center",
                    weight=weight,
                )
                line += 1
            line += 1
        axes.set_yticks(ticks, labels)
        axes.set(ylim=(lines - 1, -1), xlim=(0, None))
        axes.grid(axis="x", clip_on=False)
        if not is_perplexity(metric):
            axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        return _as_svg(figure, f"{table.suite}, {metric}, with 95 % intervals", titles)


def loss_chart(models: Sequence[TrainedModel]) -> str:
    """Losses by step: training as a line, development as points joined by dashes.

    It is empty if there is no loss.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    titles: dict[str, str] = {}
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / 72, CURVE_HEIGHT / 72), layout="constrained")
        axes = figure.subplots()
        for model in models:
            name, colour = VARIANT_NAMES[model.variant], SERIES[VARIANTS.index(model.variant)]
            for title, points, line, marker in (
                (name, model.training, "-", ""),
                (f"{name}, development documents", model.development, "--", "o"),
            ):
                drawn = [point for point in points if math.isfinite(point[1])]
                if drawn:
                    gid = f"curve-{len(titles)}"
                    titles[gid] = title
                    steps, losses = zip(*drawn, strict=True)
                    axes.plot(
                        steps, losses, color=colour, linestyle=line, marker=marker, gid=gid, clip_on=False
                    )
        if not titles:
            return ""
        axes.grid(clip_on=False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return _as_svg(figure, "Loss in nats a token by optimiser step", titles)


def _as_svg(figure: "Figure", label: str, titles: Mapping[str, str]) -> str:
    """The figure as an element of the page; `titles` are those of its artists, by their ids."""
    drawn = io.StringIO()
    figure.savefig(
        drawn, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
    )
    root = fromstring(drawn.getvalue())
    root.set("role", "img")
    root.set("aria-label", visible(label))
    referred = {
        address.removeprefix("#") for element in root.iter() if (address := element.get(f"{{{XLINK}}}href"))
    }
    for element in root.iter():
        if style := element.get("style"):
            for colour, variable in VARIABLES.items():
                style = style.replace(colour, variable)
            element.set("style", style)
        name = element.get("id", "")
        if name in titles:
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = visible(titles[name])
            element.insert(0, title)
        # Ids are unique within one chart, and a page has several: only those stay that something refers to.
        if name.partition("-")[0] in {"bar", "interval", "curve"}:
            element.set("class", name.partition("-")[0])
        if name not in referred:
            element.attrib.pop("id", None)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")
