"""Packed files are told by their content, and a cut one never passes for a whole one."""

import gzip
import io
from collections.abc import Callable

import pytest
import zstandard

from toolformer_ops.corpus.compressed_stream import unpacked
from toolformer_ops.errors import CorpusError

TEXT = b'{"text": "one"}\n' * 50_000  # several buffers long
PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstandard": zstandard.ZstdCompressor().compress}
packed_by = pytest.mark.parametrize("pack", PACK.values(), ids=PACK.keys())


def read(data: bytes) -> bytes:
    return unpacked(io.BytesIO(data), "corpus.jsonl").read()


def test_plain_bytes_come_back() -> None:
    assert read(TEXT) == TEXT
    assert read(b"") == b""
    assert read(b"\x1f") == b"\x1f"


@packed_by
def test_packed_bytes_come_back_unpacked(pack: Callable[[bytes], bytes]) -> None:
    assert read(pack(TEXT)) == TEXT


@packed_by
def test_packed_members_in_a_row_are_one_text(pack: Callable[[bytes], bytes]) -> None:
    assert read(pack(TEXT) + pack(b"last\n")) == TEXT + b"last\n"


@packed_by
@pytest.mark.parametrize("kept_share", [0.2, 0.99])
def test_a_stream_that_ends_too_early_raises(pack: Callable[[bytes], bytes], kept_share: float) -> None:
    data = pack(TEXT * 20)
    with pytest.raises(CorpusError, match=r"corpus\.jsonl: expected whole packed data"):
        read(data[: int(len(data) * kept_share)])


@packed_by
def test_rubbish_after_the_packed_data_raises(pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(CorpusError, match=r"corpus\.jsonl"):
        read(pack(TEXT) + b"rubbish")


@packed_by
def test_lines_can_be_read_one_by_one(pack: Callable[[bytes], bytes]) -> None:
    assert sum(1 for _ in unpacked(io.BytesIO(pack(TEXT)), "corpus.jsonl")) == 50_000
