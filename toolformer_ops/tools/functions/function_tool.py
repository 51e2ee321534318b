"""The tool of a function.

A call's arguments become those of a function in a Python file, and what it returns a line of text. A function
with one required text takes the input as it is, `Height(Eiger)`; others name their arguments. It runs in a
process of its own (`worker.py`), which is ended when a call takes too long. None is no result; what raises
has the reason `function_failed`. The content of the file is part of the version, so that calls are executed
anew when it changes. The code is trusted as that of a package is: whoever may write it may do what a stage
may.
"""

import atexit
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import InfrastructureError, RejectedInputError, ToolError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.local_paths import local_path
from toolformer_ops.storage.corpora.record_rules import escape_control_characters
from toolformer_ops.storage.machine.file_hashes import verified_sha256
from toolformer_ops.tools.base import TIMED_OUT, ToolOutput
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.line_process import EndedError, LateError, LineProcess
from toolformer_ops.tools.files.named_arguments import NamedArguments
from toolformer_ops.tools.files.number_text import number_text
from toolformer_ops.tools.files.secret_values import secret_values, without_secrets
from toolformer_ops.tools.files.tool_file import read_tool_file, recorded_part, short_hash
from toolformer_ops.tools.functions.function_file import FunctionToolFile, RecordedArguments
from toolformer_ops.tools.retrieval.sentences import cut_at_sentence_end
from toolformer_ops.tools.servers.call_texts import EMPTY, TOO_LONG, value_line

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

logger = logging.getLogger(__name__)

CODE_VERSION = 2
"""Raised when the same call would get another result."""
MODULE = "toolformer_ops.tools.functions.worker"
START_SECONDS = 50.0
"""Longest import of the file and of what it imports."""
LOGGED_FAILURES = 5
FAILED = "function_failed"
NOT_TEXT = "result_not_text"
PROCESS_ENDED = "function_ended_its_process"


@dataclass(frozen=True)
class DescribedFunction:
    """A function as it says itself."""

    recorded: RecordedArguments
    description: str
    """Its docstring."""


class FunctionTool(FileTool):
    """The tool of a function. Opening it imports the file, in another process."""

    def __init__(self, path: Path) -> None:
        """Read the tool file; the function's file is not imported.

        Raises:
            ToolError: the file cannot be used.
        """
        self.file = file = read_tool_file(path, FunctionToolFile)
        self.recorded = recorded_part(path, file.recorded, "the arguments of the function")
        self._arguments = NamedArguments.of(json.loads(self.recorded.input_schema))
        self.input_argument = self._arguments.input_argument
        super().__init__(path, file, takes_input=bool(self._arguments.schema["properties"]))

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments of the function that a call can name."""
        return self._arguments.parameters

    def arguments(self, call_input: str) -> dict[str, Any]:
        """What a call says; the function's process checks the values."""
        return self._arguments.read(call_input, _check_names)

    def effective_input(self, call_input: str, document: Document) -> str | None:
        """The input; if arguments are named, in one spelling."""
        return self._arguments.effective_input(call_input, _check_names)

    def version(self, settings: Settings, model_identity: str) -> str:
        """The content of the function's file, and what of the tool file decides answers.

        Raises:
            ToolError: the function's file is not there.
        """
        file = self.file
        content = verified_sha256(settings, python_file(file, self.path.parent))
        deciding = [CODE_VERSION, file.function.name, file.limits.result_tokens]
        return (
            f"{file.name} revision={file.revision} content={content[:12]} schema={self.recorded.schema_hash} "
            f"file={short_hash(json.dumps(deciding))}"
        )

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> "FunctionRunner":
        """Import the function, and compare its arguments with those that are recorded.

        Raises:
            ToolError: it cannot be imported, or has other arguments.
        """
        runner = FunctionRunner(self)
        try:
            now = runner.describe().recorded
            if now.schema_hash != self.recorded.schema_hash:
                raise ToolError(  # noqa: TRY301
                    f"tool {self.file.name}: expected the arguments that are recorded in {self.path} "
                    f"({self.recorded.words}), found others ({now.words}). Take them over as another version "
                    f"of the tool, whose calls run anew: toolformer-ops refresh-tool {self.path}"
                )
        except BaseException:
            runner.close()
            raise
        return runner


