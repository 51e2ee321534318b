"""A release's files: Parquet with one row a text, and the reader and writer of it (pyarrow).

`stages/release.py` fills it, `audit/checking.py` tests it, `stages/finetuning.py` and other programs read it.
Releases of equal texts are equal byte for byte: rows come in the order they are written, in row groups and
files of fixed size. Does not decide which calls are released.
"""

import functools
import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from toolformer_ops.call_syntax import (
    ARROW,
    CALL_END,
    Call,
    WovenCall,
    call_with_result,
    read_out,
    take_out,
    weave,
)
from toolformer_ops.errors import CallSyntaxError
from toolformer_ops.records import content_uuid
from toolformer_ops.tools.registry import tool_names

DATA = "data"
"""Folder of a release's Parquet files: what reads whole folders finds nothing else in it."""
ROW_GROUP_TEXTS = 1_000
FILE_TEXTS = 20_000
"""Texts a file; with web texts of 3 kB some 30 MB."""

COLUMN_MEANINGS = {
    "document_id": "hash of `plain_text`: the id of the text in the table `documents`",
    "text": "the text with its calls and their results",
    "plain_text": "the text without `calls`; taking them out of `text` gives it, byte for byte. In a release of chains it holds "
    "the calls of the source release",
    "calls": "the calls in the order of their positions: tool, input, result, `position_char` (character of `plain_text` before "
    "which the call stands, from 0), `position_probability` (null where the tool proposed the call), the "
    "losses and the loss reduction in nats "
    "(`loss_without_call_full_context` where calls were scored in a context window), the recipes, and "
    "`result_follows`: whether the text continues with the result within five words: `equal`, `nearly` "
    "(rounded), `no`, or null where the result cannot stand in a text",
    "call_spans": "where each call of `text` is, in order, also calls of the source release; characters of "
    "`text` from 0, ends exclusive: `start_char` and `end_char` of the call with the one space that came with it, "
    "`result_start_char` and `result_end_char` of what the tool wrote, from after the arrow to before the "
    "bracket",
    "tools": "names of the tools that are called, sorted",
    "url": "where the text came from, if its record said so",
}


@dataclass(frozen=True)
class ReleasedCall:
    """One call as it is released; losses in nats."""

    call_id: str
    tool: str
    input: str
    """Between the brackets of the call."""
    result: str
    """After the arrow."""
    position_char: int
    """Character of the text without calls before which the call is, from 0."""
    position_probability: float | None
    """p(" [") at this position, in [0, 1]; None where the tool alone proposed the call."""
    loss_without_call: float
    loss_without_result: float
    loss_with_result: float
    loss_reduction: float
    sampling_recipe_id: str
    execution_recipe_id: str
    scoring_recipe_id: str
    loss_without_call_full_context: float | None = None
    """Given the whole text before the call, if the other losses are in a context window; else None."""
    result_follows: str | None = None
    """Whether the text continues with the result: equal, nearly, no; None if it cannot stand there
    (`result_follows` in SQL)."""

    @property
    def woven(self) -> WovenCall:
        """The call as `call_syntax` writes it."""
        return WovenCall(self.position_char, Call(self.tool, self.input), self.result)


@dataclass(frozen=True)
class CallSpan:
    """Where a call is in a text with calls: characters from 0, ends exclusive."""

    start_char: int
    """Where the call begins, with the one space that came with it."""
    end_char: int
    result_start_char: int
    """Where what the tool wrote begins: from after the arrow to before the closing bracket."""
    result_end_char: int


