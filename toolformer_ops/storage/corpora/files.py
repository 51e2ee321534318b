"""Find the files of a corpus, at file:// or s3://, and read their bytes.

They are JSON Lines, plain or packed (`unpacking.py`), or Parquet. In a folder a file is taken by its name, or
else by how its content begins; what is passed over is named in one line of the log.

Memory is bounded for every content: a line longer than the limit is skipped. What cannot be read becomes a
`Line` with a reason; only a source that fails (no file, no permission, the network) raises. Does not parse the
lines (`corpora/records.py`), nor read Parquet (`corpora/parquet.py`).
"""

import functools
import hashlib
import io
import itertools
import logging
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    CorpusError,
    ExpandsTooFarError,
    ObjectNotFoundError,
)
from toolformer_ops.storage.corpora.local_paths import local_path, open_local, refusal_in_folder
from toolformer_ops.storage.corpora.unpacking import BUFFER_BYTES, PACKED, Source, UnpackingLimits, unpacked

logger = logging.getLogger(__name__)
PARQUETS = (".parquet", ".pq")
KINDS = (".jsonl", ".ndjson", ".json", ".jl", ".jsonlines")
SUFFIXES = (*map("".join, itertools.product(KINDS, ("", *PACKED))), *PARQUETS)
"""Files of a folder that are read without a look at them; a file that is named itself may have any name."""
NAMED_FILES = 5
"""So many files that are passed over are named; of more the endings are counted."""
MOST_LINE_BYTES = 10_000_000
"""The longest line of a file. A longer one is refused and not held in memory; no book is so long."""
DETAIL_CHARACTERS = 300
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARQUET_MAGIC = b"PAR1"
_BEGIN_BYTES = 64
SETTLED_NANOSECONDS = 2_000_000_000
"""A file changed less than this ago may change again without another time of change, which file systems store
in ticks."""


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus."""

    uri: str
    """Whole address, file:///... or s3://..."""
    open: Callable[[], IO[bytes]]
    """Opens its bytes as they are stored."""
    size: int | None = None
    """Number of these bytes; None if it is not known."""
    stamp: str | None = None
    """What the source says of these bytes: as long as it is the same, so are they. None if it proves
    nothing."""
    refusal: tuple[str, str] | None = None
    """Reason and detail of a file that is not read."""


class Line(NamedTuple):
    """A line that is not blank, or the reason why it, or the rest of the file, cannot be read."""

    number: int
    """From 1; 0 if the reason concerns the file as a whole."""
    content: bytes = b""
    """Without its line end; empty if there is a reason."""
    reason: str | None = None
    """line_too_long, empty_file, expands_too_far or unreadable_file."""
    detail: str = ""
    ended: bool = True
    """False for a last line without a line end: the file may have been cut there."""


def find_files(settings: Settings, uri: str) -> list[CorpusFile]:
    """The files of a corpus, in the order of their names: itself, or those below it that hold records.

    `uri` is an address as `records.normal_uri` writes it. Hidden files and folders, and those whose name
    begins with an underscore (`_SUCCESS`, `_temporary`: marks of the program that wrote the folder), are
    passed over in silence; others that hold no records in one line of the log. What leads out of the folder
    is refused: not_a_file, outside_corpus.

    Raises:
        UsageError: this deployment allows no reading there.
        CorpusError: there is no such file, folder or bucket, or no file with records is in it.
    """
    passed_over: list[str] = []
    if uri.startswith("s3://"):
        files = list(_files_on_s3(settings, uri, passed_over))
    else:
        files = list(_local_files(settings, local_path(settings, uri, "corpus"), passed_over))
    if passed_over:
        logger.warning(
            "%s: %d file%s passed over, neither JSON Lines nor Parquet: %s",
            uri,
            len(passed_over),
            "" if len(passed_over) == 1 else "s",
            _by_ending(passed_over),
        )
    if not files:
        raise CorpusError(
            f"expected JSON Lines (also packed as {', '.join(PACKED)}) or Parquet in {uri}, found "
            f"{f'other files: {_by_ending(passed_over)}' if passed_over else 'no file'}."
        )
    return sorted(files, key=lambda file: file.uri)


