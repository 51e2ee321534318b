"""The files of an export: rows as JSON Lines, a card beside them, and what else a reader needs.

An export is a .jsonl file or a folder, of this machine or on S3. Writes over no file, and writes nothing if
the same content exists already.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.storage.machine.shared_files import file_sha256
from toolformer_ops.storage.objects.publication import ObjectStore

FILE_NAME = "train.jsonl"
"""The file's name if only a folder is given; readers of data sets take it for the split `train`."""
INFO_NAME = "dataset_info.json"
"""The file from which LLaMA-Factory takes what a data set is, beside the data."""
_S3 = "s3://"


def write_rows(
    settings: Settings, out: str, rows: Iterable[dict[str, Any]], card: Callable[[], str]
) -> tuple[str, str, bool]:
    """Write rows to `out`, and a card beside them unless it is empty.

    Returns address and hash of the file, and whether it is new. The card is asked for after the last row;
    nothing is written if it raises. In a folder it is README.md, beside `NAME.jsonl` it is `NAME.md`.

    Raises:
        UsageError: another file or card exists.
    """
    is_file = out.endswith(".jsonl")
    address = out if is_file else f"{out.rstrip('/')}/{FILE_NAME}"
    card_address = f"{out.removesuffix('.jsonl')}.md" if is_file else f"{out.rstrip('/')}/README.md"
    with tempfile.TemporaryDirectory(prefix="export-") as scratch:
        file = Path(scratch) / FILE_NAME
        with file.open("w", encoding="utf-8", newline="\n") as lines:
            for row in rows:
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        (card_file := Path(scratch) / "card.md").write_text(card(), encoding="utf-8")
        written = _put_if_absent(settings, file, address)
        sha256 = file_sha256(file)
        if card_file.stat().st_size:
            _put_if_absent(settings, card_file, card_address)
    return address, sha256, written


def write_json(settings: Settings, value: dict[str, Any], folder: str, name: str) -> None:
    """Write a small JSON file into the folder of an export.

    Raises:
        UsageError: another file exists.
    """
    with tempfile.TemporaryDirectory(prefix="export-") as scratch:
        (file := Path(scratch) / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        _put_if_absent(settings, file, f"{folder.rstrip('/')}/{name}")


def put_beside(settings: Settings, file: Path, folder: str) -> None:
    """Copy a file into the folder of an export.

    Raises:
        UsageError: another file exists.
    """
    _put_if_absent(settings, file, f"{folder.rstrip('/')}/{file.name}")


def require_place(out: str) -> None:
    """Refuse a place on this machine in a folder that does not exist: it is more likely mistyped than wanted.

    Raises:
        UsageError: it is.
    """
    folder = Path(out).expanduser().absolute().parent
    if not out.startswith(_S3) and not folder.is_dir():
        raise UsageError(
            f"OUT: expected a place in a folder that exists, found no {folder}. Make it, or correct the path."
        )


def _put_if_absent(settings: Settings, file: Path, address: str) -> bool:
    """Copy the file to `address`; False if the same content exists already.

    Raises:
        UsageError: another content exists.
    """
    target = Path(address)
    if address.startswith(_S3):
        store = ObjectStore(settings)
        store.require_bucket()
        key = store.key_of(address)
        there = None if store.put_if_absent(key, file) else store.sha256(key)
    elif target.exists():
        there = file_sha256(target) if target.is_file() else ""
    else:
        there = None
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, partial := target.with_name(f"{target.name}.partial"))
        partial.replace(target)
    if there not in (None, file_sha256(file)):
        raise UsageError(
            f"OUT: expected nothing or this very export at {address}, found something else. It stays as it "
            "is; choose another place, or remove what it holds."
        )
    return there is None
