"""How a released text becomes conversations with tools: the messages of chat templates, and LLaMA-Factory's.

`chat`: one text is one conversation. The user writes its opening, the assistant continues it and calls tools
on the way. The shapes are those of transformers' chat templates and of TRL's data sets
(huggingface.co/docs/trl/dataset_formats, "Tool Calling"): arguments are an object, `content` is always a
text, and each call has an id of nine letters and digits, because some templates (Mistral's) ask for one. The
opening and what the assistant writes are together the plain text, byte for byte.

`sharegpt`: the form of LLaMA-Factory (`SharegptDatasetConverter` in its data/converter.py). There the turns
of the user or a tool alternate with those of the model, and a turn that calls is JSON and nothing else: a
model cannot write words and then call. So each place of a text with calls is a conversation of its own: the
user writes all that is before it, the model calls, and continues with the text up to the next place. No word
and no call is lost; the words before a place are read and not learned.

Knows no file and no database; `chat_export.py` and `preference_export.py` write (`export_files.py`).
"""

import hashlib
import itertools
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolformer_ops.call_syntax import Call
from toolformer_ops.release.format import ReleasedText
from toolformer_ops.tools.registry import get_tool

CONTINUE = "Continue the text. Call a tool where its result helps.\n\n"
"""Before the opening of a text."""
WRITE = "Write a text. Call a tool where its result helps."
"""If the opening is empty."""
_WORD_END = re.compile(r"\S(?=\s)")

Message = dict[str, Any]


def conversation(text: ReleasedText, seed: int) -> list[Message]:
    """The messages: user, then assistant, tool, assistant, and so on.

    The last is the assistant's, which may be empty.
    """
    plain, calls = text.all_calls()
    cut = drawn_end(plain[: calls[0].position_char] if calls else "", text.document_id, seed)
    messages = [user_turn(plain[:cut])]
    for number, woven in enumerate(calls, start=1):
        call, written = woven.call, plain[cut : woven.position_char]
        cut = woven.position_char
        call_id = f"call{number:05d}"
        messages.append(call_turn(written, call, call_id))
        messages.append({"role": "tool", "tool_call_id": call_id, "name": call.tool, "content": woven.result})
    messages.append({"role": "assistant", "content": plain[cut:]})
    return messages


def drawn_end(before: str, document_id: uuid.UUID, seed: int) -> int:
    """Where the opening of a text ends: at the start, or after a word of `before`.

    `before` is what precedes the first call. All these places are as likely. Not always right before the
    call, or the model would learn to open every answer with a call. The draw follows from the seed and the
    text's id alone.
    """
    ends = [0, *(match.end() for match in _WORD_END.finditer(f"{before} "))]
    digest = hashlib.sha256(f"{seed} {document_id}".encode("ascii")).digest()
    return ends[int.from_bytes(digest[:8]) % len(ends)]


def user_turn(opening: str) -> Message:
    """The instruction, with the opening if there is one."""
    return {"role": "user", "content": f"{CONTINUE}{opening}" if opening else WRITE}


def call_turn(written: str, call: Call, call_id: str) -> Message:
    """The assistant writes something, and calls a tool."""
    function = {"name": call.tool, "arguments": get_tool(call.tool).arguments(call.input)}
    return {
        "role": "assistant", "content": written, "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }  # fmt: skip


Row = dict[str, Any]
Tools = list[dict[str, Any]]


@dataclass(frozen=True)
class Form:
    """How conversations are written as rows."""

    rows: Callable[[ReleasedText, int, Tools], list[Row]]
    """The conversations of a released text, with a seed and the tools that are offered."""
    refusal: Callable[[str, str, Tools], Row]
    """A conversation that calls no tool: the user's opening, and what the model writes."""
    uses_template: bool
    """Whether the chat template of the model renders the rows."""
    data_set_info: Mapping[str, Any] = field(default_factory=dict)
    """What LLaMA-Factory has to know of the data set, beside the name of its file."""


def _chat_rows(text: ReleasedText, seed: int, tools: Tools) -> list[Row]:
    return [{"messages": conversation(text, seed), "tools": tools}]


def _chat_refusal(opening: str, written: str, tools: Tools) -> Row:
    turns = [user_turn(opening), {"role": "assistant", "content": written}]
    return {"messages": turns, "tools": tools}


def function_call(call: Call) -> Message:
    """The model calls a tool, as LLaMA-Factory writes it: JSON of the name and the arguments."""
    function = {"name": call.tool, "arguments": get_tool(call.tool).arguments(call.input)}
    return {"from": "function_call", "value": json.dumps(function, ensure_ascii=False)}


def sharegpt_row(turns: list[Message], tools: Tools) -> Row:
    """A row of LLaMA-Factory's form; the tools are JSON in a text, as it wants them."""
    return {"conversations": turns, "tools": json.dumps(tools, ensure_ascii=False)}


def sharegpt_opening(opening: str) -> Message:
    """The user's turn, with the words of the chat form."""
    return {"from": "human", "value": user_turn(opening)["content"]}


def _sharegpt_rows(text: ReleasedText, _seed: int, tools: Tools) -> list[Row]:
    plain, calls = text.all_calls()
    ends = sorted({call.position_char for call in calls} | {len(plain)})
    rows = []
    for place, calls_there in itertools.groupby(calls, key=lambda call: call.position_char):
        turns = [sharegpt_opening(plain[:place])]
        for woven in calls_there:
            turns += [function_call(woven.call), {"from": "observation", "value": woven.result}]
        next_place = min((end for end in ends if end > place), default=len(plain))
        turns.append({"from": "gpt", "value": plain[place:next_place]})
        rows.append(sharegpt_row(turns, tools))
    return rows


def _sharegpt_refusal(opening: str, written: str, tools: Tools) -> Row:
    return sharegpt_row([sharegpt_opening(opening), {"from": "gpt", "value": written}], tools)


_SHAREGPT_COLUMNS = {"messages": "conversations", "tools": "tools"}
SHAREGPT_INFO = {"formatting": "sharegpt", "columns": _SHAREGPT_COLUMNS}
SHAREGPT_PAIRS_INFO = {
    "formatting": "sharegpt",
    "ranking": True,
    "columns": {**_SHAREGPT_COLUMNS, "chosen": "chosen", "rejected": "rejected"},
}
FORMS = {
    "chat": Form(rows=_chat_rows, refusal=_chat_refusal, uses_template=True),
    "sharegpt": Form(
        rows=_sharegpt_rows, refusal=_sharegpt_refusal, uses_template=False, data_set_info=SHAREGPT_INFO
    ),
}
"""By the name that `export --format` takes."""
