"""A release as a file of conversations with tools and tool results: what supervised finetuning takes today.

`release/conversations.py` says how a text becomes conversations, in two forms. The file is JSON Lines, with
the columns `messages` or `conversations`, and `tools`, and not Parquet: Arrow stores every message
with all fields of all messages and every call with all arguments of all calls, filled up with nulls, and
templates then render a null. Needs no model, no template and no database; the template of a model that is
named is tried, since some drop tools or calls without an error (SmolLM2's does). Writes over no file, and
writes nothing if the same content exists already.

With refusals, a share of the conversations offers the tools and calls none: texts of the release's run in
which calls were tried and none saved anything. They come from Postgres, and are compared with the evaluation
data that the run compares its release with, since they are in no release. A card beside the file says which
they are. The rows are in the order of the texts' ids, which are hashes of the texts.
"""

import contextlib
import heapq
import itertools
import json
import logging
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
from sqlalchemy import Connection, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError, NoResultError, ObjectNotFoundError, UsageError
from toolformer_ops.language_model.models.identity import split_revision
from toolformer_ops.release.card import markdown
from toolformer_ops.release.choosing import PAGE_TEXTS
from toolformer_ops.release.conversations import CONTINUE, FORMS, Form, Message, drawn_end
from toolformer_ops.release.format import part_files, read_release
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.file_hashes import file_sha256
from toolformer_ops.storage.publication import ObjectStore, registered_sha256
from toolformer_ops.tools.registry import get_tool, tool_names

logger = logging.getLogger(__name__)

INFO_NAME = "dataset_info.json"
"""The file from which LLaMA-Factory takes what a data set is, beside the data."""
FILE_NAME = "train.jsonl"
"""The file's name if only a folder is given; readers of data sets take it for the split `train`."""
_S3 = "s3://"


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


@dataclass(frozen=True)
class ChatExport:
    """What was written."""

    address: str
    """Address of the file: a path, or s3://."""
    conversations: int
    """One a text."""
    refusals: int
    """Conversations of these that call no tool."""
    calls: int
    sha256: str
    """Hash of the file's content."""
    written: bool
    """False if the same content was there already."""
    left_out: int = 0
    """Texts that spell control tokens of the model."""
    warnings: tuple[str, ...] = ()
    """What the chat template of the model would lose, and what was left out."""


COMMON_CONTROL_TOKENS = re.compile(
    r"<\|[a-z_]{2,30}\|>|<(?:start|end)_of_turn>|\[/?INST\]|<\uff5c[^<>]{2,40}\uff5c>|</s>"
)
"""Control tokens of well-known models, for an export whose model is not known: those of ChatML and Llama 3,
Gemma, Mistral, DeepSeek and Llama 2."""


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
class HeldEvaluationData:
    """Which texts share word n-grams with the evaluation data of a run."""

    decontaminate: Literal["off", "report", "leave_out"]
    """What the run does with such texts; off: none were compared."""
    document_ids: frozenset[uuid.UUID]


Texts = Iterable[tuple[uuid.UUID, str]]


@dataclass(frozen=True)
class Refusals:
    """Conversations that call no tool, beside those of a release."""

    share: float
    """The share of all conversations, in (0, 1); fewer if the release's run has fewer texts for them."""
    compare: Callable[[str, Texts], HeldEvaluationData]
    """Compares texts with the evaluation data of the run with an id; `stages/release.py` does."""


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


def _uri(release: str) -> str:
    return release.rstrip("/").removesuffix("/manifest.json")


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


