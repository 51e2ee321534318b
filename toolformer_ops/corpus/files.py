"""Find the files of a corpus and read their lines safely: JSON Lines, plain, .gz or .zst, from file:// or s3://.

Memory stays bounded whatever a file holds: a line longer than the limit is skipped, a compressed file is unpacked in small pieces.
What cannot be read becomes a `Line` with a reason; only a source that fails as such (no file, no permission, the network) raises.
Does not look into the lines: `corpus/records.py` does.
"""

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, ObjectStoreError

if TYPE_CHECKING:
    from toolformer_ops.storage.object_store import ObjectStore

READ_BYTES = 1 << 16
ZSTD_READ_BYTES = 1 << 12
"""pyarrow loses the last piece before the place where a file breaks off, so pieces are small."""
DETAIL_CHARACTERS = 300
KINDS = (".jsonl", ".ndjson", ".json")
SUFFIXES = tuple(kind + packed for kind in KINDS for packed in ("", ".gz", ".zst"))
"""What is taken from a folder; a file that is named itself may have any name."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus."""

    uri: str
    """Whole address, file:///... or s3://..."""
    open: Callable[[], IO[bytes]]
    """Opens its bytes as they are stored."""


@dataclass(frozen=True)
class Line:
    """A line that is not blank, or the reason why it, or the rest of the file, cannot be read."""

    number: int
    """From 1; 0 where the reason concerns the file as a whole."""
    content: bytes = b""
    """Without its line end; empty where there is a reason."""
    reason: str | None = None
    """line_too_long, empty_file or unreadable_file."""
    detail: str = ""


def find_files(settings: Settings, uri: str) -> list[CorpusFile]:
    """The files of a corpus, in the order of their names: itself, or those below it with one of `SUFFIXES`.

    `uri` is an address as `records.normal_uri` writes it. Hidden files and folders are passed over.

    Raises:
        CorpusError: there is no such file, folder or bucket, or no file of these kinds lies in it.
    """
    files = _find_objects(settings, uri) if uri.startswith("s3://") else _find_local(Path(uri.removeprefix("file://")))
    if not files:
        raise CorpusError(
            f"expected files ending in {', '.join(SUFFIXES[:3])} (or these with .gz, .zst) in {uri}, found none."
        )
    return sorted(files, key=lambda file: file.uri)


def _find_local(path: Path) -> list[CorpusFile]:
    if path.is_file():
        return [_local_file(path)]
    if not path.is_dir():
        raise CorpusError(
            f"expected the corpus, a file or a folder, at {path}, found nothing. Check the run's corpus address."
        )
    return [_local_file(found) for found in path.rglob("*") if _is_taken(found.relative_to(path)) and found.is_file()]


def _local_file(path: Path) -> CorpusFile:
    # A name that is no UTF-8 is shown with escapes, since Postgres stores no other text.
    name = os.fsencode(path).decode("utf-8", "backslashreplace")
    return CorpusFile(f"file://{name}", lambda: path.open("rb"))


def _find_objects(settings: Settings, uri: str) -> list[CorpusFile]:
    from toolformer_ops.errors import ObjectNotFoundError
    from toolformer_ops.storage.object_store import ObjectStore

    store = ObjectStore(settings)
    try:
        found = store.list_uri(uri)
    except ObjectNotFoundError as error:
        raise CorpusError(f"expected the corpus at {uri}: {error}. Check the run's corpus address.") from error
    return [_object(store, name) for name in found if name == uri or _is_taken(Path(name.removeprefix(f"{uri}/")))]


def _object(store: "ObjectStore", uri: str) -> CorpusFile:
    return CorpusFile(uri, lambda: store.open_uri(uri))


def _is_taken(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES) and not any(part.startswith(".") for part in path.parts)


def content_sha256(file: CorpusFile) -> str:
    """SHA-256 of the file's bytes as stored, 64 hex digits.

    Raises:
        CorpusError, ObjectStoreError: the source fails.
    """
    digest = hashlib.sha256()
    with _open(file) as source:
        while block := source.read(READ_BYTES * 16):
            digest.update(block)
    return digest.hexdigest()


def read_lines(file: CorpusFile, max_line_bytes: int) -> Iterator[Line]:
    """The lines of a file that are not blank, in order; one with number 0 last where the file is empty or breaks off.

    Of a compressed file that breaks off, the whole lines before that place are read.

    Raises:
        CorpusError, ObjectStoreError: the source fails.
    """
    lines = 0
    failure: list[str] = []
    with _open(file) as source:
        for line in _split(_blocks(file.uri, source, failure), max_line_bytes, failure):
            lines += 1
            yield line
    if failure:
        yield Line(0, reason="unreadable_file", detail=f"after {lines} lines: {failure[0]}"[:DETAIL_CHARACTERS])
    elif lines == 0:
        yield Line(0, reason="empty_file", detail="expected JSON Lines, found no line that is not blank")


def _split(blocks: Iterator[bytes], max_line_bytes: int, failure: list[str]) -> Iterator[Line]:
    """Cut blocks into lines, never holding more than a block and `max_line_bytes`; the rest of a broken file is left out."""
    pending = bytearray()
    number = 1
    length = 0  # of the line being read, including what is not held
    for block in blocks:
        start = 0
        while start < len(block):
            end = block.find(b"\n", start)
            stop = end if end >= 0 else len(block)
            length += stop - start
            pending += block[start : start + max(0, min(stop - start, max_line_bytes - len(pending)))]
            if end < 0:
                break
            if line := _line(number, bytes(pending), length):
                yield line
            pending.clear()
            number, length, start = number + 1, 0, end + 1
    if not failure and (line := _line(number, bytes(pending), length)):
        yield line


def _line(number: int, held: bytes, length: int) -> Line | None:
    if length > len(held):
        detail = f"expected at most {len(held)} bytes (TOOLFORMER_MAX_LINE_BYTES), found {length}: {held[:80]!r}"
        return Line(number, reason="line_too_long", detail=detail[:DETAIL_CHARACTERS])
    if number == 1:
        held = held.removeprefix(_BYTE_ORDER_MARK)
    return Line(number, held) if held.strip() else None


def _blocks(uri: str, source: "_Source", failure: list[str]) -> Iterator[bytes]:
    """The unpacked bytes in pieces; where the packing is broken, ends and says so in `failure`."""
    name = uri.lower()
    try:
        if name.endswith(".gz"):
            yield from _pieces(gzip.GzipFile(fileobj=source).read1, READ_BYTES)
        elif name.endswith(".zst"):
            import pyarrow

            stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(source, mode="r"), "zstd")
            yield from _pieces(stream.read, ZSTD_READ_BYTES)
        else:
            yield from _pieces(source.read, READ_BYTES)
    except (OSError, EOFError, ValueError, zlib.error) as error:  # ValueError: pyarrow's ArrowInvalid
        failure.append(str(error) or type(error).__name__)


def _pieces(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    while piece := read(size):
        yield piece


def _open(file: CorpusFile) -> "_Source":
    try:
        return _Source(file.uri, file.open())
    except OSError as error:
        raise CorpusError(f"expected to read {file.uri}, found: {error.strerror or error}.") from error


class _Source(io.RawIOBase):
    """A file's own bytes. Its failures become errors that no unpacker takes for a broken packing."""

    def __init__(self, uri: str, stream: IO[bytes]) -> None:
        self._uri = uri
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        try:
            block = self._stream.read(len(buffer))
        except Exception as error:  # boto3, urllib3 and the file system each have their own
            raise ObjectStoreError(f"reading {self._uri} broke off: {error}. Try again.") from error
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
