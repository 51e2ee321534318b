"""Find by examples which part of a server's answer the texts continue with: a field, or a place in a text.

An answer is compared with the result that the user wrote in the example, or else with what the text goes on
with after the call. Each answer proposes fields of its JSON, characters of a field, or a regular expression
of what is around the place; the proposal that most of the calls agree with wins.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.on_a_file.new_tool.examples import ExampleCall
from toolformer_ops.tools.servers.call_texts import pattern_of, picked_text

LEAST_CHARACTERS = 2
"""Shortest part of a field that is proposed: a shorter one agrees with anything."""
CONTEXTS = (24, 12, 6, 3)
"""Characters before the place that a regular expression holds, tried in this order."""
_NUMBER = re.compile(r"-?\d[\d.,]*\d|-?\d")
_WORDS = re.compile(r"\S+")


def proposed_result(calls: Sequence[ExampleCall], answers: Sequence[str]) -> tuple[str, int] | None:
    """The template or regular expression that most calls agree with, and how many do.

    It is None if less than half do. `answers` are whole answers, empty where there is none.
    """
    best: tuple[str, int] | None = None
    for proposal in dict.fromkeys(_proposals(calls, answers)):
        agreeing = 0
        for call, answer in zip(calls, answers, strict=True):
            with contextlib.suppress(RejectedInputError):  # a proposal that does not fit the answer
                agreeing += call.agrees(picked_text(answer, proposal))
        # A regular expression of one answer fits that answer, whatever it is.
        is_shown = agreeing > 1 or pattern_of(proposal) is None
        if is_shown and (best is None or agreeing > best[1]):
            best = (proposal, agreeing)
    # A whole answer that the texts continue with needs no proposal.
    whole = sum(call.agrees(answer) for call, answer in zip(calls, answers, strict=True))
    return best if best is not None and best[1] * 2 >= len(calls) and best[1] > whole else None


def _proposals(calls: Sequence[ExampleCall], answers: Sequence[str]) -> Iterator[str]:
    """Fields first, then parts of fields, then regular expressions: what a person reads best comes first."""
    pairs = list(zip(calls, answers, strict=True))
    fields = []
    for call, answer in pairs:
        fields += [(call, path, value) for path, value in _fields(answer)]
    for call, path, value in fields:
        if call.agrees(value):
            yield f"{{{path}}}"
    for call, path, value in fields:
        for wanted in _wanted(call):
            at = value.find(wanted)
            if at >= 0 and len(wanted) >= LEAST_CHARACTERS:
                yield f"{{{path}[{at}:{at + len(wanted)}]}}"
    for call, answer in pairs:
        yield from _patterns(call, answer)


def _fields(answer: str) -> Iterator[tuple[str, str]]:
    """The paths and the texts of all values of a JSON object, as a template names them."""
    try:
        parsed = json.loads(answer)
    except (ValueError, RecursionError):
        return
    if isinstance(parsed, dict):
        yield from _values(parsed, "")


def _values(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict | list):
        yield path, value if isinstance(value, str) else json.dumps(value)
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if not re.search(r"[{}\[\].]", str(key)):
            yield from _values(item, f"{path}.{key}" if path else str(key))


def _wanted(call: ExampleCall) -> list[str]:
    """What the result may be, the longest first: what the user wrote, or the next words of the text."""
    if call.expected:
        return [call.expected]
    ends = [word.end() for word in _WORDS.finditer(call.following)][:4]
    words = [call.following[:end].rstrip(".,;:!?") for end in reversed(ends)]
    if number := _NUMBER.match(call.following):
        words.append(number.group())
    return [word for word in dict.fromkeys(words) if word]


def _patterns(call: ExampleCall, answer: str) -> Iterator[str]:
    """Regular expressions of what is before and after each place where the answer has what is wanted."""
    for wanted in _wanted(call):
        kind = r"-?\d[\d.,]*" if _NUMBER.fullmatch(wanted) else r".+?"
        for place in re.finditer(re.escape(wanted), answer):
            behind = _literal(answer[place.end() : place.end() + 1])
            for characters in CONTEXTS:
                before = answer[max(0, place.start() - characters) : place.start()]
                # A number before the place is another one in the next answer.
                shown = re.sub(r"\d+", r"\\d+", _literal(before))
                yield f"/{shown}({kind}){behind or '$'}/"


def _literal(text: str) -> str:
    """The regular expression of a text, with strokes before no more signs than it needs."""
    return re.sub(r"[\\.^$*+?{}\[\]|()]", r"\\\g<0>", text)
