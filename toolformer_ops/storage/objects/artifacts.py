"""Artifacts: models and search indices on S3, published once and fetched into a cache where they are used.

An artifact is a publication (`publication.py`). Its manifest says what kind of artifact it is and what
recipes call it; Postgres holds the manifest's hash (owns the table `published_artifacts`). A finetuned model
of the factory is an artifact as well: its manifest says neither, and its hash is in `finetuned_models`. A
local folder is never copied: whoever names one uses it where it is.

The cache is a folder of this machine, whose files are downloaded once, verified, and kept while there is
room:

    entries/<key>/            an artifact, whole; its time is that of its last use
    partial/<key>/            a download that is under way or was cut off; the next try continues it
    locks/<key>.download      held by the process that downloads
    locks/<key>.use           held, shared, by every process that uses the entry, until it ends
    locks/space               held while room is made
    hashes/                   what processes of this node have hashed (`shared_files.py`)
    downloads.jsonl           a line for each download that was completed

A key is made of kind, name and content, so that equal contents are one entry. An entry appears by a rename,
after every file was compared with its hash in the manifest and written to the disk: a process may be killed
at any moment, and what it leaves in `partial` is nothing that a reader looks at. Entries that no process
uses go, the least recently used first, when an artifact needs their room. Several processes, and several
pods of a node, may share the folder; a file system without locks (flock) will not do.

What makes a folder a model or an index is known by `language_model/models/identity.py` and
`tools/retrieval/wiki_index.py`.
"""

import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import filelock

from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, CorruptObjectError, InfrastructureError
from toolformer_ops.storage.machine.shared_files import locked, remember, verified_sha256
from toolformer_ops.storage.objects.publication import (
    Manifest,
    ObjectStore,
    registered_sha256,
    reserve,
    sync,
    wrong_in_folder,
)
from toolformer_ops.storage.postgres import database, queries

Kind = Literal["model", "index"]
GIB = 2**30

logger = logging.getLogger(__name__)

