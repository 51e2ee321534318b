"""A released text as a conversation: the user gives its opening, the assistant writes on and calls tools on the way.

The shapes are those of transformers' chat templates and of TRL's data sets (huggingface.co/docs/trl/dataset_formats, "Tool
Calling"): arguments are an object, `content` is always a text, and each call has an id of nine letters and digits, because some
templates (Mistral's) ask for one. The opening and what the assistant writes are together the plain text, byte for byte.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from toolformer_ops.release.format import ReleasedCall, ReleasedText
from toolformer_ops.tools.base import ToolSpec
from toolformer_ops.tools.registry import get_tool, tool_names

CONTINUE = "Continue the text. Call a tool where its result helps.\n\n"
"""Before the opening of a text."""
WRITE = "Write a text. Call a tool where its result helps."
"""Where nothing of the text is given."""
ARGUMENT = "input"
"""The one argument of every tool: one name for all, so that rows of different tools have one shape."""
_WORD_END = re.compile(r"\S(?=\s)")

Message = dict[str, Any]


def conversation(text: ReleasedText, seed: int) -> list[Message]:
    """The messages: user, then assistant, tool, assistant, and so on; the assistant has the last word, be it empty."""
    cut = opening_end(text, seed)
    opening = text.plain_text[:cut]
    messages: list[Message] = [{"role": "user", "content": f"{CONTINUE}{opening}" if opening else WRITE}]
    for number, call in enumerate(text.calls, start=1):
        written = text.plain_text[cut : call.position_char]
        cut = call.position_char
        call_id = f"call{number:05d}"
        messages.append({"role": "assistant", "content": written, "tool_calls": [_tool_call(call, call_id)]})
        messages.append({"role": "tool", "tool_call_id": call_id, "name": call.tool, "content": call.result})
    messages.append({"role": "assistant", "content": text.plain_text[cut:]})
    return messages


def opening_end(text: ReleasedText, seed: int) -> int:
    """Where the opening ends: after a word before the first call, each such place and the start of the text being as likely.

    Not always right before the call, or the model would learn to open every answer with a call. The draw follows from the seed
    and the text's id alone.
    """
    before_first_call = text.plain_text[: text.calls[0].position_char] if text.calls else ""
    ends = [0, *(match.end() for match in _WORD_END.finditer(f"{before_first_call} "))]
    digest = hashlib.sha256(f"{seed} {text.document_id}".encode("ascii")).digest()
    return ends[int.from_bytes(digest[:8]) % len(ends)]


def plain_text(messages: Iterable[Message]) -> str:
    """The text of a conversation without calls: `conversation` read backwards."""
    first, *rest = messages
    opening = first["content"].removeprefix(CONTINUE) if first["content"] != WRITE else ""
    return opening + "".join(message["content"] for message in rest if message["role"] == "assistant")


def tool_schemas(names: Iterable[str]) -> list[dict[str, Any]]:
    """What the tools of these names are and take, in the order of the registry.

    Raises:
        ToolError: one of them is not installed.
    """
    wanted = set(names)
    known = [name for name in tool_names() if name in wanted]
    return [_schema(get_tool(name).spec) for name in (*known, *sorted(wanted - set(known)))]


def _schema(spec: ToolSpec) -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    if spec.takes_input:
        parameters["properties"] = {ARGUMENT: {"type": "string", "description": "What the tool is given."}}
        parameters["required"] = [ARGUMENT]
    return {
        "type": "function",
        "function": {"name": spec.name, "description": spec.purpose, "parameters": parameters},
    }


def _tool_call(call: ReleasedCall, call_id: str) -> dict[str, Any]:
    arguments = {ARGUMENT: call.input} if get_tool(call.tool).spec.takes_input else {}
    return {"id": call_id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}
