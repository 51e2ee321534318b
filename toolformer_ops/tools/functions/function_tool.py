"""The tool of a function.

A call's arguments become those of a function in a Python file, and what it returns a line of text. A function
with one required text takes the input as it is, `Height(Eiger)`; others name their arguments. It runs in a
process of its own (`python_function.py`), which is ended when a call takes too long. None is no result; what
raises has the reason `function_failed`. Another function of the file may propose calls for texts, in a second
process with the same limits (`FunctionProposer`). The content of the file is part of the version, so that calls are executed
anew when it changes. The code is trusted as that of a package is: whoever may write it may do what a stage
may.
"""

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import RejectedInputError, ToolError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.local_paths import local_path
from toolformer_ops.storage.corpora.record_rules import escape_control_characters
from toolformer_ops.storage.machine.shared_files import verified_sha256
from toolformer_ops.tools.base import BEYOND_THE_LIMIT, TIMED_OUT, ProposedCall, ProposedCalls
from toolformer_ops.tools.files.named_arguments import NamedArguments
from toolformer_ops.tools.files.number_text import number_text
from toolformer_ops.tools.files.process_tool import ProcessTool
from toolformer_ops.tools.files.secret_values import secret_values
from toolformer_ops.tools.files.tool_file import read_tool_file, recorded_part, short_hash
from toolformer_ops.tools.files.tool_process import Opening, ToolProcess
from toolformer_ops.tools.functions.function_file import FunctionToolFile, RecordedArguments
from toolformer_ops.tools.functions.python_function import DescribedFunction, ProposedByFunction
from toolformer_ops.tools.retrieval.sentences import cut_at_sentence_end
from toolformer_ops.tools.servers.call_texts import EMPTY, TOO_LONG, value_line

CODE_VERSION = 2
"""Raised when the same call would get another result."""
ANSWERING = ("toolformer_ops.tools.functions.python_function", "PythonFunction")
"""What the process of a function runs."""
PROPOSING = ("toolformer_ops.tools.functions.python_function", "ProposingFunction")
"""What the process of a function runs that proposes calls."""
PROCESS_ENDED = "function_ended_its_process"

logger = logging.getLogger(__name__)


class FunctionTool(ProcessTool):
    """The tool of a function. Opening it imports the file, in another process."""

    def __init__(self, path: Path) -> None:
        """Read the tool file; the function's file is not imported.

        Raises:
            ToolError: the file cannot be used.
        """
        self.file = file = read_tool_file(path, FunctionToolFile)
        self.recorded: RecordedArguments = recorded_part(path, file.recorded, "the arguments of the function")
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

    @property
    def can_propose(self) -> bool:
        """Whether the tool file names a function that does."""
        return bool(self.file.function.propose)

    def proposer_version(self, settings: Settings) -> str:
        """The content of the function's file, and the name of the function that proposes."""
        return f"{self.version(settings, '')} propose={self.file.function.propose}"

    def open_proposer(self, settings: Settings) -> "FunctionProposer":
        """Start the process that imports the function which proposes.

        Raises:
            ToolError: it cannot be imported.
        """
        process = function_process(self.file, self.path.parent, PROPOSING, self.file.function.propose)
        process.open()
        return FunctionProposer(process)

    def process(self) -> ToolProcess:
        """The process that imports the function."""
        return function_process(self.file, self.path.parent)

    def recorded_now(self, described: Any) -> RecordedArguments:
        """The arguments as the function says them."""
        return recorded_arguments(DescribedFunction(**described))

    def result(self, answer: Any) -> str:
        """What the function returns as one line."""
        return result_text(answer, self.file.limits.result_tokens)


class FunctionProposer:
    """The function of a file that proposes calls, in its process."""

    def __init__(self, process: ToolProcess) -> None:
        self._process = process

    def proposals(self, document: Document) -> ProposedCalls:
        """What it proposes for a text.

        Nothing if it raises, returns no calls, or takes too long, which is counted.

        Raises:
            InfrastructureError: the process does not start any more.
        """
        try:
            answer = ProposedByFunction(**self._process.answer({"text": document.text}))
        except RejectedInputError as error:
            logger.warning("the function that proposes: %s %s", error.reason, error.message)
            return ProposedCalls(left_out=Counter({f"proposal_{error.reason}": 1}))
        calls = [ProposedCall(char, call_input) for char, call_input in answer.calls]
        left_out = Counter({BEYOND_THE_LIMIT: answer.left_out} if answer.left_out else {})
        return ProposedCalls(calls, left_out)

    def close(self) -> None:
        """End the process."""
        self._process.close()


def function_process(
    file: FunctionToolFile,
    folder: Path,
    answering: tuple[str, str] = ANSWERING,
    function: str = "",
) -> ToolProcess:
    """The process of a function, which is not started yet; `folder` is the tool file's.

    `answering` and `function` are those of another function of the file than the tool's.

    Raises:
        ToolError: a secret is not set, or the function's file is not there or may not be read.
    """
    path = python_file(file, folder)
    secrets = secret_values(file.function.secrets, file.name)
    return ToolProcess(
        Opening(
            tool=file.name,
            table="function",
            answering=answering,
            arguments={"path": str(path), "function": function or file.function.name},
            seconds=file.limits.seconds,
            timed_out=TIMED_OUT,
            ended=PROCESS_ENDED,
            secrets=secrets,
            variables=secrets,
            folder=path.parent,
        )
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


def recorded_arguments(described: DescribedFunction) -> RecordedArguments:
    """What is recorded of a function."""
    return RecordedArguments(input_schema=json.dumps(described.input_schema, ensure_ascii=False))


def look_at_function(file: FunctionToolFile, folder: Path) -> DescribedFunction:
    """What a function says of itself; a process imports it for that.

    Errors are those of `FunctionTool.open`.
    """
    with contextlib.closing(function_process(file, folder)) as process:
        return DescribedFunction(**process.open())


def record_function(path: Path) -> tuple[RecordedArguments | None, RecordedArguments]:
    """What the file of a function's tool has recorded, and the arguments of the function now.

    Raises:
        ToolError: the file cannot be read, or the function not be a tool.
    """
    file = read_tool_file(path, FunctionToolFile)
    return file.recorded, recorded_arguments(look_at_function(file, path.parent))


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
