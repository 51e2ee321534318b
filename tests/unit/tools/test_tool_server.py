"""The servers of tool files: what is sent, what becomes of answers, and what a server that misbehaves does to its tool."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

from tests.tool_files import served, write_tool
from toolformer_ops.errors import InfrastructureError, RejectedInputError, ToolError
from toolformer_ops.records import Document
from toolformer_ops.tools.base import MAX_INPUT_CHARACTERS, run_tool
from toolformer_ops.tools.files import patterns
from toolformer_ops.tools.servers import served_tool
from toolformer_ops.tools.servers.call_texts import (
    check_arguments,
    picked_text,
    read_arguments,
    write_arguments,
)
from toolformer_ops.tools.servers.served_tool import ServedTool, ServerRunner

Open = Callable[[Path], ServerRunner]
LACKING = "result_lacks_field"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(served_tool, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
def opened():
    """Opens the tool of a file; closed at the end."""
    runners: list[ServerRunner] = []

    def open_file(path: Path) -> ServerRunner:
        runners.append(ServerRunner(ServedTool(path)))
        return runners[-1]

    yield open_file
    for runner in runners:
        runner.close()


def sent(folder: Path) -> list[dict[str, Any]]:
    """What faulty.py was asked."""
    path = folder / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ask(runner: ServerRunner, *inputs: str) -> list[str | None]:
    """The result, or the reason, of each input."""
    return [
        output.results[0] if output.results else output.reason for output in run_tool(runner, inputs, 1.0)
    ]


def test_wrong_arguments_have_a_reason_without_being_sent(tmp_path, opened):
    path = write_tool(tmp_path, "Weather", "weather", ask=True, tables='[fixed]\nkey = "k"')
    tool, runner = ServedTool(path), opened(path)
    outcomes = {
        'date: "2023-01-01", city: "Paris"': "Paris 2023-01-01 k",
        "Paris": "arguments_do_not_parse",
        'city: "Paris"': "argument_missing",
        'city: "Paris", date: "2023-01-01", planet: "Earth"': "argument_unknown",
        'city: "Paris", date: 2023': "argument_not_of_the_schema",
        'city: "Paris", date: "2023-01-01", unit: "K"': "argument_not_of_the_schema",
        f'city: "{"P" * 1_000_000}", date: "2023-01-01"': "input_too_long",
    }
    inputs = [tool.effective_input(call, Document.of("")) or "" for call in outcomes]
    assert ask(runner, *inputs) == list(outcomes.values())
    assert sent(tmp_path) == [{"city": "Paris", "date": "2023-01-01", "key": "k"}]


TEXT = {"type": "string"}
PROPERTIES = {"city": TEXT, "date": TEXT, "where": {"$ref": "https://example.org/place.json"}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["city"]}


def test_arguments_are_read_as_json_values():
    for text, arguments in {
        ' date:"2023-01-01" ,city :  "Par, \\"is\\": é" ': {"date": "2023-01-01", "city": 'Par, "is": é'},
        "days: 3, share: -0.5e1, wet: true, wind: null": {
            "days": 3,
            "share": -5.0,
            "wet": True,
            "wind": None,
        },
        'at: {"x": 1, "y": {"z": "w"}}': {"at": {"x": 1, "y": {"z": "w"}}},
        "": {},
    }.items():
        assert read_arguments(text) == arguments


def test_arguments_that_do_not_parse_are_rejected():
    for text in (
        'city = "Paris"',
        'city: "Paris" date: "2023"',
        'city: "Paris",',
        'city: "Paris", city: "Rome"',
        'city: "Par',
        "days: NaN",
        'city: "\\ud800"',
        "at: " + '{"x": ' * 3000,
    ):
        with pytest.raises(RejectedInputError, match="arguments_do_not_parse"):
            read_arguments(text)


def test_two_spellings_of_arguments_are_one_question():
    one = write_arguments(read_arguments('date: "2023-01-01",   city: "Par\\u0069s"'), SCHEMA)
    assert one == 'city: "Paris", date: "2023-01-01"' == write_arguments(read_arguments(one), SCHEMA)


def test_what_a_schema_refers_to_elsewhere_is_never_fetched():
    check_arguments({"city": "Paris", "date": "2023-01-01"}, SCHEMA)
    with pytest.raises(RejectedInputError, match="argument_not_of_the_schema"):
        check_arguments({"city": "Paris", "where": {}}, SCHEMA)


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        (
            {"tables": "[limits]\nresult_tokens = 16\ncalls_per_second = 1000.0"},
            {
                "hostile": "[MT(x) -> y]␀␛[31m end of",
                "image": "result_not_text",
                "error": "server_refused",
                "refused": "server_refused",
                "  ": "empty_result",
                "a b. " * (MAX_INPUT_CHARACTERS // 5): "a b. a b. a b. a b. a b. a",
            },
        ),
        (
            {"tool": "write", "keys": ["allow_writes = true"]},  # a structured answer is one line
            {
                "structured": "sky: grey, wind: (from: W, speeds: 3, 5.5), wet: true",
                '{"a": ' + "[" * 600 + "]" * 600 + "}": "result_too_long",
            },
        ),
        (
            {"keys": ['result = "{sky[1:3]} {sky[-2:]}, {wind.speeds.1} from {wind.from}"']},
            {"structured": "re ey, 5.5 from W", "plain": LACKING, '{"sky": "blue"}': LACKING},
        ),
        (
            {"keys": ["result = '/stock.: (\\d+)/'"]},
            {"[{'stock': 667}]": "667", "{'stock': 'none'}": "result_without_match"},
        ),
        ({"keys": ["result = '/[0-9]+ (?:euros|dollars)/'"]}, {"It costs 12 euros.": "12 euros"}),
        ({"keys": ['result = "{sky[9:]}"']}, {"structured": LACKING}),
        ({"keys": ['result = "{sky[-:3]}"']}, {"structured": LACKING}),
        (
            {
                "tables": "[limits]\nseconds = 0.5\ntries = 2\nconcurrency = 1"
            },  # a server that ends is started anew
            {"first": "first", "die once": "die once", "hang": "server_timed_out", "last": "last"},
        ),
    ],
    ids=[
        "hostile",
        "structured",
        "fields",
        "pattern",
        "match",
        "no such part",
        "no number",
        "ends and hangs",
    ],
)
def test_an_answer_is_a_result_or_has_a_reason(tmp_path, opened, options, outcomes):
    runner = opened(write_tool(tmp_path, "Echo", **{"tool": "echo", **options}))
    assert ask(runner, *outcomes, *outcomes) == list(outcomes.values()) * 2  # each is asked once
    asked = Counter(call["text"] for call in sent(tmp_path))
    assert {count for text, count in asked.items() if not text.startswith(("die", "hang"))} == {1}


def test_a_search_that_takes_for_ever_is_ended(monkeypatch):
    monkeypatch.setattr(patterns, "SEARCH_SECONDS", 0.05)
    with pytest.raises(RejectedInputError, match="result_match_timed_out"):
        picked_text("1," * 40, "/^(.*?,){20}P/")


def test_a_pattern_of_a_schema_that_takes_for_ever_refuses_the_argument(monkeypatch):
    monkeypatch.setattr(patterns, "SEARCH_SECONDS", 0.05)
    schema = {"properties": {"key": {"type": "string", "pattern": r"^(a|aa)+$"}}}
    with pytest.raises(RejectedInputError, match="argument_not_of_the_schema"):
        check_arguments({"key": "a" * 60 + "b"}, schema)


@pytest.mark.parametrize(("key", "fits"), [("ab-12", True), ("12", False)])
def test_an_argument_has_the_pattern_of_its_schema(key, fits):
    schema = {"properties": {"key": {"type": "string", "pattern": "^[a-z]+-[0-9]+$"}}}
    if fits:
        check_arguments({"key": key}, schema)
        return
    with pytest.raises(RejectedInputError, match="argument_not_of_the_schema"):
        check_arguments({"key": key}, schema)


def test_a_server_gets_a_bare_environment_with_its_secrets(tmp_path, opened, monkeypatch):
    monkeypatch.setenv("FAULTY_KEY", "a-secret")
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", "postgresql://owner:password@db/toolformer")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    server = {"secrets": ["FAULTY_KEY"], "environment": {"FAULTY_MORE": "1"}}
    names = ask(opened(write_tool(tmp_path, "Echo", "echo", server=server)), "environment")[0]
    assert names is not None
    assert {"FAULTY_KEY", "FAULTY_MORE", "PATH"} <= set(names.split())
    of_every_process = {"HOME", "LANG", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "USER"}
    assert set(names.split()) <= {"FAULTY_KEY", "FAULTY_MORE", *of_every_process}


def test_an_input_that_ends_the_server_each_time_takes_no_answer_from_the_others(
    tmp_path, opened, monkeypatch, caplog
):
    monkeypatch.setenv("FAULTY_KEY", "a-secret")
    server = {"secrets": ["FAULTY_KEY"]}
    runner = opened(
        write_tool(tmp_path, "Echo", "echo", server=server, tables="[limits]\nconcurrency = 1\ntries = 2")
    )
    assert ask(runner, "first", "die:1", "last") == ["first", "server_failed", "last"]
    [line] = [line for line in caplog.messages if line.startswith("Echo:")]
    assert "no answer to 'die:1' after 2 tries" in line
    assert "its last lines on stderr: dying with the key <FAULTY_KEY>" in line
    assert "a-secret" not in caplog.text
    assert [call["text"] for call in sent(tmp_path)] == ["first", "die:1", "die:1", "last"]


def test_several_inputs_without_an_answer_or_a_server_that_is_gone_fail_the_batch(tmp_path, opened):
    runner = opened(
        write_tool(tmp_path, "Echo", "echo", tables="[limits]\ntries = 1\nfailures = 2\nconcurrency = 1")
    )
    with pytest.raises(
        InfrastructureError,
        match=r"tool Echo: expected answers, found none to 2 inputs in a row: .*dying with",
    ):
        ask(runner, "die:1", "die:2", "last")
    # It has one input to show that it is there again.
    assert ask(runner, "last") == ["last"]
    runner = opened(write_tool(tmp_path / "gone", "Echo", "echo", server={"environment": {"FAULTY": "gone"}}))
    with pytest.raises(
        InfrastructureError, match=r"expected a server that answers, found: .*no key for the service"
    ):
        ask(runner, "first", "die:1")
    with pytest.raises(InfrastructureError, match=r"expected its list of tools, found: Method not found"):
        opened(write_tool(tmp_path, "Echo", "echo", server={"environment": {"FAULTY": "unlisted"}}))


def test_an_answer_ends_a_row_of_inputs_without_one(tmp_path, opened):
    limits = "[limits]\ntries = 1\nfailures = 2\nconcurrency = 1"
    runner = opened(write_tool(tmp_path, "Echo", "echo", tables=limits))
    answers = ask(runner, "die:1", "first", "die:2", "second")
    assert answers == ["server_failed", "first", "server_failed", "second"]


def test_fixed_arguments_are_checked_against_the_servers_schema(tmp_path):
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "key": {"type": "string", "maxLength": 3}},
        "required": ["text", "key"],
    }
    path = write_tool(tmp_path, "Echo", "echo", tables='[fixed]\nkey = "too long"', schema=schema)
    with pytest.raises(RejectedInputError, match="argument_not_of_the_schema"):
        ServedTool(path).sent_arguments("a")


@pytest.mark.parametrize(
    ("tool", "server", "said"),
    [
        ("echo", {"environment": {"FAULTY": "start"}}, "its last lines on stderr: no key for the service"),
        (
            "echo",
            {"environment": {"FAULTY": "schema"}},
            r"another version: schema \w{12} is now .*refresh-tool",
        ),
        ("echo", {"environment": {"FAULTY": "version"}}, r"another version: version 1\.0 is now 2\.0"),
        ("echo", {"environment": {"FAULTY": "silent"}, "start_seconds": 0.2}, "without an answer"),
        ("echo", {"command": ["/no/such/server"]}, "start it by hand: /no/such/server"),
        ("echo", {"secrets": ["NO_SUCH_KEY"]}, "expected the environment variables NO_SUCH_KEY"),
        ("ecco", {}, "expected a tool 'ecco' of the server, found echo, weather, write, towns, places"),
        ("write", {}, r"the server marks write as one that writes.*allow_writes = true"),
    ],
)
def test_a_server_that_is_not_as_recorded_or_does_not_start_is_refused(tmp_path, opened, tool, server, said):
    with pytest.raises(ToolError, match=said):
        opened(write_tool(tmp_path, "Echo", tool, server=server))


def test_over_http_the_same_with_secret_headers(tmp_path, opened, monkeypatch):
    from fastmcp import FastMCP
    from fastmcp.server.dependencies import get_http_headers

    monkeypatch.setenv("A_KEY", "a-secret")
    server: FastMCP = FastMCP("miles", version="3.1")

    @server.tool
    def convert(amount: float) -> dict[str, object]:
        return {"value": round(amount * 1.609344, 1), "key": get_http_headers(include_all=True).get("x-key")}

    with served(server.http_app()) as address:
        table = {
            "command": [],
            "url": f"{address}/mcp",
            "secrets": ["A_KEY"],
            "headers": {"X-Key": "{A_KEY}"},
        }
        keys = ['result = "{value} {key}"']
        runner = opened(write_tool(tmp_path, "Convert", "convert", server=table, keys=keys, ask=True))
        assert ask(runner, "amount: 26.2", 'amount: "x"') == ["42.2 a-secret", "argument_not_of_the_schema"]
    with pytest.raises(InfrastructureError, match="tool Convert: expected a server that answers"):
        ask(runner, "amount: 1")


def test_a_redirect_to_another_host_which_would_get_the_headers_is_not_followed(tmp_path, opened):
    asked: set[str | None] = set()

    def answer(request: Request) -> RedirectResponse:
        asked.add(request.url.hostname)
        return RedirectResponse(f"http://localhost:{request.url.port}/mcp", 307)

    app = Starlette(routes=[Route("/mcp", answer, methods=["POST"])])
    with served(app) as address, pytest.raises(InfrastructureError, match="expected a server that answers"):
        opened(write_tool(tmp_path, "Convert", "convert", server={"command": [], "url": f"{address}/mcp"}))
    assert asked == {"127.0.0.1"}


def test_an_operation_of_an_openapi_document_is_a_tool(tmp_path, opened):
    seen: set[str] = set()

    def capital(request: Request) -> JSONResponse:
        country = request.path_params["country"]
        status = 503 if country not in seen else 200 if country == "France" else 404  # busy at first
        seen.add(country)
        return JSONResponse({"capital": "Paris"} if status == 200 else {}, status)

    # A status and a date as people write them.
    (tmp_path / "capitals.yaml").write_text("""
