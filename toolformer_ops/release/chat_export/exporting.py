"""Write a release as JSON Lines with the columns `messages` and `tools`.

JSON Lines and not Parquet: Arrow gives every message all fields of all messages and every call all arguments of all calls, filled
up with nulls, and templates then render a null. The readers of JSON Lines keep what is there.
Never writes over another file, and writes nothing where the same content lies already.
"""

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from toolformer_ops.config import Settings
from toolformer_ops.errors import ObjectNotFoundError, ParameterError
from toolformer_ops.release.chat_export.conversation import conversation, tool_schemas
from toolformer_ops.release.format import read_release
from toolformer_ops.storage.object_store import ObjectStore
from toolformer_ops.storage.publication import file_sha256

logger = logging.getLogger(__name__)

FILE_NAME = "train.jsonl"
"""The file's name where only a folder is given; readers of data sets take it for the split `train`."""
_S3 = "s3://"


@dataclass(frozen=True)
class ChatExport:
    """What was written."""

    address: str
    """Of the file: a path, or s3://."""
    conversations: int
    """One a text."""
    calls: int
    sha256: str
    """Of the file's content."""
    written: bool
    """False where the same content lay there already."""


def export_chat(settings: Settings, release: str, out: str, seed: int) -> ChatExport:
    """Write the release at `release` (a folder or s3://) to `out` (a .jsonl file or a folder, local or s3://).

    Raises:
        ParameterError: there is no release, or another file lies at `out`.
        ToolError: the release calls a tool that is not installed.
        ConfigurationError: an s3:// address is not in the bucket of the settings.
        ObjectStoreError: S3 cannot be read or written.
    """
    address = out if out.endswith(".jsonl") else f"{out.rstrip('/')}/{FILE_NAME}"
    with tempfile.TemporaryDirectory(prefix="chat-export-") as scratch:
        file = Path(scratch) / FILE_NAME
        with _release_folder(settings, release, Path(scratch) / "release") as folder:
            conversations, calls = _write(folder, file, seed)
        sha256 = file_sha256(file)
        written = _put_on_s3(settings, file, address) if address.startswith(_S3) else _put_on_disk(file, Path(address))
    logger.info(
        "%s %d conversations with %d calls: %s",
        "wrote" if written else "found the same", conversations, calls, address,
    )  # fmt: skip
    return ChatExport(address, conversations, calls, sha256, written)


@contextmanager
def _release_folder(settings: Settings, release: str, scratch: Path) -> Iterator[Path]:
    """The release's files on disk, checked against their hashes where they come from S3."""
    folder = Path(release)
    if release.startswith(_S3):
        store = ObjectStore(settings)
        prefix = store.key_of(release.rstrip("/").removesuffix("/manifest.json"))
        try:
            store.fetch(prefix, scratch)
        except ObjectNotFoundError as error:
            raise ParameterError(f"RELEASE: {error}. See `dataset_releases.uri`.") from error
        folder = scratch
    if not any(folder.glob("part-*.parquet")):
        found = "a folder without them" if folder.is_dir() else "a file" if folder.exists() else "nothing"
        raise ParameterError(
            f"RELEASE: expected a folder with part-*.parquet or the s3:// address of a release, found {found} at {release}. "
            "`dataset_releases.uri` holds the addresses."
        )
    yield folder


def _write(folder: Path, file: Path, seed: int) -> tuple[int, int]:
    """Write the file; the number of conversations and of calls.

    Every conversation offers all tools of the release, so that a model learns to choose among them.
    """
    tools = tool_schemas(_called_tools(folder))
    conversations = calls = 0
    with file.open("w", encoding="utf-8", newline="\n") as lines:
        for text in read_release(folder):
            row = {"messages": conversation(text, seed), "tools": tools}
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
            conversations += 1
            calls += len(text.calls)
    return conversations, calls


def _called_tools(folder: Path) -> set[str]:
    names: set[str] = set()
    for path in sorted(folder.glob("part-*.parquet")):
        for called in pq.read_table(path, columns=["tools"]).column("tools").to_pylist():
            names.update(called)
    return names


def _put_on_disk(file: Path, target: Path) -> bool:
    if target.exists():
        _require_same(target.is_file() and file_sha256(target) == file_sha256(file), str(target))
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    with file.open("rb") as source, partial.open("wb") as copy:
        while block := source.read(2**20):
            copy.write(block)
    partial.replace(target)
    return True


def _put_on_s3(settings: Settings, file: Path, address: str) -> bool:
    store = ObjectStore(settings)
    store.require_bucket()
    key = store.key_of(address)
    if store.put_if_absent(key, file):
        return True
    _require_same(store.get(key) == file.read_bytes(), address)
    return False


def _require_same(same: bool, address: str) -> None:
    if not same:
        raise ParameterError(
            f"OUT: expected nothing or this very export at {address}, found something else. Nothing was written; give another "
            "place, or remove what lies there."
        )
