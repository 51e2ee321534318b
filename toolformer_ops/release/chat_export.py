"""A release as chat messages with tools and tool results: what chat templates and supervised finetuning take today.

One released text is one conversation: the user writes its opening, the assistant continues it and calls tools on the way. The
shapes are those of transformers' chat templates and of TRL's data sets (huggingface.co/docs/trl/dataset_formats, "Tool Calling"):
arguments are an object, `content` is always a text, and each call has an id of nine letters and digits, because some templates
(Mistral's) ask for one. The opening and what the assistant writes are together the plain text, byte for byte.

A release is JSON Lines with the columns `messages` and `tools`, and not Parquet: Arrow stores every message with all fields of all
messages and every call with all arguments of all calls, filled up with nulls, and templates then render a null.
Needs no model, no template and no database; the template of a model that is named is tried, since some drop tools or calls without
an error (SmolLM2's does). Writes over no file, and writes nothing if the same content is there already.
"""

import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError, ObjectNotFoundError, UsageError
from toolformer_ops.release.format import ReleasedText, read_release
from toolformer_ops.runs.models import split_revision
from toolformer_ops.storage.file_hashes import file_sha256
from toolformer_ops.storage.publication import ObjectStore, registered_sha256
from toolformer_ops.tools.registry import get_tool, tool_names

logger = logging.getLogger(__name__)

CONTINUE = "Continue the text. Call a tool where its result helps.\n\n"
"""Before the opening of a text."""
WRITE = "Write a text. Call a tool where its result helps."
"""Where the opening is empty."""
FILE_NAME = "train.jsonl"
"""The file's name where only a folder is given; readers of data sets take it for the split `train`."""
_WORD_END = re.compile(r"\S(?=\s)")
_S3 = "s3://"

Message = dict[str, Any]


def conversation(text: ReleasedText, seed: int) -> list[Message]:
    """The messages: user, then assistant, tool, assistant, and so on; the last is the assistant's, which may be empty."""
    cut = opening_end(text, seed)
    plain, calls = text.all_calls()
    opening = plain[:cut]
    messages: list[Message] = [{"role": "user", "content": f"{CONTINUE}{opening}" if opening else WRITE}]
    for number, woven in enumerate(calls, start=1):
        call, written = woven.call, plain[cut : woven.position_char]
        cut = woven.position_char
        call_id = f"call{number:05d}"
        arguments = get_tool(call.tool).arguments(call.input)
        tool_call = {"id": call_id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}
        messages.append({"role": "assistant", "content": written, "tool_calls": [tool_call]})
        messages.append({"role": "tool", "tool_call_id": call_id, "name": call.tool, "content": woven.result})
    messages.append({"role": "assistant", "content": plain[cut:]})
    return messages


def opening_end(text: ReleasedText, seed: int) -> int:
    """Where the opening ends: after a word before the first call, each such place and the start of the text being as likely.

    Not always right before the call, or the model would learn to open every answer with a call. The draw follows from the seed
    and the text's id alone.
    """
    plain, calls = text.all_calls()
    before_first_call = plain[: calls[0].position_char] if calls else ""
    ends = [0, *(match.end() for match in _WORD_END.finditer(f"{before_first_call} "))]
    digest = hashlib.sha256(f"{seed} {text.document_id}".encode("ascii")).digest()
    return ends[int.from_bytes(digest[:8]) % len(ends)]


def plain_text(messages: Iterable[Message]) -> str:
    """The text of a conversation without calls: `conversation` read backwards."""
    first, *rest = messages
    opening = first["content"].removeprefix(CONTINUE) if first["content"] != WRITE else ""
    return opening + "".join(message["content"] for message in rest if message["role"] == "assistant")


def tool_schemas(names: Iterable[str]) -> list[dict[str, Any]]:
    """The JSON schemas of the tools of these names, in the order of the registry.

    Raises:
        ToolError: one of them is not installed.
    """
    wanted = set(names)
    known = [name for name in tool_names() if name in wanted]
    schemas = []
    for name in (*known, *sorted(wanted - set(known))):
        tool = get_tool(name)
        function = {"name": tool.spec.name, "description": tool.spec.purpose, "parameters": tool.parameters}
        schemas.append({"type": "function", "function": function})
    return schemas


@dataclass(frozen=True)
class ChatExport:
    """What was written."""

    address: str
    """Of the file: a path, or s3://."""
    conversations: int
    """One a text."""
    calls: int
    sha256: str
    """Of the file's content."""
    written: bool
    """False if the same content was there already."""
    warnings: tuple[str, ...] = ()
    """What the chat template of the model would lose."""


