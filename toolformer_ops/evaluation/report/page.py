"""The page itself: `templates/report.html.j2` filled in by Jinja2, every text escaped.

What a model wrote is hostile by assumption: characters that do not show, or that turn the direction of a line, are written out,
and the page allows no script at all (its content security policy), so that nothing in it could run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from toolformer_ops.evaluation.records import VARIANT_NAMES, VARIANTS
from toolformer_ops.evaluation.report.charts import bar_chart, loss_chart
from toolformer_ops.evaluation.report.contents import ReportContents
from toolformer_ops.evaluation.report.examples import choose_examples
from toolformer_ops.evaluation.report.tables import (
    METRIC_NAMES,
    SuiteTable,
    call_rows,
    called_tools,
    suite_tables,
    visible,
)
from toolformer_ops.runs.placebo_rates import kept_by_chance

TEMPLATES = Path(__file__).parent / "templates"
SUITE_NAMES = {
    "lama": "LAMA: complete the statement",
    "math": "Math word problems",
    "qa": "Question answering",
    "mlqa": "Multilingual question answering",
    "temporal": "Temporal questions",
    "perplexity": "Language modelling, calls disabled",
}


def render(contents: ReportContents) -> str:
    """The whole page as HTML; equal contents give equal pages."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = visible
    environment.filters["by_chance"] = kept_by_chance
    environment.filters["signed"] = lambda share: f"{100 * share:+.1f}".replace("-", "\u2212")
    facts, tables = contents.facts, suite_tables(contents.scores)
    series = sorted({row.series for table in tables for row in table.rows})
    curves = [(model.curve, VARIANTS.index(model.variant)) for model in facts.models if model.curve]
    data = [  # what was evaluated
        (
            score.suite,
            score.subset,
            METRIC_NAMES.get(score.metric, score.metric),
            f"{score.inputs:,}",
            score.data_sha256,
        )
        for score in contents.scores
    ]
    return environment.get_template("report.html.j2").render(
        facts=facts,
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - a file of ours
        suites=[
            {"table": table, "charts": _charts(table), "name": SUITE_NAMES.get(table.suite, table.suite)}
            for table in tables
        ],
        legend=[(number, VARIANT_NAMES[VARIANTS[number]]) for number in series],
        missing=[suite for suite in facts.asked_suites if suite not in {table.suite for table in tables}],
        comparisons=contents.comparisons,
        calls=call_rows(contents.scores),
        tools=called_tools(contents.scores),
        losses=Markup(loss_chart(curves)),  # noqa: S704 - as in _charts
        curves=[(curve.name, number) for curve, number in curves],
        examples=choose_examples(contents.inputs),
        data=list(dict.fromkeys(data)),
        variant_names=VARIANT_NAMES,
    )


def _charts(table: SuiteTable) -> list[Mapping[str, Any]]:
    metrics = dict.fromkeys(column.metric for column in table.columns)
    # An element tree has written the SVG and has escaped its texts.
    return [{"metric": metric, "svg": Markup(bar_chart(table, metric))} for metric in metrics]  # noqa: S704
