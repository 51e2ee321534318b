import bz2
import gzip
import io
import lzma
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import IO
from unittest.mock import Mock

import pytest
import zstandard

from toolformer_ops.config import load_settings
from toolformer_ops.errors import CorpusError, ExpandsTooFarError, ObjectStoreError
from toolformer_ops.storage.corpora import files
from toolformer_ops.storage.corpora.addresses import normal_uri
from toolformer_ops.storage.corpora.files import CorpusFile, Line, OpenedFile, find_files
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits, unpacked

LIMIT = 1000
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
"""By the ending of a file's name."""
packed = pytest.mark.parametrize("suffix", [".gz", ".zst", ".xz", ".bz2"])
UNLIMITED = UnpackingLimits(unpacked_bytes=1e12, ratio=1e6)


@pytest.fixture(autouse=True)
def short_lines(monkeypatch):
    monkeypatch.setattr(files, "MOST_LINE_BYTES", LIMIT)


def _file(path: Path, content: bytes) -> CorpusFile:
    path.write_bytes(content)
    return CorpusFile(f"file://{path}", lambda: path.open("rb"))


def _lines(path: Path, content: bytes) -> list[Line]:
    return _lines_of(_file(path, content))


def _lines_of(file: CorpusFile, limits: UnpackingLimits = UNLIMITED) -> list[Line]:
    with OpenedFile(file, limits) as opened:
        return list(opened.lines())


def _outcome(lines: list[Line]) -> list[tuple[int, bytes | str]]:
    return [(line.number, line.reason or line.content) for line in lines]


def test_lines_are_numbered_from_1_with_blank_ones_that_are_no_records(tmp_path):
    content = b"\xef\xbb\xbfone\r\n\n \t\r\nfour\nlast without line end"
    read = [(1, b"one\r"), (4, b"four"), (5, b"last without line end")]
    assert _outcome(_lines(tmp_path / "a.jsonl", content)) == read


def test_packed_files_of_several_parts_are_read_by_their_suffix(tmp_path):
    for suffix, pack in PACK.items():
        for empty in (b"", b"  \n\n"):
            assert _outcome(_lines(tmp_path / f"a.jsonl{suffix}", pack(empty))) == [(0, "empty_file")]
        for name in PACK:  # packed in several parts, under any name
            lines = _outcome(_lines(tmp_path / f"a.jsonl{name}", pack(b"one\ntw") + pack(b"o\nthree\n")))
            as_named = suffix or not name
            assert lines == (
                [(1, b"one"), (2, b"two"), (3, b"three")] if as_named else [(0, "unreadable_file")]
            )


def test_a_line_is_refused_from_one_byte_above_the_limit(tmp_path):
    content = b"x" * LIMIT + b"\n" + b"y" * (LIMIT + 1) + b"\nz"
    assert _outcome(_lines(tmp_path / "a.jsonl", content)) == [
        (1, b"x" * LIMIT),
        (2, "line_too_long"),
        (3, b"z"),
    ]


def test_a_line_of_50_megabytes_is_never_held(tmp_path):
    _check_never_held(_file(tmp_path / "a.jsonl", b"first\n" + b"x" * 50_000_000 + b"\nlast\n"))


