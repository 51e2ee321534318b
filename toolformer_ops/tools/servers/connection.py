"""One connection to the MCP server of a tool file.

The server is started, reached over streamable HTTP, or in this process. The server in this process is made of
an OpenAPI document by fastmcp, and asks the document's service. A connection is opened, which describes the
tool, answers calls, and is closed, each within a time limit. `served_tool.py` decides what is tried again.

A started server gets a bare environment (PATH, HOME and the like) with the variables and secrets that the
file names, and none of this deployment's settings. Its stderr is read, and its last lines are part of each
error.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from toolformer_ops.errors import (
    InfrastructureError,
    NoAnswerError,
    RejectedInputError,
    ToolError,
    UsageError,
    causes,
)
from toolformer_ops.storage.corpora.local_paths import read_beside
from toolformer_ops.storage.corpora.record_rules import escape_control_characters
from toolformer_ops.tools.files.secret_values import secret_values, without_secrets
from toolformer_ops.tools.servers.server_file import SECRET, RecordedPart, ServerToolFile

logger = logging.getLogger(__name__)

TIMED_OUT = "server_timed_out"
FAILED = "server_failed"
REFUSED = "server_refused"

STOP_SECONDS = 10.0
"""Longest end of a started server; it is killed after some 4 of them."""
PARTING_SECONDS = 0.5
"""Longest end of a connection over HTTP, whose server may be gone."""
STDERR_LINES = 8
STDERR_SECONDS = 0.1
"""Given to the thread that reads them."""
STDERR_CHARACTERS = 300
"""Most characters of each line of an error."""

MOST_DOCUMENT_CHARACTERS = 50_000_000
"""Most characters of an OpenAPI document in YAML, whose aliases may repeat a part any number of times;
GitHub's document has 12 million."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ServerTool:
    """A tool as its server describes it."""

    recorded: RecordedPart
    description: str


