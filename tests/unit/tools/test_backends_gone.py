"""Tools of files whose server, database or function is gone: what `check` and `call` say, which end all the same."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hostile_queries import database_tool, sqlite_shop
from tests.tool_files import forget_tools, write_tool
from tests.unit.test_commands import run
from tests.unit.tools.test_function_tool import function_tool

__all__ = ["run"]  # a fixture

OPENAPI = """{"openapi": "3.0.0", "info": {"title": "Gone", "version": "1"}, "paths": {"/echo": {"get": {
"operationId": "echo", "parameters": [{"name": "text", "in": "query", "required": true, "schema": {"type":
"string"}}], "responses": {"200": {"description": "Well."}}}}}}"""


def sqlite_file_is_gone(folder: Path) -> None:
    path = sqlite_shop(folder)
    database_tool(folder, f"sqlite:///{path}")
    path.unlink()


def sqlite_file_is_none(folder: Path) -> None:
    path = sqlite_shop(folder)
    database_tool(folder, f"sqlite:///{path}")
    path.write_text("no database")


def postgres_is_gone(folder: Path) -> None:
    path = sqlite_shop(folder)
    tool = database_tool(folder, f"sqlite:///{path}")
    tool.write_text(tool.read_text().replace(f"sqlite:///{path}", "postgresql://me@127.0.0.1:1/shop"))


def function_is_gone(folder: Path) -> None:
    function_tool(folder, "height")
    (folder / "facts.py").unlink()


def served(server: Mapping[str, Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "gone.json").write_text(OPENAPI)
        write_tool(folder, "Echo", "echo", server={"command": [], **server})

    return write


GONE = {
    "an SQLite file": ("Shop", sqlite_file_is_gone, "expected a file of SQLite at"),
    "a file of another kind": ("Shop", sqlite_file_is_none, "found: file is not a database"),
    "a Postgres": ("Shop", postgres_is_gone, "expected a database that answers, found: connection failed"),
    "a function": ("Facts", function_is_gone, "expected a file of Python at"),
    "a command": ("Echo", served({"command": ["/nosuch/server"]}), "start it by hand: /nosuch/server"),
    "a command that ends": (
        "Echo",
        served({"command": [sys.executable, "-c", ""]}),
        "expected a server that answers, found:",
    ),
    "an address": ("Echo", served({"url": "http://127.0.0.1:1/mcp"}), "is http://127.0.0.1:1/mcp right?"),
    "a document": (
        "Echo",
        served({"openapi": "none.json", "url": "http://127.0.0.1:1"}),
        "expected an OpenAPI 3 document",
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the tool files."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(folder))
    yield folder
    monkeypatch.undo()
    forget_tools()


@pytest.mark.parametrize("kind", GONE)
def test_a_call_says_what_is_gone(folder, run, kind):
    name, write, message = GONE[kind]
    write(folder)
    forget_tools()
    status, _, said = run("call", name, "Eiger")
    assert status in {2, 75}, said
    assert message in said


@pytest.mark.parametrize("kind", GONE)
def test_check_says_what_is_gone(folder, run, kind):
    name, write, message = GONE[kind]
    write(folder)
    forget_tools()
    status, printed, _ = run("check", "posts.jsonl", "--tools", name, "--model", "none")
    [line] = [line for line in printed.splitlines() if f" {name}: " in line]
    assert status == 2
    assert line.startswith("wrong")
    assert message in line
