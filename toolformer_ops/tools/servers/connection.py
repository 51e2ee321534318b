"""One connection to the server of a tool file: an MCP server that is started, or reached by streamable HTTP, or an OpenAPI service.

It is opened, describes the tool, answers calls, and is closed, each within a time limit; fastmcp is the client. `tool_server.py`
decides what is tried again, and turns answers into results.

A started server gets a bare environment (PATH, HOME and the like) with the variables and secrets that the file names, and none
of this deployment's settings. Its stderr is read, and its last lines are part of each error.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dotenv import dotenv_values

from toolformer_ops.config import state_dir
from toolformer_ops.errors import NoAnswerError, RejectedInputError, ToolError, ToolServerError, UsageError
from toolformer_ops.local_paths import read_beside
from toolformer_ops.storage.corpus_records import escape_control_characters
from toolformer_ops.tools.servers.tool_file import SECRET, RecordedPart, ServerPart

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
"""Of each line of an error."""

MOST_DOCUMENT_CHARACTERS = 50_000_000
"""Of an OpenAPI document in YAML, whose aliases may repeat a part any number of times; GitHub's document has 12 million."""

Answer = TypeVar("Answer")
_FOR_A_WHILE = re.compile(r"HTTP error (?:408|429|5\d\d)\b|Request error \(|HTTP request timed out")
"""In the error of an OpenAPI operation, which fastmcp returns as a text: another try may get an answer."""


@dataclass(frozen=True)
class ServerTool:
    """A tool as its server describes it."""

    recorded: RecordedPart
    description: str
    others: tuple[str, ...]
    """The names of all tools of the server."""


