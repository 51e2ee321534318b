"""How the address of a corpus is written, and the id that follows from it.

The address says where the files are, and after that, as on a command line, by which names their records have
the fields, if these are not the usual ones: `s3://bucket/ccnet --field text=raw_content`; and whether texts
that nearly repeat another are left out: `s3://bucket/news --field near_duplicates=0.8`.

A mapping of fields is written in items such as `text=raw_content`, field of ours before field of the corpus,
or as the name of a preset (`PRESETS`); without one the fields are `text`, `url`, `date`, `title` and `id`. A
name with dots, such as `metadata.url`, is a field of that name, or else a field within others. The same files
under another mapping are another corpus.

Looks links up and nothing else: what is at an address is read by `corpora/files.py`.
"""

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolformer_ops.errors import CorpusError, UsageError

OPTION = " --field "
"""What is before each item of a mapping in an address, as on a command line."""
NAME_CHARACTERS = 200
NAMES_IN_MESSAGES = 20
"""A message names so many fields; of more, the first ones are named and the others are counted."""

PRESETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "c4": ("crawled=timestamp",),
        "ccnet": ("text=raw_content", "crawled=date_download"),
        "dolma": ("date=created", "url=metadata.url"),
        "fineweb": ("crawled=date",),
        "oscar": ("text=content", "url=warc_headers.warc-target-uri", "crawled=warc_headers.warc-date"),
        "the_stack": ("text=content",),
    }
)
"""By corpus, the fields that it names otherwise, as its publisher documents them."""

LIKELY_TEXTS = frozenset(
    ("raw_content", "content", "contents", "body", "article", "document", "passage", "markdown", "maintext")
)
"""Names under which corpora have the text, in small letters; a message proposes a name that exists."""

LIKELY_NAMES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "date": frozenset(
            (
                "created",
                "created_at",
                "date_published",
                "datetime",
                "day",
                "pub_date",
                "published",
                "published_at",
            )
        ),
        "url": frozenset(("link", "page_url", "permalink", "source_url", "uri", "web_url")),
    }
)
"""Names under which corpora have a date of writing or an address, in small letters."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")
"""What a field of JSON is called if a program named it. Other names may be data."""


@dataclass(frozen=True)
class FieldNames:
    """The name of each field in the records of a corpus."""

    text: str = "text"
    url: str = "url"
    date: str = "date"
    """The day on which the text was written."""
    crawled: str = ""
    """The day on which the text was fetched, which is no day of writing; empty if no field has it."""
    title: str = "title"
    id: str = "id"

    @classmethod
    def of(cls, items: Iterable[str]) -> "FieldNames":
        """The names that these items give, each `text=raw_content` or a preset's name.

        An item may have several lines.

        Raises:
            UsageError: an item is neither, gives a name that cannot be one, or gives a field's name again.
        """
        names: dict[str, str] = {}
        lines = [line.strip() for line in "\n".join(items).split("\n")]
        for line in filter(None, lines):
            for mapped in PRESETS.get(line, (line,)):
                target, _, name = (part.strip() for part in mapped.partition("="))
                if target not in TARGETS or not name:
                    raise UsageError(
                        f"--field: expected FIELD=NAME with one of {', '.join(TARGETS)}, such as "
                        f"text=raw_content, or one of {', '.join(PRESETS)}, found {line[:NAME_CHARACTERS]!r}."
                    )
                if len(name) > NAME_CHARACTERS or _CONTROL.search(name) or OPTION in name:
                    raise UsageError(
                        f"--field: expected a name of at most {NAME_CHARACTERS} characters, none of them a "
                        f"control character, found {line[:NAME_CHARACTERS]!r}. Rename the field."
                    )
                if names.setdefault(target, name) != name:
                    raise UsageError(
                        f"--field: expected one name for {target}, found {names[target]!r} and {name!r}. "
                        "Leave one out."
                    )
        return cls(**names)

    @functools.cached_property
    def items(self) -> tuple[str, ...]:
        """The items of this mapping in one order, without those that name a field as it is named anyway."""
        return tuple(f"{target}={name}" for target, name in self.mapped.items())

    @functools.cached_property
    def mapped(self) -> dict[str, str]:
        """By field, its name, where that is not the name that records have without a mapping."""
        return {target: name for target, name in asdict(self).items() if name != getattr(UNMAPPED, target)}

    @functools.cached_property
    def read(self) -> dict[str, str]:
        """By field, its name in the records, of those that are read.

        A day of fetching is not read as a day of writing.
        """
        names = {target: name for target, name in asdict(self).items() if name}
        if self.crawled == self.date:
            del names["date"]
        return names

    @functools.cached_property
    def optional(self) -> tuple[tuple[str, str], ...]:
        """The fields that are read but the text, each with its name in the records."""
        return tuple((target, name) for target, name in self.read.items() if target != "text")

    @functools.cached_property
    def are_flat(self) -> bool:
        """Whether no name leads into a field's own fields."""
        return not any("." in name for name in self.read.values())


TARGETS = tuple(field.name for field in fields(FieldNames))
"""The fields of a record that a mapping names."""

UNMAPPED = FieldNames()
"""The names that records have without a mapping."""


def field_in(record: Mapping[str, Any], name: str) -> Any:
    """The value of a record's field, or of a field within others if its name has dots.

    It is None if it is not there.
    """
    if name in record or "." not in name:
        return record.get(name)
    first, _, rest = name.partition(".")
    within = record.get(first)
    return field_in(within, rest) if isinstance(within, Mapping) else None


def lacking(record: Mapping[str, Any], names: FieldNames) -> list[str]:
    """Return those of the fields that a mapping names that a record does not have; a null is had."""
    return [target for target, name in names.mapped.items() if not _is_there(record, name)]


def _is_there(record: Mapping[str, Any], name: str) -> bool:
    if name in record:
        return True
    first, _, rest = name.partition(".")
    within = record.get(first)
    return bool(rest) and isinstance(within, Mapping) and _is_there(within, rest)


def fields_there(names: Iterable[str], schema_names: Collection[str]) -> str:
    """The fields that are there, as the end of a sentence.

    Args:
        names: of the fields.
        schema_names: those that are columns of a file, or that several records have. Another name may be
        data, and is said only if it is one of `LIKELY_TEXTS`.
    """
    names = list(names)
    said = [name for name in names if name in schema_names or _is_likely_text(name)][:NAMES_IN_MESSAGES]
    if others := len(names) - len(said):
        said.append(f"{others} {'more' if said else 'fields whose names may be data'}")
    return ", ".join(said) or "no field"


def shared_fields(records: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The fields that two or more records all have, and that are called as programs call fields."""
    if len(records) < 2:
        return frozenset()
    shared = frozenset.intersection(*(frozenset(record) for record in records))
    return frozenset(name for name in shared if _SCHEMA_NAME.fullmatch(name))


def likely_text(names: Iterable[str]) -> str | None:
    """The first of the fields that is called as a text often is; None if none is."""
    return next(filter(_is_likely_text, names), None)


def likely_fields(names: Iterable[str], target: str) -> list[str]:
    """Those of the fields that are called as a date or a url often is, if `target` is one of these."""
    words = LIKELY_NAMES.get(target, frozenset())
    return [name for name in names if name.casefold() in words]


def _is_likely_text(name: str) -> bool:
    return name.casefold() in LIKELY_TEXTS | {"text"}


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


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
