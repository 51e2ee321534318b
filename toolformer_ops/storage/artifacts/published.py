"""What is published as an artifact on S3, and where (owns the table `published_artifacts`).

An artifact is a publication (`storage/publication.py`), so that its manifest is written last and its files are in a folder named by
their contents. Its manifest says what kind of artifact it is and what recipes call it; Postgres holds the manifest's hash, so that
who may write to the bucket cannot change it unseen. A finetuned model of the factory is an artifact as well: its manifest says
neither, and its hash is in `finetuned_models`.

Reads no file of an artifact but small ones; `cache.py` fetches.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorruptObjectError
from toolformer_ops.storage import database, queries
from toolformer_ops.storage.object_store import ObjectStore
from toolformer_ops.storage.publication import Manifest, registered_sha256

Kind = Literal["model", "index"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Artifact:
    """An artifact as its manifest describes it."""

    address: str
    """`s3://bucket/prefix`, without a slash at its end."""
    kind: Kind
    manifest: Manifest

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.address.rpartition("/")[2]


def find(settings: Settings, address: str, kind: Kind) -> Artifact:
    """What is published at an address of the bucket; nothing but the manifest is read.

    Raises:
        ObjectNotFoundError: nothing is published there.
        CorruptObjectError: the manifest is damaged, is not the one that Postgres registered, or is of another kind of artifact.
        ConfigurationError: the address is in another bucket.
    """
    store, address = ObjectStore(settings), address.rstrip("/")
    manifest = store.published(store.key_of(address), registered_sha256(settings, address))
    if manifest.kind not in {"", kind}:
        raise CorruptObjectError(
            f"{address}: expected a published {kind}, found an artifact of the kind {manifest.kind}. Give the address of a {kind}."
        )
    return Artifact(address, kind, manifest)


def publish(
    settings: Settings, kind: Kind, identity: str, prefix: str, files: Mapping[str, Path], *, source: str
) -> Artifact:
    """Publish files (names to local paths) under a prefix of the bucket, and register them where a database is set.

    Publishing the same again is no new publication. `identity`: what recipes call it; `source`: what it was made from, for people.

    Raises:
        AlreadyPublishedError: other contents were published under this prefix.
        ConfigurationError: the database is set and takes no registration; nothing is sent then.
        ObjectStoreError, DatabaseError: S3 or Postgres refuse.
    """
    require_registry(settings)
    store = ObjectStore(settings)
    manifest = store.publish(prefix, files, kind=kind, identity=identity)
    artifact = Artifact(store.uri(manifest.prefix), kind, manifest)
    register(settings, artifact, source)
    logger.info(
        "published %s %s: %s, %d files, %.1f MiB", kind, identity, artifact.address, len(files), manifest.size / 2**20
    )
    return artifact


def require_registry(settings: Settings) -> None:
    """Refuse, before anything is built or sent, a database that is set and takes no registration.

    Raises:
        ConfigurationError, DatabaseError: what `database.connect` raises.
    """
    if settings.database_dsn.get_secret_value():
        database.connect(settings).dispose()


def register(settings: Settings, artifact: Artifact, source: str) -> None:
    """Write what is published into `published_artifacts`, as the newest of its kind."""
    if not settings.database_dsn.get_secret_value():
        return
    with database.transaction(database.connect(settings)) as connection:
        database.execute(
            connection,
            queries.artifacts.register,
            uri=artifact.address,
            kind=artifact.kind,
            identity=artifact.manifest.identity,
            manifest_sha256=artifact.manifest.sha256,
            bytes=artifact.manifest.size,
            source=source,
        )


def newest(settings: Settings, kind: Kind, source: str | None = None) -> str | None:
    """The address of the artifact that was published last, of those made from `source` where it is given.

    None where there is none, or no database is set.
    """
    if not settings.database_dsn.get_secret_value():
        return None
    with database.transaction(database.connect(settings, writes=False)) as connection:
        rows = database.fetch_all(connection, queries.artifacts.newest, kind=kind, source=source)
    return str(rows[0].uri) if rows else None
