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
from toolformer_ops.storage import database, queries


@dataclass(frozen=True)
class TriedText:
    """A text of a release with its calls, as `exports.calls_of_texts` returns them."""

    text: ReleasedText
    released: list[Row[Any]]
    rejected: list[Row[Any]]


def tried_texts(connection: Connection, folder: Path, run_id: str) -> Iterator[TriedText]:
    """The texts of the release in this folder, in its order; at most `PAGE_TEXTS` of them are in memory."""
    texts = read_release(folder)
    while page := list(itertools.islice(texts, PAGE_TEXTS)):
        calls: defaultdict[tuple[uuid.UUID, bool], list[Row[Any]]] = defaultdict(list)
        released_calls = itertools.chain.from_iterable(text.calls for text in page)
        rows = database.fetch_all(
            connection,
            queries.exports.calls_of_texts,
            run_id=run_id,
            document_ids=[text.document_id for text in page],
            released=[call.call_id for call in released_calls],
        )
        for call in rows:
            calls[call.document_id, call.is_released].append(call)
        for text in page:
            yield TriedText(text, calls[text.document_id, True], calls[text.document_id, False])
