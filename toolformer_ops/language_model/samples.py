"""One sampled call while it grows: its numbers, its random stream, its end. Computes nothing; `sampling.py` does.

A sample ends when its decoded text holds "]": the end is text, since `)]` and `")]` are single tokens in byte-pair
vocabularies. It also ends, unfinished, at the token budget or where the model ends the document.
"""

from dataclasses import dataclass, field

from toolformer_ops.call_syntax import CALL_END, CALL_START
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.draws import uniform
from toolformer_ops.language_model.tokenization import CallStart, Tokenization
from toolformer_ops.records import SampledContinuation


@dataclass(frozen=True)
class SamplingSettings:
    """How calls are sampled; part of the sampling recipe."""

    samples: int
    """Samples a position (the paper's m)."""
    max_new_tokens: int
    """Most tokens after `call_start`; the first of them may bring the end of `call_start` along (`tokenization.CallStart`)."""
    call_start: str
    """" [" or, where the tool's name is given, " [Calculator("."""
    temperature: float
    """Above 0; 1 is the model's own distribution."""
    top_p: float
    """In (0, 1]; 1 samples from the whole vocabulary."""

    def __post_init__(self) -> None:
        if not self.call_start.startswith(CALL_START):
            raise ModelError(f"expected a call start that begins with {CALL_START!r}, found {self.call_start!r}.")
        if CALL_END in self.call_start:
            raise ModelError(f"expected a call start without {CALL_END!r}, found {self.call_start!r}.")
        if min(self.samples, self.max_new_tokens) < 1 or self.temperature <= 0 or not 0 < self.top_p <= 1:
            raise ModelError(
                f"expected samples and max_new_tokens of at least 1, temperature above 0 and top_p in (0, 1], found "
                f"{self.samples}, {self.max_new_tokens}, {self.temperature} and {self.top_p}."
            )


@dataclass
class Sample:
    """One sample while it grows."""

    tokenization: Tokenization
    start: CallStart
    """What of the call is given."""
    position_token: int
    """The text's token before which the call stands."""
    number: int
    """Index among the samples of its position."""
    seed_key: str
    ids: list[int] = field(default_factory=list)
    """Tokens that were drawn."""
    finished: bool = False

    def next_uniform(self) -> float:
        """The random number of its next token, in [0, 1)."""
        return uniform(self.seed_key, self.position_token, self.number, len(self.ids))

    def append(self, token: int, max_new_tokens: int) -> bool:
        """Add a drawn token (-1 where there was no distribution); returns whether the sample goes on."""
        if token < 0 or token in self.tokenization.end_ids:
            return False
        self.ids.append(token)
        self.finished = CALL_END in self._written()
        return not self.finished and len(self.ids) < max_new_tokens

    def continuation(self) -> SampledContinuation:
        """What it came to."""
        return SampledContinuation(self._written().partition(CALL_END)[0], self.finished)

    def _written(self) -> str:
        """The text after the opening bracket."""
        text = self.tokenization.decode([*self.start.ids, *self.ids])
        return text.partition(CALL_START.strip())[2]
