r"""The only writer and reader of tool calls in text: `[Calculator(400 / 1400) -> 0.29]`.

The paper writes the special tokens of a call as " [", "->" and "]" (footnote 1), so that no vocabulary
changes. Three forms:

    e(c)      [Calculator(400 / 1400)]
    e(c, "")  [Calculator(400 / 1400) -> ]
    e(c, r)   [Calculator(400 / 1400) -> 0.29]

Inserted into a text at character offset o, a call brings one space with it. Before a word that carries its
own white space, at the end of the text, and where a script puts no white space between two words, the space
comes before the call (`of [call] 54`, `卖出 [call]三百`), as the model writes " [" there; before a word that has
none, because the white space before it belongs to what precedes, the space comes after it
(`\\n[call] Hello`). `take_out` returns the text byte for byte: the space to remove is the one before the call
if there is one, else the one after it. That is the same text whichever of two neighbouring spaces was the
added one, since they are equal characters.

Does not run calls and knows no tool: `tools/` does.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolformer_ops.errors import CallSyntaxError

CALL_START = " ["
CALL_END = "]"
ARROW = "->"
TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
NOT_IN_A_CALL = r"[\[\]\n\r]"
"""Matches a character that no written call holds between its brackets; in Python's and in Postgres's
syntax."""
_CALL = re.compile(r"\s*([A-Za-z][A-Za-z0-9_]*)\s*\((.*)\)\s*\Z", re.DOTALL)
_MARKED = re.compile(r"\[([A-Za-z][A-Za-z0-9_]*)\(([^\[\]\n\r]*)\)(?:\s*(->)([^\[\]\n\r]*))?\]")
"""A call in a text, perhaps with its result."""
_OPEN_CALL = re.compile(r"[^()]*\((?:[^()]|\([^()]*\))*")
"""A call whose last round bracket is lacking; its input may hold pairs of them."""
_NOT_IN_INPUT = re.compile(r"[\[\]\x00-\x08\x0a-\x1f\x7f]")
_QUOTES = {'"': '"', "“": "”", "'": "'"}
_RESULT_BRACKETS = str.maketrans({"[": "(", "]": ")", "\n": " ", "\r": " ", "\t": " "})


@dataclass(frozen=True)
class Call:
    """A tool's name and its input, `c = (a_c, i_c)`."""

    tool: str
    input: str

    def __str__(self) -> str:
        return f"{self.tool}({self.input})"


@dataclass(frozen=True)
class WrittenCall:
    """A call with its result as a text holds it."""

    call: Call
    result: str
    start_char: int
    """Offset in the text of what is taken out with it: the call and its one added space."""
    end_char: int
    """Offset of the end of that."""
    position_char: int
    """Offset, in the text without calls, before which the call is.

    A call before a word, and one before the space in front of that word, make the same text, `of [call] 54`:
    this is the offset before the space, at which a token that includes the space begins. The two differ only
    at the start of a text.
    """


@dataclass(frozen=True)
class WovenCall:
    """A call with its result at a place in a text."""

    position_char: int
    """Offset in the text without calls."""
    call: Call
    result: str


def parse_call(text: str, *, is_closed: bool = True) -> Call:
    """Read what the model wrote between "[" and "]", such as `QA("Where was Joe Biden born?")`.

    Quotation marks around the whole input, which the prompts of three tools show, are not part of the input.
    An arrow and what follows it (a result that the model made up) is cut off. Unless it `is_closed`, a call
    may lack its last round bracket.

    Raises:
        CallSyntaxError: `text` is not a name followed by one pair of brackets, or its input could not be
        written back
            (it holds "[", "]", a line break or another control character, which Postgres may not be able to
            store).
    """
    before_arrow, arrow, _ = text.partition(ARROW)
    written = before_arrow if arrow else text
    if not is_closed and _OPEN_CALL.fullmatch(written):
        written += ")"
    match = _CALL.match(written)
    if match is None:
        raise CallSyntaxError(f"expected 'Tool(input)', found {text[:80]!r}")
    tool, call_input = match.group(1), match.group(2).strip()
    if len(call_input) >= 2 and _QUOTES.get(call_input[0]) == call_input[-1]:
        inner = call_input[1:-1]
        if call_input[0] not in inner and call_input[-1] not in inner:
            call_input = inner.strip()
    if _NOT_IN_INPUT.search(call_input):
        raise CallSyntaxError(
            f"expected an input without brackets or control characters, found {call_input[:80]!r}"
        )
    return Call(tool, call_input)


def call_without_result(call: Call) -> str:
    """`e(c, "")` with the arrow: the call was made and nothing came back."""
    return f"[{call} {ARROW} ]"


def call_with_result(call: Call, result: str) -> str:
    """`e(c, r)`.

    Square brackets in a result become round ones and line breaks spaces, so that the first "]" ends the call.
    """
    return f"[{call} {ARROW} {clean_result(result)}]"


def clean_result(result: str) -> str:
    """A result as it may be written inside a call: one line, no square brackets, no white space around it."""
    return result.translate(_RESULT_BRACKETS).strip()