def template_warnings(settings: Settings, model: str, tools: list[dict[str, Any]]) -> tuple[str, ...]:
    """What the chat template of `model` (as a run names it) loses of a conversation with a call, by rendering one.

    Raises:
        ModelError: there is no such model.
    """
    from jinja2 import TemplateError

    from toolformer_ops.language_model.models.loading import load_tokenizer

    tokenizer = load_tokenizer(*split_revision(model), settings)
    if not tokenizer.chat_template:
        return (f"{model}: expected a chat template, found none. Choose one before you train on this export.",)
    function = next((tool["function"] for tool in tools if "required" in tool["function"]["parameters"]), None)
    if function is None:  # tools without input alone, or none
        function = {"name": tools[0]["function"]["name"] if tools else "Tool"}
    required = function.get("parameters", {}).get("required", ())
    call = {"name": function["name"], "arguments": dict.fromkeys(required, "4711 * 2")}
    messages: list[Message] = [
        {"role": "user", "content": f"{CONTINUE}It is"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call00001", "name": function["name"], "content": "9422"},
        {"role": "assistant", "content": "so much."},
    ]
    try:
        asked = tokenizer.apply_chat_template(messages[:1], tools=tools, tokenize=False)
        # Without the tools' descriptions, so that a name in it is that of the call.
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
    except (TemplateError, TypeError, ValueError) as error:
        return (f"{model}: the chat template cannot render a conversation with a call: {error}.",)
    lost = []
    if not all(tool["function"]["name"] in asked for tool in tools):
        lost.append("the tools")
    if call["name"] not in whole or not all(text in whole for text in call["arguments"].values()):
        lost.append("calls")
    if "9422" not in whole:
        lost.append("results")
    if not lost:
        return ()
    return (
        f"{model}: the chat template drops {' and '.join(lost)} without an error, so a model trained through it does not learn to "
        "call. Set a template that renders them, such as one of TRL's (trl/chat_templates).",
    )


def export_chat(settings: Settings, release: str, out: str, seed: int, model: str = "") -> ChatExport:
    """Write the release at `release` (a folder or s3://) to `out` (a .jsonl file or a folder, local or s3://).

    The chat template of `model`, or else of the setting default_model, is tried first; what it would lose is a warning.

    Raises:
        ModelError: there is no such `model`.
        UsageError: there is no release, or another file is at `out`.
        ToolError: the release calls a tool that is not installed.
        ConfigurationError: an s3:// address is not in the bucket of the settings.
        ObjectStoreError: S3 cannot be read or written.
    """
    address = out if out.endswith(".jsonl") else f"{out.rstrip('/')}/{FILE_NAME}"
    with tempfile.TemporaryDirectory(prefix="chat-export-") as scratch:
        # 1. The release's files on disk, checked against their hashes if they come from S3.
        folder = Path(release)
        if release.startswith(_S3):
            store, folder = ObjectStore(settings), Path(scratch) / "release"
            uri = release.rstrip("/").removesuffix("/manifest.json")
            try:
                store.fetch(store.key_of(uri), folder, registered_sha256(settings, uri))
            except ObjectNotFoundError as error:
                raise UsageError(f"RELEASE: {error}. See `dataset_releases.uri`.") from error
        parts = sorted(folder.glob("part-*.parquet"))
        if not parts:
            found = "a folder without them" if folder.is_dir() else "a file" if folder.exists() else "nothing"
            raise UsageError(
                f"RELEASE: expected a folder with part-*.parquet or the s3:// address of a release, found {found} at "
                f"{release}. `dataset_releases.uri` holds the addresses."
            )
        # 2. The tools: every conversation offers all that the release calls, so that a model learns to choose among them.
        called = (names for part in parts for names in pq.read_table(part, columns=["tools"])["tools"].to_pylist())
        tools = tool_schemas({name for names in called for name in names})
        warnings: tuple[str, ...] = ()
        try:
            if address_of_model := model or settings.default_model:
                warnings = template_warnings(settings, address_of_model, tools)
        except ModelError as error:
            if model:
                raise
            logger.info("no chat template is tried: %s", error)
        for warning in warnings:
            logger.warning("%s", warning)
        # 3. The file, and from there to where it is to be.
        file = Path(scratch) / FILE_NAME
        conversations = calls = 0
        with file.open("w", encoding="utf-8", newline="\n") as lines:
            for text in read_release(folder):
                row = {"messages": conversation(text, seed), "tools": tools}
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")
                conversations += 1
                calls += len(text.calls)
        written = _put_if_absent(settings, file, address)
        sha256 = file_sha256(file)
    outcome = "wrote" if written else "found the same"
    logger.info("%s %d conversations with %d calls: %s", outcome, conversations, calls, address)
    return ChatExport(
        address=address, conversations=conversations, calls=calls, sha256=sha256, written=written, warnings=warnings
    )


def _put_if_absent(settings: Settings, file: Path, address: str) -> bool:
    """Copy the file to `address`; False if the same content is there already.

    Raises:
        UsageError: another content is there.
    """
    if address.startswith(_S3):
        store = ObjectStore(settings)
        store.require_bucket()
        key = store.key_of(address)
        if store.put_if_absent(key, file):
            return True
        same = store.sha256(key) == file_sha256(file)
    else:
        target = Path(address)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, partial := target.with_name(f"{target.name}.partial"))
            partial.replace(target)
            return True
        same = target.is_file() and file_sha256(target) == file_sha256(file)
    if not same:
        raise UsageError(
            f"OUT: expected nothing or this very export at {address}, found something else. Nothing was written; choose another "
            "place, or remove what is there."
        )
    return False