class Connection:
    """One connection to a server, from its start to its end; used in one event loop."""

    def __init__(self, server: ServerPart, folder: Path, tool: str, name: str) -> None:
        """Prepare it; `folder` is the tool file's, `tool` the server's name of the tool, `name` that of the tool in calls.

        Raises:
            ToolError: a secret is not set, or an OpenAPI document cannot be read.
        """
        self._server = server
        self._tool = tool
        self._name = name
        self._secrets = _secrets(server, name)
        self._tail = _Tail()
        self._folder = folder
        self._client: Any = None
        self._identity: tuple[str, str] | None = None

    async def open(self) -> None:
        """Start or reach the server.

        Raises:
            ToolError: it cannot be started, or refuses.
            ToolServerError: it does not answer now.
        """
        import fastmcp  # noqa: F401 - where it is not installed, the message says so

        server = self._server
        try:
            self._client = self._new_client()
            await _within(server.start_seconds, self._client.__aenter__())
        except Exception as error:
            reached = f"{server.start_seconds:g} s without an answer" if _is_timeout(error) else _message(error)
            await self.close()
            await asyncio.sleep(STDERR_SECONDS)
            kind: type[ToolError | ToolServerError] = ToolError
            if server.url and not 400 <= (_status(error) or 0) < 408:
                kind = ToolServerError
            what = f"start it by hand: {' '.join(server.command)}" if server.command else f"is {server.url} right?"
            raise kind(
                self.told(f"expected a server that answers, found: {reached}", f"Look at its log, or {what}")
            ) from error

    async def close(self) -> None:
        """End the connection, and the server where it was started."""
        client, self._client = self._client, None
        with contextlib.suppress(Exception):
            if client is not None:
                await _within(STOP_SECONDS if self._server.command else PARTING_SECONDS, client.close())
        self._tail.close()

    async def describe(self) -> ServerTool:
        """What the server says of itself and of the tool.

        Raises:
            ToolError: it has no such tool, or describes it in a way that cannot be used.
            ToolServerError: it does not answer.
        """
        try:
            listed = await _within(self._server.start_seconds, self._client.list_tools())
        except Exception as error:
            raise ToolServerError(
                self.told(f"expected its list of tools, found: {_message(error)}", "Look at its log")
            ) from error
        names = tuple(tool.name for tool in listed)
        found = next((tool for tool in listed if tool.name == self._tool), None)
        if found is None:
            there = ", ".join(names[:20]) or "none"
            raise ToolError(
                self.told(f"expected a tool {self._tool!r} of the server, found {there}", "Name one of them")
            )
        info = self._client.server_info
        server, version = self._identity or (info.name, info.version) if info else self._identity or ("unknown", "")
        recorded = RecordedPart(
            server=server,
            version=version,
            read_only=self._is_read_only(found),
            input_schema=json.dumps(found.input_schema),
        )
        return ServerTool(recorded, found.description or "", names)

    async def call(self, arguments: Mapping[str, Any], seconds: float) -> Any:
        """The server's result, an mcp_types.CallToolResult.

        Raises:
            NoAnswerError: none came, and the connection may be lost.
            RejectedInputError: the server refused the request as such.
        """
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        try:
            asked = self._client.call_tool_mcp(self._tool, dict(arguments), timeout=seconds)
            result = await _within(seconds + 1, asked)
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise NoAnswerError(TIMED_OUT, f"no answer within {seconds:g} s") from error
            if error.code == CONNECTION_CLOSED or _status(error) is not None:
                raise NoAnswerError(FAILED, await self._last_words(error)) from error
            logger.warning("%s: the server refused a request: %.200r", self._name, error.message)
            raise RejectedInputError(REFUSED) from error
        except Exception as error:  # the transports raise their own, such as httpx2's, OSError and RuntimeError
            if _is_timeout(error):
                raise NoAnswerError(TIMED_OUT, f"no answer within {seconds:g} s") from error
            raise NoAnswerError(FAILED, await self._last_words(error)) from error
        if self._server.openapi and result.is_error and _FOR_A_WHILE.search(texts_of(result)):
            raise NoAnswerError(FAILED, texts_of(result)[:STDERR_CHARACTERS])
        return result

    def told(self, what: str, remedy: str) -> str:
        """An error message: the tool, what was expected and found, the server's last lines, the remedy. No secret is in it."""
        return f"tool {self._name}: {self._hidden(what + self._stderr())}. {remedy}."

    async def _last_words(self, error: BaseException) -> str:
        await asyncio.sleep(STDERR_SECONDS)
        return self._hidden(_message(error) + self._stderr())

    def _stderr(self) -> str:
        lines = self._tail.lines()
        return f"; its last lines on stderr: {' | '.join(lines)}" if lines else ""

    def _hidden(self, text: str) -> str:
        for name, value in self._secrets.items():
            text = text.replace(value, f"<{name}>")
        return text

    def _new_client(self) -> Any:
        from fastmcp import Client
        from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

        server = self._server
        headers = {
            key: SECRET.sub(lambda match: self._secrets[match[1]], value) for key, value in server.headers.items()
        }
        if server.command:
            program = shutil.which(server.command[0], path=os.environ.get("PATH"))
            cwd = self._folder / server.folder
            # A program in the tool's own folder, such as ./server, is found from there.
            transport: Any = StdioTransport(
                program or server.command[0],
                list(server.command[1:]),
                env={**server.environment, **self._secrets},
                cwd=str(cwd),
                keep_alive=False,
                log_file=self._tail.writer,
            )
        elif server.openapi:
            transport = self._openapi_server(headers)
        else:
            # A redirect would carry secret headers to another address.
            factory = _client_without_redirects if headers else None
            transport = StreamableHttpTransport(server.url, headers=headers, httpx_client_factory=factory)
        return Client(transport, init_timeout=server.start_seconds, log_handler=_unheard, progress_handler=_unheard)

    def _openapi_server(self, headers: dict[str, str]) -> Any:
        import httpx2
        import yaml
        from fastmcp import FastMCP

        path = self._folder / self._server.openapi
        try:
            text = read_beside(self._folder, self._server.openapi).decode()
            document = json.loads(text if path.suffix == ".json" else _as_json(yaml.safe_load(text)))
            info = document["info"]
            self._identity = str(info["title"]), str(info["version"])
            client = httpx2.AsyncClient(base_url=self._server.url, headers=headers, timeout=None)
            self._methods = {
                operation.get("operationId"): method
                for item in document["paths"].values()
                for method, operation in item.items()
                if isinstance(operation, dict)
            }
            return FastMCP.from_openapi(document, client, name=self._identity[0], validate_output=False)
        except UsageError as error:
            raise ToolError(f"tool {self._name}: {error}") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as error:
            # YAML's message quotes the document.
            mark = getattr(error, "problem_mark", None)
            found = f"{getattr(error, 'problem', '')} in line {mark.line + 1}" if mark else " ".join(str(error).split())
            raise ToolError(
                f"tool {self._name}: {path}: expected an OpenAPI 3 document as JSON or YAML, found {type(error).__name__}: {found}."
            ) from error

    def _is_read_only(self, tool: Any) -> bool | None:
        if self._server.openapi:
            return self._methods.get(tool.name) in {"get", "head"}
        said: bool | None = tool.annotations.read_only_hint if tool.annotations else None
        return said


