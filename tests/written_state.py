"""A database and a bucket that a test file fills once: each of its tests has a copy of the one, and the other as it was."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kept_bucket import KeptBucket, kept_bucket
from tests.servers import RunningObjectStore, RunningPostgres, copied_database, settings_of
from toolformer_ops.config import Settings
from toolformer_ops.local import postgres


@dataclass(frozen=True)
class WrittenState:
    """What `write` of the file made, and where."""

    value: Any
    database: str
    bucket: KeptBucket


@contextmanager
def written_state(
    server: RunningPostgres,
    template: str,
    object_store: RunningObjectStore,
    folder: Path,
    write: Callable[[Settings], Any],
) -> Iterator[WrittenState]:
    """Fill a database and a bucket with `write`, and remember the objects."""
    with (
        copied_database(server, template, postgres.OWNER) as name,
        kept_bucket(object_store.address) as bucket,
    ):
        settings = settings_of(server.dsn(name, postgres.OWNER), state_dir=folder, **bucket.settings)
        value = write(settings)
        bucket.keep()
        yield WrittenState(value, name, bucket)
