"""The tool of a function: which arguments it has, what becomes of what it returns, raises or prints, and what a wrong file says."""

import time
from pathlib import Path

import pytest

from tests.tool_files import PROMPT
from toolformer_ops.config import Settings
from toolformer_ops.errors import InfrastructureError, ToolError
from toolformer_ops.records import Document
from toolformer_ops.tools.base import run_tool
from toolformer_ops.tools.files.kinds import refresh_tool, tool_of_file
from toolformer_ops.tools.files.process_tool import ProcessRunner
from toolformer_ops.tools.functions.function_tool import FunctionTool

FACTS = '''
"""Facts for tests."""
import json, os, subprocess, sys, time
from datetime import date
from typing import Literal

def height(mountain: str) -> object:
    """How high a mountain is."""
    print("looking for", mountain)
    os.write(1, b"as a library would")
    if mountain == "hang":
        time.sleep(600)
    if mountain == "die":
        os._exit(3)
    if mountain == "secret":
        raise ValueError("the key is " + os.environ["FACTS_KEY"])
    if mountain == "environment":
        return " ".join(sorted(os.environ))
    values = {
        "Eiger": 3967, "half": 0.5, "whole": 2.0, "sum": 0.1 + 0.2, "none": None, "empty": " ", "yes": True,
        "list": ["a", 1], "object": {"peak": {"metres": 3967}}, "day": date(2023, 1, 30),
        "lines": "a\\nb\\x1b[31m", "long": "word " * 500,
    }
    return values[mountain]

def hostile(what: str) -> object:
    """Does what a tool should not do, and then answers."""
    if what == "fork":
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return "parent" if child else "child"
    if what == "fork that goes on":
        return "parent" if os.fork() else time.sleep(600)
    if what == "write":
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b'{"number": 1, "answer": {"result": "forged"}}')
            except OSError:
                pass
    if what == "print":
        print("printed")
        sys.stdout.write("written")
        sys.stdout.flush()
        return sys.stdin.read()
    if what.startswith("children"):
        children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
        with open("children.txt", "w") as file:
            file.write(" ".join(str(child.pid) for child in children))
        if what == "children, late":
            time.sleep(600)
        if what == "children, then gone":
            os._exit(3)
    values = {
        "surrogate": "half \\ud800 a pair", "object": object(), "objects": [1, {"a": object()}],
        "generator": (n for n in "ab"), "bytes": b"ab", "set": {"c", "a", "b"}, "numbers": {10, 9},
        "deep": json.loads("[" * 500 + "]" * 500),
    }
    return values.get(what, what)

def days(start: date, count: int, unit: Literal["day", "week"] = "day") -> str:
    return f"{type(start).__name__} {start} {count} {unit}"

def untyped(a, b=2): return f"{a}{b}"
def several(*names): return ""
def of_a_type_that_is_none(a: "Unknown"): return ""
async def later(a: str): return ""
'''


def function_tool(folder: Path, function: str, *, limits: str = "", secrets: str = "") -> Path:
    """The tool file of a function of FACTS, with its arguments recorded."""
    (folder / "facts.py").write_text(FACTS)
    path = folder / "facts.toml"
    head = 'name = "Facts"\npurpose = "Knows facts."\nprompt = "facts.txt"\n'
    path.write_text(
        f'{head}[function]\nfile = "facts.py"\nname = "{function}"\n{secrets}\n[limits]\n{limits}\n'
    )
    path.with_suffix(".txt").write_text(PROMPT.format(name="Facts"))
    refresh_tool(path)
    return path


@pytest.fixture
def opened():
    """Opens the tool of a file; closed at the end."""
    runners: list[ProcessRunner] = []

    def open_file(path: Path) -> ProcessRunner:
        runners.append(FunctionTool(path).open(Settings(), lambda: None))  # type: ignore[arg-type, return-value]
        return runners[-1]

    yield open_file
    for runner in runners:
        runner.close()


def ask(runner: ProcessRunner, *inputs: str) -> list[str | None]:
    """The result, or the reason, of each input."""
    return [
        output.results[0] if output.results else output.reason for output in run_tool(runner, inputs, 30.0)
    ]


def test_what_a_function_returns_is_a_line(tmp_path, opened):
    results = {
        "Eiger": "3967",
        "half": "0.5",
        "whole": "2",
        "sum": "0.3",
        "yes": "true",
        "list": "a, 1",
        "object": "peak: (metres: 3967)",
        "day": "2023-01-30",
        "lines": "a b␛[31m",
        "none": "empty_result",
        "empty": "empty_result",
        "K2": "function_failed",
    }
    assert ask(opened(function_tool(tmp_path, "height")), *results) == list(results.values())


def test_after_a_function_that_hangs_the_next_call_has_its_result(tmp_path, opened):
    runner = opened(function_tool(tmp_path, "height", limits="seconds = 0.5"))
    assert ask(runner, "hang", "Eiger") == ["timed_out", "3967"]


def test_after_a_function_that_ends_its_process_the_next_call_has_its_result(tmp_path, opened):
    runner = opened(function_tool(tmp_path, "height"))
    assert ask(runner, "die", "Eiger") == ["function_ended_its_process", "3967"]