def _as_json(document: Any) -> str:
    """A YAML document as JSON would have it: YAML reads 200 as a number and 2023-01-30 as a date.

    Raises:
        ValueError: its aliases make it longer than `MOST_DOCUMENT_CHARACTERS`.
    """
    characters = _written_out(document, {})
    if characters > MOST_DOCUMENT_CHARACTERS:
        raise ValueError(
            f"{characters:,} characters with all aliases written out, where at most {MOST_DOCUMENT_CHARACTERS:,} are read"
        )
    return json.dumps(document, default=str)


def _written_out(part: Any, known: dict[int, int]) -> int:
    """Characters of a YAML document with each alias replaced by the part that it repeats, about; `known` holds them by object.

    Raises:
        RecursionError: an alias is inside the part that it repeats.
    """
    if not isinstance(part, dict | list):
        return len(str(part)) + 2
    if id(part) not in known:
        inside = [*part, *part.values()] if isinstance(part, dict) else part
        known[id(part)] = 2 + sum(_written_out(one, known) for one in inside)
    return known[id(part)]


def ask_server(server: ServerPart, folder: Path, tool: str, name: str) -> ServerTool:
    """What a server says of a tool; it is started and ended for it.

    Raises:
        ToolError, ToolServerError: it does not answer, or has no such tool.
    """

    async def ask() -> ServerTool:
        connection = Connection(server, folder, tool, name)
        await connection.open()
        try:
            return await connection.describe()
        finally:
            await connection.close()

    return asyncio.run(ask())


def texts_of(result: Any) -> str:
    """The texts of an mcp_types.CallToolResult."""
    return " ".join(block.text for block in result.content if block.type == "text").strip()


def _secrets(server: ServerPart, name: str) -> dict[str, str]:
    stored = dotenv_values(state_dir() / "environment") if server.secrets else {}
    found = {secret: os.environ.get(secret) or stored.get(secret) or "" for secret in server.secrets}
    if missing := [secret for secret, value in found.items() if not value]:
        raise ToolError(
            f"tool {name}: expected the environment variables {', '.join(missing)} (`secrets` of its file), found none of that "
            "name. Set them where the stages run: in the environment, in the file `environment` of the state folder, or in the "
            "Kubernetes Secret."
        )
    return found


async def _within(seconds: float, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What `work` returns; it is left alone after `seconds`, even where it does not let itself be cancelled.

    Raises:
        TimeoutError: it took longer.
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


def _client_without_redirects(**options: Any) -> Any:
    import httpx2

    return httpx2.AsyncClient(**{**options, "follow_redirects": False})


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from; the chains of the client's libraries may be circles."""
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in seen:
        yield following
        seen.append(following)
        following = following.__cause__ or following.__context__


def _is_timeout(error: BaseException) -> bool:
    return any(isinstance(one, TimeoutError) or type(one).__name__.endswith("Timeout") for one in _causes(error))


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error comes from."""
    found = (getattr(getattr(one, "response", None), "status_code", None) for one in _causes(error))
    return next((int(status) for status in found if status is not None), None)


def _message(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:STDERR_CHARACTERS].rstrip(".")


class _Tail:
    """The last lines of a process's stderr, which a thread reads."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.writer = os.fdopen(writing, "w")
        self._lines: deque[str] = deque(maxlen=STDERR_LINES)
        threading.Thread(target=self._read, args=(reading,), daemon=True, name="stderr of a tool").start()

    def lines(self) -> list[str]:
        """The last lines, oldest first, without control characters."""
        return list(self._lines)

    def close(self) -> None:
        """No more is written by this process."""
        self.writer.close()

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as stream:
            while line := stream.readline(1 << 16):
                text = " ".join(line.decode(errors="replace").split())[:STDERR_CHARACTERS]
                if text:
                    self._lines.append(escape_control_characters(text)[0])