def export_chat(
    settings: Settings,
    release: str,
    out: str,
    seed: int,
    model: str = "",
    refusals: Refusals | None = None,
    *,
    form: Form = FORMS["chat"],
) -> ChatExport:
    """Write the release at `release` (a folder or s3://) to `out` (a .jsonl file or a folder, local or s3://).

    The chat template of `model`, or else of the setting default_model, is tried first, if the `form` is
    rendered by one; what it would lose is a warning. With `refusals`, some of the conversations call no tool.

    Raises:
        ModelError: there is no such `model`.
        UsageError: there is no release, or another file is at `out`; refusals are asked for, and the database
        does not know it.
        NoResultError: refusals are asked for, and no text gives one.
        EvaluationDataError: refusals are to be compared with evaluation data, which are not there.
        ToolError: the release calls a tool that is not installed.
        ConfigurationError: an s3:// address is not in the bucket of the settings.
        ObjectStoreError: S3 cannot be read or written.
    """
    require_place(out)
    if refusals and not 0 < refusals.share < 1:
        raise UsageError(f"--with-refusals: expected a share from 0 to below 1, found {refusals.share}.")
    with (
        opened_release(settings, release, model, tries_template=form.uses_template) as opened,
        contextlib.ExitStack() as stack,
    ):
        calls = conversations = left_out = 0

        def with_calls() -> Iterator[tuple[uuid.UUID, dict[str, Any]]]:
            nonlocal calls, conversations, left_out
            for text in read_release(opened.folder):
                if opened.control_tokens.search(text.text):
                    left_out += 1
                    continue
                calls += len(text.calls)
                for row in form.rows(text, seed, opened.tools):
                    conversations += 1
                    yield text.document_id, row

        texts = sum(pq.read_metadata(part).num_rows for part in part_files(opened.folder))
        rows: Iterator[tuple[uuid.UUID, dict[str, Any]]] = with_calls()
        card, refusal_count = "", 0
        if refusals:
            connection = stack.enter_context(database.transaction(database.connect(settings)))
            chosen = _chosen_refusals(connection, release, opened, seed, texts, refusals)
            refusal_count = len(chosen.first_chars)
            refusing = _refusing_rows(connection, chosen.first_chars, seed, form, opened.tools)
            rows = heapq.merge(rows, refusing, key=lambda row: row[0])
            card = markdown(
                Path(__file__).with_name("refusals_card.md.jinja"), seed=seed, texts=texts, refusals=chosen
            )
        address, sha256, written = write_rows(settings, out, (row for _, row in rows), lambda: card)
        if form.data_set_info and not out.endswith(".jsonl"):
            write_json(settings, {"train": {"file_name": FILE_NAME, **form.data_set_info}}, out, INFO_NAME)
        warnings = opened.warnings
        if left_out:
            warnings = (*warnings, left_out_warning(left_out))
            logger.warning("%s", warnings[-1])
    outcome = "wrote" if written else "found the same"
    logger.info(
        "%s %d conversations with %d calls, and %d with none: %s",
        outcome,
        conversations,
        calls,
        refusal_count,
        address,
    )
    return ChatExport(
        address=address,
        conversations=conversations + refusal_count,
        refusals=refusal_count,
        calls=calls,
        sha256=sha256,
        written=written,
        left_out=left_out,
        warnings=warnings,
    )


@dataclass(frozen=True)
class _ChosenRefusals:
    """The texts that become refusals, and the counts that their card shows."""

    release_id: str
    run_id: str
    wanted: int
    tried: dict[str, int]
    """Texts of the run, by what the losses say of their calls."""
    compared: HeldEvaluationData
    """With the texts among `wanted` and those of the release that hold evaluation data."""
    left_out: int
    """Texts among `wanted` that are left out for the evaluation data in them."""
    first_chars: dict[uuid.UUID, int]
    """For each text the first place at which a call was tried, in the order of ids."""

    @property
    def count(self) -> int:
        return len(self.first_chars)


def _chosen_refusals(
    connection: Connection, release: str, opened: OpenedRelease, seed: int, texts: int, refusals: Refusals
) -> _ChosenRefusals:
    # 1. Texts in which calls were tried and none helps.
    release_id, run_id = run_of_release(connection, release)
    wanted = max(1, round(texts * refusals.share / (1 - refusals.share)))
    rows = database.fetch_all(
        connection, queries.exports.texts_without_help, run_id=run_id, seed=seed, texts=wanted
    )
    counts = ("tried", "with_kept_call", "may_help", "without_help")
    tried = {name: getattr(rows[0], name) for name in counts}
    if not tried["without_help"]:
        raise NoResultError(
            f"--with-refusals: expected a text of the run {run_id} in which calls were scored and none saves "
            f"anything, found none: {tried['tried']} texts have scored calls, {tried['with_kept_call']} of "
            f"them a kept one, {tried['may_help']} others a call that may save something. Nothing was "
            "written; more or other texts may have some."
        )
    first_chars = {row.document_id: row.first_char for row in rows if row.document_id is not None}
    for row in _texts(connection, list(first_chars)):
        if opened.control_tokens.search(row.text):
            del first_chars[row.document_id]
    if not first_chars:
        raise NoResultError(
            f"--with-refusals: expected a text of the run {run_id} without control tokens of the model, "
            "found one in each text in which no call saves anything. Nothing was written."
        )

    # 2. Without those that hold evaluation data, beside the texts of the release: an n-gram of many texts
    #    says
    # nothing.
    def compared_texts() -> Iterator[tuple[uuid.UUID, str]]:
        for text in read_release(opened.folder):
            yield text.document_id, text.plain_text
        for row in _texts(connection, list(first_chars)):
            yield row.document_id, row.text

    compared = refusals.compare(run_id, compared_texts())
    contaminated = compared.document_ids & first_chars.keys()
    left_out = len(contaminated) if compared.decontaminate == "leave_out" else 0
    if left_out:
        first_chars = {id_: place for id_, place in first_chars.items() if id_ not in contaminated}
    if contaminated:
        logger.warning(
            "%d texts for refusals share word n-grams with evaluation data: %s",
            len(contaminated),
            "they are left out" if left_out else "they stay, since the run only reports them",
        )
    if not first_chars:
        raise NoResultError(
            f"--with-refusals: expected a text without evaluation data, found it in all {left_out} texts of "
            f"the run {run_id} in which no call saves anything. Nothing was written."
        )
    return _ChosenRefusals(
        release_id=release_id,
        run_id=run_id,
        wanted=wanted,
        tried=tried,
        compared=compared,
        left_out=left_out,
        first_chars=first_chars,
    )


