"""The page itself: `templates/report.html.j2` filled in by Jinja2, every text escaped.

What a model wrote is hostile by assumption: characters that do not show, or that turn the direction of a line, are written out,
and the page allows no script at all (its content security policy), so that nothing in it could run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from toolformer_ops.evaluation.records import VARIANT_NAMES, VARIANTS, SuiteScore
from toolformer_ops.evaluation_report.charts import bar_chart, loss_chart
from toolformer_ops.evaluation_report.contents import ReportContents, TrainedModel
from toolformer_ops.evaluation_report.examples import EXAMPLES, choose_examples
from toolformer_ops.evaluation_report.tables import (
    METRIC_NAMES,
    SuiteTable,
    call_rows,
    called_tools,
    percent,
    suite_tables,
)
from toolformer_ops.evaluation_report.visible_text import visible

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
    tables = suite_tables(contents.scores)
    page = _environment().get_template("report.html.j2")
    return page.render(
        facts=contents.facts,
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - a file of ours
        suites=[
            {"table": table, "charts": _charts(table), "name": SUITE_NAMES.get(table.suite, table.suite)}
            for table in tables
        ],
        legend=_legend(tables),
        missing=[suite for suite in contents.facts.asked_suites if suite not in {table.suite for table in tables}],
        differences=contents.differences,
        calls=call_rows(contents.scores),
        tools=called_tools(contents.scores),
        losses=_losses(contents.facts.models),
        curves=[(model.curve.name, VARIANTS.index(model.variant)) for model in contents.facts.models if model.curve],
        examples=choose_examples(contents.inputs),
        at_most=EXAMPLES,
        data=_data(contents.scores),
        variant_names=VARIANT_NAMES,
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = visible
    environment.filters["percent"] = percent
    environment.filters["signed"] = lambda share: f"{100 * share:+.1f}".replace("-", "\u2212")
    return environment


def _charts(table: SuiteTable) -> list[Mapping[str, Any]]:
    metrics = list(dict.fromkeys(column.metric for column in table.columns))
    return [{"metric": metric, "svg": _svg(bar_chart(table, metric))} for metric in metrics]


def _losses(models: Sequence[TrainedModel]) -> Markup:
    return _svg(loss_chart([(model.curve, VARIANTS.index(model.variant)) for model in models if model.curve]))


def _svg(drawn: str) -> Markup:
    return Markup(drawn)  # noqa: S704 - an element tree, which has escaped its texts


def _legend(tables: Sequence[SuiteTable]) -> list[tuple[int, str]]:
    found = sorted({row.series for table in tables for row in table.rows})
    return [(series, VARIANT_NAMES[VARIANTS[series]]) for series in found]


def _data(scores: Sequence[SuiteScore]) -> list[tuple[str, str, str, str, str]]:
    """(suite, subset, metric, n, hash) of what was evaluated, each once."""
    rows = {
        (
            score.suite,
            score.subset,
            METRIC_NAMES.get(score.metric, score.metric),
            f"{score.inputs:,}",
            score.data_sha256,
        ): None
        for score in scores
    }
    return list(rows)