class Connection:
    """One connection to a server, from its start to its end; used in one event loop."""

    def __init__(self, file: ServerToolFile, folder: Path) -> None:
        """Prepare it; `folder` is the tool file's.

        Raises:
            ToolError: a secret is not set, or the OpenAPI document cannot be read.
        """
        from fastmcp import Client
        from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

        # It logs each refused argument with a traceback. What a tool refuses is its answer, and stored as
        # such.
        logging.getLogger("fastmcp").setLevel(logging.CRITICAL)
        self._file = file
        self._server = server = file.server
        # 1. Secrets, and headers that hold them.
        self._secrets = secrets = secret_values(server.secrets, file.name)
        headers = {
            key: SECRET.sub(lambda match: secrets[match[1]], value) for key, value in server.headers.items()
        }
        # 2. How it is reached; only here it matters which of the three kinds of servers it is.
        self._last_lines: deque[str] = deque(maxlen=STDERR_LINES)
        self._stderr: TextIO | None = None
        if server.command:
            reading, writing = os.pipe()
            self._stderr = os.fdopen(writing, "w")
            kept = (reading, self._last_lines)
            threading.Thread(target=_keep_last_lines, args=kept, daemon=True, name="stderr of a tool").start()
            program = shutil.which(server.command[0], path=os.environ.get("PATH"))
            # A program in the tool's own folder, such as ./server, is found from there.
            transport: Any = StdioTransport(
                program or server.command[0],
                list(server.command[1:]),
                env={**server.environment, **secrets},
                cwd=str(folder / server.folder),
                keep_alive=False,
                log_file=self._stderr,
            )
        elif server.openapi:
            try:
                transport = openapi_server(folder, server.openapi, server.url, headers)
            except UsageError as error:
                raise ToolError(f"tool {file.name}: {error}") from error
        else:
            # mcp follows no redirect to another host or port, which would carry secret headers there.
            transport = StreamableHttpTransport(server.url, headers=headers)
        self._client: Any = Client(
            transport, init_timeout=server.start_seconds, log_handler=_unheard, progress_handler=_unheard
        )

    async def open(self) -> ServerTool:
        """Start or reach the server; returns what it says of itself and of the tool.

        The caller closes it, also if that fails.

        Raises:
            ToolError: it cannot be started, refuses, or has no such tool.
            InfrastructureError: it does not answer now.
        """
        server = self._server
        # 1. It is started or reached.
        try:
            await _within(server.start_seconds, self._client.__aenter__())
        except Exception as error:
            reached = (
                f"{server.start_seconds:g} s without an answer" if _is_timeout(error) else _message(error)
            )
            await self.close()
            await asyncio.sleep(STDERR_SECONDS)
            refuses = bool(server.command) or 400 <= (_status(error) or 0) < 408
            what = (
                f"start it by hand: {' '.join(server.command)}"
                if server.command
                else f"is {server.url} right?"
            )
            raise (ToolError if refuses else InfrastructureError)(
                self.told(f"expected a server that answers, found: {reached}", f"Look at its log, or {what}")
            ) from error
        # 2. It lists its tools.
        try:
            listed = await _within(server.start_seconds, self._client.list_tools())
        except Exception as error:
            raise InfrastructureError(
                self.told(f"expected its list of tools, found: {_message(error)}", "Look at its log")
            ) from error
        served = next((tool for tool in listed if tool.name == self._file.tool), None)
        if served is None:
            names = ", ".join(tool.name for tool in listed[:20]) or "none"
            raise ToolError(
                self.told(
                    f"expected a tool {self._file.tool!r} of the server, found {names}", "Name one of them"
                )
            )
        info = self._client.server_info
        recorded = RecordedPart(
            server=info.name if info else "unknown",
            version=info.version if info else "",
            read_only=served.annotations.read_only_hint if served.annotations else None,
            input_schema=json.dumps(served.input_schema),
        )
        return ServerTool(recorded, served.description or "")

    async def close(self) -> None:
        """End the connection, and the server if it was started."""
        client, self._client = self._client, None
        with contextlib.suppress(Exception):
            if client is not None:
                await _within(STOP_SECONDS if self._server.command else PARTING_SECONDS, client.close())
        if self._stderr is not None:
            self._stderr.close()

    async def call(self, arguments: Mapping[str, Any], seconds: float) -> Any:
        """The server's result, an mcp_types.CallToolResult.

        Raises:
            NoAnswerError: none came, and the connection may be lost.
            RejectedInputError: the server refused the request as such.
        """
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        try:
            request = self._client.call_tool_mcp(self._file.tool, dict(arguments), timeout=seconds)
            return await _within(seconds + 1, request)
        except (
            Exception
        ) as error:  # the transports raise their own, such as httpx2's, OSError and RuntimeError
            code = error.code if isinstance(error, MCPError) else None
            if code == REQUEST_TIMEOUT or (code is None and _is_timeout(error)):
                raise NoAnswerError(TIMED_OUT, f"no answer within {seconds:g} s") from error
            if code in {None, CONNECTION_CLOSED} or _status(error) is not None:
                await asyncio.sleep(STDERR_SECONDS)
                raise NoAnswerError(FAILED, self._with_last_lines(_message(error))) from error
            said = self.without_secrets(str(error))
            logger.warning("%s: the server refused a request: %.200r", self._file.name, said)
            raise RejectedInputError(REFUSED, said) from error

    def told(self, what: str, remedy: str) -> str:
        """An error message: the tool, what was expected and found, the server's last lines, the remedy.

        No secret is in it.
        """
        return f"tool {self._file.name}: {self._with_last_lines(what)}. {remedy}."

    def without_secrets(self, text: str) -> str:
        """The text with names instead of secrets."""
        return without_secrets(text, self._secrets)

    def _with_last_lines(self, text: str) -> str:
        """The text with the server's last lines on stderr, and names instead of secrets."""
        lines = " | ".join(self._last_lines)
        text += f"; its last lines on stderr: {lines}" if lines else ""
        return self.without_secrets(text)


def ask_server(file: ServerToolFile, folder: Path) -> ServerTool:
    """What a server says of a tool; it is started and ended for it. Errors are those of `Connection`."""

    async def ask() -> ServerTool:
        connection = Connection(file, folder)
        try:
            return await connection.open()
        finally:
            await connection.close()

    return asyncio.run(ask())


