"""The page of evaluations: its tables, its examples, and that nothing hostile or from elsewhere gets into it."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolformer_ops.decoding.records import MadeCall
from toolformer_ops.evaluation.comparing import Comparison, compare_inputs
from toolformer_ops.evaluation.records import CALENDAR_DATE, EvaluatedInput, SuiteScore, Variant
from toolformer_ops.evaluation.report.charts import bar_chart, loss_chart
from toolformer_ops.evaluation.report.contents import ReportContents, ToolRate, TrainedModel
from toolformer_ops.evaluation.report.page import choose_examples, render, segments
from toolformer_ops.evaluation.statistics import Interval, PairedDifference
from toolformer_ops.evaluation.tables import called_tools, scores_with_tools, suite_tables
from toolformer_ops.runs.placebo_rates import Rate

SVG = "{http://www.w3.org/2000/svg}"
CONTENTS = ReportContents(
    "run-1", "tiny@1f2e", "0.1.0", "2026-11-21 16:30 UTC", "0123456789abcdef", "s3://toolformer/releases/0123456789abcdef",
    4, 7, ("MT",), (), ("math",),
)  # fmt: skip
HOSTILE = '<script>alert("1")</script> <img src=https://evil.example/x> {{ 7 * 7 }} \u202eback\x00'


def score(
    variant: Variant, share: float, *, subset: str = "svamp", k: int = 0, inputs: int = 200
) -> SuiteScore:
    """A row of the suite math, half of whose inputs had a call where tools were allowed."""
    with_tools = variant == "with_tools"
    return SuiteScore(
        "math", subset, f"model-{variant}", variant, k, inputs, "share_correct", share, share - 0.05, share + 0.05,
        {"QA": 0.125, "Calculator": 0.5} if with_tools else {}, inputs // 2 if with_tools else 0,
        share + 0.1 if with_tools else None, share - 0.1, 1.0, "ab" * 32,
    )  # fmt: skip


def perplexity(variant: Variant, value: float, metric: str = "perplexity_by_token") -> SuiteScore:
    return replace(
        score(variant, 0.0), suite="perplexity", subset="wikitext", metric=metric, score=value, low=value - 1, high=value + 1
    )  # fmt: skip


def evaluated(
    number: int, correct: bool, calls: tuple[MadeCall, ...] = (), subset: str = "svamp"
) -> EvaluatedInput:
    return EvaluatedInput(
        "math", subset, "model", "with_tools", 10, number, f"Question {number}?", ("2.87",), " It is 2.87.", "2.87", correct, calls,
        CALENDAR_DATE,
    )  # fmt: skip


WRITTEN = "[Calculator(723 / 252) -> 2.87]"
CALL = MadeCall("Calculator", "723 / 252", "2.87", None, 7, 7 + len(WRITTEN), 0.02)


def test_the_page_says_how_many_calls_are_kept_by_chance():
    known_rate, unknown_rate = Rate(16, 11, 57, 0.6875, 0.4, 1.0), Rate(4, 1, 28, 0.25, 0.0, 1.0)
    rates = (
        ToolRate("Calendar", 1.0, 16, str(known_rate)),
        ToolRate("Calculator", 0.5, 4, str(unknown_rate)),
    )
    page = render(replace(CONTENTS, rates=rates))
    assert "Calendar 68.8 % (40 to 100 %), 57 placebos, of 16 calls" in page
    assert "Calculator too few: 28 placebos" in page


def test_the_page_names_suites_that_were_not_evaluated():
    page = render(replace(CONTENTS, asked_suites=("math", "lama"), scores=(score("base", 0.2),)))
    assert "<strong>Not evaluated:</strong> lama." in page


def test_a_page_without_a_release_has_neither_chance_nor_scores():
    plain = render(replace(CONTENTS, release_id=None))
    assert "Kept by chance" not in plain
    assert "No score was written in this run." in plain


ROWS: list[tuple[list[SuiteScore], list[str], list[list[bool | None]]]] = [
    # The paper's order; of equal scores both.
    (
        [score("with_tools", 0.4, k=10), score("base", 0.2), score("disabled", 0.25), score("without_calls", 0.4)],
        ["M", "M, finetuned without calls", "Toolformer (disabled)", "Toolformer"], [[False], [True], [False], [True]],
    ),
    # Of perplexities the lowest; each metric is a column.
    (
        [perplexity("base", 20.0), perplexity("disabled", 18.5), perplexity("base", 2.1, "perplexity_by_byte")],
        ["M", "Toolformer (disabled)"], [[False, True], [True, None]],
    ),
    # A subset that a model was not evaluated on stays empty, and k is named where there are several.
    (
        [score("base", 0.2), score("with_tools", 0.4, k=10, subset="mawps"), score("with_tools", 0.1, k=3)],
        ["M", "Toolformer, k = 3", "Toolformer, k = 10"], [[True, None], [False, None], [None, True]],
    ),
]  # fmt: skip
"""Scores, the names of the rows that they give, and of each cell whether it is the best of its column (None:
it is empty)."""


rows = pytest.mark.parametrize(("scores", "names", "best"), ROWS)


@rows
def test_rows_of_a_table_are_in_order(scores, names, best):
    [table] = suite_tables(scores)
    assert [row.name for row in table.rows] == names


@rows
def test_the_best_of_a_column_is_marked(scores, names, best):
    [table] = suite_tables(scores)
    assert [[cell.best if cell else None for cell in row.cells] for row in table.rows] == best
    assert table.lower_is_better == (scores[0].suite == "perplexity")


def test_table_9_has_scores_by_call_beside_shares_by_tool():
    scores = [score("base", 0.2), score("with_tools", 0.4, k=10)]
    assert called_tools(scores) == ["Calculator", "QA"]
    assert scores_with_tools(scores) == scores[1:]
    table = render(replace(CONTENTS, scores=tuple(scores))).partition('id="calls"')[2]
    [row] = re.findall(r"<tr><td>math</td><td>svamp</td>(<td.*?)</tr>", table.partition("</section>")[0])
    assert re.findall(r"[\d.]+(?=</)", row) == ["10", "200", "40.0", "50.0", "30.0", "50.0", "50.0", "12.5"]


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.text(max_size=30), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=5))
def test_at_any_offsets_no_character_is_lost_or_shown_twice(written, offsets):
    calls = [MadeCall("QA", "", "x", None, start, end, 0.0) for start, end in offsets]
    found = segments(written, calls)
    assert "".join(piece.text for piece in found) == written
    assert sum(piece.call is not None for piece in found) == len(calls)


def test_examples_take_subsets_in_turn_with_calls_before_others():
    inputs = [evaluated(number, number % 2 == 0) for number in range(1, 30)]
    inputs += [
        evaluated(50, False, (CALL,)),
        evaluated(51, True, (CALL,)),
        evaluated(1, True, subset="mawps"),
    ]
    chosen = [(example.subset, example.number) for example in choose_examples(inputs, at_most=5)]
    assert chosen == [*(("svamp", number) for number in (1, 2, 50, 51)), ("mawps", 1)]
    assert choose_examples([replace(inputs[0], variant="base")]) == []
    assert len(choose_examples(inputs)) == 20


def test_a_difference_is_taken_on_the_inputs_that_both_rows_answered():
    right = {1: True, 2: True, 3: False, 4: True, 5: False}  # of Toolformer; input 9 was asked of it alone
    base = {1: False, 2: True, 3: False, 4: False, 5: True}
    inputs = [evaluated(number, correct) for number, correct in {**right, 9: True}.items()]
    inputs += [replace(evaluated(1, False), call_start_rank=3)]  # a smaller k is not compared
    of_base = {"variant": "base", "model": "m", "call_start_rank": 0}
    inputs += [replace(evaluated(number, correct), **of_base) for number, correct in base.items()]
    [found] = compare_inputs(inputs)
    assert (found.call_start_rank, found.other, found.inputs) == (10, "M", 5)
    assert found.paired.difference == pytest.approx(
        (2 - 1) / 5
    )  # two inputs only Toolformer gets right, one only M
    assert found.paired.interval.low < found.paired.difference < found.paired.interval.high
    assert found.paired.p_value == 1.0  # 2 of 3 is what a coin gives
    assert compare_inputs([evaluated(1, True)]) == []


def test_a_bar_ends_at_its_score_within_its_drawn_interval():
    [table] = suite_tables([score("base", 0.2, subset="$x$"), score("with_tools", 0.45, k=10, subset="$x$")])
    svg = ElementTree.fromstring(bar_chart(table, "share correct"))  # noqa: S314 - our own
    ends = {}
    for kind in ("bar", "interval"):
        groups = [one for one in svg.iter(f"{SVG}g") if one.get("class") == kind]
        paths = [re.findall(r"-?[\d.]+", str(next(group.iter(f"{SVG}path")).get("d"))) for group in groups]
        ends[kind] = [(min(map(float, path[::2])), max(map(float, path[::2]))) for path in paths]
    (zero, first), (same_zero, second) = ends["bar"]
    percent = (first - zero) / 20
    assert (same_zero, second) == pytest.approx((zero, zero + 45 * percent), abs=0.05)
    assert ends["interval"][0] == pytest.approx((zero + 15 * percent, zero + 25 * percent), abs=0.05)
    assert ends["interval"][1] == pytest.approx((zero + 40 * percent, zero + 50 * percent), abs=0.05)
    # No formula is made of it.
    assert {"0 %", "$x$", "n = 200", "20.0"} <= {"".join(text.itertext()) for text in svg.iter(f"{SVG}text")}
    assert bar_chart(table, "share correct") == bar_chart(table, "share correct")


def test_loss_curves_leave_out_what_is_no_number():
    losses = ((0, 3.0), (10, float("nan")), (20, 2.0)), ((10, 2.5), (20, 2.25))
    drawn = loss_chart([TrainedModel("with_tools", "0123", "", {}, *losses)])
    curves = re.findall(r'class="curve".*?<path[^>]* d="([^"]*)"', drawn, re.DOTALL)
    assert [path.count("L") for path in curves] == [1, 1]  # two points each


def test_without_a_curve_there_is_no_chart():
    assert (
        loss_chart([TrainedModel("with_tools", "0123", "", {}, ((0, float("nan")),), ())])
        == loss_chart([])
        == ""
    )


def hostile() -> ReportContents:
    """A page with everything on it, hostile wherever a text comes from outside."""
    model = TrainedModel("with_tools", "0123", HOSTILE, {"steps": HOSTILE}, ((1, 3.0), (2, 2.0)))
    scores = tuple(
        replace(found, subset=HOSTILE) for found in (score("base", 0.2), score("with_tools", 0.4, k=10))
    )
    call = MadeCall(HOSTILE, HOSTILE, None, HOSTILE, 3, 3, 0.1)
    texts = dict.fromkeys(("subset", "prompt", "written", "predicted"), HOSTILE)
    shown = replace(evaluated(1, True, (call,)), answers=(HOSTILE,), **texts)
    difference = PairedDifference(0.2, Interval(0.1, 0.3), 60, 20, 0.001, 0.115)
    comparison = Comparison(
        suite="math", subset=HOSTILE, call_start_rank=10, other=HOSTILE, inputs=200, paired=difference
    )
    plain = replace(evaluated(2, False, (CALL,)), written=f" It is {WRITTEN} 2.87.")
    return replace(
        CONTENTS, run_id=HOSTILE, base_model=HOSTILE, models=(model,), scores=scores, inputs=(shown, plain),
        comparisons=(comparison,),
    )  # fmt: skip


def test_a_page_of_hostile_text_neither_runs_nor_fetches_anything():
    page = render(hostile())
    assert render(hostile()) == page
    tags: list[tuple[str, Any]] = []
    parser: Any = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, attributes))
    parser.feed(page)
    assert not {tag for tag, _ in tags} & {"script", "img", "iframe", "object", "link", "form"}
    fetching = ("src", "href", "srcset", "data", "action")
    addresses = [value for _, attributes in tags for name, value in attributes if name in fetching]
    assert addresses
    assert all(address.startswith("#") for address in addresses)


def test_hostile_text_is_shown_as_text():
    page = render(hostile())
    for words in ("&lt;script&gt;alert(", "{{ 7 * 7 }}", "default-src 'none'", "\u27e8U+202E\u27e9back"):
        assert words in page
    for words in ("\u202e", "\x00", "url(", "@import"):
        assert words not in page
    page.encode("utf-8")
    assert f'<mark title="Calculator, 0.02 s">{WRITTEN}</mark>'.replace("->", "-&gt;") in page
    assert 'class="failed"' in page
