import gzip
import io
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, ExpandsTooFarError, ObjectStoreError
from toolformer_ops.records import normal_uri
from toolformer_ops.storage.corpus_files import (
    CorpusFile,
    Line,
    OpenedFile,
    UnpackingLimits,
    find_files,
    unpacked,
)

LIMIT = 1000
PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
"""By the ending of a file's name."""
packed = pytest.mark.parametrize("suffix", [".gz", ".zst"])
UNLIMITED = UnpackingLimits(unpacked_bytes=1e12, ratio=1e6)


def _file(path: Path, content: bytes) -> CorpusFile:
    path.write_bytes(content)
    return CorpusFile(f"file://{path}", lambda: path.open("rb"))


def _lines(path: Path, content: bytes, limit: int = LIMIT) -> list[Line]:
    return _lines_of(_file(path, content), limit)


def _lines_of(file: CorpusFile, limit: int = LIMIT, limits: UnpackingLimits = UNLIMITED) -> list[Line]:
    with OpenedFile(file, limits) as opened:
        return list(opened.lines(limit))


def _outcome(lines: list[Line]) -> list[tuple[int, bytes | str]]:
    return [(line.number, line.reason or line.content) for line in lines]


@pytest.fixture
def settings() -> Settings:
    return Settings(_env_file=None)  # type: ignore[call-arg]


def test_lines_are_numbered_from_1_and_blank_ones_are_no_records(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfone\r\n\n \t\r\nfour\nlast without line end"
    assert _outcome(_lines(tmp_path / "a.jsonl", content)) == [
        (1, b"one\r"),
        (4, b"four"),
        (5, b"last without line end"),
    ]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"  \n"])
@pytest.mark.parametrize("suffix", PACK)
def test_a_file_without_lines_is_refused_as_empty(tmp_path: Path, content: bytes, suffix: str) -> None:
    assert _outcome(_lines(tmp_path / f"a.jsonl{suffix}", PACK[suffix](content))) == [(0, "empty_file")]


def test_a_line_of_exactly_the_limit_is_read_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    content = b"x" * LIMIT + b"\n" + b"y" * (LIMIT + 1) + b"\nz"
    lines = _lines(tmp_path / "a.jsonl", content)
    assert _outcome(lines) == [(1, b"x" * LIMIT), (2, "line_too_long"), (3, b"z")]
    assert "found 1001" in lines[1].detail


def test_a_line_of_50_megabytes_is_never_held(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b"first\n")
        for _ in range(50):
            file.write(b"x" * 1_000_000)
        file.write(b"\nlast\n")
    _check_never_held(CorpusFile("file://a.jsonl", lambda: path.open("rb")))


