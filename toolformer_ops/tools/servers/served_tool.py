"""The tool of a server's file: a call becomes a request of its server, and the answer a line of text.

Calls of a tool that needs one text take the input as it is, `Capital(France)`; others name their arguments,
`Weather(city: "Paris", date: "2023-01-01")` (`call_texts.py`). When the tool is opened, its server is asked
what it is, and the tool fails if that is not what the file has recorded: its answers would be those of
another version.

Calls run side by side, within the file's limits; what is not as the schema says gets a reason and is never
sent. A call without an answer is tried again, after pauses that double, and a server that ended, hangs or
lost its connection is started or reached anew in between (`connection.py`). An input without an answer gets a
reason if the server answers another question; if it does not, or if several inputs in a row got no answer,
the batch fails as a whole (`InfrastructureError`), and the stage begins anew later.
"""

import asyncio
import atexit
import contextlib
import copy
import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolformer_ops.config import Settings
from toolformer_ops.errors import InfrastructureError, NoAnswerError, RejectedInputError, ToolError
from toolformer_ops.records import Document
from toolformer_ops.storage.machine.shared_files import verified_sha256
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.databases.cell_proposals import PROPOSAL_VERSION as CELL_PROPOSAL_VERSION
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.named_arguments import NamedArguments
from toolformer_ops.tools.files.tool_file import read_tool_file, recorded_part, short_hash
from toolformer_ops.tools.servers.call_texts import (
    check_arguments,
    result_line,
    texts_of,
)
from toolformer_ops.tools.servers.connection import REFUSED, STOP_SECONDS, Connection, ask_server
from toolformer_ops.tools.servers.server_file import RecordedPart, ServerToolFile
from toolformer_ops.tools.servers.term_proposals import (
    PROPOSAL_VERSION,
    TermIndex,
    read_terms,
    terms_file,
)

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

logger = logging.getLogger(__name__)

