"""The files of published data sets: found in a folder or on S3, hashed, unpacked and read record by record.

The data folder (or s3:// address) holds a folder for each data set, with the files under their published
names, as they are or as .gz or .zst. Files may be in deeper folders, as in the archives that they come in.

What cannot be read raises `WrongFormatError` with what was found; `suites/base.py` adds what was expected,
and where to get it.
"""

import contextlib
import functools
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, EvaluationDataError, WrongFormatError
from toolformer_ops.storage.corpora.local_paths import local_path, open_local, refusal_in_folder
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits, unpacked

if TYPE_CHECKING:
    from toolformer_ops.storage.objects.publication import ObjectStore

PACKED = (".gz", ".zst")


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, read."""

    name: str
    """Path below the data set's folder, without .gz or .zst."""
    uri: str
    content: bytes
    """Unpacked."""
    sha256: str
    """Hash of the bytes as they are stored, 64 hex digits."""


@dataclass(frozen=True)
class Record:
    """One record of a file."""

    where: str
    """The place in the file, for messages: `line 3`."""
    values: Mapping[str, Any]

    def text(self, field: str) -> str:
        """A field that is a text with at least one character that is not white space."""
        value = self.values.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(field)
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        """A field that is a list of texts.

        Those that are blank are left out, and at least one must be left.
        """
        value = self.values.get(field)
        texts = (
            [item for item in value if isinstance(item, str) and item.strip()]
            if isinstance(value, list)
            else []
        )
        if not texts:
            raise self._wrong(field)
        return tuple(texts)

    def records(self, field: str) -> Iterator["Record"]:
        """A field that is a list of records."""
        value = self.values.get(field)
        if not isinstance(value, list):
            raise self._wrong(field)
        return records(value, f"{field} of {self.where}")

    def _wrong(self, field: str) -> WrongFormatError:
        fields = ", ".join(list(self.values)[:12]) or "none"
        return WrongFormatError(
            f"in {self.where} {_found(self.values.get(field))} as field {field!r} (fields: {fields})"
        )


def json_lines(*files: DataFile) -> Iterator[Record]:
    """The records of JSON Lines files; blank lines are passed over."""
    for file in files:
        for number, line in enumerate(io.BytesIO(file.content), start=1):
            if line.strip():
                yield _record(_parsed(line, f"line {number}"), f"line {number}")


def listed(files: Sequence[DataFile], field: str) -> Iterator[Record]:
    """The records of JSON files, each an object with a list of them in one field."""
    for file in files:
        document = json_document(file)
        if not isinstance(document, dict):
            raise WrongFormatError(f"no JSON object with a list {field}")
        yield from Record("the file", document).records(field)


def json_document(file: DataFile) -> Any:
    """The one JSON value of a file."""
    return _parsed(file.content, "the file")


def records(values: object, name: str = "record") -> Iterator[Record]:
    """The records of a JSON list."""
    if not isinstance(values, list):
        raise WrongFormatError(f"{_found(values)} instead of a list of records")
    for number, value in enumerate(values, start=1):
        yield _record(value, f"{name} {number}")


def text_lines(file: DataFile) -> list[str]:
    """The lines of a text file in UTF-8, with their line ends."""
    try:
        return list(io.StringIO(file.content.decode("utf-8-sig")))  # which ends lines at line feeds alone
    except UnicodeDecodeError as error:
        raise WrongFormatError(f"bytes that are no UTF-8 (at byte {error.start})") from error


def _parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise WrongFormatError(f"no JSON in {where} ({error})") from error


def _record(value: object, where: str) -> Record:
    if not isinstance(value, dict):
        raise WrongFormatError(f"{_found(value)} as {where}")
    return Record(where, value)


def _found(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


class DataFolder:
    """The folder, or s3:// address, that holds the data of evaluations."""

    def __init__(self, settings: Settings, address: str) -> None:
        self.address = address.rstrip("/") or "/"
        self._settings = settings

    def require(self) -> None:
        """Do nothing if the data folder exists; an s3:// address is not looked at.

        Raises:
            UsageError: this deployment allows no reading there.
            EvaluationDataError: there is no such folder.
        """
        if not self.address.startswith("s3://") and not self._local_folder.is_dir():
            raise EvaluationDataError(
                "--data: expected a folder with a folder for each data set, found nothing at "
                f"{self._local_folder}. docs/evaluation.md says which."
            )

    @functools.cached_property
    def _local_folder(self) -> Path:
        return local_path(self._settings, self.address, "evaluation data")

    def find(self, folders: Sequence[str], patterns: Sequence[str]) -> list[tuple[str, str]]:
        """Names and addresses of the files in one of `folders` whose paths match one of `patterns`, sorted.

        There may be none. Patterns are those of `PurePath.match`: `TREx/*.jsonl` is also
        `data/TREx/P17.jsonl.gz`.

        Raises:
            EvaluationDataError: the data folder itself is not there.
            ObjectStoreError: S3 fails.
        """
        self.require()
        addresses: dict[str, str] = {}
        for folder in folders:
            root = f"{self.address}/{folder}"
            if self.address.startswith("s3://"):
                uris: Sequence[str] = ()
                with contextlib.suppress(CorpusError):  # nothing below this address
                    uris = self._store.list_uri(root)
                named = [(uri.removeprefix(f"{root}/"), uri) for uri in uris]
            else:
                local = self._local_folder / folder
                paths = [path for path in sorted(local.rglob("*")) if path.is_file()]
                named = [(path.relative_to(local).as_posix(), str(path)) for path in paths]
            for name, uri in named:
                plain = name.removesuffix(next((end for end in PACKED if name.endswith(end)), ""))
                path = PurePosixPath(plain)
                hidden = any(part.startswith(".") for part in path.parts)
                if not hidden and any(path.match(pattern) for pattern in patterns):
                    addresses.setdefault(plain, uri)
        return sorted(addresses.items())

    def read(self, name: str, uri: str) -> DataFile:
        """The file at an address.

        Raises:
            EvaluationDataError: it cannot be read, or is packed and damaged.
            ObjectStoreError: S3 fails.
        """
        on_s3 = uri.startswith("s3://")
        if not on_s3 and (outside := refusal_in_folder(self._settings, self._local_folder, Path(uri))):
            raise EvaluationDataError(f"expected to read {uri}, found: it {outside}")
        try:
            with self._store.open_uri(uri) if on_s3 else open_local(Path(uri).resolve()) as stored:
                packed = stored.read()
            content = unpacked(io.BytesIO(packed), uri, UnpackingLimits()).read()
        except (OSError, CorpusError) as error:
            raise EvaluationDataError(f"expected to read {uri}, found: {error}") from error
        return DataFile(name, uri, content, hashlib.sha256(packed).hexdigest())

    @functools.cached_property
    def _store(self) -> "ObjectStore":
        from toolformer_ops.storage.objects.publication import ObjectStore

        return ObjectStore(self._settings)
