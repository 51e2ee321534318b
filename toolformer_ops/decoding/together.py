"""Write many continuations at once: one decode step for all of them, their tool calls run together.

A prompt joins as soon as there is room, and leaves when it ends. A text whose call waits for its result pauses until enough calls
wait or nothing else can continue; then all calls of one tool run as one batch. What is written for a prompt does not depend on the
others (`language_model/rows.py`).

Tools are opened when they are first called. The calls of a tool that cannot be opened have the reason `tool_not_available`, and the
log names the tool once; `ToolRuns.require` is for those who want to know beforehand.
"""

import datetime
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.decoding.writer import Continuation, State, Writer
from toolformer_ops.errors import ModelError, ToolformerError
from toolformer_ops.language_model.rows import Row
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import Document
from toolformer_ops.tools.base import Tool, ToolOutput, ToolRunner, run_tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

logger = logging.getLogger(__name__)

NOT_AVAILABLE = "tool_not_available"
MAX_ROWS = 64
"""Most texts that grow together, those that wait for a tool included."""
MAX_TOKENS = 16_384
"""Most tokens that they hold together, from which on no further text joins."""
PROGRESS_SECONDS = 30.0

Listener = Callable[[int, tuple[int, ...]], None]
"""Told, for the prompt of that number, which tokens have been added for good."""


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
            tool = self._tools[name]
            if name not in self._runners:
                try:
                    self._runners[name] = tool.open(self._settings, self._load_model)
                except ToolformerError as error:
                    logger.warning("%s cannot be called: %s", name, error)
                    self._runners[name] = None
            runner = self._runners[name]
            if runner is None:
                outputs = [ToolOutput.none(NOT_AVAILABLE)] * len(asking)
            else:
                inputs = []
                for writer in asking:
                    today = writer.prompt.date or datetime.datetime.now(tz=datetime.UTC).astimezone().date()
                    document = Document.of(writer.text_before_call, document_date=today)
                    inputs.append(tool.effective_input(writer.waiting_call.input, tool.spec.as_read(document)))
                asked = [item for item in inputs if item is not None]
                found = iter(run_tool(runner, asked, self._settings.tool_time_limit_seconds))
                outputs = [ToolOutput.none("input_not_usable") if item is None else next(found) for item in inputs]
            seconds = time.monotonic() - started
            for writer, output in zip(asking, outputs, strict=True):
                writer.take_result(output.results[0] if output.results else None, output.reason, seconds)