def _files_on_s3(settings: Settings, uri: str, passed_over: list[str]) -> Iterator[CorpusFile]:
    from toolformer_ops.storage.objects.publication import MANIFEST, ObjectStore

    store = ObjectStore(settings)
    try:
        items = store.list_files(uri)
    except ObjectNotFoundError as error:
        raise CorpusError(
            f"expected the corpus at {uri}: {error}. Check the run's corpus address."
        ) from error
    # A release's description of itself is no record.
    is_release = any(item.uri == f"{uri}/{MANIFEST}" for item in items) and any(
        item.uri.lower().endswith(PARQUETS) for item in items
    )
    for item in items:
        name = item.uri.removeprefix(f"{uri}/")
        is_description = is_release and name in (MANIFEST, "README.md")
        if item.uri != uri and (is_description or _is_hidden(Path(name))):
            continue
        file = CorpusFile(
            uri=item.uri,
            open=functools.partial(store.open_uri, item.uri),
            size=item.size,
            stamp=f"{item.size} {item.etag}" if item.etag else None,
        )
        if item.uri == uri or _holds_records(file):
            yield file
        else:
            passed_over.append(name)


def _local_files(settings: Settings, path: Path, passed_over: list[str]) -> Iterator[CorpusFile]:
    try:
        if path.is_file():
            yield _local_file(path, path)
        elif path.is_dir():
            for entry in path.rglob("*"):
                name = entry.relative_to(path)
                is_folder = entry.is_dir()
                if _is_hidden(name) or (is_folder and not entry.is_symlink()):
                    continue  # what is in a folder is listed by itself
                if outside := refusal_in_folder(settings, path, entry):
                    yield _refused_file(entry, "outside_corpus", f"it {outside}")
                elif entry.is_file():
                    file = _local_file(entry, entry.resolve())
                    if _holds_records(file):
                        yield file
                    else:
                        passed_over.append(str(name))
                elif not is_folder and entry.name.lower().endswith(SUFFIXES):
                    yield _refused_file(entry, "not_a_file", "it is no file")
        else:
            raise CorpusError(
                f"expected the corpus, a file or a folder, at {path}, found nothing. Check the run's corpus "
                "address."
            )
    except OSError as error:
        raise CorpusError(f"expected to read {path}, found: {error.strerror or error}.") from error


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _holds_records(file: CorpusFile) -> bool:
    """Whether a file of a folder is JSON Lines or Parquet: by its name, else by how its content begins."""
    if file.uri.lower().endswith(SUFFIXES):
        return True
    if not file.size:
        return False
    try:
        stored = file.open()
    except PermissionError:  # named as passed over; another failure may pass, and then the file has records
        return False
    with closing(stored):
        source = io.BufferedReader(Source(stored, file.uri), BUFFER_BYTES)
        if source.peek(4)[:4] == _PARQUET_MAGIC:
            return True
        try:
            begin = unpacked(source, file.uri, UnpackingLimits(float("inf"), float("inf"))).read(_BEGIN_BYTES)
        except CorpusError:  # packed, and damaged: it is no file of records by its name either
            return False
        return begin.removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"{")


def _by_ending(names: Sequence[str]) -> str:
    """The names of a few files, or how many there are of each ending: `2 .txt, 1 .arrow`."""
    if len(names) <= NAMED_FILES:
        return ", ".join(repr(name)[1:-1] for name in sorted(names))
    endings = Counter(Path(name).suffix.lower() or "without an ending" for name in names)
    return ", ".join(f"{count} {repr(ending)[1:-1]}" for ending, count in endings.most_common(NAMED_FILES))


def _local_file(path: Path, real: Path) -> CorpusFile:
    """The file at a path, whose place without symbolic links is `real`."""
    status = real.stat()
    # The time of change cannot be set by hand, unlike that of modification: a copy that keeps the latter
    # still has a new stamp.
    settled = time.time_ns() - max(status.st_ctime_ns, status.st_mtime_ns) > SETTLED_NANOSECONDS
    stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    return CorpusFile(
        uri=_uri_of(path),
        open=lambda: open_local(real),
        size=status.st_size,
        stamp=stamp if settled else None,
    )