class FunctionRunner:
    """The open tool of a function."""

    def __init__(self, tool: FunctionTool) -> None:
        """Prepare it.

        Raises:
            ToolError: a secret is not set, or the file may not be read.
        """
        self._tool = tool
        self._process = FunctionProcess(tool.file, tool.path.parent)
        self._failures = 0
        self.time_limit_seconds = 2 * (tool.file.limits.seconds + START_SECONDS)
        """Longest time of an input in a batch, with a start of the process; only what hangs reaches it."""
        atexit.register(self.close)

    def describe(self) -> DescribedFunction:
        """Start the process; returns what the function says of itself."""
        return self._process.open()

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One output an input, in order.

        It is an InfrastructureError if the function cannot be imported any more.
        """
        try:
            return [self._output(call_input) for call_input in inputs]
        except ToolError as error:
            raise InfrastructureError(str(error)) from error

    def close(self) -> None:
        """End the process."""
        atexit.unregister(self.close)
        self._process.close()

    def _output(self, call_input: str) -> ToolOutput:
        try:
            answer = self._process.ask(self._tool.arguments(call_input))
            if "raised" in answer:
                self._log_failure(call_input, answer["raised"])
                return ToolOutput.none(FAILED, answer["raised"])
            if "wrong_arguments" in answer:
                return ToolOutput.none("argument_not_of_the_schema")
            if "no_text" in answer:
                return ToolOutput.none(NOT_TEXT)
            return ToolOutput.of(result_text(answer["result"], self._tool.file.limits.result_tokens))
        except RejectedInputError as error:
            return ToolOutput.none(error.reason)

    def _log_failure(self, call_input: str, said: str) -> None:
        self._failures += 1
        if self._failures <= LOGGED_FAILURES:
            logger.warning("%s: the function raises for %.80r: %s", self._tool.file.name, call_input, said)


class FunctionProcess:
    """A function that another process has imported."""

    def __init__(self, file: FunctionToolFile, folder: Path) -> None:
        """Prepare it; `folder` is the tool file's.

        Raises:
            ToolError: a secret is not set, or the function's file is not there or may not be read.
        """
        self._file = file
        self._path = python_file(file, folder)
        self._secrets = secret_values(file.function.secrets, file.name)
        self._process = LineProcess(MODULE, folder=self._path.parent, variables=self._secrets)

    def open(self) -> DescribedFunction:
        """Start it and import the function.

        Raises:
            ToolError: the function cannot be a tool.
        """
        self._process.start()
        question = {"path": str(self._path), "function": self._file.function.name}
        try:
            answer = self._process.ask(question, START_SECONDS)
        except LateError as error:
            raise self._told(f"expected {self._path} to be imported within {START_SECONDS:.0f} s") from error
        except EndedError as error:
            raise self._told(
                f"expected {self._path} to be imported, found that it ends its process"
            ) from error
        if "wrong" in answer:
            self._process.close()
            raise self._told(answer["wrong"])
        recorded = RecordedArguments(input_schema=json.dumps(answer["input_schema"], ensure_ascii=False))
        return DescribedFunction(recorded, answer["description"])

    def ask(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the function answers, or that it raised.

        Raises:
            RejectedInputError: it took too long, or ended its process.
        """
        if not self._process.is_running:
            self.open()
        try:
            answer = self._process.ask(dict(arguments), self._file.limits.seconds)
        except LateError as error:
            raise RejectedInputError(TIMED_OUT) from error
        except EndedError as error:
            raise RejectedInputError(PROCESS_ENDED) from error
        if "raised" in answer:
            answer["raised"] = without_secrets(answer["raised"], self._secrets)
        return answer

    def close(self) -> None:
        """End it."""
        self._process.close()

    def _told(self, what: str) -> ToolError:
        return ToolError(
            f"tool {self._file.name}: {without_secrets(what.rstrip('.'), self._secrets)}. Mend it."
        )


def result_text(value: Any, tokens: int) -> str:
    """What a function returns as one line of at most `tokens` words and punctuation marks.

    Raises:
        RejectedInputError: it is None, an empty text, or its first sentence is too long.
    """
    if value is None:
        raise RejectedInputError(EMPTY)
    text = number_text(value) if isinstance(value, float) else value_line(value)
    line = escape_control_characters(" ".join(text.split()))[0]
    if not line:
        raise RejectedInputError(EMPTY)
    cut = cut_at_sentence_end(line, tokens)
    if not cut:
        raise RejectedInputError(TOO_LONG)
    return cut


def look_at_function(file: FunctionToolFile, folder: Path) -> DescribedFunction:
    """What a function says of itself; a process imports it for that.

    Errors are those of `FunctionTool.open`.
    """
    process = FunctionProcess(file, folder)
    try:
        return process.open()
    finally:
        process.close()


def record_function(path: Path) -> tuple[RecordedArguments | None, RecordedArguments]:
    """What the file of a function's tool has recorded, and the arguments of the function now.

    Raises:
        ToolError: the file cannot be read, or the function not be a tool.
    """
    file = read_tool_file(path, FunctionToolFile)
    return file.recorded, look_at_function(file, path.parent).recorded


def python_file(file: FunctionToolFile, folder: Path) -> Path:
    """The absolute path of the function's file; relative to the tool file's folder.

    Raises:
        ToolError: it is missing, or this deployment allows no reading there.
    """
    try:
        path = local_path(load_settings(), str(folder / file.function.file), "file", within=folder)
    except UsageError as error:
        raise ToolError(f"tool {file.name}: {error}") from error
    if not path.is_file():
        raise ToolError(f"tool {file.name}: expected a file of Python at {path}, found none.")
    return path


def _check_names(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Raise a RejectedInputError if an argument is unknown or missing."""
    if not set(arguments) <= set(schema["properties"]):
        raise RejectedInputError("argument_unknown")
    if not set(schema["required"]) <= set(arguments):
        raise RejectedInputError("argument_missing")
