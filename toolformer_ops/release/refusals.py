"""Refusals: conversations that offer the tools and call none, beside those of a release.

They are texts of the release's run in which calls were tried and none saved anything. They come from Postgres,
and are compared with the evaluation data that the run compares its release with, since they are in no release.
A card beside the file says which they are.
"""

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Row

from toolformer_ops.errors import NoResultError
from toolformer_ops.release.choosing import PAGE_TEXTS
from toolformer_ops.release.conversations import Form, drawn_end
from toolformer_ops.release.format import read_release
from toolformer_ops.release.opened_release import OpenedRelease, run_of_release
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)

Texts = Iterable[tuple[uuid.UUID, str]]


@dataclass(frozen=True)
class HeldEvaluationData:
    """Which texts share word n-grams with the evaluation data of a run."""

    decontaminate: Literal["off", "report", "leave_out"]
    """What the run does with such texts; off: none were compared."""
    document_ids: frozenset[uuid.UUID]


@dataclass(frozen=True)
class Refusals:
    """Conversations that call no tool, beside those of a release."""

    share: float
    """The share of all conversations, in (0, 1); fewer if the release's run has fewer texts for them."""
    compare: Callable[[str, Texts], HeldEvaluationData]
    """Compares texts with the evaluation data of the run with an id; `stages/release.py` does."""


@dataclass(frozen=True)
class ChosenRefusals:
    """The texts that become refusals, and the counts that their card shows."""

    release_id: str
    run_id: str
    wanted: int
    tried: dict[str, int]
    """Texts of the run, by what the losses say of their calls."""
    compared: HeldEvaluationData
    """With the texts, wanted and released, that hold evaluation data."""
    left_out: int
    """Texts among `wanted` that are left out for the evaluation data in them."""
    first_chars: dict[uuid.UUID, int]
    """For each text the first place at which a call was tried, in the order of ids."""

    @property
    def count(self) -> int:
        """How many texts become refusals."""
        return len(self.first_chars)


def chosen_refusals(
    connection: Connection, release: str, opened: OpenedRelease, seed: int, texts: int, refusals: Refusals
) -> ChosenRefusals:
    """The texts of the release's run that become refusals, as many as their share asks for, or fewer.

    Raises:
        NoResultError: there is none.
    """
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
    #    says nothing.
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
    return ChosenRefusals(
        release_id=release_id,
        run_id=run_id,
        wanted=wanted,
        tried=tried,
        compared=compared,
        left_out=left_out,
        first_chars=first_chars,
    )


def refusing_rows(
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


def _texts(connection: Connection, document_ids: Sequence[uuid.UUID]) -> Iterator[Row[Any]]:
    for start in range(0, len(document_ids), PAGE_TEXTS):
        page = list(document_ids[start : start + PAGE_TEXTS])
        yield from database.fetch_all(connection, queries.exports.texts, document_ids=page)
