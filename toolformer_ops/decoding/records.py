"""What decoding with tools is given and gives back: frozen records, cheap to import."""

import datetime
from dataclasses import dataclass
from typing import Literal

from toolformer_ops.errors import UsageError

End = Literal["end_of_text", "length", "stop"]


@dataclass(frozen=True)
class Prompt:
    """What the model continues."""

    text: str
    date: datetime.date | None = None
    """The current date, which the Calendar tells; None is the day on which it is asked."""
    shared_head: str = ""
    """A beginning of `text` that many prompts have in common, such as a task's instruction: it is computed
    once for all of them."""


@dataclass(frozen=True)
class DecodingSettings:
    """How a text is continued; the defaults are the paper's (section 4.2)."""

    max_new_tokens: int = 64
    """Most tokens of text that the model writes; calls and their results do not count, so that a call
    shortens no answer."""
    call_start_rank: int = 10
    """k: a call starts where " [" is among the k most likely tokens. 1 is plain greedy decoding; 0 disables
    calls: no bracket is written."""
    calls_per_input: int = 1
    """Most calls that an input may start, those included that come to nothing; text in brackets is none. 0
    disables calls."""
    max_call_tokens: int = 64
    """Most tokens of a call up to its arrow; a longer one is given up."""
    barred_tools: tuple[str, ...] = ()
    """Tools whose names the model cannot write in a call."""
    stops: tuple[str, ...] = ()
    """Texts that end the continuation if the model writes one outside a call; it is not part of the
    continuation."""

    def __post_init__(self) -> None:
        least = {"max_new_tokens": 1, "call_start_rank": 0, "calls_per_input": 0, "max_call_tokens": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UsageError(f"{name}: expected at least {bound}, found {getattr(self, name)}.")
        if "" in self.stops:
            raise UsageError("stops: expected texts of at least one character or none, found an empty one.")

    @property
    def allows_calls(self) -> bool:
        """Whether a call may start at all."""
        return self.call_start_rank > 0 and self.calls_per_input > 0


@dataclass(frozen=True)
class MadeCall:
    """A call that the model wrote and that was run; one without a result is not part of the text."""

    tool: str
    input: str
    """The text between the brackets."""
    result: str | None
    reason: str | None
    """Why there is no result, in snake_case; None if there is one."""
    start_char: int
    """Where the call starts in the continuation: its bracket; for a call without a result the place where it
    started."""
    end_char: int
    """Where it ends (exclusive)."""
    seconds: float
    """Until the tool had answered the batch that this call was part of."""
    message: str = ""
    """What the tool said of a call without a result; empty where the reason says all."""


@dataclass(frozen=True)
class WrittenText:
    """The continuation of one prompt."""

    prompt: Prompt
    text: str
    """The continuation alone, with its calls and their results."""
    without_calls: str
    """The continuation with its calls taken out."""
    calls: tuple[MadeCall, ...]
    """In the order in which they were made."""
    abandoned: tuple[str, ...]
    """Why calls that were started were given up before they were run, in snake_case, in order."""
    token_ids: tuple[int, ...]
    """The continuation as the model has it, results included; without the end-of-text token."""
    tokens: int
    """Tokens that the model chose, including calls that came to nothing, without results."""
    end: End
    """Why it ends."""