def weave(text: str, calls: Iterable[WovenCall]) -> str:
    """Put calls with their results into `text`.

    Several calls at one offset keep the order given. `take_out` is the inverse.

    Raises:
        CallSyntaxError: an offset is outside the text.
    """
    pieces: list[str] = []
    end = 0
    for woven in sorted(calls, key=lambda item: item.position_char):
        if not 0 <= woven.position_char <= len(text):
            raise CallSyntaxError(f"expected an offset in 0..{len(text)}, found {woven.position_char}")
        pieces.append(text[end : woven.position_char])
        end = woven.position_char
        written = call_with_result(woven.call, woven.result)
        pieces.append(f" {written}" if has_space_before(text, end) else f"{written} ")
    pieces.append(text[end:])
    return "".join(pieces)


def has_space_before(text: str, char: int) -> bool:
    """Whether the space that a call at offset `char` of `text` brings is before the call.

    Else it is after it.
    """
    is_word_after_space = char < len(text) and not text[char].isspace() and text[char - 1 : char].isspace()
    return char > 0 and not is_word_after_space


def call_opening(tool: str) -> str:
    """How every written call of a tool begins.

    Of a text that does not hold it, calls come out again, byte for byte, if their inputs have no character of
    `NOT_IN_A_CALL` and their offsets are inside the text: a written call then has one "[" and one "]", so
    that `take_out` finds all of them and nothing else. A text that holds it may give its calls back, too
    (`holds_call_markup`).
    """
    return f"[{tool}("


def take_out(text: str, tools: Sequence[str]) -> str:
    """`text` without the calls of `tools` that were woven into it, byte for byte as it was before."""
    return read_out(text, tools)[0]


def read_out(text: str, tools: Sequence[str]) -> tuple[str, list[WrittenCall]]:
    """`text` without the calls of `tools` that were woven into it, and these calls in their order."""
    pattern = _written_calls(tuple(tools))
    pieces: list[str] = []
    calls: list[WrittenCall] = []
    end = length = 0
    for match in pattern.finditer(text):
        before, start = text[end : match.start()], match.start()
        end, behind_space = match.end(), False
        if before.endswith(" "):
            before, start, behind_space = before[:-1], start - 1, True
        elif text[end : end + 1] == " ":
            end += 1
        pieces.append(before)
        length += len(before)
        tool, call_input, result = match.groups()
        calls.append(WrittenCall(Call(tool, call_input), result, start, end, length or int(behind_space)))
    pieces.append(text[end:])
    return "".join(pieces), calls


@functools.lru_cache
def _written_calls(tools: tuple[str, ...]) -> re.Pattern[str]:
    """What matches a call of one of these tools with its result.

    It has groups for the tool, the input and the result.
    """
    names = "|".join(re.escape(tool) for tool in tools)
    # An input holds no arrow (`parse_call`), so that the first ") -> " ends it. If no "]" follows that one,
    # none follows a later one in the same brackets: the atomic group tries no other, and the time is linear.
    return re.compile(rf"\[({names})\((?>([^\[\]\n\r]*?)\) -> )([^\[\]\n\r]*)\]")


def marked_calls(text: str, tools: Iterable[str]) -> tuple[str, list[WrittenCall]]:
    """The text without the calls that people or programs marked up in it, and these calls in their order.

    A call names one of `tools`, in any case, or has an arrow, with a result that may be empty; other brackets
    are text. `position_char` is an offset of the text without calls; `start_char` and `end_char` are offsets
    of the text with each call as `str(Call)` writes it, which may not be as it was marked up.
    """
    lower_names = {name.lower() for name in tools}
    pieces: list[str] = []
    names: set[str] = set()
    end = 0
    for match in _MARKED.finditer(text):
        name, call_input, arrow, result = match.groups()
        if not arrow and name.lower() not in lower_names:
            continue
        try:
            call = parse_call(f"{name}({call_input})")
        except CallSyntaxError:
            continue
        names.add(call.tool)
        pieces += [text[end : match.start()], f"[{call} {ARROW} {(result or '').strip()}]"]
        end = match.end()
    pieces.append(text[end:])
    return read_out("".join(pieces), sorted(names)) if names else (text, [])


def holds_call_markup(text: str, tools: Sequence[str]) -> bool:
    """Whether `text` holds what a reader takes for a call of one of `tools`.

    Such a call is `[Calculator(1 + 1) -> 3]`. Such a text could smuggle in a call and its result, so it is
    refused before anything is sampled for it. Markup is the beginning of a call up to its arrow, on one line:
    there a model that writes is given the tool's answer (`decoding/writer.py`), with white space around the
    name as `parse_call` passes over it, and whether or not a "]" follows. Prose such as `[QA (quality
    assurance)]`, `[[Calendar (New York City)|1]]` or `d[QA(3)]` has no arrow, and no reader takes it for a
    call.

    Calls come out of any other text as they were put in: `read_out(weave(text, calls), tools)` returns `text`
    and `calls`, for calls as `parse_call` reads them, at any place of the text.

    1. What `read_out` matches begins with "[" and ends with the first bracket after it, a "]".
    2. A match that begins with the "[" of a woven call is this call, since it has no other bracket and its
       input no arrow.
    3. A match that begins with a "[" of the text ends before the next woven call, whose first character, but
       for the added space, is "[". So a piece of the text between two calls holds all of it, and the text
       does: it begins like a call, up to the arrow, and would have been refused.
    4. So the matches are the woven calls, and the added spaces go as the head of this module says.

    Nothing else in the text changes this: `[QA(x` without an end, a "[" right before a
    call, or a "]" right after it.
    """
    names = "|".join(re.escape(tool) for tool in tools)
    space = r"[^\S\n\r]*"
    return re.search(rf"\[{space}(?:{names}){space}\([^\[\]\n\r]*\){space}->", text) is not None
