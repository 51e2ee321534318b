"""Build a BM25 index from KILT records: streaming, aside, and made visible in one step when whole.

Memory does not grow with the source: one batch of passages in Python, one in Java, and Lucene's write buffer.
While Java indexes one batch, Python cuts the next. If the manifest already has the fingerprint of the source,
nothing is built; a killed build leaves a folder that no reader looks at and that the next build removes. Two
builds at once take turns.

Measured on two shared cores: 675,219 passages in 106 s (6,400/s), at most 500 MB of memory, 390 bytes a
passage on disk. KILT's 22 million passages would take about an hour and 9 GB.
"""

import hashlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from toolformer_ops.errors import RejectedInputError, UsageError
from toolformer_ops.tools.retrieval.bm25_index import stored_form
from toolformer_ops.tools.retrieval.index_manifest import (
    MANIFEST,
    IndexManifest,
    fingerprint_of,
    index_parameters,
    read_manifest,
    write_manifest,
)
from toolformer_ops.tools.retrieval.java_runtime import java_class, start_java
from toolformer_ops.tools.retrieval.kilt_records import parse_record, passages_of

BATCH_PASSAGES = 2000
WRITE_BUFFER_MEGABYTES = 256
MAX_LINE_BYTES = 32 * 1024 * 1024
"""Longest record; KILT's longest articles are below 2 MB."""
_REPORT_DOCUMENTS = 100_000
_READ_BYTES = 1 << 20

