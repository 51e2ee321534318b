"""Read gzip, Zstandard or plain bytes from a stream, told apart by the first bytes and not by a name.

A stream that ends in the middle of its packed data raises, so that a half copy is not taken for a whole one (zstandard's own
reader ends such a stream silently).
"""

import gzip
import io
import zlib
from typing import IO, Any, BinaryIO, cast

from toolformer_ops.errors import CorpusError

_GZIP = b"\x1f\x8b"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_BUFFER_BYTES = 1 << 20


def unpacked(packed: IO[bytes], name: str) -> BinaryIO:
    """A buffered stream of the bytes in `packed`; several packed members in a row are read as one. `name` is for messages.

    Reading raises:
        CorpusError: the packed data is damaged or ends too early.
    """
    buffered = io.BufferedReader(_Source(packed), _BUFFER_BYTES)
    first = buffered.peek(4)[:4]
    if first.startswith(_GZIP):
        return _buffered(_Checked(gzip.GzipFile(fileobj=buffered), name))
    if first == _ZSTANDARD:
        return _buffered(_Checked(_ZstandardFile(buffered), name))
    return buffered


def _buffered(raw: io.RawIOBase) -> BinaryIO:
    return io.BufferedReader(raw, _BUFFER_BYTES)


class _Source(io.RawIOBase):
    """A stream that may be read after its end; boto3's closes itself there."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = b"" if self._ended else self._stream.read(len(buffer))
        self._ended = not block
        buffer[: len(block)] = block
        return len(block)


class _Checked(io.RawIOBase):
    """Turns the errors of a damaged file into ours."""

    def __init__(self, file: Any, name: str) -> None:
        self._file = file
        self._name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            block = cast("bytes", self._file.read(len(buffer)))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorpusError(
                f"{self._name}: expected whole packed data, found {error}. Copy the file again."
            ) from error
        buffer[: len(block)] = block
        return len(block)


class _ZstandardFile:
    """Unpacks Zstandard frames and insists that the last one ends."""

    def __init__(self, packed: io.BufferedIOBase) -> None:
        import zstandard

        self._packed = packed
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._error: type[Exception] = zstandard.ZstdError
        self._frame: Any = None
        self._packed_rest = b""
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Up to `size` unpacked bytes; none at the end.

        Raises:
            EOFError: the packed data is damaged or ends within a frame.
        """
        while not self._rest:
            block = self._packed_rest or self._packed.read1(_BUFFER_BYTES)
            self._packed_rest = b""
            if not block:
                if self._frame is not None:
                    raise EOFError("an end in the middle of a Zstandard frame")
                return b""
            self._rest = self._unpack(block)
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def _unpack(self, block: bytes) -> bytes:
        if self._frame is None:
            self._frame = self._new_frame()
        try:
            unpacked_block = cast("bytes", self._frame.decompress(block))
        except self._error as error:
            raise EOFError(str(error)) from error
        if self._frame.eof:
            self._packed_rest, self._frame = self._frame.unused_data, None
        return unpacked_block