_ARROW_TYPES: Mapping[Any, tuple[pa.DataType, bool]] = {
    str: (pa.string(), False),
    int: (pa.int32(), False),
    float: (pa.float64(), False),
    float | None: (pa.float64(), True),
    str | None: (pa.string(), True),
}
"""The types of the fields of `ReleasedCall`, and whether they may be null."""
CALL_TYPE = pa.struct([pa.field(field.name, *_ARROW_TYPES[field.type]) for field in fields(ReleasedCall)])
SPAN_TYPE = pa.struct([pa.field(field.name, *_ARROW_TYPES[field.type]) for field in fields(CallSpan)])
SCHEMA = pa.schema(
    [
        pa.field("document_id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("plain_text", pa.string(), nullable=False),
        pa.field("calls", pa.list_(pa.field("element", CALL_TYPE, nullable=False)), nullable=False),
        pa.field("call_spans", pa.list_(pa.field("element", SPAN_TYPE, nullable=False)), nullable=False),
        pa.field("tools", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("url", pa.string()),
    ]
)


@dataclass(frozen=True)
class ReleasedText:
    """One text as it is released: at least one call."""

    document_id: uuid.UUID
    text: str
    """With calls."""
    plain_text: str
    """Without."""
    calls: tuple[ReleasedCall, ...]
    """In the order of their positions."""
    url: str | None
    recorded_tools: tuple[str, ...] = field(default=(), compare=False)
    """The column `tools` of a text that was read, so that what is installed now says nothing about it."""
    recorded_spans: tuple[CallSpan, ...] = field(default=(), compare=False)
    """The column `call_spans` of a text that was read."""

    @classmethod
    def of(
        cls, document_id: uuid.UUID, plain_text: str, calls: Sequence[ReleasedCall], url: str | None
    ) -> Self:
        """Weave `calls` into a text.

        Raises:
            CallSyntaxError: a call's position is outside the text.
        """
        in_order = tuple(sorted(calls, key=lambda call: (call.position_char, call.call_id)))
        woven = weave(plain_text, [call.woven for call in in_order])
        return cls(document_id=document_id, text=woven, plain_text=plain_text, calls=in_order, url=url)

    @property
    def hashed(self) -> bytes:
        """What a release's id is the hash of, of this text: its id, the url that counts, and its calls."""
        url = content_uuid(self.url or "")
        return b"".join(
            [self.document_id.bytes, url.bytes, *(uuid.UUID(call.call_id).bytes for call in self.calls)]
        )

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the tools that are called, sorted."""
        return tuple(sorted({placed.call.tool for placed in self.all_calls()[1]}))

    def all_calls(self) -> tuple[str, list[WovenCall]]:
        """The text without any call, and its calls in order.

        In a release of chains the calls that `plain_text` holds are among them.
        """
        return self._plain_and_calls

    @functools.cached_property
    def _plain_and_calls(self) -> tuple[str, list[WovenCall]]:
        plain, earlier = read_out(self.plain_text, self.recorded_tools or tool_names())
        woven = [WovenCall(placed.position_char, placed.call, placed.result) for placed in earlier]
        for call in self.calls:
            before = sum(
                placed.end_char - placed.start_char
                for placed in earlier
                if placed.end_char <= call.position_char
            )
            woven.append(WovenCall(call.position_char - before, call.woven.call, call.result))
        return plain, sorted(woven, key=lambda placed: placed.position_char)

    def call_spans(self) -> list[CallSpan]:
        """Where all calls are in `text`, in order.

        Raises:
            CallSyntaxError: a call is not in `text`, which is damaged.
        """
        spans: list[CallSpan] = []
        shift = 0
        for call in self.all_calls()[1]:
            start = call.position_char + shift
            written = call_with_result(call.call, call.result)
            shift += len(written) + 1
            if self.text.find(written, start, call.position_char + shift) < 0:
                raise CallSyntaxError(
                    f"text {self.document_id}: expected {written} at character {start}, found another text. "
                    "The release is damaged: fetch it again, or audit it."
                )
            arrow = self.text.index(f") {ARROW}", start) + len(f") {ARROW}")
            spans.append(CallSpan(start, call.position_char + shift, arrow, self.text.index(CALL_END, arrow)))
        return spans

    def has_its_own_columns(self) -> bool:
        """Whether the columns `tools` and `call_spans` of a text that was read follow from its calls."""
        try:
            return self.tools == self.recorded_tools and tuple(self.call_spans()) == self.recorded_spans
        except CallSyntaxError:
            return False

    def gives_text_back(self, tools: Sequence[str], *, chained: bool = False) -> bool:
        """Whether taking out the calls of `tools` gives the plain text, and putting in `calls` the text.

        `chained`: the plain text holds earlier calls, which are taken out of both.
        """
        if not all(0 <= call.position_char <= len(self.plain_text) for call in self.calls):
            return False
        woven = weave(self.plain_text, [call.woven for call in self.calls])
        without_calls = take_out(self.plain_text, tools) if chained else self.plain_text
        return woven == self.text and take_out(self.text, tools) == without_calls


def _row(text: ReleasedText) -> dict[str, Any]:
    """A text as a row of `SCHEMA`."""
    return {
        "document_id": str(text.document_id),
        "text": text.text,
        "plain_text": text.plain_text,
        "calls": [vars(call) for call in text.calls],  # asdict copies each value: six times as dear
        "call_spans": [vars(span) for span in text.call_spans()],
        "tools": list(text.tools),
        "url": text.url,
    }


def write_texts(directory: Path, texts: Iterable[ReleasedText]) -> dict[str, Path]:
    """Write texts into `data/part-00000.parquet` and so on in a folder; returns the files by name.

    The card is beside `data`, not in it: readers of whole folders take every file for Parquet. At most
    `ROW_GROUP_TEXTS` are in memory.
    """
    files: dict[str, Path] = {}
    (directory / DATA).mkdir(exist_ok=True)
    remaining = iter(texts)
    group = list(itertools.islice(remaining, ROW_GROUP_TEXTS))
    while group:
        name = f"{DATA}/part-{len(files):05d}.parquet"
        files[name] = directory / name
        with pq.ParquetWriter(files[name], SCHEMA, compression="zstd") as writer:
            texts_in_file = 0
            while group and texts_in_file < FILE_TEXTS:
                rows = [_row(text) for text in group]
                writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
                texts_in_file += len(group)
                group = list(itertools.islice(remaining, ROW_GROUP_TEXTS))
    return files


def part_files(directory: Path) -> list[Path]:
    """Return the Parquet files of a release in a local folder, in order.

    The files of an old release are beside its card.
    """
    return sorted(directory.glob(f"{DATA}/part-*.parquet")) or sorted(directory.glob("part-*.parquet"))


def read_release(directory: Path) -> Iterator[ReleasedText]:
    """The texts of a release in a local folder, in order; at most `ROW_GROUP_TEXTS` are in memory."""
    for path in part_files(directory):
        yield from read_file(path)


def read_file(path: Path) -> Iterator[ReleasedText]:
    """The texts of one Parquet file, in order; at most `ROW_GROUP_TEXTS` are in memory."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROW_GROUP_TEXTS):
            for row in batch.to_pylist():
                yield ReleasedText(
                    document_id=uuid.UUID(row["document_id"]),
                    text=row["text"],
                    plain_text=row["plain_text"],
                    calls=tuple(ReleasedCall(**call) for call in row["calls"]),
                    url=row["url"],
                    recorded_tools=tuple(row["tools"]),
                    recorded_spans=tuple(CallSpan(**span) for span in row["call_spans"]),
                )


def read_released_calls(directory: Path, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """For each call of a release in a local folder, in order: the id of its text, and some text fields.

    The fields are those of `ReleasedCall`. Reads no other columns, so it takes a tenth of the time of
    `read_release`.
    """
    paths = ["document_id", *(f"calls.list.element.{column}" for column in columns)]
    for path in part_files(directory):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROW_GROUP_TEXTS, columns=paths):
                documents = batch.column("document_id").to_pylist()
                calls = batch.column("calls")
                values = [calls.flatten().field(column).to_pylist() for column in columns]
                field_values = zip(*values, strict=True)
                for document_id, count in zip(documents, calls.value_lengths().to_pylist(), strict=True):
                    for fields_of_call in itertools.islice(field_values, count):
                        yield document_id, *fields_of_call
