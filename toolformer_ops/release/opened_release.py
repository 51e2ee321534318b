"""A release as its exports read it: its files on this disk, its tools, and what a model would lose of it.

The chat template of a model that is named is tried, since some drop tools or calls without an error (SmolLM2's
does). Needs no model and, but for `run_of_release`, no database.
"""

import contextlib
import itertools
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy import Connection

from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError, ObjectNotFoundError, UsageError
from toolformer_ops.language_model.models.identity import split_revision
from toolformer_ops.release.conversations import CONTINUE, Message
from toolformer_ops.release.format import part_files
from toolformer_ops.storage.objects.publication import ObjectStore, registered_sha256
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.registry import get_tool, tool_names

logger = logging.getLogger(__name__)

_S3 = "s3://"
_RELEASE_ID = re.compile("[0-9a-f]{16}")
COMMON_CONTROL_TOKENS = re.compile(
    r"<\|[a-z_]{2,30}\|>|<(?:start|end)_of_turn>|\[/?INST\]|<\uff5c[^<>]{2,40}\uff5c>|</s>"
)
"""Control tokens of well-known models, for an export whose model is not known: those of ChatML and Llama 3,
Gemma, Mistral, DeepSeek and Llama 2."""


def tool_schemas(names: Iterable[str]) -> list[dict[str, Any]]:
    """The JSON schemas of the tools of these names, in the order of the registry.

    Raises:
        ToolError: one of them is not installed.
    """
    wanted = set(names)
    registered = [name for name in tool_names() if name in wanted]
    schemas = []
    for name in (*registered, *sorted(wanted - set(registered))):
        tool = get_tool(name)
        function = {"name": tool.spec.name, "description": tool.spec.purpose, "parameters": tool.parameters}
        schemas.append({"type": "function", "function": function})
    return schemas


