"""Bars with 95 % intervals and loss curves as SVG that takes its colours from the page's style sheet, in light and in dark.

Built as an element tree, so that every text in it is escaped. Does not choose what is drawn.
"""

import math
from collections.abc import Sequence
from xml.etree import ElementTree

from toolformer_ops.evaluation_report.contents import LossCurve
from toolformer_ops.evaluation_report.tables import Column, SuiteTable
from toolformer_ops.evaluation_report.visible_text import visible

WIDTH = 760
LABEL_WIDTH = 170
VALUE_WIDTH = 56
"""Room at the right for the numbers."""
BAR = 13
BAR_GAP = 3
GROUP_GAP = 16
AXIS_HEIGHT = 26
CURVE_HEIGHT = 260
CURVE_LEFT = 56
TICKS = 5
LABEL_CHARACTERS = 24

Element = ElementTree.Element


def bar_chart(table: SuiteTable, metric: str) -> str:
    """Horizontal bars of one suite under one metric: a group a subset, a bar a model, with its interval."""
    places = [place for place, column in enumerate(table.columns) if column.metric == metric]
    groups = [
        (table.columns[place], [(row, cell) for row in table.rows if (cell := row.cells[place]) is not None])
        for place in places
    ]
    top = _round_up(max(cell.high for _, bars in groups for _, cell in bars))
    height = AXIS_HEIGHT + sum(len(bars) * (BAR + BAR_GAP) + GROUP_GAP for _, bars in groups)
    svg = _svg(height, f"{table.suite}, {metric}, with 95 % intervals")
    _vertical_grid(svg, top, height - AXIS_HEIGHT, as_percent=not metric.startswith("perplexity"))
    y = GROUP_GAP / 2
    for column, bars in groups:
        _group_label(svg, column, y + len(bars) * (BAR + BAR_GAP) / 2)
        for row, cell in bars:
            title = f"{row.name}, {column.subset}: {cell.shown} ({cell.interval}), n = {cell.inputs}"
            _bar(svg, y, _x(cell.score, top), f"s{row.series}", title)
            _interval(svg, y + BAR / 2, _x(cell.low, top), _x(cell.high, top))
            weight = "value best" if cell.best else "value"
            _text(svg, _x(cell.high, top) + 6, y + BAR / 2, cell.shown, weight, "start")
            y += BAR + BAR_GAP
        y += GROUP_GAP
    return _written(svg)


def loss_chart(curves: Sequence[tuple[LossCurve, int]]) -> str:
    """Losses by step: training as a line, development as points joined by dashes; each curve with the number of its colour."""
    points = [point for curve, _ in curves for point in (*curve.training, *curve.development) if _is_drawn(point)]
    if not points:
        return ""
    last_step = max([1, *(step for step, _ in points)])
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    bottom, top = _bounds(low, high)
    svg = _svg(CURVE_HEIGHT + AXIS_HEIGHT, "Loss in nats a token by optimiser step")

    def place(point: tuple[int, float]) -> tuple[float, float]:
        x = CURVE_LEFT + (WIDTH - CURVE_LEFT - 12) * point[0] / last_step
        return x, 10 + (CURVE_HEIGHT - 10) * (1 - (point[1] - bottom) / (top - bottom))

    _curve_grid(svg, bottom, top, last_step)
    for curve, series in curves:
        _line(svg, [place(point) for point in curve.training if _is_drawn(point)], f"curve s{series}", curve.name)
        dots = [place(point) for point in curve.development if _is_drawn(point)]
        _line(svg, dots, f"curve dashed s{series}", f"{curve.name}, development documents")
        for x, y in dots:
            _add(svg, "circle", {"cx": _n(x), "cy": _n(y), "r": "3.5", "class": f"dot s{series}"})
    return _written(svg)


def _is_drawn(point: tuple[int, float]) -> bool:
    return math.isfinite(point[1])


