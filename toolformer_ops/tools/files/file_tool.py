"""What the tools of all kinds of tool files share: spec, prompt and filter.

A kind derives from it, and says which arguments a call has, what names the version, and how it is opened.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import ToolError, UsageError
from toolformer_ops.records import Document
from toolformer_ops.storage.corpora.local_paths import local_path
from toolformer_ops.tools.base import FilterDecision, Tool, ToolRunner, ToolSpec, load_prompt
from toolformer_ops.tools.files.patterns import SEARCH_SECONDS, PatternTimedOutError, first_match
from toolformer_ops.tools.files.tool_file import ToolFile, short_hash

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

HOLDS_PATTERN = "holds_pattern"
NO_PATTERN = "no_pattern"
PATTERN_TIMED_OUT = "pattern_timed_out"
MOST_TIMED_OUT = 100
"""At so many texts that its pattern takes too long for, a process gives up the tool: no text is at fault."""


class FileRunner(ToolRunner, Protocol):
    """The open tool of a file."""

    def close(self) -> None:
        """End what was started for it."""
        ...


class FileTool(Tool):
    """The tool of a file, before it is opened."""

    path: Path
    """The tool file."""
    input_argument: str | None
    """The argument that is the input as it is; None if calls name their arguments."""

    def __init__(self, path: Path, file: ToolFile, *, takes_input: bool) -> None:
        """Take what the file says of the method; `takes_input` as in `ToolSpec`."""
        self.path = path
        self._common = file
        self._timed_out = 0
        self.spec = ToolSpec(
            name=file.name,
            purpose=file.purpose,
            prompt_file=file.prompt,
            source=f"tool file {path}",
            filter_version=short_hash(file.filter.pattern) if file.filter.pattern else "1",
            code_version=file.revision,
            takes_input=takes_input,
            executes_apart=file.executes_apart,
            **file.numbers.model_dump(),
        )

    @functools.cached_property
    def prompt(self) -> str:
        """The text of the prompt file."""
        return self.prompt_file_text

    @functools.cached_property
    def prompt_file_text(self) -> str:
        """The text of the prompt file beside the tool file, as it is.

        A ToolError says that this deployment allows no reading there.
        """
        folder = self.path.parent
        try:
            path = local_path(load_settings(), str(folder / self._common.prompt), "prompt", within=folder)
        except UsageError as error:
            raise ToolError(f"tool file {self.path}: {error}") from error
        return load_prompt(path, tool=self.spec.name)

    def filter(self, document: Document) -> list[FilterDecision]:
        """Texts that hold the file's pattern.

        A ToolError says that it takes too long for too many texts.
        """
        pattern = self._common.filter.pattern
        if not pattern:
            return super().filter(document)
        try:
            reason = HOLDS_PATTERN if first_match(pattern, document.text) else NO_PATTERN
        except PatternTimedOutError:
            reason = PATTERN_TIMED_OUT
            self._timed_out += 1
            if self._timed_out == MOST_TIMED_OUT:
                raise ToolError(
                    f"tool {self.spec.name}: expected a `pattern` in [filter] of {self.path} that is found "
                    f"or not within milliseconds, found {pattern!r}, which took longer than "
                    f"{SEARCH_SECONDS:g} s of computing for {MOST_TIMED_OUT} texts. Write it without a repeat "
                    "within a repeat, such as (a+)+."
                ) from None
        return [FilterDecision(reason == HOLDS_PATTERN, reason, end_char=len(document.text))]

    def open(self, settings: Settings, load_model: "Callable[[], LanguageModel]") -> FileRunner:
        """Start or reach what answers, and compare what it says of itself with what the file has recorded.

        Raises:
            ToolError: it cannot be used, or says something else.
            InfrastructureError: it does not answer now.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override `open`")

    def check_input(self, call_input: str) -> None:
        """Raise a RejectedInputError if the file tells that a call with this input could not be sent."""
        self.arguments(call_input)
