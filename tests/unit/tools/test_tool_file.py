"""A tool file is found by the registry without its server; a file that cannot be used is named and harms no other."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.tool_files import PROMPT, write_tool
from toolformer_ops.config import REPOSITORY, Settings, load_settings
from toolformer_ops.errors import RejectedInputError, ToolError
from toolformer_ops.records import Document
from toolformer_ops.tools.files import file_tool, patterns
from toolformer_ops.tools.registry import get_tool, tool_names
from toolformer_ops.tools.servers.served_tool import ServedTool
from toolformer_ops.tools.servers.server_file import RecordedPart

NOT_THERE = {"command": ["/no/such/server"]}
PROPERTIES = {name: {"type": "string"} for name in ("city", "date", "unit", "key")}
REQUIRED = ["city", "date", "key"]
WEATHER = {"type": "object", "properties": PROPERTIES, "required": REQUIRED, "additionalProperties": False}


def weather(tools_folder: Path, **changes: Any) -> Path:
    parts = {"server": NOT_THERE, "schema": WEATHER, "tables": '[fixed]\nkey = "k"', **changes}
    return write_tool(tools_folder, "Weather", "weather", **parts)


def test_the_registry_finds_a_tool_without_its_server(tools_folder):
    write_tool(tools_folder, "Echo", "echo", server=NOT_THERE)
    weather(tools_folder)
    assert tool_names()[-2:] == ("Echo", "Weather")
    assert get_tool("ECHO").spec.purpose == "Tests echo."
    assert get_tool("weather").prompt == PROMPT.format(name="Weather").rstrip()


def test_the_registry_imports_no_client(tools_folder):
    weather(tools_folder)
    program = (
        "import sys; from toolformer_ops.tools.registry import tool_names; assert tool_names()[-1] == 'Weather'; "
        "print([name for name in ('fastmcp', 'mcp', 'jsonschema', 'httpx2', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_fork_reads_tool_files_anew_with_its_settings(tools_folder, monkeypatch):
    # As the worker that Airflow forks in place of a dead one, from a scheduler that has read them long
    # before.
    monkeypatch.setenv("TOOLFORMER_RUNNER", "local")
    load_settings.cache_clear()
    assert (load_settings().runner, "Echo" in tool_names()) == ("local", False)
    write_tool(tools_folder, "Echo", "echo", server=NOT_THERE)
    monkeypatch.setenv("TOOLFORMER_RUNNER", "kubernetes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of a fork where there are threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int((load_settings().runner, "Echo" in tool_names()) != ("kubernetes", True))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "Echo"', 'name = "Ec ho"'), "name: expected letters, digits and underscores"),
        (('name = "Echo"', 'name = "Calculator"'), "another tool is called Calculator"),
        (("[server]", '[filter]\npattern = "("\n[server]'), "expected a regular expression"),
        (
            ("[server]", "result = '/(/'\n[server]"),
            "result: expected a regular expression between the two strokes",
        ),
        (("[server]", "[fixed]\nx = 1\n[server]"), "the tool has no argument x"),
        (("command", "comand"), "server.comand"),
        (("[server]", '[server]\nurl = "http://x"'), "expected a `command` or a `url`, found both"),
        (("[server]", '[server]\nsecrets = ["TOOLFORMER_DATABASE_DSN"]'), "is of this deployment itself"),
        (("[recorded]", "[recorded"), "expected TOML"),
        (('input_schema = \'{"type"', "input_schema = '{type"), "recorded.input_schema: expected JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_left_out_by_name(tools_folder, caplog, change, said):
    path = write_tool(tools_folder, "Echo", "echo", server=NOT_THERE)
    path.write_text(path.read_text().replace(*change))
    weather(tools_folder)
    assert tool_names()[5:] == ("Weather",)
    [line] = caplog.messages
    assert f"tool file {path}" in line
    assert said in line
    if "Calculator" not in said:
        with pytest.raises(ToolError, match=re.escape(said)):
            get_tool("echo")


def test_one_required_text_is_the_whole_input(tools_folder):
    echo = ServedTool(write_tool(tools_folder, "Echo", "echo"))
    assert echo.arguments("a:  b, c") == {"text": "a:  b, c"}
    assert echo.effective_input("a:  b, c", Document.of("")) == "a:  b, c"


def test_arguments_are_those_that_are_not_fixed(tools_folder):
    tool = ServedTool(weather(tools_folder))
    assert list(tool.parameters["properties"]) == ["city", "date", "unit"]
    assert tool.parameters["required"] == ["city", "date"]
    written = tool.effective_input('date:  "1 May", city: "Paris"', Document.of(""))
    assert written == 'city: "Paris", date: "1 May"'
    assert tool.sent_arguments(written) == {"city": "Paris", "date": "1 May", "key": "k"}
    with pytest.raises(RejectedInputError, match="unknown"):  # a fixed argument is not the call's
        tool.sent_arguments('city: "P", date: "d", key: "x"')


def test_a_tool_without_open_arguments_takes_no_input(tools_folder):
    schema = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
    tool = ServedTool(weather(tools_folder, schema=schema))
    assert not tool.spec.takes_input
    assert tool.sent_arguments("") == {"key": "k"}


def test_the_filter_of_a_tool_is_the_pattern_of_its_file(tools_folder):
    tool = ServedTool(
        write_tool(tools_folder, "Echo", "echo", tables='[filter]\npattern = "\\\\bsays?\\\\b"')
    )
    assert [tool.filter(Document.of(text))[0].kept for text in ("She says so.", "Essays are long.")] == [
        True,
        False,
    ]
    assert (
        tool.spec.filter_version != ServedTool(write_tool(tools_folder, "Echo", "echo")).spec.filter_version
    )


ENDLESS_PATTERN = "[filter]\npattern = '(a|aa)+$'"
"""Looking for it in a row of letters a that ends otherwise takes twice as long with each letter."""
ENDLESS_TEXT = "a" * 60 + "b"


def test_a_text_for_which_the_pattern_takes_for_ever_is_refused_under_a_reason(tools_folder, monkeypatch):
    monkeypatch.setattr(patterns, "SEARCH_SECONDS", 0.05)
    tool = ServedTool(write_tool(tools_folder, "Echo", "echo", tables=ENDLESS_PATTERN))
    reasons = [tool.filter(Document.of(text))[0].reason for text in (ENDLESS_TEXT, "aaa", "b")]
    assert reasons == ["pattern_timed_out", "holds_pattern", "no_pattern"]


def test_a_pattern_that_takes_for_ever_for_many_texts_ends_the_tool(tools_folder, monkeypatch):
    monkeypatch.setattr(patterns, "SEARCH_SECONDS", 0.05)
    monkeypatch.setattr(file_tool, "MOST_TIMED_OUT", 2)
    tool = ServedTool(write_tool(tools_folder, "Echo", "echo", tables=ENDLESS_PATTERN))
    assert not tool.filter(Document.of(ENDLESS_TEXT))[0].kept
    with pytest.raises(ToolError, match=r"tool Echo: expected a `pattern` .* took longer .* for 2 texts"):
        tool.filter(Document.of(ENDLESS_TEXT))


def test_another_answer_is_another_version_but_another_prompt_is_not(tools_folder):
    for changes in (
        {"tables": '[fixed]\nkey = "l"'},
        {
            "recorded": RecordedPart(
                server="faulty", version="1.1", input_schema='{"properties": {"key": {}}}'
            )
        },
        {"server": {"command": ["/another/server"]}},
        {"keys": ['result = "{sky}"']},
        {"keys": ['revision = "2"']},
    ):
        path = weather(tools_folder)
        first = ServedTool(path).version(Settings(), "model")
        path.with_suffix(".txt").write_text(PROMPT.format(name="Weather") + "More.\n")
        assert ServedTool(path).version(Settings(), "model") == first
        assert ServedTool(weather(tools_folder, **changes)).version(Settings(), "model") != first
