"""One text while it is written: its tokens, which token comes next, when a call starts, and how a call ends.

A state machine without a network: it is given what is likely next, and appends to its continuation or removes
from it. A call

    starts       where " [" is among the k most likely tokens (or a bare "[", where white space comes before
                 it), and where greedy decoding writes a bracket anywhere else;
    is written   greedily, up to its arrow; a barred tool's name cannot be written;
    waits        for its tool;
    is woven in  with its result, in the spelling of the training texts, `[Tool(input) -> result]`; or is
                 forgotten if anything went wrong: the text continues where the call started. A model that
                 wants the call then often writes its words without the bracket, `Tool(input) -> result]`;
                 these are forgotten, too, and counted as `call_without_bracket`.

A bracket that greedy decoding writes and that no tool's name with its "(" follows is text, such as a
citation, a list or code: its tokens are kept. A bracket that only the rank k started is forgotten then, and
greedy decoding continues in its place. So a text holds no call that was not run. With calls disabled (k = 0)
no token with a bracket is ever written.

Does not run tools (`together.py`) and owns no KV cache (`language_model/kv_cache.py`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from toolformer_ops.call_syntax import ARROW, CALL_END, CALL_START, Call, call_with_result, parse_call
from toolformer_ops.decoding.continuation import Continuation
from toolformer_ops.decoding.records import DecodingSettings, End, MadeCall, Prompt, WrittenText
from toolformer_ops.errors import CallSyntaxError
from toolformer_ops.tools.base import ToolOutput

BRACKET = CALL_START.strip()
STOP_TAIL_TOKENS = 16
"""Tokens in which stop texts are looked for, in addition to one for each character of the longest."""
_CALL_BEGINNING = re.compile(r"\s*(?:([A-Za-z][A-Za-z0-9_]*)\s*(\(.*)?)?", re.DOTALL)
"""What may come after a bracket that may still become a call: its tool's name, then its round bracket."""


@dataclass(frozen=True)
class Choice:
    """What the model finds likely next."""

    best: int
    """The most likely token."""
    plain: int
    """The most likely one without a bracket."""
    marker_rank: int
    """Which place among all tokens the last of `Tokenization.marker_ids` has; 1 is the most likely."""
    bare_marker_rank: int
    """The rank of the likeliest of `Tokenization.bare_marker_ids`."""
    order: np.ndarray | None = None
    """All tokens, the most likely first; only if `Writer.wants_order`."""


@dataclass
class _OpenBracket:
    """A bracket that may become a call, is a call that is being written, or waits for its result."""

    start: int
    """Index of its first token in the continuation."""
    resume: int
    """Index at which the text continues if the call is forgotten: `start`, unless the marker " [" is several
    tokens."""
    fallback: int
    """The token that comes there then: what greedy decoding writes; if that is the bracket itself,
    `plain`."""
    plain: int
    """The most likely token there that has no bracket."""
    spaced: bool
    """Whether it begins with a space."""
    greedy: bool
    """Whether greedy decoding has written all of it, so that it is kept as text unless a tool's name
    follows."""
    callable: bool
    """Whether a call may be made of it; otherwise it is text, or is forgotten."""
    counted: bool = False
    """Whether it counts among the calls that the input has started."""
    named: bool = False
    """Whether a tool's name and its round bracket follow."""
    call: Call | None = None


@dataclass
class _ForgottenCall:
    """Where a call with a name was forgotten, and which tokens may not follow.

    These tokens began its words without a bracket.
    """

    position: int
    """Index of the first token after the text before the call."""
    opening: str
    """Its name and round bracket, `Tool(`."""
    refused: set[int] = field(default_factory=set)