def _check_never_held(file: CorpusFile) -> None:
    tracemalloc.start()
    lines = _lines_of(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert _outcome(lines) == [(1, b"first"), (2, "line_too_long"), (3, b"last")]
    window = 8_400_000 if file.uri.endswith(".xz") else 0  # what xz looks back into, by its default preset
    assert peak < 5_000_000 + window


@packed
def test_a_packed_file_that_unpacks_to_a_hundred_megabytes_is_never_held(tmp_path, suffix):
    _check_never_held(
        _file(tmp_path / f"a.jsonl{suffix}", PACK[suffix](b"first\n" + b"\x00" * 100_000_000 + b"\nlast\n"))
    )


def test_a_small_file_that_holds_megabytes_of_line_ends_is_read_no_further(tmp_path):
    # 5 MB of line ends, some kB packed; those of 300 MB, which took 400 s, are refused at the same place.
    file = _file(tmp_path / "a.zst", PACK[".zst"](b"first\n" + b"\n" * 5_000_000 + b"last\n"))
    lines = _lines_of(file, limits=UnpackingLimits())
    assert _outcome(lines) == [(1, b"first"), (0, "expands_too_far")]
    assert "times the packed size" in lines[1].detail


@packed
@pytest.mark.parametrize("damage", ["broken off", "overwritten"])
def test_of_a_packed_file_that_is_damaged_the_readable_lines_are_kept(tmp_path, suffix, damage):
    source = random.Random(0)  # noqa: S311 - content that does not compress well
    content = b"".join(b"%d %d\n" % (number, source.getrandbits(256)) for number in range(5000))
    data, place = PACK[suffix](content), len(PACK[suffix](content)) * 3 // 4
    data = data[:place] if damage == "broken off" else data[:place] + b"\xff" * 50 + data[place + 50 :]
    *lines, last = _lines(tmp_path / f"a.jsonl{suffix}", data)
    assert (last.number, last.reason) == (0, "unreadable_file")
    assert f"after {len(lines)} lines" in last.detail
    if damage == "broken off":  # of what was overwritten gzip sees the harm at the end alone
        assert content.startswith(b"".join(line.content + b"\n" for line in lines))
        least = 0 if suffix == ".bz2" else 3000  # bzip2 unpacks blocks of 900 kB, whole ones alone
        assert len(lines) >= least


def test_a_source_that_fails_is_an_error_not_a_refused_file():
    failing = Mock(spec=io.BytesIO, **{"read.side_effect": ConnectionResetError("gone"), "closed": False})
    for suffix in PACK:
        with pytest.raises(ObjectStoreError, match=r"reading s3://b/a\.jsonl.* broke off: gone"):
            _lines_of(CorpusFile(f"s3://b/a.jsonl{suffix}", lambda: failing))


def test_a_folder_without_corpus_files_is_an_error(tmp_path):
    settings = load_settings()
    (tmp_path / "README.md").write_bytes(b"")
    for path, said in (
        (tmp_path / "none", f"{tmp_path}/none, found nothing"),
        (tmp_path, r"JSON Lines .*, found other files: README\.md"),
    ):
        with pytest.raises(CorpusError, match=said):
            find_files(settings, normal_uri(str(path)))


def test_a_folder_gives_only_its_corpus_files_by_name(tmp_path):
    settings = load_settings()
    others = ("README.md", ".hidden.jsonl", ".git/d.jsonl", "z.parquet.gz", "_temporary/g.jsonl", "_SUCCESS")
    named = ("a.jsonl.gz", "b.jsonl", "caf\udce9.jsonl", "e.ndjson", "f.PARQUET", "sub/c.JSON.zst")
    for name in (*others, *named):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"one\n")
    found = find_files(settings, normal_uri(str(tmp_path)))
    shown = [name.replace("\udce9", "\\xe9") for name in named]  # what is no UTF-8 is shown with an escape
    assert [file.uri.removeprefix(f"file://{tmp_path}/") for file in found] == shown
    assert _outcome(_lines_of(found[2])) == [(1, b"one")]


def test_a_file_that_is_named_itself_may_have_any_name(tmp_path):
    settings = load_settings()
    path = tmp_path / "my corpus 100%25 #1?.txt"
    path.write_bytes(b"one\n")
    [file] = find_files(settings, normal_uri(str(path)))
    assert _outcome(_lines_of(file)) == [(1, b"one")]


RECORD = b'{"text": "One."}\n'


OTHER_NAMES: dict[str, Callable[[bytes], bytes]] = {
    "part-00000": bytes,
    "dump.txt": bytes,
    "part-00000.gz": gzip.compress,
    "dump": lzma.compress,
    "dump.bz2": bz2.compress,
    "with a mark": lambda content: b"\xef\xbb\xbf" + content,
    "a.jl": bytes,
    "a.jsonlines": bytes,
    "b.jsonl.xz": lzma.compress,
    "c.ndjson.bz2": bz2.compress,
}
"""By the name of a file, how its records are packed."""


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_file_of_records_is_taken_by_its_name_or_its_content(tmp_path, name):
    (tmp_path / name).write_bytes(OTHER_NAMES[name](RECORD))
    [file] = find_files(load_settings(), normal_uri(str(tmp_path)))
    assert [line.content for line in _lines_of(file)] == [RECORD.strip()]


