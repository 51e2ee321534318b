"""Ask the server of a tool file for the answers to a batch of inputs (`server_connection.py` is one connection to it).

`ServerRunner.run` does:

1. The arguments are read and checked; what is not as the schema says gets a reason and is never sent.
2. Calls run side by side, within the file's limits. One that gets no answer is tried again, after pauses that double, and a
   server that ended, hangs or lost its connection is started or reached anew in between.
3. An input without an answer gets a reason where the server is there for another question; where it is not, or where several
   inputs in a row got no answer, the batch fails as a whole (`ToolServerError`): nothing is said of its inputs, and the stage
   begins anew later.
4. An answer becomes one line of text within a budget. It is hostile: control characters are escaped, and `call_syntax.py` takes
   its square brackets when it is written into a text.
"""

import asyncio
import atexit
import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from toolformer_ops.errors import InfrastructureError, NoAnswerError, RejectedInputError, ToolError, ToolServerError
from toolformer_ops.storage.corpus_records import escape_control_characters
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.retrieval.sentences import cut_at_sentence_end
from toolformer_ops.tools.servers.connection import REFUSED, STOP_SECONDS, Connection, ServerTool, texts_of
from toolformer_ops.tools.servers.tool_file import schema_hash

if TYPE_CHECKING:
    from toolformer_ops.tools.servers.tool_file import FileTool

logger = logging.getLogger(__name__)

NOT_TEXT = "result_not_text"
LACKS_FIELD = "result_lacks_field"
TOO_LONG = "result_too_long"
EMPTY = "empty_result"

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 20.0
MOST_CHARACTERS_A_WORD = 8
"""A result is cut to so many times its budget of words and punctuation marks before these are counted."""
LOGGED_REFUSALS = 5

Answer = TypeVar("Answer")
_FIELD = re.compile(r"\{([^{}]*)\}")
_PART = re.compile(r"(.*)\[(-?\d{0,4}):(-?\d{0,4})\]")
"""A field and the characters of it that are taken."""


