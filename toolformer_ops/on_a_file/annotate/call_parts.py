"""A part of an annotation: the calls of one tool in some texts, as a Parquet file.

Its rows are calls, with or without a result, in the columns of `annotate`, with their placebos and what the
tables of a run hold besides. Its metadata, under `toolformer_ops`, is what a ledger has: the recipe, each text
with its counts by stage, its pruned positions and lost samples, and the hash of the rows. No time is in it:
equal texts, recipe and placebos give equal bytes.
"""

import hashlib
import io
import itertools
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolformer_ops.errors import CorruptObjectError
from toolformer_ops.on_a_file.annotate.annotator import with_verdict
from toolformer_ops.on_a_file.annotate.call_table import part_schema
from toolformer_ops.on_a_file.annotate.text_annotator import (
    OF_LOST_SAMPLE,
    OF_POSITION,
    AnnotatedText,
    Row,
    TextToAnnotate,
)
from toolformer_ops.records import content_uuid
from toolformer_ops.stages.sampling import SmallestKeys

if TYPE_CHECKING:
    import pyarrow

FORMAT = "toolformer-ops/calls/2"
"""Names what these files and their folder hold; raised with the columns."""
LEDGER = b"toolformer_ops"
"""The key of the metadata."""


def part_name(
    folder: str, tool: str, recipe_id: str, shard: int, texts: Sequence[TextToAnnotate | AnnotatedText]
) -> str:
    """The name of the part of a tool's calls in these texts: by recipe, shard and content."""
    content = content_uuid(*(str(text.document.document_id) for text in texts))
    return f"{folder}/{tool}-{recipe_id}/{shard:04d}-{content.hex}.parquet"


def part_of(tool: str, recipe_id: str, texts: Sequence[AnnotatedText]) -> bytes:
    """The part that holds these texts."""
    import pyarrow as pa
    import pyarrow.parquet

    rows: list[Row] = []
    for text in texts:
        rows += text.calls
    table = pa.Table.from_pylist(rows, schema=part_schema())
    smallest_keys = SmallestKeys()
    ledger = {
        "format": FORMAT,
        "tool": tool,
        "recipe_id": recipe_id,
        "rows": len(rows),
        "rows_sha256": _hash_of(table),
        "texts": [_entry(text, smallest_keys) for text in texts],
    }
    metadata = {LEDGER: json.dumps(ledger, ensure_ascii=True).encode("ascii")}
    content = io.BytesIO()
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), content, compression="zstd")
    return content.getvalue()


def ledger_of(name: str, content: bytes) -> tuple[dict[str, Any], "pyarrow.Table"]:
    """The ledger of a part and its table.

    Raises:
        CorruptObjectError: it is no such file, of a newer format, or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(io.BytesIO(content))
        ledger: dict[str, Any] = json.loads((table.schema.metadata or {})[LEDGER])
        written_as = ledger["format"]
        is_whole = written_as == FORMAT and ledger["rows_sha256"] == _hash_of(table)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"{name}: expected a Parquet file of `toolformer-ops annotate`, found another or a damaged one ({error}). "
            "Remove it, and start the command again: its texts are annotated anew."
        ) from error
    if not is_whole:
        found_format = "rows of another hash" if written_as == FORMAT else f"the format {written_as!r:.60}"
        raise CorruptObjectError(
            f"{name}: expected whole rows of the format {FORMAT}, found {found_format}. Remove the file if it is "
            "damaged, or use the version of toolformer-ops that wrote it."
        )
    return ledger, table


def texts_in(
    name: str, content: bytes, texts: Sequence[TextToAnnotate], keep_threshold: float
) -> list[AnnotatedText]:
    """The texts of a part, judged by the keep threshold of now and under the ids that their records have now.

    Raises as `ledger_of`.
    """
    ledger, table = ledger_of(name, content)
    annotated = []
    for text, entry, calls in zip(texts, ledger["texts"], calls_of_texts(ledger, table), strict=True):
        annotated.append(
            AnnotatedText(
                name=text.name,
                tool=ledger["tool"],
                document=text.document,
                calls=[{**with_verdict(call, keep_threshold), "id": text.name} for call in calls],
                counts={stage: Counter(counts) for stage, counts in entry["counts"].items()},
                pruned=[dict(zip(OF_POSITION, values, strict=True)) for values in entry["pruned"]],
                lost=[dict(zip(OF_LOST_SAMPLE, values, strict=True)) for values in entry["lost"]],
                seconds={},
            )
        )
    return annotated


def calls_of_texts(ledger: Mapping[str, Any], table: "pyarrow.Table") -> Iterator[list[Row]]:
    """The calls of each text of a part, in order."""
    rows = iter(table.to_pylist())
    for entry in ledger["texts"]:
        yield list(itertools.islice(rows, entry["calls"]))


def _entry(text: AnnotatedText, smallest_keys: SmallestKeys) -> Mapping[str, Any]:
    """What the ledger of a part says of a text; of lost samples it has a bounded choice."""
    lost = []
    for sample in text.lost:
        key = uuid.UUID(str(sample["sample_key"]))
        if smallest_keys.takes(sample["reason"], key):
            lost.append([str(key), *list(sample.values())[1:]])
    return {
        "document_id": str(text.document.text_id),
        "calls": len(text.calls),
        "counts": text.counts,
        "pruned": [list(position.values()) for position in text.pruned],
        "lost": lost,
    }


def _hash_of(table: "pyarrow.Table") -> str:
    content = json.dumps(table.to_pylist(), ensure_ascii=True).encode("ascii")
    return hashlib.sha256(content).hexdigest()