_in_use: dict[Path, int] = {}
"""Descriptors of the `.use` locks that this process holds until it ends, by entry."""


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
        CorruptObjectError: it is of another kind of artifact. Else as `ObjectStore.published`.
    """
    store, address = ObjectStore(settings), address.rstrip("/")
    manifest = store.published(store.key_of(address), registered_sha256(settings, address))
    if manifest.kind not in {"", kind}:
        raise CorruptObjectError(
            f"{address}: expected a published {kind}, found an artifact of the kind {manifest.kind}. Give "
            f"the address of a {kind}."
        )
    return Artifact(address, kind, manifest)


def publish(
    settings: Settings, kind: Kind, identity: str, prefix: str, files: Mapping[str, Path], *, source: str
) -> Artifact:
    """Publish files (names to local paths) under a prefix of the bucket.

    They are registered if a database is set. Publishing the same again is no new publication. `identity`:
    what recipes call it; `source`: what it was made from, for people.

    Raises:
        AlreadyPublishedError: other contents were published under this prefix.
        ConfigurationError: the database is set and takes no registration; nothing is sent then.
    """
    require_registry(settings)
    store = ObjectStore(settings)
    manifest = store.publish(prefix, files, kind=kind, identity=identity)
    artifact = Artifact(store.uri(manifest.prefix), kind, manifest)
    register(settings, artifact, source)
    logger.info(
        "published %s %s: %s, %d files, %.1f MiB",
        kind,
        identity,
        artifact.address,
        len(files),
        manifest.size / 2**20,
    )
    return artifact


def require_registry(settings: Settings) -> None:
    """Refuse, before anything is built or sent, a database that takes no registration.

    No database at all is not refused (`database.connect`).
    """
    if settings.database_dsn.get_secret_value():
        database.connect(settings).dispose()


def register(settings: Settings, artifact: Artifact, source: str) -> None:
    """Write what is published into `published_artifacts`, as the newest of its kind."""
    if not settings.database_dsn.get_secret_value():
        return
    database.execute(
        database.connect(settings),
        queries.artifacts.register,
        uri=artifact.address,
        kind=artifact.kind,
        identity=artifact.manifest.identity,
        manifest_sha256=artifact.manifest.sha256,
        bytes=artifact.manifest.size,
        source=source,
    )


def newest(settings: Settings, kind: Kind, source: str | None = None) -> str | None:
    """The address of the artifact that was published last, of those made from `source` if it is given.

    None if there is none, or no database is set.
    """
    if not settings.database_dsn.get_secret_value():
        return None
    rows = database.fetch_all(
        database.connect(settings, writes=False), queries.artifacts.newest, kind=kind, source=source
    )
    return str(rows[0].uri) if rows else None


# The cache


def fetch(settings: Settings, artifact: Artifact) -> Path:
    """The folder with an artifact's files, which stays there until this process ends.

    Downloads if the cache does not hold it. Compares the bytes of what exists with the manifest
    (`shared_files.py`); an entry that is damaged is removed and downloaded again.

    Raises:
        InfrastructureError: there is no room, and what the cache holds is in use.
        ConfigurationError: the cache cannot be written to. Else as `ObjectStore.download`.
    """
    cache = _Cache(settings)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", artifact.name)[:60]
    key = f"{artifact.kind}-{name}-{artifact.manifest.content_sha256[:32]}"
    entry = cache.root / "entries" / key
    while True:
        # 1. An entry that exists is used: the lock says so to whoever makes room, and the time says how
        #    lately.
        if entry not in _in_use:
            lock = cache.open_use_lock(key)
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits only while the entry is being removed
            _in_use[entry] = lock
        if entry.is_dir():
            verified = functools.partial(verified_sha256, settings)
            wrong = next(wrong_in_folder(artifact.manifest, entry, verified), None)
            if wrong is None:
                os.utime(entry)
                return entry
            logger.warning("cache entry %s: %s: it is removed and downloaded again", entry, wrong[1])
            cache.remove(entry)
        # 2. One process downloads it; the others wait, and then find it.
        with locked(cache.root / "locks" / f"{key}.download", f"another process downloads {key}"):
            if not entry.is_dir():
                cache.download(settings, artifact, key)
                for file in artifact.manifest.files:
                    remember(settings, entry / file.name, file.sha256)


class _Cache:
    """The folder, its locks and its room."""

    def __init__(self, settings: Settings) -> None:
        self.root = settings.cache_folder.expanduser().resolve()
        self._limit = None if settings.cache_gib is None else int(settings.cache_gib * GIB)
        try:
            for name in ("entries", "partial", "locks"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"expected a folder for the cache at {self.root}, found {error}. Set TOOLFORMER_CACHE_DIR to "
                "a folder that can be written to; in a pod it is the volume `cache`."
            ) from error

    def open_use_lock(self, key: str) -> int:
        """Open the lock file that those who use an entry hold, shared."""
        return os.open(self.root / "locks" / f"{key}.use", os.O_RDWR | os.O_CREAT, 0o666)

    def download(self, settings: Settings, artifact: Artifact, key: str) -> None:
        """Make the entry; its download lock is held. Raises as `fetch`."""
        # 1. Reserve the room, by files of their full length; what no process uses goes if that is needed.
        partial, started = self.root / "partial" / key, time.monotonic()
        size = artifact.manifest.size
        if self._limit is not None and size > self._limit:
            raise self._full(artifact, self._limit)  # nothing has to go for what can never have room
        with filelock.FileLock(self.root / "locks" / "space"):
            while (free := self._free_for(partial)) < size:
                if not self._remove_least_recently_used(besides=partial):
                    raise self._full(artifact, free)
            reserve(artifact.manifest, partial)
        # 2. Read the files.
        try:
            ObjectStore(settings).download(artifact.manifest, partial)
        except CorruptObjectError:
            shutil.rmtree(partial)
            raise
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            raise self._full(artifact, shutil.disk_usage(self.root).free) from error
        # 3. They are all there: now it is an entry.
        entry = partial.rename(self.root / "entries" / key)
        sync(entry.parent)
        seconds = time.monotonic() - started
        line = {
            "at": time.time(),
            "artifact": artifact.address,
            "kind": artifact.kind,
            "bytes": size,
            "seconds": seconds,
        }
        with (self.root / "downloads.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        logger.info(
            "downloaded %s %s: %d files, %.1f MiB in %.1f s, into %s",
            artifact.kind, artifact.address, len(artifact.manifest.files), size / 2**20, seconds, entry,
        )  # fmt: skip

    def _full(self, artifact: Artifact, free: int) -> InfrastructureError:
        limit = "" if self._limit is None else f" of the {self._limit / GIB:.3f} GiB of TOOLFORMER_CACHE_GIB"
        return InfrastructureError(
            f"{artifact.kind} {artifact.address}: expected {artifact.manifest.size / GIB:.3f} GiB of room in "
            f"{self.root}, found {max(free, 0) / GIB:.3f} GiB{limit} that nothing in use takes. Give the "
            "cache more room (a larger volume, or TOOLFORMER_CACHE_GIB), or start fewer different models on "
            "one node."
        )

    def _free_for(self, partial: Path) -> int:
        """Bytes that a download into `partial` may take in all, with what it has taken already."""
        own = reserved = cached = 0
        for folder in (*(self.root / "entries").iterdir(), *(self.root / "partial").iterdir()):
            for status in _statuses(folder):
                taken = status.st_blocks * 512
                if folder == partial:
                    own += taken
                else:
                    cached += status.st_size
                    reserved += max(0, status.st_size - taken)  # what other downloads will still write
        free = shutil.disk_usage(self.root).free + own - reserved
        return free if self._limit is None else min(free, self._limit - cached)

    def _remove_least_recently_used(self, besides: Path) -> bool:
        """Remove the broken download or the entry whose last use is the longest ago and is not in use.

        Returns whether there was one.
        """
        last_use: dict[Path, float] = {}
        for folder in (*(self.root / "partial").iterdir(), *(self.root / "entries").iterdir()):
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                last_use[folder] = folder.stat().st_mtime
        last_use.pop(besides, None)
        for folder in sorted(last_use, key=last_use.__getitem__):
            with contextlib.ExitStack() as locks:
                try:
                    if folder.parent.name == "entries":
                        descriptor = self.open_use_lock(folder.name)
                        locks.callback(os.close, descriptor)
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    else:
                        lock = filelock.FileLock(
                            self.root / "locks" / f"{folder.name}.download", blocking=False
                        )
                        locks.enter_context(lock)
                except (BlockingIOError, filelock.Timeout):
                    continue
                size = sum(status.st_size for status in _statuses(folder))
                logger.info("removing %s from the cache for its room, %.1f MiB", folder.name, size / 2**20)
                self.remove(folder)
            return True
        return False

    def remove(self, folder: Path) -> None:
        """Remove a folder, which no reader takes for whole while it goes.

        Files that are open stay readable.
        """
        aside = self.root / "partial" / f"removed-{folder.name}-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):  # another process removes it
            folder.rename(aside)
            shutil.rmtree(aside)


def _statuses(folder: Path) -> Iterator[os.stat_result]:
    """Return the status of all files below a folder, which may go meanwhile."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield (Path(parent) / name).stat()
