"""A release as a file of conversations with tools and tool results: what supervised finetuning takes today.

`release/conversations.py` says how a text becomes conversations, in two forms. The file is JSON Lines, with
the columns `messages` or `conversations`, and `tools`, and not Parquet: Arrow stores every message
with all fields of all messages and every call with all arguments of all calls, filled up with nulls, and
templates then render a null. Needs no model, no template and no database (`opened_release.py`).

With refusals, a share of the conversations offers the tools and calls none (`refusals.py`). The rows are in
the order of the texts' ids, which are hashes of the texts.
"""

import contextlib
import heapq
import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.release.card import markdown
from toolformer_ops.release.conversations import FORMS, Form
from toolformer_ops.release.export_files import FILE_NAME, INFO_NAME, require_place, write_json, write_rows
from toolformer_ops.release.format import part_files, read_release
from toolformer_ops.release.opened_release import OpenedRelease, left_out_warning, opened_release
from toolformer_ops.release.refusals import Refusals, chosen_refusals, refusing_rows
from toolformer_ops.storage.postgres import database

logger = logging.getLogger(__name__)


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
    """Write the release at `release` (a folder or s3://) to `out`.

    `out` is a .jsonl file or a folder, local or s3://. The chat template of `model`, or else of the setting
    default_model, is tried first, if the `form` is rendered by one; what it would lose is a warning. With
    `refusals`, some of the conversations call no tool.

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
        # 1. The conversations with calls, and those without.
        texts = sum(pq.read_metadata(part).num_rows for part in part_files(opened.folder))
        counts: Counter[str] = Counter()
        rows = _rows_with_calls(opened, form, seed, counts)
        card, refusal_count = "", 0
        if refusals:
            connection = stack.enter_context(database.transaction(database.connect(settings)))
            chosen = chosen_refusals(connection, release, opened, seed, texts, refusals)
            refusal_count = len(chosen.first_chars)
            refusing = refusing_rows(connection, chosen.first_chars, seed, form, opened.tools)
            rows = heapq.merge(rows, refusing, key=lambda row: row[0])
            card = markdown(
                Path(__file__).with_name("refusals_card.md.jinja"), seed=seed, texts=texts, refusals=chosen
            )
        # 2. The file and what is beside it.
        address, sha256, written = write_rows(settings, out, (row for _, row in rows), lambda: card)
        if form.data_set_info and not out.endswith(".jsonl"):
            write_json(settings, {"train": {"file_name": FILE_NAME, **form.data_set_info}}, out, INFO_NAME)
        warnings = opened.warnings
        if counts["left_out"]:
            warnings = (*warnings, left_out_warning(counts["left_out"]))
            logger.warning("%s", warnings[-1])
    logger.info(
        "%s %d conversations with %d calls, and %d with none: %s",
        "wrote" if written else "found the same",
        counts["conversations"],
        counts["calls"],
        refusal_count,
        address,
    )
    return ChatExport(
        address=address,
        conversations=counts["conversations"] + refusal_count,
        refusals=refusal_count,
        calls=counts["calls"],
        sha256=sha256,
        written=written,
        left_out=counts["left_out"],
        warnings=warnings,
    )


def _rows_with_calls(
    opened: OpenedRelease, form: Form, seed: int, counts: "Counter[str]"
) -> Iterator[tuple[uuid.UUID, dict[str, Any]]]:
    """The conversations of a release, each with its text's id; counts them, their calls and what is left out."""
    for text in read_release(opened.folder):
        if opened.control_tokens.search(text.text):
            counts["left_out"] += 1
            continue
        counts["calls"] += len(text.calls)
        for row in form.rows(text, seed, opened.tools):
            counts["conversations"] += 1
            yield text.document_id, row
