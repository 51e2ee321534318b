"""Write many continuations at once: one decode step for all of them, their tool calls run together.

A prompt joins as soon as there is room, and leaves when it ends. A text whose call waits for its result
pauses until enough calls wait or nothing else can continue; then all calls of one tool run as one batch. What
is written for a prompt does not depend on the others (`language_model/kv_cache.py`).

It is the decode loop (`language_model/kv_cache.py`) with a choice that knows of calls: which token is the
most likely, with and without brackets, and how likely the start of a call is. All of it is computed on the
device, for all texts at once, and read once a step.

Tools are opened when they are first called. The calls of a tool that cannot be opened have the reason
`tool_not_available`, and the log names the tool once; `ToolRuns.require` is for those who want to know
beforehand.
"""

import datetime
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from toolformer_ops.config import Settings
from toolformer_ops.decoding.continuation import Continuation
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.decoding.writer import Choice, Writer
from toolformer_ops.errors import InfrastructureError, ModelError, ToolformerError
from toolformer_ops.language_model.causal_model import CausalModel
from toolformer_ops.language_model.columns import CachedText
from toolformer_ops.language_model.kv_cache import (
    RESTS,
    Chosen,
    DecodeLoop,
    KVCache,
    NextTokens,
    read_prompts,
)
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.records import Document
from toolformer_ops.tools.base import Tool, ToolOutput, ToolRunner, run_tool
from toolformer_ops.tools.registry import get_tool

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

logger = logging.getLogger(__name__)

NOT_AVAILABLE = "tool_not_available"
PROGRESS_SECONDS = 30.0

Listener = Callable[[int, tuple[int, ...]], None]
"""Told, for the prompt of that number, which tokens have been added for good."""


class ToolRuns:
    """The tools of one model."""

    def __init__(
        self, settings: Settings, tools: Sequence[str], load_model: "Callable[[], LanguageModel]"
    ) -> None:
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
                    inputs.append(
                        tool.effective_input(writer.waiting_call.input, tool.spec.as_read(document))
                    )
                usable_inputs = [item for item in inputs if item is not None]
                try:
                    answers = iter(run_tool(runner, usable_inputs, self._settings.tool_time_limit_seconds))
                except InfrastructureError as error:
                    logger.warning("%s does not answer: %s", name, error)
                    answers = iter([ToolOutput.none(NOT_AVAILABLE, str(error))] * len(usable_inputs))
                outputs = [
                    ToolOutput.none("input_not_usable") if item is None else next(answers) for item in inputs
                ]
            seconds = time.monotonic() - started
            for writer, output in zip(asking, outputs, strict=True):
                writer.take_result(output, seconds)


@dataclass
class _Text:
    """A text that is being written."""

    writer: Writer
    lacking: tuple[int, ...]
    """Tokens that its row in the cache lacks."""
    valid_tokens: int
    """How many tokens of its row are valid, the prompt's included."""
    had: int = 0
    """How many the row had before; some may have been taken back."""
    told: int = 0


