"""One input while it is written: which token comes next, when a call starts, and what is left of a call in the end.

A state machine without a network: it is given logits, and appends to its continuation or takes back from it. A call

    starts       where " [" is among the k most likely tokens (or a bare "[", where white space comes before it);
    is written   greedily, up to its arrow; a barred tool's name cannot be written;
    waits        for its tool;
    is woven in  with its result, in the spelling of the training texts, `[Tool(input) -> result]`; or is forgotten where anything
                 went wrong: the text goes on where the call started, with the most likely token that starts none.

So no broken bracket is left. Does not run tools (`tool_runs.py`) and owns no cache (`language_model/rows.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import torch
from torch import Tensor

from toolformer_ops.call_syntax import ARROW, CALL_END, CALL_START, Call, call_with_result, parse_call
from toolformer_ops.decoding.continuation import Continuation
from toolformer_ops.decoding.records import DecodingSettings, End, MadeCall, Prompt, WrittenText
from toolformer_ops.errors import CallSyntaxError

BRACKET = CALL_START.strip()


class State(Enum):
    """What a writer is doing."""

    WRITING = "writing"
    CALLING = "calling"
    WAITING = "waiting"
    DONE = "done"


@dataclass
class _OpenCall:
    """A call that is being written or waits for its result."""

    start: int
    """Index of its first token in the continuation."""
    resume: int
    """Index at which the text goes on if the call is forgotten: `start`, unless the marker " [" is several tokens."""
    fallback: int
    """The token that stands there then."""
    spaced: bool
    """Whether it begins with a space."""
    call: Call | None = None


@dataclass
class Writer:
    """The writing of one continuation."""

    prompt: Prompt
    written: Continuation
    settings: DecodingSettings
    tools: frozenset[str]
    """Names of the tools that may be called; without any, decoding is plain and greedy."""
    state: State = State.WRITING
    chosen: int = 0
    """Tokens that the model chose."""
    _end: End = "length"
    _calls: list[tuple[MadeCall, int, int]] = field(default_factory=list)  # with their first token and their end
    _abandoned: list[str] = field(default_factory=list)
    _open: _OpenCall | None = None
    _started: int = 0
    _text_tokens: int = 0

    def choose(self, logits: Tensor) -> None:
        """Go on, given the logits of what follows, (vocabulary,); afterwards `state` says what the writer is doing."""
        if self.state is State.CALLING:
            self._go_on_call(self._opened(), logits)
        else:
            self._write(logits)

    @property
    def waiting_call(self) -> Call:
        """The call whose result is waited for."""
        call = self._opened().call
        if call is None:
            raise RuntimeError("expected a writer that waits for a result")
        return call

    @property
    def text_before_call(self) -> str:
        """Prompt and continuation before the open call."""
        return self.prompt.text + self.written.text(0, self._opened().start)

    def take_result(self, result: str | None, reason: str | None, seconds: float) -> None:
        """Weave the result in, or forget the call and note the reason."""
        opened, call = self._opened(), self.waiting_call
        woven = self._spelled(opened, call_with_result(call, result)) if result is not None else ()
        if woven and not self.written.fits(opened.start + len(woven)):
            result, reason = None, "no_room_for_result"
        made = MadeCall(call.tool, call.input, result, reason, 0, 0, seconds)
        if result is None:
            self._calls.append((made, opened.start, opened.start))
            self._forget(opened)
            return
        same = _common(self.written.ids[opened.start :], woven)
        self.written.cut(opened.start + same)
        self.written.append(woven[same:])
        self.written.calls.append((opened.start, len(self.written)))
        self._calls.append((made, opened.start, len(self.written)))
        self._open, self.state = None, State.WRITING

    def result(self) -> WrittenText:
        """What was written, once it is done."""
        return WrittenText(
            self.prompt,
            self._before_stop(self.written.text()),
            self._before_stop(self.written.text_without_calls()),
            tuple(self._placed(*item) for item in self._calls),
            tuple(self._abandoned),
            tuple(self.written.ids),
            self.chosen,
            self._end,
        )

    def _write(self, logits: Tensor) -> None:
        if self._text_tokens >= self.settings.max_new_tokens or not self.written.fits(len(self.written) + 1):
            self._finish("length")
            return
        if not self.tools:
            self._take(int(logits.argmax()))
            return
        markers = list(self._markers())
        plain = logits.clone()
        plain[[marker[-1] for marker in markers]] = -torch.inf
        fallback = int(plain.argmax())
        if self.settings.allows_calls and self._started < self.settings.calls_per_input:
            for marker in markers:
                if _rank(logits, marker[-1]) <= self.settings.call_start_rank:
                    self._start_call(marker, fallback)
                    return
        self._take(fallback)

    def _markers(self) -> Iterator[tuple[int, ...]]:
        """Token ids of what starts a call and lacks only its last token here."""
        tokenization, ids = self.written.tokenization, self.written.ids
        spaced = tokenization.marker_ids
        if tuple(ids[len(ids) - len(spaced) + 1 :]) == spaced[:-1]:
            yield spaced
        before = self.written.text(max(0, len(ids) - 4)) if ids else self.prompt.text
        bare = tokenization.bare_marker_ids
        if len(bare) == 1 and bare != spaced[-1:] and (not before or before[-1].isspace()):
            yield bare

    def _take(self, token: int) -> None:
        """One token of text."""
        self.chosen += 1
        if token in self.written.tokenization.end_ids:
            self._finish("end_of_text")
            return
        self.written.append([token])
        self._text_tokens += 1
        if self.settings.stop is not None and self.written.ends_with(self.settings.stop):
            self._finish("stop")

    def _finish(self, end: End) -> None:
        self.state, self._end = State.DONE, end

    def _start_call(self, marker: tuple[int, ...], fallback: int) -> None:
        resume = len(self.written)
        spaced = marker == self.written.tokenization.marker_ids
        self._open = _OpenCall(resume - len(marker) + 1, resume, fallback, spaced)
        self._started += 1
        self.chosen += 1
        self.state = State.CALLING
        self.written.append(marker[-1:])

    def _go_on_call(self, opened: _OpenCall, logits: Tensor) -> None:
        if len(self.written) - opened.start >= self.settings.max_call_tokens or not self.written.fits(
            len(self.written) + 1
        ):
            self._abandon(opened, "call_too_long")
            return
        token = self._most_likely_in_call(opened, logits)
        self.chosen += 1
        if token is None or token in self.written.tokenization.end_ids:
            self._abandon(opened, "end_of_text_in_call")
            return
        self.written.append([token])
        text = self._call_text(opened)
        if ARROW in text:
            self._ask(opened, text)
        elif CALL_END in text or "\n" in text:
            self._abandon(opened, "not_a_call")

    def _most_likely_in_call(self, opened: _OpenCall, logits: Tensor) -> int | None:
        """The most likely token that does not spell a barred tool's name; None where every token does."""
        if not self.settings.barred_tools or "(" in self._call_text(opened):
            return int(logits.argmax())
        return next(
            (
                token
                for token in torch.argsort(logits, descending=True, stable=True).tolist()
                if token in self.written.tokenization.end_ids or not self._spells_barred(opened, token)
            ),
            None,
        )

    def _spells_barred(self, opened: _OpenCall, token: int) -> bool:
        """Whether the name would be a barred tool's, or the beginning of one and of no other tool's."""
        name, bracket, _ = self._call_text(opened, token).partition("(")
        name = name.strip()
        barred = self.settings.barred_tools
        if bracket:
            return name in barred
        others = self.tools.difference(barred)
        return name != "" and _begins(barred, name) and not _begins(others, name)

    def _ask(self, opened: _OpenCall, text: str) -> None:
        try:
            call = parse_call(text)
        except CallSyntaxError:
            self._abandon(opened, "not_a_call")
            return
        if call.tool not in self.tools or call.tool in self.settings.barred_tools:
            self._abandon(opened, "unknown_tool")
            return
        opened.call, self.state = call, State.WAITING

    def _abandon(self, opened: _OpenCall, reason: str) -> None:
        self._abandoned.append(reason)
        self._forget(opened)

    def _forget(self, opened: _OpenCall) -> None:
        self.written.cut(opened.resume)
        self._open, self.state = None, State.WRITING
        self._take(opened.fallback)

    def _opened(self) -> _OpenCall:
        if self._open is None:
            raise RuntimeError("expected an open call")
        return self._open

    def _call_text(self, opened: _OpenCall, *more: int) -> str:
        """What was written behind the bracket, and `more` tokens."""
        return self.written.tokenization.decode([*self.written.ids[opened.start :], *more]).partition(BRACKET)[2]

    def _spelled(self, opened: _OpenCall, call: str) -> tuple[int, ...]:
        """A call with its result as the training texts spell it."""
        continuation = self.written.tokenization.continuation
        return continuation(f" {call}") if opened.spaced else continuation(call, after="\n")

    def _before_stop(self, text: str) -> str:
        return text[: text.rindex(self.settings.stop)] if self._end == "stop" and self.settings.stop else text

    def _placed(self, made: MadeCall, first: int, end: int) -> MadeCall:
        start = len(self.written.text(0, first))
        if end == first:
            return replace(made, start_char=start, end_char=start)
        text = self.written.text(0, end)
        return replace(made, start_char=text.index(BRACKET, start), end_char=len(text))


def _begins(names: Sequence[str] | frozenset[str], beginning: str) -> bool:
    return any(name.startswith(beginning) for name in names)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning, at least one token of `right` left over."""
    longest = min(len(left), len(right) - 1)
    return next((index for index in range(longest) if left[index] != right[index]), longest)


def _rank(logits: Tensor, token: int) -> int:
    """1 for the most likely token; of equally likely ones the lower id comes first, as `argmax` has it."""
    return 1 + int((logits > logits[token]).sum()) + int((logits[:token] == logits[token]).sum())