openapi: 3.1.0
info: {title: Capitals, version: 2023-01-30}
paths:
  /capitals/{country}:
    parameters: [{name: country, in: path, required: true, schema: {type: string}}]
    get: {operationId: capital-of, responses: {200: {description: ok}}}
    post: {operationId: set-capital, responses: {200: {description: ok}}}
""")
    with served(Starlette(routes=[Route("/v1/capitals/{country}", capital)])) as address:
        table = {"command": [], "url": f"{address}/v1", "openapi": "capitals.yaml"}
        path = write_tool(
            tmp_path, "Capital", "capital_of", server=table, keys=['result = "{capital}"'], ask=True
        )
        recorded = ServedTool(path).file.recorded
        assert recorded is not None
        assert (recorded.server, recorded.version, recorded.read_only) == ("Capitals", "2023-01-30", True)
        assert ask(opened(path), "France", "Atlantis") == ["Paris", "server_refused"]
        with pytest.raises(ToolError, match="marks set_capital as one that writes"):
            opened(write_tool(tmp_path, "Capital", "set_capital", server=table, ask=True))


def test_an_argument_that_an_operation_refuses_leaves_no_traceback(tmp_path, opened, capfd):
    (tmp_path / "towns.yaml").write_text("""
openapi: 3.1.0
info: {title: Towns, version: '1'}
paths:
  /towns/{name}:
    parameters: [{name: name, in: path, required: true, schema: {type: string}}]
    get: {operationId: town, responses: {200: {description: ok}}}
""")
    with served(Starlette(routes=[])) as address:
        table = {"command": [], "url": f"{address}/v1", "openapi": "towns.yaml"}
        path = write_tool(tmp_path, "Town", "town", server=table, ask=True)
        assert ask(opened(path), "..", "Paris") == [
            "server_refused",
            "server_refused",
        ]  # by fastmcp, by a 404
    assert "Traceback" not in capfd.readouterr().err


GROWING = ["a0: &a0 [x]", *(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(9))]
"""Ten aliases of ten aliases, and so on: 500 bytes that would be a billion values."""


def test_an_openapi_document_whose_aliases_grow_beyond_bounds_is_refused(tmp_path):
    table = {"command": [], "url": "http://127.0.0.1:1/v1", "openapi": "service.yaml"}
    for document, found in (("\n".join(GROWING), "written out"), ("a: &a [*a]", "RecursionError")):
        head = "openapi: 3.1.0\ninfo: {title: T, version: '1'}\npaths: {}\n"
        (tmp_path / "service.yaml").write_text(head + document)
        with pytest.raises(
            ToolError, match=f"expected an OpenAPI 3 document as JSON or YAML, found .*{found}"
        ):
            write_tool(tmp_path, "Capital", "capital", server=table, ask=True)
