"""Write many continuations at once: one pass a token for all of them, their tool calls run together.

A prompt joins as soon as there is room, and leaves when it ends. A text whose call waits for its result stands aside until enough
calls wait or nothing else can go on; then they are run in one batch a tool. What is written for a prompt does not depend on the
others (`language_model/rows.py`).
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from toolformer_ops.decoding.continuation import Continuation
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.decoding.tool_runs import ToolRuns
from toolformer_ops.decoding.writer import State, Writer
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.rows import Row
from toolformer_ops.language_model.tokenization import Tokenization

logger = logging.getLogger(__name__)

MAX_ROWS = 64
"""Most texts that grow together, those that wait for a tool included."""
MAX_TOKENS = 16_384
"""Most tokens that they hold together, from which on no further text joins."""
PROGRESS_SECONDS = 30.0

Listener = Callable[[int, tuple[int, ...]], None]
"""Told, for the prompt of that number, which tokens have been added for good."""


class RowKeeper(Protocol):
    """What `language_model.rows.Rows` offers."""

    def begin(self, prompts: Sequence[tuple[Sequence[int], int]]) -> list[tuple[Row, Tensor]]: ...  # noqa: D102
    def step(self, rows: Sequence[Row], tokens: Sequence[int]) -> Tensor: ...  # noqa: D102
    def insert(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> Tensor: ...  # noqa: D102
    def cut(self, row: Row, length: int) -> None: ...  # noqa: D102


@dataclass
class _Text:
    """A text that grows."""

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
        max_positions: int,
        tools: ToolRuns,
        listener: Listener | None,
    ) -> None:
        self._rows = rows
        self._tokenization = tokenization
        self._max_positions = max_positions
        self._tools = tools
        self._listener = listener

    def write(
        self, prompts: Sequence[Prompt], encoded: Sequence[tuple[int, ...]], decoding: DecodingSettings
    ) -> list[WrittenText]:
        """The continuation of each prompt, in order; `encoded` are the prompts' ids, start token included.

        Raises:
            ModelError: a prompt has no token, or leaves no room for a continuation in the model's window.
        """
        self._require_room(encoded)
        queue = deque(enumerate(zip(prompts, encoded, strict=True)))
        growing: list[_Text] = []
        waiting: list[_Text] = []
        written: dict[int, WrittenText] = {}
        last_line = time.monotonic()
        while queue or growing or waiting:
            joining: list[tuple[int, Prompt, tuple[int, ...]]] = []
            while queue and self._has_room([*growing, *waiting], joining):
                number, (prompt, ids) = queue.popleft()
                joining.append((number, prompt, ids))
            if joining:
                self._sort(self._begin(joining, decoding), growing, waiting, written)
            if growing:
                moving, growing = growing, []
                self._step(moving)
                self._sort(moving, growing, waiting, written)
            elif waiting:
                asking, waiting = waiting, []
                self._tools.answer([text.writer for text in asking])
                resumed: list[_Text] = []
                self._sort(asking, resumed, waiting, written)
                self._insert(resumed, [self._bring_back(text) for text in resumed])
                self._sort(resumed, growing, waiting, written)
            if time.monotonic() - last_line > PROGRESS_SECONDS:
                last_line = time.monotonic()
                logger.info("wrote %d of %d texts, %d growing", len(written), len(prompts), len(growing))
        return [written[number] for number in range(len(prompts))]

    def _require_room(self, encoded: Sequence[tuple[int, ...]]) -> None:
        for number, ids in enumerate(encoded, start=1):
            if not ids:
                raise ModelError(
                    f"prompt {number} of {len(encoded)}: expected a text, found an empty one. This model has no start token from "
                    "which it could write: give a text, or leave the prompt out."
                )
            if len(ids) >= self._max_positions:
                raise ModelError(
                    f"prompt {number} of {len(encoded)}: expected 1 to {self._max_positions - 1} tokens, found {len(ids)}. "
                    "Shorten it, or choose a model with a longer window."
                )

    def _has_room(self, texts: Sequence[_Text], joining: Sequence[tuple[int, Prompt, tuple[int, ...]]]) -> bool:
        tokens = sum(text.row.length for text in texts) + sum(len(ids) for _, _, ids in joining)
        return len(texts) + len(joining) < MAX_ROWS and tokens < MAX_TOKENS

    def _begin(self, joining: Sequence[tuple[int, Prompt, tuple[int, ...]]], decoding: DecodingSettings) -> list[_Text]:
        begun = self._rows.begin([(ids, self._shared(prompt, ids)) for _, prompt, ids in joining])
        texts = []
        for (number, prompt, ids), (row, logits) in zip(joining, begun, strict=True):
            continuation = Continuation(ids, self._tokenization, self._max_positions)
            writer = Writer(prompt, continuation, decoding, self._tools.names)
            writer.choose(logits)
            texts.append(_Text(number, writer, row))
        return texts

    def _shared(self, prompt: Prompt, ids: tuple[int, ...]) -> int:
        """How many tokens the prompt's shared head has; 0 where its tokens are not those of the whole prompt."""
        if not prompt.shared_head:
            return 0
        head = (*self._tokenization.start_ids, *self._tokenization.ids(prompt.shared_head.rstrip()))
        return len(head) if ids[: len(head)] == head else 0

    def _step(self, texts: Sequence[_Text]) -> None:
        """Let each row take in what it lacks, and each writer choose what follows."""
        lacking = [(text, self._bring_back(text)) for text in texts]
        single = [(text, tokens[0]) for text, tokens in lacking if len(tokens) == 1]
        several = [(text, tokens) for text, tokens in lacking if len(tokens) > 1]
        if single:
            logits = self._rows.step([text.row for text, _ in single], [token for _, token in single])
            for (text, _), row in zip(single, logits, strict=True):
                text.writer.choose(row)
        self._insert([text for text, _ in several], [tokens for _, tokens in several])

    def _insert(self, texts: Sequence[_Text], tokens: Sequence[tuple[int, ...]]) -> None:
        """Let rows take in tools' results, whatever their length, and each writer choose what follows."""
        if texts:
            for text, row in zip(texts, self._rows.insert([text.row for text in texts], tokens), strict=True):
                text.writer.choose(row)

    def _bring_back(self, text: _Text) -> tuple[int, ...]:
        """Cut the row to what its writer kept; the tokens that it lacks."""
        written = text.writer.written
        kept, tokens = written.feed()
        if text.row.length > len(written.prompt_ids) + kept:
            self._rows.cut(text.row, len(written.prompt_ids) + kept)
        return tokens

    def _sort(
        self, texts: Sequence[_Text], growing: list[_Text], waiting: list[_Text], written: dict[int, WrittenText]
    ) -> None:
        for text in texts:
            state = text.writer.state
            self._tell(text)
            if state is State.DONE:
                written[text.number] = text.writer.result()
            else:
                (waiting if state is State.WAITING else growing).append(text)

    def _tell(self, text: _Text) -> None:
        if self._listener is None or text.writer.state in {State.CALLING, State.WAITING}:
            return
        ids = text.writer.written.ids
        if len(ids) > text.told:
            self._listener(text.number, tuple(ids[text.told :]))
            text.told = len(ids)