def _texts(connection: Connection, document_ids: Sequence[uuid.UUID]) -> Iterator[Row[Any]]:
    for start in range(0, len(document_ids), PAGE_TEXTS):
        page = list(document_ids[start : start + PAGE_TEXTS])
        yield from database.fetch_all(connection, queries.exports.texts, document_ids=page)


def _refusing_rows(
    connection: Connection,
    first_chars: Mapping[uuid.UUID, int],
    seed: int,
    form: Form,
    tools: list[dict[str, Any]],
) -> Iterator[tuple[uuid.UUID, dict[str, Any]]]:
    """Conversations of texts without a call.

    The opening ends before the first place at which a call was tried.
    """
    for row in _texts(connection, list(first_chars)):
        cut = drawn_end(row.text[: first_chars[row.document_id]], row.document_id, seed)
        yield row.document_id, form.refusal(row.text[:cut], row.text[cut:], tools)


def write_rows(
    settings: Settings, out: str, rows: Iterable[dict[str, Any]], card: Callable[[], str]
) -> tuple[str, str, bool]:
    """Write rows to `out`, and a card beside them unless it is empty: address and hash of the file, and whether it is new.

    The card is asked for after the last row; nothing is written if it raises. In a folder it is README.md,
    beside `NAME.jsonl` it is `NAME.md`.

    Raises:
        UsageError: another file or card exists.
    """
    is_file = out.endswith(".jsonl")
    address = out if is_file else f"{out.rstrip('/')}/{FILE_NAME}"
    card_address = f"{out.removesuffix('.jsonl')}.md" if is_file else f"{out.rstrip('/')}/README.md"
    with tempfile.TemporaryDirectory(prefix="export-") as scratch:
        file = Path(scratch) / FILE_NAME
        with file.open("w", encoding="utf-8", newline="\n") as lines:
            for row in rows:
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        (card_file := Path(scratch) / "card.md").write_text(card(), encoding="utf-8")
        written = _put_if_absent(settings, file, address)
        sha256 = file_sha256(file)
        if card_file.stat().st_size:
            _put_if_absent(settings, card_file, card_address)
    return address, sha256, written


def write_json(settings: Settings, value: dict[str, Any], folder: str, name: str) -> None:
    """Write a small JSON file into the folder of an export.

    Raises:
        UsageError: another file exists.
    """
    with tempfile.TemporaryDirectory(prefix="export-") as scratch:
        (file := Path(scratch) / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        _put_if_absent(settings, file, f"{folder.rstrip('/')}/{name}")


def put_beside(settings: Settings, file: Path, folder: str) -> None:
    """Copy a file into the folder of an export.

    Raises:
        UsageError: another file exists.
    """
    _put_if_absent(settings, file, f"{folder.rstrip('/')}/{file.name}")


def require_place(out: str) -> None:
    """Refuse a place on this machine in a folder that does not exist: it is more likely mistyped than wanted.

    Raises:
        UsageError: it is.
    """
    folder = Path(out).expanduser().absolute().parent
    if not out.startswith(_S3) and not folder.is_dir():
        raise UsageError(
            f"OUT: expected a place in a folder that exists, found no {folder}. Make it, or correct the path."
        )


def _put_if_absent(settings: Settings, file: Path, address: str) -> bool:
    """Copy the file to `address`; False if the same content exists already.

    Raises:
        UsageError: another content exists.
    """
    target = Path(address)
    if address.startswith(_S3):
        store = ObjectStore(settings)
        store.require_bucket()
        key = store.key_of(address)
        there = None if store.put_if_absent(key, file) else store.sha256(key)
    elif target.exists():
        there = file_sha256(target) if target.is_file() else ""
    else:
        there = None
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, partial := target.with_name(f"{target.name}.partial"))
        partial.replace(target)
    if there not in (None, file_sha256(file)):
        raise UsageError(
            f"OUT: expected nothing or this very export at {address}, found something else. It stays as it "
            "is; choose another place, or remove what it holds."
        )
    return there is None