CODE_VERSION = 1
"""Raised when the code would send other arguments, or make another text of the same answer."""
WHOLE_ANSWER = "/(?s)^.*$/"
"""A value of `result` that takes all that the server wrote."""
MOST_TOKENS = 1000
"""Most tokens of a whole answer."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 20.0
LOGGED_REFUSALS = 5

Answer = TypeVar("Answer")


class ServedTool(FileTool):
    """The tool of a server. Opening it starts or reaches its server."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ToolError: the file cannot be used.
        """
        self.file = file = read_tool_file(path, ServerToolFile)
        self.recorded = recorded_part(path, file.recorded, f"what the server says of {file.tool}")
        whole: dict[str, Any] = json.loads(self.recorded.input_schema)
        if unknown := set(file.fixed) - set(whole.get("properties", {})):
            raise ToolError(
                f"tool file {path}: fixed: the tool has no argument {', '.join(sorted(unknown))}. Remove it."
            )
        self._whole_schema = whole
        self._arguments = NamedArguments.of(whole, file.fixed)
        self.input_argument = self._arguments.input_argument
        super().__init__(path, file, takes_input=bool(self._arguments.schema["properties"]))
        self._term_argument = self._argument_of_terms() if file.proposals.terms else ""

    @property
    def parameters(self) -> dict[str, Any]:
        """The server's input schema, without fixed arguments and without those that a call cannot name."""
        return self._arguments.parameters

    def arguments(self, call_input: str) -> dict[str, Any]:
        """What a call says, without the fixed arguments, checked against the schema."""
        return self._arguments.read(call_input, check_arguments)

    def sent_arguments(self, call_input: str) -> dict[str, Any]:
        """What is sent for a call: its own and the fixed arguments, checked against the server's schema."""
        arguments = self.arguments(call_input) | self.file.fixed
        check_arguments(arguments, self._whole_schema)
        return arguments

    def check_input(self, call_input: str) -> None:
        """Raise a RejectedInputError if a call with this input would not be sent."""
        self.sent_arguments(call_input)

    def effective_input(self, call_input: str, document: Document) -> str | None:
        """The input; if arguments are named, in one spelling.

        What cannot be sent stays, and gets its reason when run.
        """
        return self._arguments.effective_input(call_input, check_arguments)

    def version(self, settings: Settings, model_identity: str) -> str:
        """Server, its version, the tool's schema, and what of the file decides answers.

        The prompt is part of the recipe by itself (`runs/recipes.py`): another prompt samples anew, and asks
        nothing twice.
        """
        file, recorded = self.file, self.recorded
        server = file.server.model_dump(include={"command", "folder", "url", "headers", "environment"})
        deciding = [CODE_VERSION, file.tool, server, file.fixed, file.result, file.limits.result_tokens]
        return (
            f"{file.name} revision={file.revision} server={recorded.server}@{recorded.version} "
            f"schema={recorded.schema_hash} file={short_hash(json.dumps(deciding, sort_keys=True))}"
        )

    @property
    def can_propose(self) -> bool:
        """Whether the tool file names a file of terms."""
        return bool(self.file.proposals.terms)

    def proposer_version(self, settings: Settings) -> str:
        """The content of the file of terms, and what of the tool file decides how they are proposed.

        Raises:
            ToolError: the file of terms is missing or too large.
        """
        content = verified_sha256(settings, terms_file(self.file, self.path.parent))
        deciding = [PROPOSAL_VERSION, CELL_PROPOSAL_VERSION, self._term_argument, self.file.proposals.common]
        return (
            f"{self.file.name} schema={self.recorded.schema_hash} terms={content[:12]} "
            f"file={short_hash(json.dumps(deciding))}"
        )

    def open_proposer(self, settings: Settings) -> TermIndex:
        """Read the terms; errors as `read_terms`. The server is not asked."""
        terms = read_terms(self.file, self.path.parent)
        input_of = functools.partial(self._arguments.input_with, self._term_argument)
        return TermIndex(terms, self.file.proposals.common, input_of)

    def _argument_of_terms(self) -> str:
        """The argument whose values are the terms.

        Raises:
            ToolError: the tool has no such argument, or a call needs others, too.
        """
        names = list(self._arguments.schema["properties"])
        required = self._arguments.schema["required"]
        argument = self.file.proposals.argument or next(iter(required), "")
        if argument not in names or set(required) - {argument}:
            raise ToolError(
                f"tool file {self.path}: expected in [proposals] the `argument` whose values are the terms, and "
                f"that a call needs no other, found {argument or 'none'} of a tool with {', '.join(names) or 'none'}, which "
                f"needs {', '.join(required) or 'none'}. Fix the others in [fixed], or leave out [proposals]."
            )
        return argument

    def with_whole_answers(self) -> "ServedTool":
        """This tool with whole answers for results, for a look at what they hold."""
        whole = copy.copy(self)
        limits = self.file.limits.model_copy(update={"result_tokens": MOST_TOKENS})
        whole.file = self.file.model_copy(update={"result": WHOLE_ANSWER, "limits": limits})
        return whole

    def open_server(self) -> "ServerRunner":
        """Do what `open` does, which needs no settings and no model."""
        return ServerRunner(self)

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> "ServerRunner":
        """Start or reach the server, and compare what it says with what is recorded.

        Raises:
            ToolError: it cannot be started, has no such tool, says other things than are recorded, or writes
            without leave.
            InfrastructureError: it does not answer now.
        """
        return self.open_server()


def record_server(path: Path) -> tuple[RecordedPart | None, RecordedPart]:
    """What the file of a server's tool has recorded, and what the server says now.

    Raises:
        ToolError, InfrastructureError: the file cannot be read, the server does not answer, or has no such
        tool.
    """
    file = read_tool_file(path, ServerToolFile)
    return file.recorded, ask_server(file, path.parent).recorded