def openapi_server(folder: Path, name: str, url: str, headers: Mapping[str, str]) -> Any:
    """An MCP server in this process, each of whose tools is an operation of an OpenAPI document.

    It is a fastmcp.FastMCP. GET and HEAD only read. That the service is not there, or is busy, is an error of
    the connection and no answer of the tool.

    Raises:
        ToolError: the file is no such document.
        UsageError: it may not be read.
    """
    import httpx2
    import yaml
    from fastmcp import FastMCP
    from fastmcp.server.middleware import Middleware
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED, ToolAnnotations

    class AnotherTryMayAnswer(Middleware):  # type: ignore[misc]
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            try:
                return await call_next(context)
            except Exception as error:
                status = _status(error) or 0
                is_lost = any(isinstance(cause, httpx2.RequestError) for cause in causes(error))
                if is_lost or status in {408, 429} or status >= 500:
                    raise MCPError(code=CONNECTION_CLOSED, message=str(error)) from error
                raise

    def mark(route: Any, tool: Any) -> None:
        tool.annotations = ToolAnnotations(read_only_hint=route.method in {"GET", "HEAD"})

    path = folder / name
    try:
        text = read_beside(folder, name).decode()
        document = json.loads(text if path.suffix == ".json" else _as_json(yaml.safe_load(text)))
        title, version = str(document["info"]["title"]), str(document["info"]["version"])
        if not title or not version:
            raise ValueError("an empty title or version")  # noqa: TRY301
        return FastMCP.from_openapi(
            document,
            httpx2.AsyncClient(base_url=url, headers=headers, timeout=None),
            name=title,
            version=version,
            mcp_component_fn=mark,
            middleware=[AnotherTryMayAnswer()],
            validate_output=False,
        )
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        yaml.YAMLError,
    ) as error:
        # YAML's message quotes the document.
        at = getattr(error, "problem_mark", None)
        finding = (
            f"{getattr(error, 'problem', '')} in line {at.line + 1}" if at else " ".join(str(error).split())
        )
        raise ToolError(
            f"{path}: expected an OpenAPI 3 document as JSON or YAML, found {type(error).__name__}: "
            f"{finding}."
        ) from error


def _as_json(document: Any) -> str:
    """A YAML document as JSON would have it: YAML reads 200 as a number and 2023-01-30 as a date.

    Raises:
        ValueError: its aliases make it longer than `MOST_DOCUMENT_CHARACTERS`.
        RecursionError: an alias is inside the part that it repeats.
    """
    sizes: dict[int, int] = {}

    def written_out(part: Any) -> int:
        """Characters of a part with each alias replaced by the part that it repeats, about."""
        if not isinstance(part, dict | list):
            return len(str(part)) + 2
        if id(part) not in sizes:
            sizes[id(part)] = 2 + sum(
                map(written_out, [*part, *part.values()] if isinstance(part, dict) else part)
            )
        return sizes[id(part)]

    if (characters := written_out(document)) > MOST_DOCUMENT_CHARACTERS:
        raise ValueError(
            f"{characters:,} characters with all aliases written out, where at most "
            f"{MOST_DOCUMENT_CHARACTERS:,} are read"
        )
    return json.dumps(document, default=str)


async def _within(seconds: float, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What `work` returns.

    After `seconds` it raises a TimeoutError, and `work` is left alone if it does not let itself be cancelled.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise TimeoutError
    return task.result()


async def _unheard(*_: Any, **__: Any) -> None:
    """What a server tells beside its answers."""


def _is_timeout(error: BaseException) -> bool:
    return any(
        isinstance(cause, TimeoutError) or type(cause).__name__.endswith("Timeout") for cause in causes(error)
    )


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error comes from."""
    statuses = (getattr(getattr(cause, "response", None), "status_code", None) for cause in causes(error))
    return next((int(status) for status in statuses if status is not None), None)


def _message(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:STDERR_CHARACTERS].rstrip(".")


def _keep_last_lines(stderr: int, lines: deque[str]) -> None:
    """Read a process's stderr to its end; its lines are kept without control characters."""
    with os.fdopen(stderr, "rb") as stream:
        while line := stream.readline(1 << 16):
            text = " ".join(line.decode(errors="replace").split())[:STDERR_CHARACTERS]
            if text:
                lines.append(escape_control_characters(text)[0])
