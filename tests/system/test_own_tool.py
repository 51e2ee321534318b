"""Tools of one's own work in every command, the form and a DAG run.

One is installed by pip from a package, tests/data/word_count_tool; two are of MCP servers, over stdio (one text) and over HTTP
(several arguments), that tool files describe.
"""

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tool_files import SERVERS, forget_tools, served, write_tool
from toolformer_ops.__main__ import app
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.storage import database

PACKAGE = REPOSITORY / "tests" / "data" / "word_count_tool"
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

pytestmark = pytest.mark.system


def numbers_of(*tools: str) -> str:
    """`NUMBERS` as JSON, for a run that keeps every call of these tools that saves anything."""
    return json.dumps({**NUMBERS, "keep_thresholds": dict.fromkeys(tools, 0.0)})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the package, from its source and without a network."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    run = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(PACKAGE)]
    subprocess.run(run, check=True, timeout=600)
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is found by the processes that the test starts."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(REPOSITORY), str(site))))


@pytest.fixture
def tool_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`Length` asks a server of fastmcp over stdio, `Convert` the same one over HTTP, which a thread of this process serves."""
    folder = tmp_path / "tools"
    specification = importlib.util.spec_from_file_location("facts", SERVERS / "facts.py")
    assert specification is not None
    assert specification.loader is not None
    facts = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(facts)
    command = [sys.executable, str(SERVERS / "facts.py")]
    with served(facts.server.http_app()) as address:
        write_tool(folder, "Length", "length", server={"command": command}, ask=True)
        write_tool(folder, "Convert", "convert", server={"command": [], "url": f"{address}/mcp"}, ask=True)
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


def python(*arguments: str, timeout: float = 600, **environment: str) -> str:
    """What a Python process prints; its errors are the test's."""
    command = [sys.executable, *arguments]
    where = {"cwd": REPOSITORY, "env": os.environ | environment}
    done = subprocess.run(command, **where, capture_output=True, text=True, timeout=timeout, check=False)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return str(done.stdout)


def toolformer_ops(*arguments: str) -> str:
    return python("-m", "toolformer_ops", *arguments)


