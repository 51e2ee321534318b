"""The one reader of packed files: corpora, Wikipedia dumps and the data of evaluations go through it.

Packed are gzip, Zstandard, xz and bzip2, told apart by their first bytes. Memory is bounded for every content:
packed data is unpacked in small pieces. So is time: a packed file that holds too much, in all or for its packed
size (`UnpackingLimits`), is read no further.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from toolformer_ops.errors import (
    BrokenConnectionError,
    CorpusError,
    ExpandsTooFarError,
    ToolformerError,
)

PACKED = (".gz", ".zst", ".xz", ".bz2")
_GZIP = b"\x1f\x8b"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""How a frame of Zstandard begins that holds no data (RFC 8878, section 3.1.2); pzstd writes one first."""
_XZ = b"\xfd7zXZ\x00"
_BZIP2 = b"BZh"
BUFFER_BYTES = 1 << 16
_LONGEST_MAGIC = 6
XZ_BYTES = 1 << 27
"""Most memory that a member of xz may ask for, bytes; the strongest preset takes 65 MB."""
_ZSTANDARD_PIECE_BYTES = 1 << 12
"""pyarrow loses the last piece before the place where a file breaks off, so pieces are small."""
RATIO_FROM_BYTES = 1 << 22
"""Unpacked bytes from which on the ratio counts: a small file of equal lines packs well, and takes no
time."""


@dataclass(frozen=True)
class UnpackingLimits:
    """How much a packed file may hold.

    9 kB of Zstandard can be 300 MB of line ends, whose reading takes minutes.
    """

    unpacked_bytes: float = 256 * 2**30
    ratio: float = 200.0
    """Unpacked bytes for each packed byte that was read."""

    def check(self, name: str, packed_bytes: int, unpacked_bytes: int) -> None:
        """Raise `ExpandsTooFarError` if a file of which so many bytes were read holds too much."""
        if unpacked_bytes > self.unpacked_bytes:
            limit = f"at most {self.unpacked_bytes / 2**30:g} GiB unpacked"
        elif unpacked_bytes > max(self.ratio * packed_bytes, RATIO_FROM_BYTES):
            limit = f"at most {self.ratio:g} times the packed size"
        else:
            return
        raise ExpandsTooFarError(
            f"{name}: expected {limit}, found {unpacked_bytes:,} bytes in {packed_bytes:,} packed ones. "
            "Unpack it before, if the file is what you meant."
        )


def unpacked(packed: IO[bytes], name: str, limits: UnpackingLimits, *, as_named: bool = False) -> BinaryIO:
    """A buffered stream of the bytes in `packed`: gzip, Zstandard, xz, bzip2 or plain.

    The kind is told by the first bytes. Several packed members in a row are read as one. A stream that ends
    in the middle of its packed data raises, so that a half copy is not taken for a whole one. A small file
    may unpack to a large one, but only as much is unpacked as is read.

    Args:
        packed: where the bytes come from.
        name: the file's name or address.
        limits: how much it may hold.
        as_named: whether a file whose name ends as a packed one's must be packed.

    Reading raises:
        ExpandsTooFarError: the file holds more than `limits` allow.
        CorpusError: the packed data is damaged or ends too early, or is not what the name says.
        BrokenConnectionError: `packed` cannot be read.
    """
    stored = Source(packed, name)
    source = io.BufferedReader(stored, BUFFER_BYTES)
    first = source.peek(_LONGEST_MAGIC)[:_LONGEST_MAGIC]
    read: Callable[[int], bytes] | None = None
    if first.startswith(_GZIP):
        read = gzip.GzipFile(fileobj=source).read1
    elif first.startswith(_XZ):
        read = _Members(source, lambda: lzma.LZMADecompressor(memlimit=XZ_BYTES)).read
    elif first.startswith(_BZIP2):
        read = _Members(source, bz2.BZ2Decompressor).read
    if read is not None:
        return io.BufferedReader(_Unpacked(read, stored, limits), BUFFER_BYTES)
    if first.startswith(_ZSTANDARD) or _SKIPPABLE.match(first):
        import pyarrow  # not zstandard, whose reader takes a cut file for a whole one

        stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(source, mode="r"), "zstd")
        unpacking = _Unpacked(stream.read, stored, limits, _ZSTANDARD_PIECE_BYTES)
        return io.BufferedReader(unpacking, BUFFER_BYTES)
    if as_named and first and Path(name).suffix.lower() in PACKED:
        raise CorpusError(
            f"{name}: expected compressed data, as the suffix says, found plain bytes. Rename it, or compress it."
        )
    return source


class _Members:
    """Members of xz or bzip2 in a row, read as one.

    Unlike `lzma.open` and `bz2.open` it takes nothing after them for padding, and bounds the memory of a
    member.
    """

    def __init__(self, source: IO[bytes], new_member: Callable[[], Any]) -> None:
        self._source = source
        self._new_member = new_member
        self._member = new_member()

    def read(self, size: int) -> bytes:
        """At most so many unpacked bytes; none at the end. Raises what `_Unpacked` takes for damage."""
        while True:
            packed = b""
            if self._member.eof:
                packed = self._member.unused_data or self._source.read(BUFFER_BYTES)
                if not packed:
                    return b""
                self._member = self._new_member()
            elif self._member.needs_input:
                packed = self._source.read(BUFFER_BYTES)
                if not packed:
                    raise EOFError("it ends in the middle of its packed data")
            if block := self._member.decompress(packed, size):
                return bytes(block)


class _Unpacked(io.RawIOBase):
    """What `read` unpacks of `stored`, at most `piece_bytes` at a time; its errors become `CorpusError`."""

    def __init__(
        self,
        read: Callable[[int], bytes],
        stored: "Source",
        limits: UnpackingLimits,
        piece_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._read = read
        self._stored = stored
        self._limits = limits
        self._piece_bytes = piece_bytes
        self._bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        try:
            block = self._read(min(len(buffer), self._piece_bytes))
        except (
            OSError,
            EOFError,
            ValueError,
            zlib.error,
            lzma.LZMAError,
        ) as error:  # ValueError: pyarrow's ArrowInvalid
            # gzip quotes the bytes that it finds instead of the next member.
            finding = "something else after it" if isinstance(error, gzip.BadGzipFile) else error
            raise CorpusError(
                f"{self._stored.name}: expected whole packed data, found: {finding}. Copy the file again."
            ) from error
        self._bytes += len(block)
        self._limits.check(self._stored.name, self._stored.bytes_read, self._bytes)
        buffer[: len(block)] = block
        return len(block)


class Source(io.RawIOBase):
    """Stored bytes.

    Their errors become `BrokenConnectionError`, so that no unpacker takes a failing disk for damaged data.
    """

    def __init__(self, stream: IO[bytes], name: str, digest: "hashlib._Hash | None" = None) -> None:
        self.name = name
        self.bytes_read = 0
        self._stream = stream
        self._digest = digest

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes into the buffer; returns how many these are, 0 at the end."""
        try:
            block = self._stream.read(len(buffer))
        except ToolformerError:
            raise
        except Exception as error:
            raise BrokenConnectionError(f"reading {self.name} broke off: {error}. Try again.") from error
        self.bytes_read += len(block)
        if self._digest:
            self._digest.update(block)
        buffer[: len(block)] = block
        return len(block)