OpenSource = Callable[[], AbstractContextManager[BinaryIO]]
"""Opens the unpacked source from its start; called a second time if an index exists to compare with."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexReport:
    """What a build did."""

    manifest: IndexManifest
    built: bool
    """False if the index was already there."""


@dataclass
class _Tally:
    """What has been read of a source so far."""

    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    documents: int = 0
    passages: int = 0
    without_passages: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def build(open_source: OpenSource, source_uri: str, index_dir: Path, threads: int) -> IndexReport:
    """Make `index_dir` hold an index of the source, unless it does already.

    Raises:
        UsageError: the source holds no passage, or Lucene did not take all of them.
    """
    index_dir.mkdir(parents=True, exist_ok=True)
    start_java(threads)
    with FileLock(index_dir / "build.lock"):  # released when this process ends, however it does
        # 1. Nothing is built if the index is of this very source.
        present = _present(open_source, index_dir)
        if present is not None:
            _log.info(
                "the index of %s is already in %s: %d passages", source_uri, index_dir, present.passages
            )
            return IndexReport(present, built=False)
        # 2. All passages go into a folder that no reader looks at.
        _remove(index_dir, "building-*")
        aside = index_dir / f"building-{os.getpid()}"
        parameters = index_parameters()
        try:
            with open_source() as source:
                tally = _fill(source, aside, threads)
            # 3. The folder gets its name, and the manifest names it; then what it replaces is removed.
            source_sha256 = tally.digest.hexdigest()
            fingerprint = fingerprint_of(source_sha256, parameters)
            manifest = IndexManifest(
                fingerprint=fingerprint,
                source_uri=source_uri,
                source_sha256=source_sha256,
                parameters=parameters,
                documents=tally.documents,
                passages=tally.passages,
                rejected=dict(sorted(tally.rejected.items())),
                documents_without_passages=tally.without_passages,
                folder=f"lucene-{fingerprint[:16]}",
            )
            if (index_dir / manifest.folder).exists():  # left by a build that was killed before its manifest
                shutil.rmtree(index_dir / manifest.folder)
            aside.rename(index_dir / manifest.folder)
            write_manifest(index_dir, manifest)
            _remove(index_dir, "lucene-*", keep=manifest.folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)  # renamed if all went well
    _log.info(
        "indexed %d documents as %d passages from %s, rejected %d", manifest.documents, manifest.passages, source_uri,
        sum(manifest.rejected.values()),
    )  # fmt: skip
    return IndexReport(manifest, built=True)


def source_fingerprint(open_source: OpenSource) -> str:
    """The fingerprint that an index of the source built now would have; reads the source to its end."""
    digest = hashlib.sha256()
    with open_source() as source:
        while block := source.read(_READ_BYTES):
            digest.update(block)
    return fingerprint_of(digest.hexdigest(), index_parameters())


def _present(open_source: OpenSource, index_dir: Path) -> IndexManifest | None:
    """The manifest in `index_dir` if it is of this source and these parameters, and its index is whole."""
    if not (index_dir / MANIFEST).exists():
        return None
    try:
        manifest = read_manifest(index_dir)
    except UsageError as error:
        _log.warning("building again: %s", error)
        return None
    if source_fingerprint(open_source) != manifest.fingerprint:
        return None
    passages = _passages_in(index_dir / manifest.folder)
    if passages != manifest.passages:
        _log.warning(
            "building again: expected %d passages in %s, found %s", manifest.passages, index_dir, passages
        )
        return None
    return manifest


def _fill(source: BinaryIO, folder: Path, threads: int) -> _Tally:
    """Index all passages of `source` into `folder`: while Java indexes one batch, Python cuts the next."""
    tally = _Tally()
    indexer = java_class("io.anserini.index.SimpleIndexer")(
        ["-input", "", "-collection", "JsonCollection", "-index", str(folder), "-storeRaw", "-quiet",
         "-memoryBuffer", str(WRITE_BUFFER_MEGABYTES), "-threads", str(threads)]
    )  # fmt: skip
    accepted = 0
    try:
        with ThreadPoolExecutor(max_workers=1) as java:
            under_way: Future[int] = java.submit(int)  # 0 passages of no batch
            for batch in _batches(source, tally):
                accepted += under_way.result()
                under_way = java.submit(indexer.addRawDocuments, batch)
            accepted += under_way.result()
    finally:
        indexer.close()
    if tally.passages == 0:
        raise UsageError(
            f"expected KILT records with text, found {tally.documents} articles without passages and "
            f"rejected {dict(tally.rejected)}. Check the source."
        )
    if accepted != tally.passages or _passages_in(folder) != tally.passages:
        raise UsageError(
            f"expected Lucene to take {tally.passages} passages, found {accepted} in {folder}. Is the disk "
            "full?"
        )
    return tally


def _passages_in(folder: Path) -> int | None:
    """Passages that a reader finds, None if it finds no index.

    Closing a writer reports its errors only to Java's log.
    """
    searcher_class = java_class("io.anserini.search.SimpleSearcher")
    try:
        searcher = searcher_class(str(folder))
    except Exception as error:  # Java may throw anything
        _log.warning("no Lucene index in %s: %s", folder, str(error).splitlines()[0])
        return None
    try:
        return int(searcher.get_total_num_docs())
    finally:
        searcher.close()


def _batches(source: BinaryIO, tally: _Tally) -> Iterator[list[str]]:
    """Passages in their stored form, `BATCH_PASSAGES` and a few at a time.

    Each byte and record is counted in `tally`.
    """
    batch: list[str] = []
    while line := source.readline(MAX_LINE_BYTES):
        tally.digest.update(line)
        is_cut = len(line) == MAX_LINE_BYTES and not line.endswith(b"\n")
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = source.readline(MAX_LINE_BYTES)
            tally.digest.update(rest)
        if line.isspace() and not is_cut:
            continue
        try:
            if is_cut:
                raise RejectedInputError("line_too_long")  # noqa: TRY301
            passages = passages_of(parse_record(line, tally.documents + tally.rejected.total() + 1))
        except RejectedInputError as rejection:
            tally.rejected[rejection.reason] += 1
            continue
        batch.extend(map(stored_form, passages))
        tally.documents += 1
        tally.passages += len(passages)
        tally.without_passages += not passages
        if tally.documents % _REPORT_DOCUMENTS == 0:
            _log.info("read %d documents, %d passages", tally.documents, tally.passages)
        if len(batch) >= BATCH_PASSAGES:
            yield batch
            batch = []
    if batch:
        yield batch


def _remove(index_dir: Path, pattern: str, keep: str = "") -> None:
    """Remove folders that nothing points at any more; a process that has one open keeps reading its files."""
    for path in index_dir.glob(pattern):
        if path.is_dir() and path.name != keep:
            shutil.rmtree(path)
