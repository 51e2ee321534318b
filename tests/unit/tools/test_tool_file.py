"""A tool file is found by the registry without its server; a file that cannot be used is named and harms no other."""

import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.tool_files import PROMPT, forget_tools, write_tool
from toolformer_ops.config import REPOSITORY, Settings, load_settings
from toolformer_ops.errors import RejectedInputError, ToolError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.costs import CallCost, given_costs, with_costs
from toolformer_ops.tools.registry import get_tool, tool_names
from toolformer_ops.tools.servers.file_tool import FileTool
from toolformer_ops.tools.servers.tool_file import RecordedPart

NOT_THERE = {"command": ["/no/such/server"]}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "date": {"type": "string"},
        "unit": {"enum": ["C", "F"], "default": None},
        "key": {"type": "string"},
    },
    "required": ["city", "date", "key"],
    "additionalProperties": False,
}


def weather(tools_folder: Path, **changes: Any) -> Path:
    return write_tool(
        tools_folder,
        "Weather",
        "weather",
        **{"server": NOT_THERE, "schema": WEATHER, "tables": '[fixed]\nkey = "k"', **changes},
    )


def test_the_registry_finds_it_without_its_server(tools_folder: Path) -> None:
    write_tool(tools_folder, "Echo", "echo", server=NOT_THERE)
    weather(tools_folder)
    assert tool_names()[-2:] == ("Echo", "Weather")
    assert get_tool("ECHO").spec.purpose == "Tests echo."
    assert get_tool("weather").prompt == PROMPT.format(name="Weather").rstrip()