class ServerRunner:
    """The open tool of a file; its connection has an event loop in a separate thread."""

    def __init__(self, tool: ServedTool) -> None:
        self._tool = tool
        self._limits = limits = tool.file.limits
        pauses = LONGEST_PAUSE_SECONDS * (limits.tries - 1)
        rate = 1 / limits.calls_per_second if limits.calls_per_second else 0.0
        self.time_limit_seconds = (
            limits.tries * (limits.seconds + 2 * tool.file.server.start_seconds + rate)
            + pauses
            + 4 * STOP_SECONDS
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
        """One output an input, in order; an InfrastructureError if several inputs in a row get no answer."""
        try:
            return self._wait_for(self._answers(inputs))
        except (ToolError, InfrastructureError) as error:
            # The process ends without `close`. If the server cannot be opened again, the next process says
            # so.
            self._wait_for(self._drop(self._connection))
            raise InfrastructureError(str(error)) from error

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
                try:
                    return await self._answer(call_input)
                except RejectedInputError as error:
                    return ToolOutput.none(error.reason, error.message)

        tasks = [asyncio.create_task(answer(item)) for item in inputs]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, call_input: str) -> ToolOutput:
        """The output of one input; a RejectedInputError is the reason that there is no result."""
        from tenacity import (
            AsyncRetrying,
            retry_if_exception_type,
            stop_after_attempt,
            wait_random_exponential,
        )

        file = self._tool.file
        # 1. What is sent.
        arguments = self._tool.sent_arguments(call_input)
        # 2. The server's answer, in several tries.
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(self._limits.tries),
                wait=wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS),
                retry=retry_if_exception_type(NoAnswerError),
                reraise=True,
            ):
                with attempt:
                    await self._wait_for_turn()
                    result = await self._call(arguments)
        # 3. None came. Is it the input, or the server?
        except NoAnswerError as error:
            self._failures += 1
            connection = await self._connected()
            if self._failures >= self._limits.failures:
                # The next batch has one input to show that the server answers again.
                count, self._failures = self._failures, self._limits.failures - 1
                raise InfrastructureError(
                    connection.told(
                        f"expected answers, found none to {count} inputs in a row: {error}", "Look at its log"
                    )
                ) from error
            logger.warning(
                "%s: no answer to %.80r after %d tries: %s", file.name, call_input, self._limits.tries, error
            )
            return ToolOutput.none(error.reason, str(error))
        self._failures = 0
        # 4. One line.
        if result.is_error:
            said = (await self._connected()).without_secrets(texts_of(result))
            self._refusals += 1
            if self._refusals <= LOGGED_REFUSALS:
                logger.warning(
                    "%s: the server answers %.80r with an error: %.200r", file.name, call_input, said
                )
            raise RejectedInputError(REFUSED, said)
        return ToolOutput.of(result_line(result, file.result, self._limits.result_tokens))

    async def _wait_for_turn(self) -> None:
        """Wait until another call may start, within the file's calls a second."""
        if self._limits.calls_per_second:
            now = time.monotonic()
            start = max(now, self._next_start)
            self._next_start = start + 1 / self._limits.calls_per_second
            await asyncio.sleep(start - now)

    async def _call(self, arguments: Mapping[str, Any]) -> Any:
        """The server's result; a connection without an answer is dropped."""
        connection = await self._connected()
        try:
            return await connection.call(arguments, self._limits.seconds)
        except NoAnswerError:
            await self._drop(connection)
            raise

    async def _connected(self) -> Connection:
        """The connection, a new one if the last was lost."""
        async with self._connecting:
            if self._connection is None:
                connection = Connection(self._tool.file, self._tool.path.parent)
                try:
                    self._require_as_recorded(connection, (await connection.open()).recorded)
                except BaseException:
                    await connection.close()
                    raise
                self._connection = connection
            return self._connection

    def _require_as_recorded(self, connection: Connection, now: RecordedPart) -> None:
        """Raise a ToolError unless the server says what is recorded, and the tool only reads or may write."""
        file, recorded, path = self._tool.file, self._tool.recorded, self._tool.path
        if now.read_only is False and not file.allow_writes:
            raise ToolError(
                connection.told(
                    f"expected a tool that only reads, found that the server marks {file.tool} as one that "
                    "writes",
                    f"If texts of a language model may decide what it writes: allow_writes = true in {path}",
                )
            )
        said = [(part.server, part.version, part.schema_hash) for part in (recorded, now)]
        differing = [
            f"{what} {was} is now {is_now}"
            for what, was, is_now in zip(("server", "version", "schema"), *said, strict=True)
            if was != is_now
        ]
        if differing:
            raise ToolError(
                connection.told(
                    f"expected the server that is recorded in {path}, found another version: "
                    f"{', '.join(differing)}",
                    "Take it over as another version of the tool, whose calls run anew: toolformer-ops "
                    f"refresh-tool {path}",
                )
            )

    async def _drop(self, connection: Connection | None) -> None:
        async with self._connecting:
            if connection is not None and self._connection is connection:
                self._connection = None
                await connection.close()
