"""How the address of a corpus is written, and the id that follows from it.

The address says where the files are, and behind that, as on a command line, by which names their records have
the fields, if these are not the usual ones: `s3://bucket/ccnet --field text=raw_content`; and whether texts
that nearly repeat another are left out: `s3://bucket/news --field near_duplicates=0.8`.

Looks links up and nothing else: what is at an address is read by `corpora/files.py`.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from toolformer_ops.errors import CorpusError, UsageError
from toolformer_ops.storage.corpora.fields import OPTION, TARGETS, UNMAPPED, FieldNames

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


NEAR_DUPLICATES = "near_duplicates"
"""What an item of an address is called that says how much two texts share if one of them is left out."""
LEAST_SHARE = 0.5
"""The bands of a sketch (`storage/corpora/text_sketches.py`) bring few texts together that share less."""

_FIELD = re.compile(rf"{OPTION}(?=(?:{'|'.join((*TARGETS, NEAR_DUPLICATES))})=)")


@dataclass(frozen=True)
class CorpusAddress:
    """Where a corpus is and how its records are read."""

    files: str
    """The address of its files: a path, file:// or s3://."""
    names: FieldNames = UNMAPPED
    near_duplicates: float | None = None
    """A text that shares so much with another of the corpus, 0.5 to 1, is left out; None: none is."""

    @classmethod
    def of(cls, files: str, items: Iterable[str]) -> "CorpusAddress":
        """The address of files, read as these items say.

        The items are names of fields (`FieldNames.of`), and `near_duplicates=0.8`.

        Raises:
            UsageError: the items are no mapping, or no share of a text.
        """
        lines = [line.strip() for line in "\n".join(items).split("\n")]
        shares = {line.partition("=")[2].strip() for line in lines if _is_share(line)}
        if len(shares) > 1:
            raise UsageError(
                f"--field: expected one share for {NEAR_DUPLICATES}, found "
                f"{', '.join(sorted(shares))[:200]}. Leave one out."
            )
        names = FieldNames.of(line for line in lines if not _is_share(line))
        return cls(files, names, _share(shares.pop()) if shares else None)

    @classmethod
    def parse(cls, address: str) -> "CorpusAddress":
        """The parts of an address as `str` writes it.

        Raises:
            UsageError: as `of`.
        """
        files, *items = _FIELD.split(address)
        return cls.of(files, items)

    def normal(self) -> "CorpusAddress":
        """Return it with the address of its files as `normal_uri` writes it; raises as that does."""
        return replace(self, files=normal_uri(self.files))

    @property
    def items(self) -> tuple[str, ...]:
        """How its records are read, in one spelling, as `of` takes it."""
        if self.near_duplicates is None:
            return self.names.items
        return (*self.names.items, f"{NEAR_DUPLICATES}={self.near_duplicates:g}")

    def __str__(self) -> str:
        return OPTION.join((self.files, *self.items))


def _is_share(item: str) -> bool:
    return item.partition("=")[0].strip() == NEAR_DUPLICATES


def _share(value: str) -> float:
    with contextlib.suppress(ValueError):
        # Two decimals: an address has one spelling, and MinHash knows no share better.
        share = round(float(value), 2)
        if LEAST_SHARE <= share <= 1:
            return share
    raise UsageError(
        f"--field: expected {NEAR_DUPLICATES}=SHARE with a number from {LEAST_SHARE} to 1, such as 0.8, "
        f"found {value[:200]!r}."
    )


def corpus_uri_of(address: str) -> str:
    """One spelling for each address of a corpus, as the column `corpora.uri` has it.

    Raises:
        CorpusError: as `normal_uri`.
        UsageError: as `CorpusAddress.of`.
    """
    return str(CorpusAddress.parse(address).normal())


def corpus_id_of(address: str) -> str:
    """The id of a corpus: 16 hex digits of the hash of its address as `corpus_uri_of` writes it.

    The address has to be UTF-8.
    """
    try:
        return hashlib.sha256(corpus_uri_of(address).encode("utf-8")).hexdigest()[:16]
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"expected a corpus address in UTF-8, found {os.fsencode(address)!r}. Rename the file or folder."
        ) from error


def normal_uri(uri: str) -> str:
    """One spelling for each address: s3:// as it is, a path as file:// with an absolute path without links.

    It has no closing slash. A file:// address is the path as it is: no escapes such as %20.

    Raises:
        CorpusError: the address is of another kind, such as http://, or cannot be one of a file.
    """
    if _CONTROL.search(uri):
        raise CorpusError(f"expected an address without control characters, found {uri[:200]!a}. Correct it.")
    if _FIELD.search(uri):
        raise CorpusError(
            f"expected the address of files, found {uri[:200]!r}. Give the names of fields apart from it: "
            "`--field` on the command line, `fields` in the form or in the schedule."
        )
    if uri.startswith("s3://"):
        return uri.rstrip("/")
    path = uri.removeprefix("file://")
    if _SCHEME.match(path):
        raise CorpusError(
            f"expected a path, or an address with file:// or s3://, found {uri[:200]!r}. Download the files, "
            "or put them on S3."
        )
    try:
        resolved = Path(path).expanduser().resolve()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            resolved.lstat()
    except (OSError, RuntimeError) as error:  # too long, a loop of links, a home of no user
        raise CorpusError(
            f"expected the path of a file or a folder, found {uri[:200]!r} ({len(uri)} characters): "
            f"{getattr(error, 'strerror', None) or 'it leads nowhere'}. Correct it."
        ) from error
    return f"file://{resolved}"
