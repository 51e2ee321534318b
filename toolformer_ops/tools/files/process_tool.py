"""The tool of a file whose calls a process answers (`tool_process.py`): what all such kinds share.

A kind derives from `ProcessTool`; what its process runs derives from `Answering`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import RejectedInputError, ToolError
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.files.file_tool import FileTool
from toolformer_ops.tools.files.tool_file import RecordedTable
from toolformer_ops.tools.files.tool_process import ToolProcess

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel


class ProcessTool(FileTool):
    """The tool of a file, before its process is started."""

    recorded: RecordedTable

    def process(self) -> ToolProcess:
        """The process of the tool, which is not started yet.

        Raises:
            ToolError: a secret is not set, or a file is missing or may not be read.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override `process`")

    def recorded_now(self, described: Any) -> RecordedTable:
        """What would be recorded of what the process says of itself."""
        raise NotImplementedError(f"{type(self).__name__} does not override `recorded_now`")

    def result(self, answer: Any) -> str:
        """The answer of the process as a line of text.

        Raises:
            RejectedInputError: it is none.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override `result`")

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> "ProcessRunner":
        """Start the process, and compare what it says of itself with what is recorded.

        Raises:
            ToolError: the tool cannot be used, or its process says something else.
            InfrastructureError: nothing answers now.
        """
        process = self.process()
        now = self.recorded_now(process.open())
        if now.schema_hash != self.recorded.schema_hash:
            process.close()
            raise ToolError(
                f"tool {self.spec.name}: expected what is recorded in {self.path} ({self.recorded.words}), "
                f"found {now.words}. Take it over as another version of the tool, whose calls run anew: "
                f"toolformer-ops refresh-tool {self.path}"
            )
        return ProcessRunner(self, process)


class ProcessRunner:
    """The open tool of a file whose calls a process answers."""

    def __init__(self, tool: ProcessTool, process: ToolProcess) -> None:
        self._tool = tool
        self.process = process
        self.time_limit_seconds = 2 * (process.opening.seconds + process.opening.start_seconds)
        """Longest time of an input in a batch, with a start of the process; only what hangs reaches it."""

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        """One output an input, in order.

        Raises:
            InfrastructureError: nothing answers now, so that nothing may be said of the inputs.
        """
        outputs = []
        for call_input in inputs:
            try:
                answer = self.process.answer(self._tool.arguments(call_input))
                outputs.append(ToolOutput.of(self._tool.result(answer)))
            except RejectedInputError as error:
                outputs.append(ToolOutput.none(error.reason, error.message))
        return outputs

    def close(self) -> None:
        """End the process."""
        self.process.close()
