"""The files of a publication, downloaded in parts that a later try continues with, and compared with their hashes.

    <place>/files/    each file in its full length from the start, so that its room is taken
    <place>/parts     the parts that are there, a line each

Nothing in `place` is whole before `download` returns; who calls it renames `files` then. Takes no lock.
"""

import functools
import logging
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from toolformer_ops.errors import CorruptObjectError
from toolformer_ops.storage.object_store import ObjectStore
from toolformer_ops.storage.publication import Manifest, PublishedFile, file_sha256

logger = logging.getLogger(__name__)

PART_BYTES = 16 * 2**20
"""What one request reads, and what a cut connection loses."""
THREADS = 8
"""Parts that are read at the same time."""
TOLD_SECONDS = 10.0
"""Between two log lines that say what is left."""


def download(store: ObjectStore, manifest: Manifest, place: Path) -> Path:
    """Fill `place`/files with a publication's files, every one with its hash and on the disk; returns that folder.

    Raises:
        CorruptObjectError: a file on S3 has not the content that the manifest names, or a name leads elsewhere; `place` is removed.
        ObjectStoreError: S3 cannot be reached, or a file is not there. What was downloaded is kept, for the next try.
    """
    while True:
        continued = place.is_dir() and (place / "parts").is_file()
        files = reserve(manifest, place)
        try:
            _read_parts(store, manifest, place)
            with ThreadPoolExecutor(THREADS) as threads:
                for _ in threads.map(functools.partial(_conclude, store, manifest, files), manifest.files):
                    pass
        except CorruptObjectError as error:
            shutil.rmtree(place)
            if not continued:
                raise
            # What a machine lost that went down in mid-download looks the same as a damaged object.
            logger.warning("%s It is downloaded again from its beginning.", error)
        else:
            for folder in (files, *(path for path in files.rglob("*") if path.is_dir())):
                sync(folder)
            return files


def reserve(manifest: Manifest, place: Path) -> Path:
    """Make the files of a download in their full length, without a byte of content; returns their folder.

    Raises:
        CorruptObjectError: the manifest names a file outside of it.
    """
    files = place / "files"
    for file in manifest.files:
        path = files / file.name
        if not path.resolve().is_relative_to(files.resolve()):
            raise CorruptObjectError(f"{manifest.key}: expected file names below its folder, found {file.name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as target:
            target.truncate(file.size)
    return files


def _read_parts(store: ObjectStore, manifest: Manifest, place: Path) -> None:
    """Write the parts that are not there yet, `THREADS` at a time."""
    journal, files = place / "parts", place / "files"
    known = set(journal.read_text(encoding="utf-8").splitlines()) if journal.is_file() else set()
    lacking = [
        (file, start)
        for file in manifest.files
        for start in range(0, file.size, PART_BYTES)
        if f"{start} {file.name}" not in known
    ]
    left = sum(min(PART_BYTES, file.size - start) for file, start in lacking)
    logger.info(
        "downloading %s: %.1f MiB%s", store.uri(manifest.prefix), left / 2**20,
        f" of {manifest.size / 2**20:.1f} MiB, the rest is there from an earlier try" if known else "",
    )  # fmt: skip
    writing, told = threading.Lock(), time.monotonic()

    def read(part: tuple[PublishedFile, int]) -> None:
        nonlocal left, told
        file, start = part
        body = store.read_part(manifest.key_of(file), start, min(PART_BYTES, file.size - start))
        with (files / file.name).open("r+b") as target:
            target.seek(start)
            target.write(body)
        with writing, journal.open("a", encoding="utf-8") as written:
            written.write(f"{start} {file.name}\n")
            left -= len(body)
            if time.monotonic() - told > TOLD_SECONDS:
                told = time.monotonic()
                logger.info("downloading %s: %.1f MiB left", store.uri(manifest.prefix), left / 2**20)

    with ThreadPoolExecutor(THREADS) as threads:
        try:
            for _ in threads.map(read, lacking):
                pass
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise


def _conclude(store: ObjectStore, manifest: Manifest, files: Path, file: PublishedFile) -> None:
    """Compare a file with its hash, and have it on the disk."""
    path = files / file.name
    if (found := file_sha256(path)) != file.sha256:
        raise CorruptObjectError(
            f"{store.uri(manifest.key_of(file))}: expected content {file.sha256}, found {found}. The object was changed or damaged "
            "after it was published: publish it again. Nothing of it is kept."
        )
    sync(path)


def sync(path: Path) -> None:
    """Have what was written to a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
