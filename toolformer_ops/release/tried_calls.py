"""The texts of a release, each with the calls that its run tried in it, released and not.

Rejected calls are in Postgres alone, so the release must be one of this database.
"""

import itertools
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.release.choosing import PAGE_TEXTS
from toolformer_ops.release.format import ReleasedText, read_release
from toolformer_ops.storage.postgres import database, queries


@dataclass(frozen=True)
class TriedText:
    """A text of a release with its calls, as `exports.calls_of_texts` returns them."""

    text: ReleasedText
    released: list[Row[Any]]
    rejected: list[Row[Any]]
    """That the run did not keep."""
    only_kept: list[Row[Any]]
    """That the run kept, and that are not in the release."""


def tried_texts(connection: Connection, folder: Path, run_id: str) -> Iterator[TriedText]:
    """The texts of the release in this folder, in its order; at most `PAGE_TEXTS` of them are in memory."""
    texts = read_release(folder)
    while page := list(itertools.islice(texts, PAGE_TEXTS)):
        calls: defaultdict[tuple[uuid.UUID, str], list[Row[Any]]] = defaultdict(list)
        released_calls = itertools.chain.from_iterable(text.calls for text in page)
        rows = database.fetch_all(
            connection,
            queries.exports.calls_of_texts,
            run_id=run_id,
            document_ids=[text.document_id for text in page],
            released=[call.call_id for call in released_calls],
        )
        for call in rows:
            fate = "released" if call.is_released else "kept" if call.outcome == "kept" else "rejected"
            calls[call.document_id, fate].append(call)
        for text in page:
            yield TriedText(
                text=text,
                released=calls[text.document_id, "released"],
                rejected=calls[text.document_id, "rejected"],
                only_kept=calls[text.document_id, "kept"],
            )