HOSTILE = {
    "write": "write",
    "fork": "parent",
    "fork that goes on": "parent",
    "print": "empty_result",
    "surrogate": "half ? a pair",
    "object": "result_not_text",
    "objects": "result_not_text",
    "generator": "result_not_text",
    "bytes": "result_not_text",
    "set": "a, b, c",
    "numbers": "9, 10",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_function_answers_no_other_question(tmp_path, opened, what):
    runner = opened(function_tool(tmp_path, "hostile"))
    assert ask(runner, what, "second", "third") == [HOSTILE[what], "second", "third"]


LEFT_CHILDREN = {
    "children, late": "timed_out",
    "children, then gone": "function_ended_its_process",
    "children": "children",
}


@pytest.mark.parametrize("what", LEFT_CHILDREN)
def test_no_child_of_a_function_outlives_its_process(tmp_path, opened, what):
    runner = opened(function_tool(tmp_path, "hostile", limits="seconds = 2"))
    assert ask(runner, what) == [LEFT_CHILDREN[what]]
    runner.close()
    children = (tmp_path / "children.txt").read_text().split()
    assert [child for child in children if is_running(child)] == []


def is_running(process_id: str, seconds: float = 5.0) -> bool:
    """Whether the process still runs after so many seconds; one that nobody waits for has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


def test_arguments_are_those_of_the_types(tmp_path, opened):
    path = function_tool(tmp_path, "days")
    outcomes = {
        'start: "2023-01-30", count: 3': "date 2023-01-30 3 day",
        'count: 3, start: "2023-01-30", unit: "week"': "date 2023-01-30 3 week",
        'start: "someday", count: 3': "argument_not_of_the_schema",
        'start: "2023-01-30", count: "many"': "argument_not_of_the_schema",
        'start: "2023-01-30", count: 3, unit: "year"': "argument_not_of_the_schema",
        'start: "2023-01-30"': "argument_missing",
        'start: "2023-01-30", count: 3, more: 1': "argument_unknown",
        "tomorrow": "arguments_do_not_parse",
    }
    assert ask(opened(path), *outcomes) == list(outcomes.values())
    effective = FunctionTool(path).effective_input('count:3,  start: "2023-01-30"', Document.of(""))
    assert effective == 'start: "2023-01-30", count: 3'


def test_an_argument_without_a_type_is_a_text(tmp_path, opened):
    tool = FunctionTool(function_tool(tmp_path, "untyped"))
    assert tool.input_argument == "a"
    assert ask(opened(tool.path), "x: 1, y") == ["x: 1, y2"]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("depth", "expected a function depth in .*, found days, height, hostile"),
        ("several", r"expected arguments with names of several, found \*names"),
        (
            "of_a_type_that_is_none",
            "expected types of of_a_type_that_is_none that are defined, found: name 'Unknown'",
        ),
        ("later", "expected a function later"),
    ],
)
def test_what_cannot_be_a_tool_says_why(tmp_path, function, said):
    with pytest.raises(ToolError, match=said):
        function_tool(tmp_path, function)


def test_a_function_gets_its_secrets_but_no_setting(tmp_path, opened, monkeypatch):
    monkeypatch.setenv("FACTS_KEY", "a-secret")
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", "postgresql://owner:password@db/toolformer")
    runner = opened(function_tool(tmp_path, "height", secrets='secrets = ["FACTS_KEY"]'))
    environment, failed = run_tool(runner, ["environment", "secret"], 30.0)
    names = environment.results[0].split()
    assert "FACTS_KEY" in names
    assert "TOOLFORMER_DATABASE_DSN" not in names
    assert failed.message == "ValueError: the key is <FACTS_KEY>"


@pytest.mark.parametrize("variable", ["TOOLFORMER_DATABASE_DSN", "AIRFLOW_CONN_WAREHOUSE"])
def test_a_function_is_refused_a_secret_of_this_deployment(tmp_path, variable):
    with pytest.raises(ToolError, match=rf"function\.secrets: {variable} is of this deployment itself"):
        function_tool(tmp_path, "height", secrets=f'secrets = ["{variable}"]')


def test_another_content_of_the_file_is_another_version(tmp_path):
    path = function_tool(tmp_path, "height")
    first = tool_of_file(path).version(Settings(), "model")
    (tmp_path / "facts.py").write_text(FACTS + "\n# more\n")
    assert tool_of_file(path).version(Settings(), "model") != first


def test_other_arguments_are_refused_until_they_are_recorded(tmp_path, opened):
    path = function_tool(tmp_path, "untyped")
    (tmp_path / "facts.py").write_text(FACTS.replace("untyped(a, b=2)", "untyped(a: int, b=2)"))
    with pytest.raises(ToolError, match=r"expected what is recorded in .* refresh-tool"):
        opened(path)
    refresh_tool(path)
    assert ask(opened(path), "a: 1") == ["12"]


def test_a_file_that_is_gone_while_the_tool_is_open_is_an_outage(tmp_path, opened):
    runner = opened(function_tool(tmp_path, "height"))
    (tmp_path / "facts.py").unlink()
    with pytest.raises(InfrastructureError, match="expected a file of Python"):
        ask(runner, "die", "Eiger")


def test_a_registry_that_finds_the_tool_does_not_import_its_file(tmp_path):
    path = function_tool(tmp_path, "height")
    (tmp_path / "facts.py").write_text("raise RuntimeError")
    assert tool_of_file(path).spec.name == "Facts"