@dataclass
class Writer:
    """The writing of one continuation."""

    prompt: Prompt
    written: Continuation
    settings: DecodingSettings
    tools: frozenset[str]
    """Names of the tools that may be called; without any, decoding is plain and greedy, unless calls are
    disabled."""
    chosen: int = 0
    """Tokens that the model chose."""
    _end: End | None = None
    _stop: str | None = None
    """The stop text that ended it."""
    _calls: list[tuple[MadeCall, int, int]] = field(
        default_factory=list
    )  # with their first token and their end
    _abandoned: list[str] = field(default_factory=list)
    _open: _OpenBracket | None = None
    _forgotten: _ForgottenCall | None = None
    _started: int = 0
    _text_tokens: int = 0

    def choose(self, choice: Choice) -> None:
        """Continue, given what is likely next."""
        if self._open is None:
            self._continue_text(choice)
            return
        opened, tokenization = self._open, self.written.tokenization
        has_room = len(self.written) - opened.start < self.settings.max_call_tokens
        has_room = has_room and self.written.fits(len(self.written) + 1)
        token = self._most_likely_in_call(opened, choice) if has_room else None
        if not has_room:
            refused = "call_too_long"
        elif token is None or token in tokenization.end_ids:
            self.chosen += 1
            refused = "end_of_text_in_call"
        elif token in tokenization.bracket_ids:
            refused = "not_a_call"
        else:
            self.chosen += 1
            self.written.ids.append(token)
            self._recognise(opened)
            return
        if not opened.greedy or opened.named:
            self._abandon(opened, refused)
        elif self._keep_as_text(opened):
            self._continue_text(choice)

    @property
    def is_done(self) -> bool:
        """Whether the text has ended."""
        return self._end is not None

    @property
    def is_waiting(self) -> bool:
        """Whether a call waits for its result."""
        return self._open is not None and self._open.call is not None

    @property
    def settled(self) -> bool:
        """Whether what is written cannot be taken back."""
        return self.is_done or (self._open is None and self._forgotten is None)

    @property
    def wants_order(self) -> bool:
        """Whether some tokens may not come next.

        They are those of a barred tool's name, or those that began a forgotten call again.
        """
        if (opened := self._open) is None:
            return self._refused_next() is not None
        return bool(self.settings.barred_tools) and opened.callable and "(" not in self._call_text(opened)

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

    def take_result(self, output: ToolOutput, seconds: float) -> None:
        """Weave the result in, or forget the call and note the reason."""
        result, reason = (output.results or (None,))[0], output.reason
        opened, call = self._opened(), self.waiting_call
        woven: tuple[int, ...] = ()
        if result is not None:  # spelled as in the training texts
            text, continuation = call_with_result(call, result), self.written.tokenization.continuation
            woven = continuation(f" {text}") if opened.spaced else continuation(text, after="\n")
            if woven and not self.written.fits(opened.start + len(woven)):
                result, reason = None, "no_room_for_result"
        made_call = MadeCall(
            tool=call.tool,
            input=call.input,
            result=result,
            reason=reason,
            message=output.message,
            start_char=0,
            end_char=0,
            seconds=seconds,
        )
        if result is None:
            self._calls.append((made_call, opened.start, opened.start))
            self._forget(opened)
            return
        # Keep the tokens that both begin with, so that the KV cache stays valid for them; at least one is
        # written anew.
        before = self.written.ids[opened.start :]
        longest = min(len(before), len(woven) - 1)
        same = next((index for index in range(longest) if before[index] != woven[index]), longest)
        self.written.cut(opened.start + same)
        self.written.ids.extend(woven[same:])
        self._calls.append((made_call, opened.start, len(self.written)))
        self._open = None

    def result(self) -> WrittenText:
        """What was written, once it is done."""
        if self._end is None:
            raise RuntimeError("expected a text that is done")
        calls = []
        for call, first, end in self._calls:
            start = len(self.written.text(0, first))
            if end == first:
                calls.append(replace(call, start_char=start, end_char=start))
            else:
                text = self.written.text(0, end)
                calls.append(replace(call, start_char=text.index(BRACKET, start), end_char=len(text)))
        return WrittenText(
            prompt=self.prompt,
            text=self._before_stop(self.written.text()),
            without_calls=self._before_stop(
                self.written.text_without([(first, end) for _, first, end in self._calls])
            ),
            calls=tuple(calls),
            abandoned=tuple(self._abandoned),
            token_ids=tuple(self.written.ids),
            tokens=self.chosen,
            end=self._end,
        )

    def _continue_text(self, choice: Choice) -> None:
        if self._text_tokens >= self.settings.max_new_tokens or not self.written.fits(len(self.written) + 1):
            self._end = "length"
            return
        if not self.settings.allows_calls:
            self._take(choice.plain)
            return
        best = choice.best
        if not self.tools:
            self._take(best)
            return
        if (refused := self._refused_next()) is not None and choice.order is not None:
            barred = refused | self.written.tokenization.bracket_ids
            self._take(next(int(token) for token in choice.order if int(token) not in barred))
            return
        if (opened := self._opened_by_marker(choice)) is not None:
            self._begin(*opened)
            return
        if self._may_become_call(best):
            is_marker = (best,) == self.written.tokenization.bare_marker_ids
            runs = is_marker and self._started < self.settings.calls_per_input
            self._begin(self._written_bracket(choice.plain, runs=runs), best)
        else:
            self._take(best)

    def _opened_by_marker(self, choice: Choice) -> tuple[_OpenBracket, int] | None:
        """The bracket of a call that starts here, and its last token.

        A call starts here if a marker is among the k most likely tokens.
        """
        if self._started >= self.settings.calls_per_input:
            return None
        # 1. Token ids of what starts a call and lacks only its last token here, with the rank of that token.
        tokenization, ids = self.written.tokenization, self.written.ids
        spaced, bare = tokenization.marker_ids, tokenization.bare_marker_ids
        markers: list[tuple[tuple[int, ...], int]] = []
        if tuple(ids[len(ids) - len(spaced) + 1 :]) == spaced[:-1]:
            markers.append((spaced, choice.marker_rank))
        before = self.written.text(max(0, len(ids) - 4)) if ids else self.prompt.text
        if len(bare) == 1 and bare != spaced[-1:] and (not before or before[-1].isspace()):
            markers.append((bare, choice.bare_marker_rank))
        # 2. The first that is likely enough.
        likely = (marker for marker, rank in markers if rank <= self.settings.call_start_rank)
        if (marker := next(likely, None)) is None:
            return None
        last = marker[-1]
        opened = _OpenBracket(
            start=len(ids) - len(marker) + 1,
            resume=len(ids),
            fallback=choice.plain if last == choice.best else choice.best,
            plain=choice.plain,
            spaced=marker == spaced,
            greedy=last == choice.best,
            callable=True,
        )
        if not opened.greedy:
            self._count(opened)
        return opened, last

    def _may_become_call(self, token: int) -> bool:
        """Whether a token brings a bracket that the next tokens may make a call."""
        tokenization = self.written.tokenization
        if token not in tokenization.bracket_ids:
            return False
        return _CALL_BEGINNING.fullmatch(tokenization.decode([token]).rpartition(BRACKET)[2]) is not None

    def _written_bracket(self, plain: int, *, runs: bool) -> _OpenBracket:
        """A bracket that greedy decoding writes next and that is no marker."""
        end = len(self.written)
        return _OpenBracket(
            start=end, resume=end, fallback=plain, plain=plain, spaced=False, greedy=True, callable=runs
        )

    def _begin(self, opened: _OpenBracket, token: int) -> None:
        self._open = opened
        self.chosen += 1
        self.written.ids.append(token)

    def _count(self, opened: _OpenBracket) -> None:
        self._started += not opened.counted
        opened.counted = True

    def _take(self, token: int) -> None:
        """One token of text."""
        self.chosen += 1
        if token in self.written.tokenization.end_ids:
            self._end = "end_of_text"
            return
        self.written.ids.append(token)
        self._text_tokens += 1
        # The words of a forgotten call that are written without its bracket are removed.
        if (forgotten := self._forgotten) is not None:
            words = self.written.text(forgotten.position).lstrip()
            if words.startswith(forgotten.opening):
                forgotten.refused.add(self.written.ids[forgotten.position])
                self._abandoned.append("call_without_bracket")
                self._text_tokens -= len(self.written) - forgotten.position
                self.written.cut(forgotten.position)
                return
            if not forgotten.opening.startswith(words):
                self._forgotten = None  # the text continues otherwise
        self._end_at_stop(len(self.written))

    def _end_at_stop(self, end: int) -> None:
        """End the text at token `end` if the last text before it, outside calls, holds a stop text."""
        stops = self.settings.stops
        if not stops:
            return
        called = max((last for _, first, last in self._calls if first < last), default=0)
        text = self.written.text(max(called, end - STOP_TAIL_TOKENS - max(map(len, stops))), end)
        self._stop = min((stop for stop in stops if stop in text), key=text.index, default=None)
        if self._stop is not None:
            self.written.cut(end)
            self._end = "stop"

    def _refused_next(self) -> set[int] | None:
        """The tokens that may not come next, if words of a forgotten call were removed here."""
        forgotten = self._forgotten
        if forgotten is None or not forgotten.refused or len(self.written) != forgotten.position:
            return None
        return forgotten.refused

    def _recognise(self, opened: _OpenBracket) -> None:
        """Say what the bracket is by now: a call whose tool is asked, an unfinished call, or none."""
        text = self._call_text(opened)
        beginning = _CALL_BEGINNING.fullmatch(text)
        if "\n" in text:
            opened.callable = False
        if beginning is not None and beginning[2] and beginning[1] in self.tools and not opened.named:
            opened.named = True
            if not opened.callable:
                used_up = self._started >= self.settings.calls_per_input
                self._abandon(opened, "no_call_left" if used_up else "not_a_call")
                return
            self._count(opened)
        if ARROW in text:
            self._end_call(opened, text)
        elif beginning is None or CALL_END in text or ("\n" in text and (beginning[2] or not opened.greedy)):
            self._give_up(opened, "not_a_call")

    def _end_call(self, opened: _OpenBracket, text: str) -> None:
        """Wait for the tool if `text`, which has an arrow, is a call that may be made.

        Else none comes of it.
        """
        try:
            call = parse_call(text)
        except CallSyntaxError:
            self._give_up(opened, "not_a_call")
            return
        is_repeated = any(
            (earlier.tool, earlier.input) == (call.tool, call.input) for earlier, _, _ in self._calls
        )
        if call.tool not in self.tools or call.tool in self.settings.barred_tools:
            self._abandon(opened, "unknown_tool")
        elif is_repeated or f"{BRACKET}{call} {ARROW}" in self.prompt.text:
            self._abandon(opened, "repeated_call")
        else:
            opened.call = call

    def _most_likely_in_call(self, opened: _OpenBracket, choice: Choice) -> int | None:
        """The most likely token that does not spell a barred tool's name; None if every token does."""
        barred, best = self.settings.barred_tools, choice.best
        if choice.order is None:
            return best
        others = self.tools.difference(barred)
        for token in choice.order:
            # A name is refused if it is a barred tool's, or the beginning of one and of no other tool's.
            name, bracket, _ = self._call_text(opened, token).partition("(")
            name = name.strip()
            only_barred = name != "" and _begins(barred, name) and not _begins(others, name)
            if token in self.written.tokenization.end_ids or not (name in barred if bracket else only_barred):
                if token != best:  # not what greedy decoding writes, so no text either
                    opened.greedy = False
                    self._count(opened)
                return int(token)
        return None

    def _give_up(self, opened: _OpenBracket, reason: str) -> None:
        """Let the bracket be text if greedy decoding has written it and it names no tool, else forget it."""
        if opened.greedy and not opened.named:
            self._keep_as_text(opened)
        else:
            self._abandon(opened, reason)

    def _keep_as_text(self, opened: _OpenBracket) -> bool:
        """Let the bracket and what follows it be text, within the limits of a text.

        Returns whether the text continues.
        """
        self._open = None
        for end in range(opened.resume + 1, len(self.written) + 1):
            if self._text_tokens >= self.settings.max_new_tokens:
                self.written.cut(end - 1)
                self._end = "length"
                break
            self._text_tokens += 1
            self._end_at_stop(end)
            if self._end is not None:
                break
        return self._end is None

    def _abandon(self, opened: _OpenBracket, reason: str) -> None:
        self._abandoned.append(reason)
        self._forget(opened)

    def _forget(self, opened: _OpenBracket) -> None:
        beginning = _CALL_BEGINNING.match(self._call_text(opened))
        named = beginning is not None and beginning[1] and beginning[2]
        self._forgotten = (
            _ForgottenCall(opened.resume, f"{beginning[1]}(") if beginning is not None and named else None
        )
        self.written.cut(opened.resume)
        self._open = None
        if self._may_become_call(opened.fallback):
            self._begin(self._written_bracket(opened.plain, runs=False), opened.fallback)
        else:
            self._take(opened.fallback)

    def _opened(self) -> _OpenBracket:
        if self._open is None:
            raise RuntimeError("expected an open call")
        return self._open

    def _call_text(self, opened: _OpenBracket, *more: int) -> str:
        """What was written after the bracket, and `more` tokens."""
        return self.written.tokenization.decode(
            [*self.written.ids[opened.start :], *map(int, more)]
        ).rpartition(BRACKET)[2]

    def _before_stop(self, text: str) -> str:
        return text if self._stop is None else text[: text.rindex(self._stop)]


def _begins(names: Sequence[str] | frozenset[str], beginning: str) -> bool:
    return any(name.startswith(beginning) for name in names)
