"""The page itself: `templates/report.html.j2` filled in by Jinja2, every text escaped.

What a model wrote is hostile by assumption: characters that do not show, or that turn the direction of a
line, are written out, and the page allows no script at all (its content security policy), so that nothing in
it could run.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from toolformer_ops.decoding.records import MadeCall
from toolformer_ops.evaluation.records import VARIANT_NAMES, VARIANTS, EvaluatedInput
from toolformer_ops.evaluation.report.charts import bar_chart, loss_chart
from toolformer_ops.evaluation.report.contents import ReportContents
from toolformer_ops.evaluation.tables import (
    METRIC_NAMES,
    called_tools,
    percent,
    scores_with_tools,
    suite_tables,
)
from toolformer_ops.shown_text import visible

TEMPLATES = Path(__file__).parent / "templates"
SUITE_NAMES = {
    "lama": "LAMA: complete the statement",
    "math": "Math word problems",
    "qa": "Question answering",
    "mlqa": "Multilingual question answering",
    "temporal": "Temporal questions",
    "perplexity": "Language modelling, calls disabled",
}
EXAMPLES = 20
PROMPT_CHARACTERS = 1_200
"""A longer prompt is cut at its start: the question is at its end."""
ANSWERS = 6
"""Most accepted answers that are shown."""


@dataclass(frozen=True)
class Segment:
    """A piece of what was written: plain text, or a call."""

    text: str
    call: MadeCall | None = None


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
    environment.filters["percent"] = percent
    environment.filters["segments"] = lambda example: segments(example.written, example.calls)
    environment.filters["signed"] = lambda share: f"{100 * share:+.1f}".replace("-", "\u2212")
    tables = suite_tables(contents.scores)
    rows = itertools.chain.from_iterable(table.rows for table in tables)
    series = sorted({row.series for row in rows})
    suites_with_table = {table.suite for table in tables}
    trained = [model for model in contents.models if model.training or model.development]
    suites = []
    for table in tables:
        charts = []
        for metric in dict.fromkeys(column.metric for column in table.columns):
            # An element tree has written the SVG and has escaped its texts.
            charts.append({"metric": metric, "svg": Markup(bar_chart(table, metric))})  # noqa: S704
        name = SUITE_NAMES.get(table.suite, table.suite)
        suites.append({"table": table, "charts": charts, "name": name})
    return environment.get_template("report.html.j2").render(
        contents=contents,
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - a file of ours
        suites=suites,
        legend=[(number, VARIANT_NAMES[VARIANTS[number]]) for number in series],
        missing=[suite for suite in contents.asked_suites if suite not in suites_with_table],
        calls=scores_with_tools(contents.scores),
        tools=called_tools(contents.scores),
        losses=Markup(loss_chart(trained)),  # noqa: S704 - as the charts
        trained=[(model.variant, VARIANTS.index(model.variant)) for model in trained],
        examples=choose_examples(contents.inputs),
        prompt_characters=PROMPT_CHARACTERS,
        most_answers=ANSWERS,
        data=dict.fromkeys(
            (score.suite, score.subset, score.metric, score.inputs, score.data_sha256)
            for score in contents.scores
        ),
        metric_names=METRIC_NAMES,
        variant_names=VARIANT_NAMES,
    )


def choose_examples(inputs: Iterable[EvaluatedInput], at_most: int = EXAMPLES) -> list[EvaluatedInput]:
    """Inputs of the model with tools: each subset in turn, right and wrong ones in turn.

    Those with a call come before the others.
    """
    by_subset: dict[tuple[str, str], list[EvaluatedInput]] = defaultdict(list)
    for answer in inputs:
        if answer.variant == "with_tools" and answer.call_start_rank > 0:
            by_subset[answer.suite, answer.subset].append(answer)
    queues = []
    for answers in by_subset.values():
        by_number = sorted(answers, key=lambda answer: (not answer.has_call, answer.number))
        right = [answer for answer in by_number if answer.correct]
        wrong = [answer for answer in by_number if not answer.correct]
        in_turn = _in_turn(right, wrong)
        queues.append(sorted(in_turn, key=lambda answer: not answer.has_call))
    chosen = _in_turn(*queues)[:at_most]
    order = {key: place for place, key in enumerate(by_subset)}
    return sorted(chosen, key=lambda answer: (order[answer.suite, answer.subset], answer.number))


def segments(written: str, calls: Sequence[MadeCall]) -> tuple[Segment, ...]:
    """`written` as text and calls in turn; a call without a result is at the place where it started."""
    pieces: list[Segment] = []
    end = 0
    for call in sorted(calls, key=lambda call: (call.start_char, call.end_char)):
        start = min(max(call.start_char, end), len(written))
        if start > end:
            pieces.append(Segment(written[end:start]))
        end = max(start, min(call.end_char, len(written)))
        pieces.append(Segment(written[start:end], call))
    if end < len(written):
        pieces.append(Segment(written[end:]))
    return tuple(pieces)


def _in_turn(*queues: Sequence[EvaluatedInput]) -> list[EvaluatedInput]:
    """The first of each queue, then the second of each, and so on, until all are at their end."""
    rounds = itertools.chain.from_iterable(zip_longest(*queues))
    return [answer for answer in rounds if answer is not None]