def _refused_file(path: Path, reason: str, detail: str) -> CorpusFile:
    """A file that is not read. Its bytes are why, so that it is a changed file as soon as that changes."""
    return CorpusFile(
        _uri_of(path), open=lambda: io.BytesIO(f"{reason}: {detail}".encode()), refusal=(reason, detail)
    )


def _uri_of(path: Path) -> str:
    # A name that is not UTF-8 is shown with escapes, since Postgres stores no other text.
    return "file://" + os.fsencode(path).decode("utf-8", "backslashreplace")


class OpenedFile:
    """A corpus file that is being read: its bytes pass once, and are hashed on the way.

    Raises on entering and reading:
        CorpusError, ObjectStoreError: the source fails.
    """

    def __init__(self, file: CorpusFile, limits: UnpackingLimits) -> None:
        self.uri = file.uri
        self.refusal = file.refusal
        self.limits = limits
        self.file = file
        self._digest = hashlib.sha256()
        self._open_files = ExitStack()

    def __enter__(self) -> "OpenedFile":
        try:
            self._stored = self._open_files.enter_context(closing(self.file.open()))
        except OSError as error:
            raise CorpusError(f"expected to read {self.uri}, found: {error.strerror or error}.") from error
        self._counted = Source(self._stored, self.uri, self._digest)
        self._source = io.BufferedReader(self._counted, BUFFER_BYTES)
        return self

    def __exit__(self, *_: object) -> None:
        self._open_files.close()

    @property
    def is_parquet(self) -> bool:
        """Whether it is a Parquet file by its first bytes, or by its name."""
        return self._source.peek(4)[:4] == _PARQUET_MAGIC or self.uri.lower().endswith(PARQUETS)

    @property
    def bytes_read(self) -> int:
        """How many of its bytes, as they are stored, were read so far.

        Parquet is read in places, and counts as read whole.
        """
        return self._counted.bytes_read

    def lines(self) -> Iterator[Line]:
        """Its lines that are not blank, in order.

        A line with number 0 comes last if it is empty, breaks off or holds too much. Of a packed file that
        breaks off or holds too much, the whole lines before that place are read.
        """
        number = read = 0
        try:
            stream = unpacked(self._source, self.uri, self.limits, as_named=True)
            while raw_line := stream.readline(MOST_LINE_BYTES + 1):  # more is not held of a line
                number += 1
                ended = raw_line.endswith(b"\n")
                content = raw_line[:-1] if ended else raw_line
                if len(content) > MOST_LINE_BYTES:
                    length, rest = len(content), raw_line
                    while not rest.endswith(b"\n") and (rest := stream.readline(BUFFER_BYTES)):
                        length += len(rest.removesuffix(b"\n"))
                    limit = f"expected at most {MOST_LINE_BYTES} bytes"
                    read += 1
                    yield Line(
                        number,
                        reason="line_too_long",
                        detail=f"{limit}, found {length}",
                    )
                    continue
                if number == 1:
                    content = content.removeprefix(_BYTE_ORDER_MARK)
                if content and not content.isspace():
                    read += 1
                    yield Line(number, content, ended=ended)
        except CorpusError as error:
            reason = "expands_too_far" if isinstance(error, ExpandsTooFarError) else "unreadable_file"
            yield Line(0, reason=reason, detail=f"after {read} lines: {error}"[:DETAIL_CHARACTERS])
            return
        if not read:
            yield Line(0, reason="empty_file", detail="expected JSON Lines, found no line that is not blank")

    def seekable(self) -> IO[bytes]:
        """Its bytes as a file in which any place can be read, as Parquet needs it.

        For an object on S3 it is a temporary copy.
        """
        if self._stored.seekable():
            self.sha256()
            self._stored.seek(0)
            return self._stored
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rest
        self._open_files.callback(copy.close)
        shutil.copyfileobj(self._source, copy, BUFFER_BYTES)
        copy.seek(0)
        return copy

    def sha256(self) -> str:
        """SHA-256 of all its bytes as stored, 64 hex digits; reads those that were not read yet."""
        while self._source.read(BUFFER_BYTES):
            pass
        return self._digest.hexdigest()