def test_a_fork_reads_tool_files_and_settings_anew(tools_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As the worker that Airflow forks in place of a dead one, from a scheduler that has read them long before.
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


def test_finding_it_imports_no_client(tools_folder: Path) -> None:
    weather(tools_folder)
    program = (
        "import sys; from toolformer_ops.tools.registry import tool_names; assert tool_names()[-1] == 'Weather'; "
        "print([name for name in ('fastmcp', 'mcp', 'jsonschema', 'httpx2', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "Echo"', 'name = "Ec ho"'), "name: expected letters, digits and underscores"),
        (('name = "Echo"', 'name = "Calculator"'), "another tool is called Calculator"),
        (('tool = "echo"', 'tool = "echo"\ntol = 1'), "tol: Extra inputs are not permitted"),
        (("[server]", "[limits]\nconcurrency = 0\n[server]"), "limits.concurrency: Input should be greater"),
        (("[server]", '[filter]\npattern = "("\n[server]'), "expected a regular expression"),
        (("[server]", "[cost]\nprice = -1\nunit = 'cent'\n[server]"), "cost.price: Input should be greater"),
        (("[server]", "[cost]\nprice = 1\n[server]"), "cost.unit: Field required"),
        (("[server]", "[fixed]\nx = 1\n[server]"), "the tool has no argument x"),
        (("command", "comand"), "server.comand: Extra inputs"),
        (("[server]", '[server]\nurl = "http://x"'), "expected a `command` or a `url`, found both"),
        (("[server]", '[server]\nsecrets = ["TOOLFORMER_DATABASE_DSN"]'), "is of this deployment itself"),
        (("[recorded]", "[recorded"), "expected TOML"),
        (("[recorded]", "[fixed]\n[limits.x]"), "limits.x"),
        (('input_schema = \'{"type"', "input_schema = '{type"), "recorded.input_schema: expected JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_left_out_and_named(
    tools_folder: Path, caplog: pytest.LogCaptureFixture, change: tuple[str, str], said: str
) -> None:
    path = write_tool(tools_folder, "Echo", "echo", server=NOT_THERE)
    path.write_text(path.read_text().replace(*change))
    weather(tools_folder)
    with caplog.at_level(logging.WARNING):
        assert tool_names()[5:] == ("Weather",)
    [line] = caplog.messages
    assert f"tool file {path}" in line
    assert said in line
    if "Calculator" not in said:
        with pytest.raises(ToolError) as error:
            get_tool("echo")
        assert said in str(error.value)


def test_a_prompt_without_a_call_of_it_is_an_error(tools_folder: Path) -> None:
    path = write_tool(tools_folder, "Echo", "echo", server=NOT_THERE)
    path.with_suffix(".txt").write_text("Input: {text}\nOutput:")
    with pytest.raises(UsageError, match=r"expected examples with calls '\[Echo\(...\)\]'"):
        FileTool(path).prompt  # noqa: B018
    with pytest.raises(ToolError, match="expected examples"):
        get_tool("Echo")


def test_one_required_text_takes_the_input_as_it_is(tools_folder: Path) -> None:
    tool = FileTool(write_tool(tools_folder, "Echo", "echo"))
    assert tool.arguments("a:  b, c") == {"text": "a:  b, c"}
    assert tool.effective_input("a:  b, c", Document.of("")) == "a:  b, c"


def test_other_tools_name_their_arguments(tools_folder: Path) -> None:
    tool = FileTool(weather(tools_folder))
    asked = tool.effective_input('date:  "1 May", city: "Paris"', Document.of(""))
    assert asked == 'city: "Paris", date: "1 May"'
    assert tool.arguments(asked) == {"city": "Paris", "date": "1 May"}
    assert tool.sent_arguments(asked) == {"city": "Paris", "date": "1 May", "key": "k"}
    assert tool.effective_input("Paris,  1 May", Document.of("")) == "Paris, 1 May"
    with pytest.raises(RejectedInputError, match="unknown"):  # a fixed argument is not the call's
        tool.sent_arguments('city: "P", date: "d", key: "x"')


def test_its_json_schema_is_the_functions_without_fixed_arguments(tools_folder: Path) -> None:
    parameters = FileTool(weather(tools_folder)).parameters
    assert list(parameters["properties"]) == ["city", "date", "unit"]
    assert parameters["required"] == ["city", "date"]
    assert parameters["type"] == "object"


def test_a_tool_without_open_arguments_takes_no_input(tools_folder: Path) -> None:
    schema = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
    tool = FileTool(weather(tools_folder, schema=schema))
    assert not tool.spec.takes_input
    assert tool.sent_arguments("") == {"key": "k"}


def test_the_filter_is_the_files_pattern(tools_folder: Path) -> None:
    path = write_tool(tools_folder, "Echo", "echo", tables='[filter]\npattern = "\\\\bsays?\\\\b"')
    tool = FileTool(path)
    kept = [tool.filter(Document.of(text))[0].kept for text in ("She says so.", "Essays are long.")]
    assert kept == [True, False]
    assert tool.spec.filter_version != FileTool(write_tool(tools_folder, "Echo", "echo")).spec.filter_version


def test_its_price_is_no_part_of_the_version_and_raises_the_keep_threshold_of_a_run_that_asks_for_it(
    tools_folder: Path,
) -> None:
    asked = {"corpus": "c", "model": "m", "tools": ["Calculator", "Echo", "Weather"], "nats_per_price": 0.5}
    free = FileTool(write_tool(tools_folder, "Echo", "echo", server=NOT_THERE)).version(Settings(), "model")
    weather(tools_folder)
    with pytest.raises(UsageError, match=r"expected prices in one unit among the chosen tools, found none\."):
        RunChoices.parse(asked).kept_from()
    dear = write_tool(tools_folder, "Echo", "echo", server=NOT_THERE, tables='[cost]\nprice = 3\nunit = "cent"')
    assert FileTool(dear).version(Settings(), "model") == free
    forget_tools()
    choices = RunChoices.parse(asked)
    costs = given_costs(choices)
    assert costs == {"Echo": CallCost(price=3.0, price_unit="cent", nats_per_price=0.5)}
    assert with_costs(choices, costs).kept_from() == choices.kept_from() | {"Echo": 1.5}
    cheap = RunChoices.parse({**asked, "nats_per_price": 0.25})
    assert with_costs(cheap, given_costs(cheap)) == cheap  # 0.75 nats, of a threshold of 1
    weather(tools_folder, tables='[fixed]\nkey = "k"\n[cost]\nprice = 1\nunit = "token"')
    forget_tools()
    with pytest.raises(UsageError, match=r"in one unit .* found cent \(Echo\), token \(Weather\)"):
        choices.kept_from()


def version(path: Path) -> str:
    return FileTool(path).version(Settings(), "model")


def test_the_version_names_the_server_and_not_the_prompt(tools_folder: Path) -> None:
    first = version(weather(tools_folder))
    assert "server=faulty@1.0" in first
    (tools_folder / "weather.txt").write_text(PROMPT.format(name="Weather") + "More.\n")
    assert version(tools_folder / "weather.toml") == first


@pytest.mark.parametrize(
    "changes",
    [
        {"tables": '[fixed]\nkey = "l"'},
        {"schema": {**WEATHER, "required": ["city", "key"]}},
        {"recorded": RecordedPart(server="faulty", version="1.1", input_schema='{"properties": {"key": {}}}')},
        {"server": {"command": ["/another/server"]}},
        {"keys": ['result = "{sky}"']},
        {"keys": ['revision = "2"']},
    ],
)
def test_another_answer_is_another_version(tools_folder: Path, changes: dict[str, Any]) -> None:
    first = version(weather(tools_folder))
    assert version(weather(tools_folder, **changes)) != first
