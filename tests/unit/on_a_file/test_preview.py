"""`preview`: the calls that a run would find in a few texts, in a terminal and as a page; texts are hostile."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.fake_language_model import FakeLanguageModel
from toolformer_ops.cli.on_a_file import app
from toolformer_ops.on_a_file.look import calls_page
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.calculator import Calculator

SUM = "There were 2 cats and 3 dogs, a total of 5 animals."
HOSTILE = "<script>alert(1)</script> \u202e There were 2 cats and 3 dogs, a total of 5 <b>animals</b>."


@pytest.fixture(autouse=True)
def model(monkeypatch):
    fake = FakeLanguageModel(("Calculator(2 + 3)",))
    monkeypatch.setattr("toolformer_ops.on_a_file.annotate.annotator.load_scoring_model", lambda *_: fake)
    return fake


def preview(
    folder: Path, model_dir: Path, texts: Sequence[str], *words: str, tools: str = "Calculator"
) -> Result:
    corpus = folder / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    numbers = json.dumps({"max_positions": 2, "samples_per_position": 1, "prune_below": 0})
    arguments = ["preview", str(corpus), "--tools", tools, "--model", str(model_dir), "--parameters", numbers]
    return CliRunner().invoke(app, [*arguments, *words])


def test_each_text_is_a_record_with_its_calls_in_place(tmp_path, tiny_model_dir):
    lines = preview(tmp_path, tiny_model_dir, [SUM]).stdout.splitlines()
    assert lines[lines.index("docs.jsonl:1") :] == [
        "docs.jsonl:1",
        "  + Calculator probability of the next tokens 0.17 -> 0.37: kept, 1.25 times is needed",
        "    There were 2 cats and 3 dogs, a total of [Calculator(2 + 3) -> 5] 5 animals.",
        "  - Calculator probability of the next tokens 0.17 -> 0.11: not kept, 1.25 times is needed",
        "    There were 2 cats and 3 dogs, a total of 5 [Calculator(2 + 3) -> 5] animals.",
        "1 text, 2 calls with a result, 1 kept before placebos. A run may release fewer: by placebos, one call a place, no "
        "input that comes only after the call, no number of the other sign.",
    ]


def test_the_check_comes_first(tmp_path, tiny_model_dir):
    assert preview(tmp_path, tiny_model_dir, [SUM]).stdout.startswith(
        "ok    corpus: 1 texts, of 51 characters"
    )


def test_a_text_without_a_result_says_why(tmp_path, tiny_model_dir, model):
    model.script = ("Calculator(2 / 0)",)
    printed = preview(tmp_path, tiny_model_dir, [SUM]).stdout
    assert "  - Calculator no result; division by zero (2 times)\n    [Calculator(2 / 0)]" in printed
    assert "no call" not in printed


def test_a_call_without_a_result_is_shown_with_what_its_tool_said(
    tmp_path, tiny_model_dir, model, monkeypatch
):
    model.script = ("Calculator(prise)",)
    said = ToolOutput.none("query_invalid", "no such column: prise <b>")
    monkeypatch.setattr(Calculator, "run", lambda _, inputs: [said] * len(inputs))
    out = tmp_path / "preview.html"
    lines = preview(tmp_path, tiny_model_dir, [SUM], "--html", str(out)).stdout.splitlines()
    place = lines.index(
        "  - Calculator no result; the database does not understand the query: no such column: prise <b> "
        "(2 times)"
    )
    assert lines[place + 1] == "    [Calculator(prise)]"
    assert "[Calculator(prise)] no result; the database does not understand the query" in out.read_text()
    assert "prise <b>" not in out.read_text()


def test_a_tool_that_is_not_asked_says_why(tmp_path, tiny_model_dir):
    printed = preview(tmp_path, tiny_model_dir, [SUM], tools="Calculator,Calendar").stdout
    assert "  - Calendar: not asked; neither URL nor date" in printed


def test_texts_in_which_no_tool_is_asked_are_passed_over_with_the_reason(tmp_path, tiny_model_dir):
    printed = preview(tmp_path, tiny_model_dir, ["No number.", SUM], "-n", "1").stdout
    assert "docs.jsonl:2\n" in printed
    assert (
        "1 texts before them were passed over, as no tool is asked there: 1 fewer than three numbers."
        in printed
    )


def test_so_many_texts_are_annotated(tmp_path, tiny_model_dir, model):
    texts = [SUM.replace("There", f"Here {word}") for word in ("a", "b", "c")]
    preview(tmp_path, tiny_model_dir, texts, "-n", "2")
    assert model.added == texts[:2]


def test_a_page_holds_hostile_texts_without_a_tag_of_theirs(tmp_path, tiny_model_dir):
    out = tmp_path / "preview.html"
    assert preview(tmp_path, tiny_model_dir, [HOSTILE], "--html", str(out)).exit_code == 0
    written = out.read_text()
    assert "<script" not in written
    assert "<b>animals" not in written
    assert "\u202e" not in written
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in written
    marked = '<mark title="probability of the next tokens 0.17 -&gt; 0.37">[Calculator(2 + 3) -&gt; 5]</mark>'
    assert f"{marked} 5 &lt;b&gt;animals" in written


def row(**values: Any) -> dict[str, Any]:
    of_row = {
        "id": "a",
        "document_id": "d",
        "call": "Calculator(2 + 3)",
        "result": "5",
        "before": "makes",
        "after": " 5.",
    }
    losses = {
        "reason": None,
        "reduction_bound": 1.0,
        "gain": 1.0,
        "keep_threshold": 0.5,
        "kept": True,
        "not_kept": None,
    }
    return {**of_row, **losses, "position_char": 5, "input_only_after": False, **values}


def test_of_several_kept_calls_at_a_place_the_best_is_marked():
    other = row(call="Calculator(1 + 4)", gain=2.0)
    assert calls_page.marked_text("makes 5.", [row(), other]) == (
        'makes <mark title="saves 2.00 nats">[Calculator(1 + 4) -&gt; 5]</mark> 5.'
    )


def test_a_call_that_is_not_kept_is_not_marked():
    assert calls_page.marked_text("makes 5.", [row(kept=False, not_kept="below_threshold")]) == "makes 5."


def test_a_table_escapes_what_people_wrote():
    hostile = row(id="<i>", before="<b>", call="QA(<u>)", after='"&')
    shown = calls_page.table([hostile, row(kept=False, not_kept="below_threshold", result="<s>")], 9)
    assert not {"<i>&lt;", "<b>", "<u>", "<s>"} & set(shown.split())
    assert "<td>&lt;i&gt;</td>" in shown
    assert "QA(&lt;u&gt;)" in shown