def _check_never_held(file: CorpusFile) -> None:
    tracemalloc.start()
    lines = _lines_of(file, 1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert _outcome(lines) == [(1, b"first"), (2, "line_too_long"), (3, b"last")]
    assert peak < 5_000_000


@packed
def test_a_packed_file_that_unpacks_to_a_hundred_megabytes_is_never_held(tmp_path: Path, suffix: str) -> None:
    _check_never_held(
        _file(tmp_path / f"a.jsonl{suffix}", PACK[suffix](b"first\n" + b"\x00" * 100_000_000 + b"\nlast\n"))
    )


def test_a_small_file_that_holds_megabytes_of_line_ends_is_read_no_further(tmp_path: Path, settings: Settings) -> None:
    # 5 MB of line ends, some kB packed; those of 300 MB, which took 400 s, are refused at the same place.
    file = _file(tmp_path / "a.zst", PACK[".zst"](b"first\n" + b"\n" * 5_000_000 + b"last\n"))
    lines = _lines_of(file, limits=UnpackingLimits.of(settings))
    assert _outcome(lines) == [(1, b"first"), (0, "expands_too_far")]
    assert "expected at most 200 times the packed size (TOOLFORMER_MAX_UNPACKED_RATIO), found 4," in lines[1].detail


def _numbered_lines(count: int) -> bytes:
    source = random.Random(0)  # noqa: S311 - content that does not compress well
    return b"".join(b"%d %d\n" % (number, source.getrandbits(256)) for number in range(count))


@packed
def test_files_packed_in_several_parts_are_read_whole(tmp_path: Path, suffix: str) -> None:
    content = PACK[suffix](b"one\ntw") + PACK[suffix](b"o\nthree\n")
    lines = _lines(tmp_path / f"a.jsonl{suffix}", content)
    assert _outcome(lines) == [(1, b"one"), (2, b"two"), (3, b"three")]


@packed
def test_of_a_packed_file_that_breaks_off_the_readable_lines_are_kept(tmp_path: Path, suffix: str) -> None:
    content = _numbered_lines(5000)
    whole = PACK[suffix](content)
    lines = _lines(tmp_path / f"a.jsonl{suffix}", whole[: len(whole) * 3 // 4])
    assert _outcome(lines[-1:]) == [(0, "unreadable_file")]
    kept = b"".join(line.content + b"\n" for line in lines[:-1])
    assert content.startswith(kept)
    assert len(lines) > 3000
    assert f"after {len(lines) - 1} lines" in lines[-1].detail


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_packed_file_may_have_any_name(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    assert _outcome(_lines(tmp_path / f"a.jsonl{suffix}", pack(b"one\ntwo\n"))) == [(1, b"one"), (2, b"two")]


@packed
def test_a_packed_file_with_damaged_bytes_is_refused_at_that_place(tmp_path: Path, suffix: str) -> None:
    damaged = bytearray(PACK[suffix](_numbered_lines(5000)))
    damaged[len(damaged) // 2 : len(damaged) // 2 + 50] = b"\xff" * 50
    lines = _lines(tmp_path / f"a.jsonl{suffix}", bytes(damaged))
    assert lines[-1].number == 0
    assert lines[-1].reason == "unreadable_file"


@packed
def test_a_file_that_is_not_packed_as_its_name_says_is_refused(tmp_path: Path, suffix: str) -> None:
    assert _outcome(_lines(tmp_path / f"a.jsonl{suffix}", b'{"text": "plain"}\n' * 10)) == [(0, "unreadable_file")]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_a_source_that_fails_is_an_error_and_not_a_refused_file(tmp_path: Path, name: str) -> None:
    class Failing:
        def read(self, _size: int) -> bytes:
            raise ConnectionResetError("gone")

        def close(self) -> None:
            pass

    with pytest.raises(ObjectStoreError, match=r"reading s3://b/a\.jsonl.* broke off: gone"):
        _lines_of(CorpusFile(f"s3://b/{name}", Failing))  # type: ignore[arg-type]


def test_a_folder_gives_its_json_lines_files_by_name_and_no_others(tmp_path: Path, settings: Settings) -> None:
    for name in ("b.jsonl", "a.jsonl.gz", "sub/c.JSON.zst", "README.md", ".hidden.jsonl", ".git/d.jsonl", "e.ndjson"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = find_files(settings, normal_uri(str(tmp_path)))
    assert [file.uri.removeprefix(f"file://{tmp_path}/") for file in found] == [
        "a.jsonl.gz",
        "b.jsonl",
        "e.ndjson",
        "sub/c.JSON.zst",
    ]


def test_a_file_named_itself_may_have_any_name(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "my corpus 100%25 #1?.txt"
    path.write_bytes(b"one\n")
    [file] = find_files(settings, normal_uri(str(path)))
    assert _outcome(_lines_of(file)) == [(1, b"one")]


def test_a_corpus_that_is_not_there_and_a_folder_without_json_lines_are_named(
    tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "README.md").write_bytes(b"")
    for path, said in ((tmp_path / "none", f"{tmp_path}/none, found nothing"), (tmp_path, r"files ending in \.jsonl")):
        with pytest.raises(CorpusError, match=said):
            find_files(settings, normal_uri(str(path)))


def test_a_file_name_that_is_no_utf_8_is_shown_with_escapes(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "caf\udce9.jsonl"
    path.write_bytes(b"one\n")
    [file] = find_files(settings, normal_uri(str(tmp_path)))
    assert file.uri.endswith("caf\\xe9.jsonl")
    assert _outcome(_lines_of(file)) == [(1, b"one")]


def test_the_content_hash_is_that_of_the_stored_bytes(tmp_path: Path) -> None:
    # sha256 of "abc", FIPS 180-2
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with OpenedFile(_file(tmp_path / "a.jsonl.gz", b"abc"), UNLIMITED) as opened:
        assert opened.sha256() == expected


# Any packed file: `unpacked`

TEXT = b'{"text": "one"}\n' * 50_000  # several buffers long


def _read(data: bytes, limits: UnpackingLimits = UNLIMITED) -> bytes:
    return unpacked(io.BytesIO(data), "corpus.jsonl", limits).read()


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("content", [TEXT, b"", b"\x1f"], ids=["long", "empty", "one byte of gzip's two"])
def test_bytes_come_back_unpacked(suffix: str, content: bytes) -> None:
    assert _read(PACK[suffix](content)) == content


@packed
@pytest.mark.parametrize("damage", ["a fifth of it", "all but its end", "rubbish behind it"])
def test_data_that_ends_too_early_or_too_late_raises(suffix: str, damage: str) -> None:
    data = PACK[suffix](TEXT * 20)
    cut = {"a fifth of it": data[: len(data) // 5], "all but its end": data[: int(len(data) * 0.99)]}
    with pytest.raises(CorpusError, match=r"corpus\.jsonl: expected whole packed data"):
        _read(cut.get(damage, data + b"rubbish"))


@packed
def test_packed_data_above_the_limit_in_all_is_refused_and_at_the_limit_is_read(suffix: str) -> None:
    content = PACK[suffix](TEXT)
    assert _read(content, UnpackingLimits(unpacked_bytes=len(TEXT), ratio=1e6)) == TEXT
    with pytest.raises(
        ExpandsTooFarError, match=r"corpus\.jsonl: expected at most .* GiB .*TOOLFORMER_MAX_UNPACKED_GIB"
    ):
        _read(content, UnpackingLimits(unpacked_bytes=len(TEXT) - 1, ratio=1e6))