class RowKeeper(Protocol):
    """What `language_model.rows.Rows` offers."""

    def begin(self, prompts: Sequence[tuple[Sequence[int], int]]) -> list[tuple[Row, Tensor]]: ...  # noqa: D102
    def step(self, rows: Sequence[Row], tokens: Sequence[int]) -> Tensor: ...  # noqa: D102
    def insert(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> Tensor: ...  # noqa: D102
    def cut(self, row: Row, length: int) -> None: ...  # noqa: D102


@dataclass
class _Text:
    """A text that is being written."""

    number: int
    writer: Writer
    row: Row
    told: int = 0


class Together:
    """Writes continuations with one model and its tools."""

    def __init__(
        self,
        rows: RowKeeper,
        tokenization: Tokenization,
        window: int,
        tools: ToolRuns,
        listener: Listener | None,
    ) -> None:
        self._rows = rows
        self._tokenization = tokenization
        self._window = window
        self._tools = tools
        self._listener = listener

    def write(
        self, prompts: Sequence[Prompt], encoded: Sequence[tuple[int, ...]], decoding: DecodingSettings
    ) -> list[WrittenText]:
        """The continuation of each prompt, in order; `encoded` are the prompts' ids, start token included.

        Raises:
            ModelError: a prompt has no token, or leaves no room for a continuation in the model's window.
        """
        for number, ids in enumerate(encoded, start=1):
            if not ids:
                raise ModelError(
                    f"prompt {number} of {len(encoded)}: expected a text, found an empty one. This model has no start token from "
                    "which it could write: give a text, or leave the prompt out."
                )
            if len(ids) >= self._window:
                raise ModelError(
                    f"prompt {number} of {len(encoded)}: expected 1 to {self._window - 1} tokens, found {len(ids)}. "
                    "Shorten it, or choose a model with a longer window."
                )
        queue = deque(enumerate(zip(prompts, encoded, strict=True)))
        growing: list[_Text] = []
        waiting: list[_Text] = []
        written: dict[int, WrittenText] = {}
        last_line = time.monotonic()
        while queue or growing or waiting:
            # 1. Prefill the prompts for which there is room.
            joining: list[tuple[int, Prompt, tuple[int, ...]]] = []
            tokens = sum(text.row.length for text in (*growing, *waiting))
            while queue and len(growing) + len(waiting) + len(joining) < MAX_ROWS and tokens < MAX_TOKENS:
                number, (prompt, ids) = queue.popleft()
                joining.append((number, prompt, ids))
                tokens += len(ids)
            if joining:
                self._sort(self._begin(joining, decoding), growing, waiting, written)

            # 2. One decode step for all texts that grow; texts that a call or its end has changed take in several tokens.
            if growing:
                moving, growing = growing, []
                lacking = [(text, self._lacking_tokens(text)) for text in moving]
                single = [(text, ids[0]) for text, ids in lacking if len(ids) == 1]
                if single:
                    logits = self._rows.step([text.row for text, _ in single], [token for _, token in single])
                    for (text, _), row in zip(single, logits, strict=True):
                        text.writer.choose(row)
                self._insert([(text, ids) for text, ids in lacking if len(ids) > 1])
                self._sort(moving, growing, waiting, written)

            # 3. Where nothing else can continue: run the tools for all texts that wait.
            elif waiting:
                asking, waiting = waiting, []
                self._tools.answer([text.writer for text in asking])
                resumed: list[_Text] = []
                self._sort(asking, resumed, waiting, written)
                self._insert([(text, self._lacking_tokens(text)) for text in resumed])
                self._sort(resumed, growing, waiting, written)
            if time.monotonic() - last_line > PROGRESS_SECONDS:
                last_line = time.monotonic()
                logger.info("wrote %d of %d texts, %d growing", len(written), len(prompts), len(growing))
        return [written[number] for number in range(len(prompts))]

    def _begin(self, joining: Sequence[tuple[int, Prompt, tuple[int, ...]]], decoding: DecodingSettings) -> list[_Text]:
        """Prefill prompts; the head that prompts share is computed once."""
        begun = []
        for _, prompt, ids in joining:
            head: tuple[int, ...] = ()
            if prompt.shared_head:
                head = (*self._tokenization.start_ids, *self._tokenization.ids(prompt.shared_head.rstrip()))
            # Not shared where the head's tokens by themselves are not those of the whole prompt.
            begun.append((ids, len(head) if ids[: len(head)] == head else 0))
        texts = []
        for (number, prompt, ids), (row, logits) in zip(joining, self._rows.begin(begun), strict=True):
            writer = Writer(prompt, Continuation(ids, self._tokenization, self._window), decoding, self._tools.names)
            writer.choose(logits)
            texts.append(_Text(number, writer, row))
        return texts

    def _insert(self, lacking: Sequence[tuple[_Text, tuple[int, ...]]]) -> None:
        """Let rows take in several tokens, such as tools' results, and each writer choose what follows."""
        if lacking:
            logits = self._rows.insert([text.row for text, _ in lacking], [tokens for _, tokens in lacking])
            for (text, _), row in zip(lacking, logits, strict=True):
                text.writer.choose(row)

    def _lacking_tokens(self, text: _Text) -> tuple[int, ...]:
        """The tokens that the row lacks, after it was cut to those that its writer still has."""
        written = text.writer.written
        valid, tokens = written.feed()
        if text.row.length > len(written.prompt_ids) + valid:
            self._rows.cut(text.row, len(written.prompt_ids) + valid)
        return tokens

    def _sort(
        self, texts: Sequence[_Text], growing: list[_Text], waiting: list[_Text], written: dict[int, WrittenText]
    ) -> None:
        """Put each text where its state says, and tell the listener its new tokens once they cannot be taken back."""
        for text in texts:
            state, ids = text.writer.state, text.writer.written.ids
            settled = state not in {State.CALLING, State.WAITING}
            if self._listener is not None and settled and len(ids) > text.told:
                self._listener(text.number, tuple(ids[text.told :]))
                text.told = len(ids)
            if state is State.DONE:
                written[text.number] = text.writer.result()
            else:
                (waiting if state is State.WAITING else growing).append(text)