def control_tokens_of(tokenizer: Any) -> re.Pattern[str]:
    """Find in a text what the tokenizer would read as a control token, such as `<|im_end|>`."""
    added = tokenizer.added_tokens_decoder.values()
    tokens = {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
    longest_first = sorted(filter(None, tokens), key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def left_out_warning(texts: int) -> str:
    """What is said of texts that are left out for control tokens."""
    return (
        f"{texts} texts are left out, since they spell control tokens of the model, such as <|im_end|>: a "
        "trainer would read them as turns of the conversation."
    )


def template_warnings(tokenizer: Any, model: str, tools: list[dict[str, Any]]) -> tuple[str, ...]:
    """What the chat template of `model`'s tokenizer loses of a conversation with a call, by rendering one."""
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        return (
            f"{model}: expected a chat template, found none. Choose one before you train on this export.",
        )
    function = next(
        (tool["function"] for tool in tools if "required" in tool["function"]["parameters"]), None
    )
    if function is None:  # tools without input alone, or none
        function = {"name": tools[0]["function"]["name"] if tools else "Tool"}
    required = function.get("parameters", {}).get("required", ())
    call = {"name": function["name"], "arguments": dict.fromkeys(required, "4711 * 2")}
    messages: list[Message] = [
        {"role": "user", "content": f"{CONTINUE}It is"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call00001", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call00001", "name": function["name"], "content": "9422"},
        {"role": "assistant", "content": "so much."},
    ]
    try:
        question = tokenizer.apply_chat_template(messages[:1], tools=tools, tokenize=False)
        # Without the tools' descriptions, so that a name in it is that of the call.
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
    except (TemplateError, TypeError, ValueError) as error:
        return (f"{model}: the chat template cannot render a conversation with a call: {error}.",)
    lost = []
    if not all(tool["function"]["name"] in question for tool in tools):
        lost.append("the tools")
    if call["name"] not in whole or not all(text in whole for text in call["arguments"].values()):
        lost.append("calls")
    if "9422" not in whole:
        lost.append("results")
    if not lost:
        return ()
    return (
        f"{model}: the chat template drops {' and '.join(lost)} without an error, so a model trained "
        "through it does not learn to call. Set a template that renders them, such as one of TRL's "
        "(trl/chat_templates).",
    )


@dataclass(frozen=True)
class OpenedRelease:
    """A release's files on this disk, and what a model that learns from them is offered."""

    folder: Path
    tools: list[dict[str, Any]]
    """Schemas of all tools that the release calls, so that a model learns to choose among them."""
    warnings: tuple[str, ...]
    """What the chat template of the model would lose."""
    control_tokens: re.Pattern[str]
    """Finds what the model would read as a control token in a text."""


def address_of_release(settings: Settings, release: str) -> str:
    """The address of the release with this id; an address, or a folder that exists, as it is."""
    if not _RELEASE_ID.fullmatch(release) or Path(release).exists():
        return release
    return ObjectStore(settings).uri(f"releases/{release}")


@contextlib.contextmanager
def opened_release(
    settings: Settings, release: str, model: str, *, tries_template: bool = True
) -> Iterator[OpenedRelease]:
    """The release at `release` (a folder or s3://) until the end of the block.

    Files from S3 are checked against their hashes. If it `tries_template`, that is the chat template of
    `model`, or else of the setting default_model.
    """
    from toolformer_ops.language_model.models.loading import load_tokenizer

    with tempfile.TemporaryDirectory(prefix="export-") as scratch:
        # 1. The files.
        folder = Path(release)
        if release.startswith(_S3):
            store, folder, uri = ObjectStore(settings), Path(scratch), _uri(release)
            try:
                store.fetch(store.key_of(uri), folder, registered_sha256(settings, uri))
            except ObjectNotFoundError as error:
                raise UsageError(f"RELEASE: {error}. See `dataset_releases.uri`.") from error
        parts = part_files(folder)
        if not parts:
            finding = (
                "a folder without them" if folder.is_dir() else "a file" if folder.exists() else "nothing"
            )
            raise UsageError(
                "RELEASE: expected a folder with data/part-*.parquet or the s3:// address of a release, "
                f"found {finding} at {release}. `dataset_releases.uri` holds the addresses."
            )
        # 2. The tools.
        called: set[str] = set()
        for part in parts:
            tools_of_texts = pq.read_table(part, columns=["tools"])["tools"].to_pylist()
            called.update(itertools.chain.from_iterable(tools_of_texts))
        tools = tool_schemas(called)
        warnings: tuple[str, ...] = ()
        control_tokens = COMMON_CONTROL_TOKENS
        try:
            if address_of_model := model or settings.default_model:
                tokenizer = load_tokenizer(*split_revision(address_of_model), settings)
                control_tokens = control_tokens_of(tokenizer)
                if tries_template:
                    warnings = template_warnings(tokenizer, address_of_model, tools)
        except ModelError as error:
            if model:
                raise
            logger.info("no chat template is tried: %s", error)
        for warning in warnings:
            logger.warning("%s", warning)
        yield OpenedRelease(folder=folder, tools=tools, warnings=warnings, control_tokens=control_tokens)


def run_of_release(connection: Connection, release: str) -> tuple[str, str]:
    """The ids of the release at this s3:// address and of the run that made it first.

    Raises:
        UsageError: the database does not know it, or its texts hold calls of an earlier release.
    """
    releases = database.fetch_all(connection, queries.exports.run_of_release, uri=_uri(release))
    if not releases or releases[0].chained_release_id is not None:
        raise UsageError(
            "RELEASE: expected the s3:// address of a release in `dataset_releases`, since the calls that "
            f"were not kept are in Postgres, found {'a release of chains' if releases else 'none'} at "
            f"{release}."
        )
    return releases[0].release_id, releases[0].run_id


def _uri(release: str) -> str:
    return release.rstrip("/").removesuffix("/manifest.json")
