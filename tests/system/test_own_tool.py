"""Tools of one's own work in every command; `test_one_run.py` has them in Airflow's form and in a DAG run.

One is installed by pip from a package, tests/data/word_count_tool; two are of MCP servers, over stdio (one text) and over HTTP
(several arguments), that tool files describe.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tool_files import SERVERS, forget_tools
from toolformer_ops.__main__ import app

TEXTS = (
    "The motto of the club has three words, and the shop had sold shirts of them on a day.",
    "Nothing here is counted, and nobody asks for it.",
    "We meet today and the film has two words in its title, so people passed the test.",
)
NUMBERS = {
    "call_prefix": "tool_name",
    "sampling_threshold": 0.0,
    "max_positions": 4,
    "samples_per_position": 3,
    "max_call_tokens": 24,
    "prune_below": 0.0,
    "placebos": 0,
    "placebo_sample": 0,
}
"""Chosen so that a model that knows nothing of the tool writes calls of it, and some are kept."""


@pytest.fixture(autouse=True)
def tools(site: Path, tool_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of tool files; the package is installed, too."""
    folder = Path(shutil.copytree(tool_files, tmp_path / "tools"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(folder))
    forget_tools()
    yield folder
    monkeypatch.undo()
    forget_tools()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def toolformer_ops(*arguments: str) -> str:
    """What a command prints."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def printed(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def assert_counted(calls: list[dict[str, Any]], tool: str) -> None:
    """There are calls, each with the number of the words in its phrase."""
    assert calls
    for line in calls:
        phrase = line["call"].removeprefix(f"{tool}(").removesuffix(")")
        assert line["result"] == str(len(phrase.split()))


def test_it_is_called_in_any_capitals() -> None:
    assert toolformer_ops("call", "WordCount", "in varietate concordia") == "3\n"
    assert toolformer_ops("call", "wordcount", "one") == "1\n"
    assert toolformer_ops("call", "convert", 'unit: "miles", amount: 26.2') == "value: 42.2, unit: km\n"


def test_its_filter_judges_a_file(corpus: Path) -> None:
    decisions = printed(toolformer_ops("filter", "--tool", "WordCount", str(corpus)))
    assert [(line["kept"], line["reason"]) for line in decisions] == [
        (True, "speaks_of_words"), (False, "no_word_word"), (True, "speaks_of_words"),
    ]  # fmt: skip


@pytest.mark.parametrize("tool", ["WordCount", "Length"])
def test_it_annotates_a_file_in_one_process(corpus: Path, writing_model_dir: Path, tool: str) -> None:
    numbers = json.dumps({**NUMBERS, "keep_thresholds": {tool: 0.0}})
    asked = ("--tool", tool.lower(), "--model", str(writing_model_dir), "--parameters", numbers, "--all")
    assert_counted(printed(toolformer_ops("annotate", str(corpus), *asked)), tool)


def test_a_new_tool_is_tried_on_ten_texts(tools: Path, tmp_path: Path, writing_model_dir: Path) -> None:
    examples, texts = tmp_path / "examples.txt", tmp_path / "texts.jsonl"
    examples.write_text("The motto is [WordsOf(in varietate concordia)] three words long.\n")
    texts.write_text("".join(json.dumps({"text": f"{TEXTS[0]} This is text {number}."}) + "\n" for number in range(11)))
    server = shlex.join([sys.executable, str(SERVERS / "facts.py")])
    program = ("--mcp", server, "--tool", "length", "--name", "WordsOf", "--examples", str(examples))
    tried = ("--texts", str(texts), "--model", str(writing_model_dir), "--parameters", json.dumps(NUMBERS))
    lines = toolformer_ops("new-tool", *program, *tried).splitlines()
    assert lines[:3] == [
        str(tools / "words_of.toml"), str(tools / "words_of.txt"), "[WordsOf(in varietate concordia) -> 3]",
    ]  # fmt: skip
    assert lines[3] == "10 texts, 10 asked"
    found = printed("\n".join(lines[7:]))
    assert_counted(found, "WordsOf")
    assert f"with_result {lines[6].split()[4].removesuffix(',')}" in lines[5]