def printed(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def test_it_is_called_in_any_capitals(installed: None) -> None:
    assert toolformer_ops("call", "WordCount", "in varietate concordia") == "3\n"
    assert toolformer_ops("call", "wordcount", "one") == "1\n"


def test_its_filter_judges_a_file(installed: None, corpus: Path) -> None:
    decisions = printed(toolformer_ops("filter", "--tool", "WordCount", str(corpus)))
    assert [(line["kept"], line["reason"]) for line in decisions] == [
        (True, "speaks_of_words"), (False, "no_word_word"), (True, "speaks_of_words"),
    ]  # fmt: skip


def test_it_annotates_a_file_in_one_process(installed: None, corpus: Path, writing_model_dir: Path) -> None:
    asked = ("--tool", "wordcount", "--model", str(writing_model_dir), "--parameters", numbers_of("WordCount"), "--all")
    lines = printed(toolformer_ops("annotate", str(corpus), *asked))
    assert lines
    for line in lines:
        phrase = line["call"].removeprefix("WordCount(").removesuffix(")")
        assert line["result"] == str(len(phrase.split()))


def test_tools_of_mcp_servers_are_called_and_annotate_a_file(
    tool_files: Path, corpus: Path, writing_model_dir: Path
) -> None:
    assert toolformer_ops("call", "convert", 'unit: "miles", amount: 26.2') == "value: 42.2, unit: km\n"
    asked = ("--tool", "Length", "--model", str(writing_model_dir), "--parameters", numbers_of("Length"), "--all")
    lines = printed(toolformer_ops("annotate", str(corpus), *asked))
    assert lines
    for line in lines:
        phrase = line["call"].removeprefix("Length(").removesuffix(")")
        assert line["result"] == str(len(phrase.split()))


def test_a_new_tool_is_tried_on_ten_texts(tool_files: Path, tmp_path: Path, writing_model_dir: Path) -> None:
    examples, texts = tmp_path / "examples.txt", tmp_path / "texts.jsonl"
    examples.write_text("The motto is [WordsOf(in varietate concordia)] three words long.\n")
    texts.write_text("".join(json.dumps({"text": f"{TEXTS[0]} This is text {number}."}) + "\n" for number in range(11)))
    program = (
        "--mcp",
        shlex.join([sys.executable, str(SERVERS / "facts.py")]),
        "--tool",
        "length",
        "--name",
        "WordsOf",
    )
    tried = ("--texts", str(texts), "--model", str(writing_model_dir), "--parameters")
    numbers = {name: value for name, value in NUMBERS.items() if name != "keep_thresholds"}
    done = CliRunner().invoke(
        app, ["new-tool", *program, "--examples", str(examples), *tried, json.dumps(numbers)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        str(tool_files / "words_of.toml"), str(tool_files / "words_of.txt"), "[WordsOf(in varietate concordia) -> 3]",
    ]  # fmt: skip
    assert lines[3] == "10 texts, 10 asked"
    found = printed("\n".join(lines[7:]))
    assert found
    for line in found:
        phrase = line["call"].removeprefix("WordsOf(").removesuffix(")")
        assert line["result"] == str(len(phrase.split()))
    assert f"with_result {lines[6].split()[4].removesuffix(',')}" in lines[5]


def test_the_trigger_form_offers_it(installed: None, tool_files: Path, tmp_path: Path) -> None:
    program = (
        "import json; from toolformer_ops.config import load_settings; "
        "from toolformer_ops.orchestration.forms import annotation_form; "
        "print(json.dumps(annotation_form(load_settings())['tools'].schema))"
    )
    form = json.loads(python("-c", program, AIRFLOW_HOME=str(tmp_path / "airflow")).splitlines()[-1])
    assert form["examples"][-3:] == form["items"]["enum"][-3:] == ["WordCount", "Convert", "Length"]


def test_a_dag_run_ends_with_its_calls_in_a_release(
    installed: None, tool_files: Path, settings: Settings, corpus: Path, writing_model_dir: Path, tmp_path: Path
) -> None:
    # `airflow dags test` runs every task of the DAG in order, without a scheduler; each stage is a process.
    airflow = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path / 'airflow.db'}",
    }
    choices = {
        **json.loads(numbers_of("WordCount", "Length", "Convert")),
        "corpus": str(corpus),
        "model": str(writing_model_dir),
        "tools": ["WordCount", "Length", "Convert"],
        "finetune": False,
    }
    python("-m", "airflow", "db", "migrate", **airflow)
    log = python(
        "-m", "airflow", "dags", "test", "annotate_corpus", "--conf", json.dumps(choices), timeout=1800, **airflow
    )
    with database.transaction(database.connect(settings)) as connection:
        [(run_id, state)] = connection.exec_driver_sql("select run_id, state from annotation_runs").all()
        assert state == "success", log[-6000:]
        calls = connection.exec_driver_sql(
            "select tool, call_text, result from kept_calls where run_id = %(run_id)s", {"run_id": run_id}
        ).all()
        [(released, uri)] = connection.exec_driver_sql("select calls, uri from dataset_releases").all()
        converted = connection.exec_driver_sql("select reason from call_results where tool = 'Convert'").scalars().all()
    assert {tool for tool, _, _ in calls} == {"WordCount", "Length"}
    for tool, text, result in calls:
        assert result == str(len(text.removeprefix(f"{tool}(").removesuffix(")").split()))
    assert 0 < released <= len(calls)
    # A model that knows nothing of the tool names no arguments: nothing was sent, and each call says why.
    assert converted
    assert set(converted) <= {"arguments_do_not_parse", "argument_missing"}

    # The chat export has the servers' JSON Schemas.
    toolformer_ops("export", uri, str(tmp_path / "chat.jsonl"))
    exported = printed((tmp_path / "chat.jsonl").read_text())
    functions = {tool["function"]["name"]: tool["function"] for tool in exported[0]["tools"]}
    asked = [call["function"] for line in exported for said in line["messages"] for call in said.get("tool_calls", ())]
    for function in asked:
        assert list(function["arguments"]) == functions[function["name"]]["parameters"]["required"]
    if "Length" in functions:
        assert functions["Length"]["parameters"]["properties"] == {"phrase": {"type": "string"}}
