"""Chains of calls: a call whose input holds the result of a call that the text holds already. Pure functions.

The paper names as a limit that its calls are sampled independently of each other, so that none can use the
result of another. A run with the parameter `chains` goes over the texts of a release, calls and results
included: the losses of a second call are those of the text with the first one. What differs from the first
round is here:

1. A position is one after an earlier call, where the text continues (`EarlierCalls.allows`).
2. A sampled call is a candidate if a piece of an earlier result is in its input and nowhere else in the text
   before it (`EarlierCalls.parent_of`); that earlier call is its parent.

A piece of a result is all of it; a number in it of two digits or more; or two words of it that follow each
other and are names or numbers, by their first character. Of "Today is Friday, November 20, 2020." the year
and "November 20" are pieces, "Today is" not. A character of a script without spaces is a word.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from toolformer_ops.call_syntax import WrittenCall, read_out
from toolformer_ops.language_model.losses import TOKEN_WEIGHTS
from toolformer_ops.writing_systems import UNSPACED_SCRIPTS

_WORD = re.compile(rf"\d+(?:[.,:]\d+)*|[{UNSPACED_SCRIPTS}]|[^\W{UNSPACED_SCRIPTS}]+")
_WORD_START = re.compile(r"(?<!\S)\S")

Words = tuple[str, ...]


@dataclass(frozen=True)
class EarlierCalls:
    """The calls that a text holds."""

    text: str
    plain_text: str
    """Without the calls."""
    calls: Sequence[WrittenCall]
    """In the order of the text."""

    @classmethod
    def of(cls, text: str, tools: Sequence[str]) -> "EarlierCalls":
        """The earlier calls of these tools."""
        plain_text, calls = read_out(text, tools)
        return cls(text, plain_text, calls)

    def allows(self, char: int) -> bool:
        """Whether a second call may be sampled before this character of the text.

        Text of the corpus is between it and the call before it, and the tokens that are scored after it
        belong to no later call: each word has at least one token, so that as many words as there are weights
        hold them. White space bounds these words in every script, since a token may hold several characters.
        """
        before = [call for call in self.calls if call.start_char < char]
        if not before or not self.text[before[-1].end_char : char].strip():
            return False
        after = next((call for call in self.calls if call.start_char >= char), None)
        return after is None or len(_WORD_START.findall(self.text[char : after.start_char])) >= len(
            TOKEN_WEIGHTS
        )

    def parent_of(self, call_input: str, char: int) -> int | None:
        """The number, from 0, of the last call before `char` whose result the input holds; None without any.

        A piece that the text before `char` holds outside of calls, or that is in the input of that call, says
        nothing: the model may have it from there.
        """
        before = [call for call in self.calls if call.end_char <= char]
        words = _words(call_input)
        if not before or not words:
            return None
        written = _words(self.text[: before[0].start_char])
        for call, end in zip(before, [*(call.start_char for call in before[1:]), char], strict=True):
            written += ("", *_words(self.text[call.end_char : end]))
        for number in reversed(range(len(before))):
            earlier_input = _words(before[number].call.input)
            for piece in _pieces(before[number].result):
                if _holds(words, piece) and not _holds(written, piece) and not _holds(earlier_input, piece):
                    return number
        return None


def _words(text: str) -> Words:
    return tuple(map(str.casefold, _WORD.findall(text)))


def _pieces(result: str) -> list[Words]:
    words = _words(result)
    numbers = [(word,) for word in words if sum(map(str.isdigit, word)) >= 2]
    is_name = [word[0].isupper() or word[0].isdigit() for word in _WORD.findall(result)]
    pairs = [
        pair
        for pair, names in zip(itertools.pairwise(words), itertools.pairwise(is_name), strict=True)
        if all(names)
    ]
    return [words, *numbers, *pairs] if words else []


def _holds(words: Words, piece: Words) -> bool:
    return any(words[start : start + len(piece)] == piece for start in range(len(words) - len(piece) + 1))