class Together:
    """Writes continuations with one model and its tools.

    A `kv_cache.Task`: labels are the prompts' numbers.
    """

    def __init__(self, model: CausalModel, tokenization: Tokenization, tools: ToolRuns) -> None:
        self._model = model
        self._tokenization = tokenization
        self._tools = tools
        self._read_prompt = read_prompts(model)

    def write(
        self,
        prompts: Sequence[Prompt],
        encoded: Sequence[tuple[int, ...]],
        decoding: DecodingSettings,
        listener: Listener | None = None,
    ) -> list[WrittenText]:
        """The continuation of each prompt, in order; `encoded` are the prompts' ids, start token included.

        Raises:
            ModelError: a prompt has no token, or leaves no room for a continuation in the model's window.
        """
        window = self._model.window_tokens
        for number, ids in enumerate(encoded, start=1):
            if not ids:
                raise ModelError(
                    f"prompt {number} of {len(encoded)}: expected a text, found an empty one. This model has "
                    "no start token from which it could write: give a text, or leave the prompt out."
                )
            if len(ids) >= window:
                raise ModelError(
                    f"prompt {number} of {len(encoded)}: expected 1 to {window - 1} tokens, found "
                    f"{len(ids)}. Shorten it, or choose a model with a longer window."
                )
        self._queue = deque(enumerate(zip(prompts, encoded, strict=True)))
        self._decoding, self._listener = decoding, listener
        self._growing: dict[int, _Text] = {}
        self._waiting: dict[int, _Text] = {}
        self._written: dict[int, WrittenText] = {}
        loop, last_line = DecodeLoop(KVCache(self._model), self), time.monotonic()
        while loop.step():
            if time.monotonic() - last_line > PROGRESS_SECONDS:
                last_line = time.monotonic()
                logger.info(
                    "wrote %d of %d texts, %d growing", len(self._written), len(prompts), len(self._growing)
                )
        return [self._written[number] for number in range(len(prompts))]

    def admit(self, cache: KVCache) -> Mapping[int, int]:
        """Prompts join, results are taken in, calls that came to nothing are forgotten.

        See `kv_cache.Task`.
        """
        # 1. The prompts for which there is room.
        self._join(cache)

        # 2. If nothing else can continue: run the tools for all texts that wait.
        while self._waiting and not self._growing:
            asking, self._waiting = self._waiting, {}
            self._tools.answer([text.writer for text in asking.values()])
            for number, text in asking.items():
                self._sort(number, text)
            left = ~np.isin(cache.labels, list(self._written))
            cache.keep(np.flatnonzero(left), cache.labels[left])
            self._join(cache)

        # 3. Several tokens at once for texts that a prompt, a call or its end has changed, all but the last
        #    of each.
        several, next_tokens = {}, {}
        for number, text in self._growing.items():
            if not text.lacking:
                continue
            cache.cut(number, text.valid_tokens)
            *beginning, next_tokens[number] = text.lacking
            if beginning:
                several[number] = beginning
        cache.extend(list(several), list(several.values()))
        for number in next_tokens:
            text = self._growing[number]
            text.valid_tokens, text.lacking = text.valid_tokens + len(text.lacking), ()
        return next_tokens

    def _join(self, cache: KVCache) -> None:
        """Take in prompts as far as there is room; a head that some share is computed once."""
        tokens = int(cache.lengths.sum())
        joining: dict[int, CachedText] = {}
        most, most_tokens = self._model.sizes.written_texts, self._model.sizes.written_tokens
        while self._queue and len(self._growing) + len(self._waiting) < most and tokens < most_tokens:
            number, (prompt, ids) = self._queue.popleft()
            # A head is not shared if its tokens by themselves are not those of the whole prompt; the last
            # token never is.
            head: tuple[int, ...] = ()
            if prompt.shared_head:
                head = (*self._tokenization.start_ids, *self._tokenization.ids(prompt.shared_head.rstrip()))
            shared = self._read_prompt(head[: len(ids) - 1] if ids[: len(head)] == head else ())
            joining[number] = CachedText(shared)
            continuation = Continuation(ids, self._tokenization, self._model.window_tokens)
            writer = Writer(prompt, continuation, self._decoding, self._tools.names)
            self._growing[number] = _Text(writer, ids[shared.length :], shared.length)
            tokens += len(ids)
        if joining:
            cache.join(list(joining.values()), list(joining))

    def choose(self, hidden: Tensor, labels: np.ndarray) -> Chosen[list[int]]:
        """The numbers of each row's `writer.Choice`, (rows * 4,).

        After them are all tokens in order, for the rows that ask for it. The numbers of these rows are the
        placement.
        """
        logits = self._model.log_probabilities(hidden)  # (rows, vocabulary)
        brackets = torch.tensor(sorted(self._tokenization.bracket_ids), device=logits.device)
        numbers = [logits.argmax(dim=-1), logits.index_fill(1, brackets, -torch.inf).argmax(dim=-1)]
        for marker in (self._tokenization.marker_ids, self._tokenization.bare_marker_ids):
            last, last_logits = marker[-1], logits[:, marker[-1], None]
            # Of equally likely tokens the lower id ranks first, as `argmax` has it.
            numbers.append(
                1 + (logits > last_logits).sum(dim=-1) + (logits[:, :last] == last_logits).sum(dim=-1)
            )
        chosen = torch.stack(numbers, dim=1).reshape(-1)
        ordered = [row for row, number in enumerate(labels) if self._growing[int(number)].writer.wants_order]
        if ordered:
            ordered_logits = logits[torch.tensor(ordered, device=logits.device)]
            chosen = torch.cat(
                [chosen, ordered_logits.argsort(dim=-1, descending=True, stable=True).reshape(-1)]
            )
        return Chosen(chosen, ordered)

    def end(self, tokens: np.ndarray | None, placement: list[int], labels: np.ndarray) -> NextTokens:
        """A text continues, waits for its tool, or is done. See `kv_cache.Task`."""
        if tokens is None:
            raise RuntimeError("expected a choice for every row")
        numbers = tokens[: 4 * len(labels)].reshape(-1, 4).tolist()
        in_order = tokens[4 * len(labels) :].reshape(max(1, len(placement)), -1)
        orders = dict(zip(placement, in_order, strict=False))
        going: list[tuple[int, int, int]] = []
        for row, (label, four) in enumerate(zip(labels.tolist(), numbers, strict=True)):
            text = self._growing[label]
            best, plain, rank, bare_rank = four
            text.writer.choose(Choice(best, plain, rank, bare_rank, orders.get(row)))
            self._sort(label, text)
            if label in self._written:
                continue
            following = RESTS
            # One token after those that are there: the next step takes it in. Everything else is for
            # `admit`.
            if label in self._growing and len(text.lacking) == 1 and text.valid_tokens == text.had:
                following, text.lacking, text.valid_tokens = text.lacking[0], (), text.valid_tokens + 1
            going.append((row, label, following))
        parents, texts, next_tokens = np.array(going, dtype=np.int64).reshape(-1, 3).T
        return NextTokens(parents, texts, next_tokens)

    def _sort(self, number: int, text: _Text) -> None:
        """Put a text where its state says.

        Its new tokens go to the listener once they cannot be taken back.
        """
        writer = text.writer
        ids = writer.written.ids
        if self._listener is not None and writer.settled and len(ids) > text.told:
            self._listener(number, tuple(ids[text.told :]))
            text.told = len(ids)
        self._growing.pop(number, None)
        if writer.is_done:
            self._written[number] = writer.result()
        elif writer.is_waiting:
            self._waiting[number] = text
        else:
            self._growing[number] = text
            valid, text.lacking = writer.written.feed()
            text.had, text.valid_tokens = text.valid_tokens, len(writer.written.prompt_ids) + valid