class ServerRunner:
    """The open tool of a file; its connection has an event loop in a thread of its own."""

    def __init__(self, tool: "FileTool") -> None:
        """Start or reach the server, and compare what it says with the file.

        Raises:
            ToolError: it cannot be started, says other things than are recorded, or may write.
            ToolServerError: it does not answer now.
        """
        self._tool = tool
        self._limits = limits = tool.file.limits
        pauses = LONGEST_PAUSE_SECONDS * (limits.tries - 1)
        rate = 1 / limits.calls_per_second if limits.calls_per_second else 0.0
        self.time_limit_seconds = (
            limits.tries * (limits.seconds + 2 * tool.file.server.start_seconds + rate) + pauses + 4 * STOP_SECONDS
        )
        """Longest time of an input in a batch; only what hangs in spite of all other limits reaches it."""
        self._connection: Connection | None = None
        self._failures = 0
        self._refusals = 0
        self._next_start = 0.0
        self._loop = asyncio.new_event_loop()
        self._connecting = asyncio.Lock()
        threading.Thread(target=self._loop.run_forever, daemon=True, name=f"tool {tool.file.name}").start()
        atexit.register(self.close)
        try:
            self._wait_for(self._connected())
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One output an input, in order.

        Raises:
            ToolServerError: the server is not there, or answers several inputs in a row not at all.
        """
        try:
            return self._wait_for(self._answers(inputs))
        except (ToolError, InfrastructureError) as error:
            self._wait_for(self._drop(self._connection))  # before the process begins anew, without an end of its own
            raise ToolServerError(str(error)) from error  # where it could not be opened again, the next process says so

    def close(self) -> None:
        """End the server."""
        atexit.unregister(self.close)
        if self._loop.is_running():
            with contextlib.suppress(Exception):
                self._wait_for(self._drop(self._connection), timeout=2 * STOP_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _wait_for(self, work: Coroutine[Any, Any, Answer], timeout: float | None = None) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    async def _answers(self, inputs: Sequence[str]) -> list[ToolOutput]:
        free = asyncio.Semaphore(self._limits.concurrency)

        async def answer(call_input: str) -> ToolOutput:
            async with free:
                return await self._answer(call_input)

        tasks = [asyncio.create_task(answer(item)) for item in inputs]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, call_input: str) -> ToolOutput:
        """The output of one input."""
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

        file = self._tool.file
        try:
            # 1. What is sent.
            arguments = self._tool.sent_arguments(call_input)
            # 2. The server's answer, in several tries.
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(self._limits.tries),
                wait=wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS),
                retry=retry_if_exception_type(NoAnswerError),
                reraise=True,
            ):
                with attempt:
                    await self._turn()
                    connection = await self._connected()
                    try:
                        result = await connection.call(arguments, self._limits.seconds)
                    except NoAnswerError:
                        await self._drop(connection)
                        raise
        except RejectedInputError as error:
            return ToolOutput.none(error.reason)
        # 3. None came. Is it the input, or the server?
        except NoAnswerError as error:
            self._failures += 1
            connection = await self._connected()
            if self._failures >= self._limits.failures:
                # The next batch has one input to show that the server is there again.
                count, self._failures = self._failures, self._limits.failures - 1
                raise ToolServerError(
                    connection.told(
                        f"expected answers, found none to {count} inputs in a row: {error}", "Look at its log"
                    )
                ) from error
            logger.warning(
                "%s: no answer to %.80r after %d tries: %s", file.name, call_input, self._limits.tries, error
            )
            return ToolOutput.none(error.reason)
        self._failures = 0
        # 4. One line.
        if result.is_error:
            self._refusals += 1
            if self._refusals <= LOGGED_REFUSALS:
                logger.warning(
                    "%s: the server answers %.80r with an error: %.200r", file.name, call_input, texts_of(result)
                )
            return ToolOutput.none(REFUSED)
        try:
            return ToolOutput.of(result_line(result, file.result, self._limits.result_tokens))
        except RejectedInputError as error:
            return ToolOutput.none(error.reason)

    async def _turn(self) -> None:
        """Wait until another call may start."""
        if self._limits.calls_per_second:
            now = time.monotonic()
            start = max(now, self._next_start)
            self._next_start = start + 1 / self._limits.calls_per_second
            await asyncio.sleep(start - now)

    async def _connected(self) -> Connection:
        """The connection, a new one where the last was lost."""
        async with self._connecting:
            if self._connection is None:
                tool = self._tool
                connection = Connection(tool.file.server, tool.path.parent, tool.file.tool, tool.file.name)
                await connection.open()
                try:
                    require_as_recorded(tool, connection, await connection.describe())
                except BaseException:
                    await connection.close()
                    raise
                self._connection = connection
            return self._connection

    async def _drop(self, connection: Connection | None) -> None:
        async with self._connecting:
            if connection is not None and self._connection is connection:
                self._connection = None
                await connection.close()


def require_as_recorded(tool: "FileTool", connection: Connection, found: ServerTool) -> None:
    """Require that the server says what is recorded, and that the tool only reads or may write.

    Raises:
        ToolError: it does not.
    """
    recorded, now, path = tool.file.recorded, found.recorded, tool.path
    if recorded is None:
        raise ToolError(f"tool file {path}: expected a table [recorded]. Write it: toolformer-ops refresh-tool {path}")
    if now.read_only is False and not tool.file.allow_writes:
        raise ToolError(
            connection.told(
                f"expected a tool that only reads, found that the server marks {tool.file.tool} as one that writes",
                f"Where texts of a language model may decide what it writes: allow_writes = true in {path}",
            )
        )
    differing = [
        f"{what} {was} is now {is_now}"
        for what, was, is_now in (
            ("server", recorded.server, now.server),
            ("version", recorded.version, now.version),
            ("schema", schema_hash(recorded.input_schema), schema_hash(now.input_schema)),
        )
        if was != is_now
    ]
    if differing:
        raise ToolError(
            connection.told(
                f"expected the server that is recorded in {path}, found another version: {', '.join(differing)}",
                f"Take it over as another version of the tool, whose calls run anew: toolformer-ops refresh-tool {path}",
            )
        )


def result_line(result: Any, template: str, tokens: int) -> str:
    """An mcp_types.CallToolResult as one line of at most `tokens` words and punctuation marks.

    Raises:
        RejectedInputError: it holds no text, not the template's fields, or nothing.
    """
    text = texts_of(result)
    structured = result.structured_content
    if structured is None:
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(text)
            structured = parsed if isinstance(parsed, dict) else None
    try:
        if template:
            text = _FIELD.sub(lambda match: _shown(structured, match[1]), template)
        elif structured is not None and (not text or text.lstrip().startswith("{")):
            # A server of FastMCP wraps what is no object.
            text = _line(structured["result"] if set(structured) == {"result"} else structured)
        elif not text:
            raise RejectedInputError(NOT_TEXT if any(block.type != "text" for block in result.content) else EMPTY)
    except RecursionError as error:  # lists in lists, as deep as a hostile server likes
        raise RejectedInputError(TOO_LONG) from error
    text = text[: tokens * MOST_CHARACTERS_A_WORD].encode(errors="replace").decode()
    line = escape_control_characters(" ".join(text.split()))[0]
    if not line:
        raise RejectedInputError(EMPTY)
    cut = cut_at_sentence_end(line, tokens)
    if not cut:
        raise RejectedInputError(TOO_LONG)
    return cut


def _shown(structured: Any, place: str) -> str:
    """What a place of the template stands for: a field, or with `[11:16]` behind it these characters of it, as in Python."""
    part = _PART.fullmatch(place.strip())
    if part is None:
        return _line(_field(structured, place))
    first, end = (int(bound) if bound else None for bound in part.group(2, 3))
    cut = _line(_field(structured, part[1]))[first:end]
    if not cut:
        raise RejectedInputError(LACKS_FIELD)
    return cut


def _field(structured: Any, path: str) -> Any:
    """The value at `field.of.it`; numbers count the items of a list."""
    value = structured
    for part in path.strip().split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RejectedInputError(LACKS_FIELD) from error
    return value


def _line(value: Any) -> str:
    """A value of JSON in words."""
    if isinstance(value, dict):
        return ", ".join(
            f"{name}: ({_line(item)})" if isinstance(item, dict) else f"{name}: {_line(item)}"
            for name, item in value.items()
        )
    if isinstance(value, list):
        return ", ".join(f"({_line(item)})" if isinstance(item, (dict, list)) else _line(item) for item in value)
    return value if isinstance(value, str) else json.dumps(value)