def _bounds(low: float, high: float) -> tuple[float, float]:
    """Of an axis around a curve, with round ticks."""
    step = _round_up(max(high - low, 0.01) / (TICKS - 1))
    bottom = math.floor(low / step) * step
    return bottom, bottom + TICKS * step


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 and 10 times a power of ten, so that the axis has round ticks."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 2.5, 4, 5, 7.5, 10) if step * power >= value - 1e-12)


def _x(value: float, top: float) -> float:
    return LABEL_WIDTH + (WIDTH - LABEL_WIDTH - VALUE_WIDTH) * value / top


def _svg(height: float, label: str) -> Element:
    attributes = {"viewBox": f"0 0 {WIDTH} {_n(height)}", "role": "img", "aria-label": visible(label)}
    return ElementTree.Element("svg", attributes)


def _vertical_grid(svg: Element, top: float, bottom: float, *, as_percent: bool) -> None:
    for tick in range(TICKS + 1):
        value = top * tick / TICKS
        x = _x(value, top)
        _add(svg, "line", {"x1": _n(x), "x2": _n(x), "y1": "0", "y2": _n(bottom), "class": "grid"})
        _text(svg, x, bottom + 14, f"{100 * value:.3g} %" if as_percent else f"{value:.3g}", "tick", "middle")


def _curve_grid(svg: Element, bottom: float, top: float, last_step: int) -> None:
    for tick in range(TICKS + 1):
        y = 10 + (CURVE_HEIGHT - 10) * (1 - tick / TICKS)
        _add(svg, "line", {"x1": _n(CURVE_LEFT), "x2": _n(WIDTH - 12), "y1": _n(y), "y2": _n(y), "class": "grid"})
        _text(svg, CURVE_LEFT - 8, y, f"{bottom + (top - bottom) * tick / TICKS:.2f}", "tick", "end")
        x = CURVE_LEFT + (WIDTH - CURVE_LEFT - 12) * tick / TICKS
        anchor = "end" if tick == TICKS else "middle"
        _text(svg, x, CURVE_HEIGHT + 16, f"{round(last_step * tick / TICKS):,}", "tick", anchor)


def _group_label(svg: Element, column: Column, y: float) -> None:
    name = column.subset if len(column.subset) <= LABEL_CHARACTERS else f"{column.subset[: LABEL_CHARACTERS - 1]}\u2026"
    _text(svg, LABEL_WIDTH - 10, y - 6, name, "group", "end")
    _text(svg, LABEL_WIDTH - 10, y + 8, f"n = {column.inputs}", "tick", "end")


def _bar(svg: Element, y: float, end: float, series: str, title: str) -> None:
    width = max(end - LABEL_WIDTH, 0.5)
    attributes = {
        "x": _n(LABEL_WIDTH),
        "y": _n(y),
        "width": _n(width),
        "height": str(BAR),
        "rx": "2",
        "class": f"bar {series}",
    }
    ElementTree.SubElement(_add(svg, "rect", attributes), "title").text = visible(title)


def _interval(svg: Element, y: float, low: float, high: float) -> None:
    _add(
        svg,
        "path",
        {"d": f"M{_n(low)} {_n(y)}H{_n(high)}M{_n(low)} {_n(y - 3)}v6M{_n(high)} {_n(y - 3)}v6", "class": "interval"},
    )


def _line(svg: Element, points: Sequence[tuple[float, float]], style: str, title: str) -> None:
    if len(points) < 2:
        return
    path = _add(svg, "polyline", {"points": " ".join(f"{_n(x)},{_n(y)}" for x, y in points), "class": style})
    ElementTree.SubElement(path, "title").text = visible(title)


def _text(svg: Element, x: float, y: float, text: str, style: str, anchor: str) -> None:
    attributes = {"x": _n(x), "y": _n(y), "class": style, "text-anchor": anchor, "dominant-baseline": "central"}
    _add(svg, "text", attributes).text = visible(text)


def _add(parent: Element, tag: str, attributes: dict[str, str]) -> Element:
    return ElementTree.SubElement(parent, tag, attributes)


def _n(number: float) -> str:
    return f"{number:.1f}".rstrip("0").rstrip(".")


def _written(svg: Element) -> str:
    return ElementTree.tostring(svg, encoding="unicode")
