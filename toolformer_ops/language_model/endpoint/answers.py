"""What an endpoint has answered, by the content of the request: a restart and a second run ask nothing again.

A run keeps them in the database (`stored_answers.py`); what works on a file without a database keeps them in
a file of the cache. The first answer to a request stays, so that rows that are made again are the same.
"""

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from toolformer_ops.config import Settings
from toolformer_ops.language_model.endpoint.client import Reply, Writing

FOLDER = "proposer_answers"


@dataclass(frozen=True)
class KeptReply:
    """A reply as it is kept."""

    request_key: uuid.UUID
    """Hash of the request and of what decides its answer."""
    document_id: uuid.UUID
    """Whose text the request holds."""
    reply: Reply


class AnswerStore(Protocol):
    """Where replies are kept."""

    def stored(self, keys: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, Reply]:
        """The stored answers of these requests."""
        ...

    def keep(self, replies: Sequence[KeptReply]) -> None:
        """Add replies; of a request that has one already the first stays."""
        ...


class FileAnswers:
    """In a file of this machine's cache, a line a reply; processes may add to it at the same time."""

    def __init__(self, settings: Settings, proposer: str) -> None:
        """`proposer` is the identity of the endpoint."""
        self._path = settings.cache_folder / FOLDER / f"{proposer.rpartition('@')[2]}.jsonl"
        self._replies: dict[uuid.UUID, Reply] | None = None

    @property
    def path(self) -> Path:
        """The file, which need not be there yet."""
        return self._path

    def stored(self, keys: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, Reply]:
        """See `AnswerStore`."""
        replies = self._read()
        return {key: replies[key] for key in keys if key in replies}

    def keep(self, replies: Sequence[KeptReply]) -> None:
        """See `AnswerStore`."""
        replies_by_key = self._read()
        new = {kept.request_key: kept.reply for kept in replies if kept.request_key not in replies_by_key}
        replies_by_key.update(new)
        lines = [json.dumps({"request": str(key), **asdict(reply)}) for key, reply in new.items()]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # One write for all lines: what another process adds comes before or after them. It begins a line,
        # since the last one may have been cut off by a kill. The file holds parts of texts.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            file.write("".join(f"\n{line}" for line in lines).encode())

    def _read(self) -> dict[uuid.UUID, Reply]:
        if self._replies is None:
            self._replies = {}
            lines = self._path.read_bytes().splitlines() if self._path.is_file() else []
            for line in lines:
                try:
                    fields = json.loads(line)
                    self._replies.setdefault(uuid.UUID(fields["request"]), reply_of(fields))
                except (ValueError, LookupError, TypeError):  # empty, or cut off by a kill
                    continue
        return self._replies


def reply_of(fields: Mapping[str, object]) -> Reply:
    """A reply from what `asdict` made of it."""
    writings = fields["writings"]
    assert isinstance(writings, list)  # noqa: S101 - of JSON
    return Reply(tuple(Writing(**writing) for writing in writings), str(fields["reason"]))
