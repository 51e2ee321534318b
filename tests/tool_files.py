"""Tool files of the MCP servers in tests/data/mcp_servers, for tests."""

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from toolformer_ops.config import REPOSITORY, load_settings
from toolformer_ops.tools import registry
from toolformer_ops.tools.files.tool_file import read_tool_file, recorded_table, toml_value, with_recorded
from toolformer_ops.tools.servers.connection import ask_server
from toolformer_ops.tools.servers.server_file import RecordedPart, ServerToolFile

SERVERS = REPOSITORY / "tests" / "data" / "mcp_servers"
TEXT_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "Any text."}},
    "required": ["text"],
}
"""Of faulty.py's `echo` and `write`."""
PROMPT = "Add calls of {name}.\nInput: It is a.\nOutput: It is [{name}(a)] a.\n\nInput: {{text}}\nOutput:\n"


def forget_tools() -> None:
    """Let the registry look again."""
    load_settings.cache_clear()
    registry.forget_tools()


def write_tool(
    folder: Path,
    name: str,
    tool: str,
    *,
    server: Mapping[str, Any] | None = None,
    keys: Sequence[str] = (),
    tables: str = "",
    recorded: RecordedPart | None = None,
    schema: Mapping[str, Any] = TEXT_SCHEMA,
    ask: bool = False,
) -> Path:
    """A tool file with its prompt; of faulty.py where no server is given.

    `ask`: record what the server says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = {"command": [sys.executable, str(SERVERS / "faulty.py")], "start_seconds": 20, **(server or {})}
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items()]
    path, prompt = folder / f"{name.lower()}.toml", folder / f"{name.lower()}.txt"
    head = [
        f'name = "{name}"',
        f'purpose = "Tests {tool}."',
        f'prompt = "{prompt.name}"',
        f'tool = "{tool}"',
        *keys,
    ]
    path.write_text("\n".join([*head, tables, "[server]", *lines]) + "\n")
    prompt.write_text(PROMPT.format(name=name))
    if ask:
        recorded = ask_server(read_tool_file(path, ServerToolFile), folder).recorded
    said = recorded or RecordedPart(server="faulty", version="1.0", input_schema=json.dumps(schema))
    path.write_text(with_recorded(path.read_text(), recorded_table(said)))
    return path


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of a web application that a thread serves on a free port of this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=0, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        assert server.started
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