@pytest.mark.parametrize("name", ["table", "table.pq", "table.parquet"])
def test_a_parquet_file_is_taken_by_its_name_or_its_content(tmp_path, name):
    (tmp_path / name).write_bytes(b"PAR1...PAR1")
    assert len(find_files(load_settings(), normal_uri(str(tmp_path)))) == 1


def test_files_without_records_are_named_in_one_line(tmp_path, caplog):
    for name, content in (
        ("a.jsonl", RECORD),
        ("b.arrow", b"ARROW1"),
        ("notes.txt", b"Notes."),
        ("empty", b""),
    ):
        (tmp_path / name).write_bytes(content)
    assert len(find_files(load_settings(), normal_uri(str(tmp_path)))) == 1
    [line] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert line.endswith("3 files passed over, neither JSON Lines nor Parquet: b.arrow, empty, notes.txt")


def test_a_stray_file_that_may_not_be_read_is_passed_over(tmp_path, monkeypatch, caplog):
    (tmp_path / "a.jsonl").write_bytes(RECORD)
    (tmp_path / "notes").write_bytes(RECORD)

    def refuse(path: Path) -> IO[bytes]:
        raise PermissionError(path)

    monkeypatch.setattr("toolformer_ops.storage.corpora.files.open_local", refuse)
    assert len(find_files(load_settings(), normal_uri(str(tmp_path)))) == 1
    assert "1 file passed over, neither JSON Lines nor Parquet: notes" in caplog.text


def test_of_many_files_without_records_the_endings_are_counted(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_bytes(RECORD)
    for number in range(7):
        (tmp_path / f"{number}.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "notes.txt").write_bytes(b"Notes.")
    find_files(load_settings(), normal_uri(str(tmp_path)))
    assert "8 files passed over, neither JSON Lines nor Parquet: 7 .jpg, 1 .txt" in caplog.text


def test_zstandard_behind_a_frame_without_data_is_read(tmp_path):
    """As pzstd writes it: RFC 8878, section 3.1.2."""
    frame = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(frame + zstandard.compress(RECORD))
    [file] = find_files(load_settings(), normal_uri(str(path)))
    assert [line.content for line in _lines_of(file)] == [RECORD.strip()]


def test_an_xz_file_that_asks_for_much_memory_is_refused(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(RECORD, filters=filters))
    [file] = find_files(load_settings(), normal_uri(str(tmp_path)))
    [line] = _lines_of(file)
    assert line.reason == "unreadable_file"
    assert "Memory usage limit exceeded" in line.detail


def test_several_packed_members_are_read_as_one():
    for pack in (lzma.compress, bz2.compress):
        assert unpacked(io.BytesIO(pack(b"one\n") + pack(b"two\n")), "a", UNLIMITED).read() == b"one\ntwo\n"


# Any packed file: `unpacked`

TEXT = b'{"text": "one"}\n' * 50_000  # several buffers long


def _read(data: bytes, limits: UnpackingLimits = UNLIMITED) -> bytes:
    return unpacked(io.BytesIO(data), "corpus.jsonl", limits).read()


@packed
def test_packed_data_within_its_limit_is_read_whole(suffix):
    data = PACK[suffix](TEXT)
    assert _read(data, UnpackingLimits(unpacked_bytes=len(TEXT), ratio=1e6)) == _read(TEXT) == TEXT
    for content in (b"", b"\x1f"):  # one byte of gzip's two
        assert _read(PACK[suffix](content)) == _read(content) == content


@packed
def test_damaged_packed_data_is_refused(suffix):
    data = PACK[suffix](TEXT)
    for damaged in (data[: len(data) // 5], data[:-2], data + b"rubbish"):
        with pytest.raises(CorpusError, match=r"corpus\.jsonl: expected whole packed data"):
            _read(damaged)


@packed
def test_packed_data_beyond_its_limit_is_refused(suffix):
    data = PACK[suffix](TEXT)
    with pytest.raises(ExpandsTooFarError, match=r"corpus\.jsonl: expected at most .* GiB unpacked"):
        _read(data, UnpackingLimits(unpacked_bytes=len(TEXT) - 1, ratio=1e6))
