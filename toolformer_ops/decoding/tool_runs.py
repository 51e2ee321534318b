"""Run the calls that writers wait for: all calls of one tool together, tools opened when they are first called.

A tool that cannot be opened gives every call of it a reason, `tool_not_available`, and is named once in the log; `require` is for
those who want to know beforehand.
"""

import datetime
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.decoding.writer import Writer
from toolformer_ops.errors import ToolformerError
from toolformer_ops.records import Document
from toolformer_ops.tools.base import Tool, ToolOutput, ToolRunner, run_tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

logger = logging.getLogger(__name__)

NOT_AVAILABLE = "tool_not_available"


class ToolRuns:
    """The tools of one model."""

    def __init__(self, settings: Settings, tools: Sequence[str], load_model: "Callable[[], LanguageModel]") -> None:
        self._settings = settings
        self._load_model = load_model
        self._tools: dict[str, Tool] = {name: get_tool(name) for name in tools}
        self._runners: dict[str, ToolRunner | None] = {}

    @property
    def names(self) -> frozenset[str]:
        """The tools that may be called."""
        return frozenset(self._tools)

    def require(self, barred: Sequence[str] = ()) -> None:
        """Open every tool that is not barred.

        Raises:
            ToolformerError: one cannot be opened; the message names the setting.
        """
        for name, tool in self._tools.items():
            if name not in barred and self._runners.get(name) is None:
                self._runners[name] = tool.open(self._settings, self._load_model)

    def answer(self, writers: Sequence[Writer]) -> None:
        """Give each waiting writer its result."""
        by_tool: dict[str, list[Writer]] = {}
        for writer in writers:
            by_tool.setdefault(writer.waiting_call.tool, []).append(writer)
        for name, asking in by_tool.items():
            started = time.monotonic()
            outputs = self._run(name, asking)
            seconds = time.monotonic() - started
            for writer, output in zip(asking, outputs, strict=True):
                writer.take_result(output.results[0] if output.results else None, output.reason, seconds)

    def _run(self, name: str, writers: Sequence[Writer]) -> list[ToolOutput]:
        runner = self._runner(name)
        if runner is None:
            return [ToolOutput.none(NOT_AVAILABLE)] * len(writers)
        inputs = [self._effective_input(self._tools[name], writer) for writer in writers]
        asked = [item for item in inputs if item is not None]
        found = iter(run_tool(runner, asked, self._settings.tool_time_limit_seconds))
        return [ToolOutput.none("input_not_usable") if item is None else next(found) for item in inputs]

    def _effective_input(self, tool: Tool, writer: Writer) -> str | None:
        today = writer.prompt.date or datetime.datetime.now(tz=datetime.UTC).astimezone().date()
        document = Document.of(writer.text_before_call, document_date=today)
        return tool.effective_input(writer.waiting_call.input, document)

    def _runner(self, name: str) -> ToolRunner | None:
        if name not in self._runners:
            try:
                self._runners[name] = self._tools[name].open(self._settings, self._load_model)
            except ToolformerError as error:
                logger.warning("%s cannot be called: %s", name, error)
                self._runners[name] = None
        return self._runners[name]
