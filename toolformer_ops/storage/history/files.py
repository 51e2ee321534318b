"""The files of the history: which tables they hold, with which columns, and the manifest that lists them.

The history is what finished runs have computed, as Parquet on S3, for engines that read columns:

    history/candidate_calls/RECIPE/CONTENT.parquet     calls of some documents, with the text around them
    history/call_losses/RECIPE/CONTENT.parquet         their losses and results
    history/placebo_losses/RECIPE/CONTENT.parquet      their placebos
    history/corpus_joined/CORPUS/CONTENT.parquet       which documents a corpus holds, by what each version added
    history/corpus_left/CORPUS/CONTENT.parquet         and what each version ended
    history/release_calls/RELEASE/CONTENT.parquet      the calls of a release
    history/release_choices/RELEASE/CONTENT.parquet    why it takes or leaves each kept call
    history/TABLE/catalog/CONTENT.parquet              small tables, such as the runs
    history/manifest.json                              written last: the files that count, each with its hash

A file never changes; it is named by its content. `storage/history/history.py` writes the history,
`storage/history/history_queries.py` asks it.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, Row

from toolformer_ops.errors import HistoryError, ObjectNotFoundError
from toolformer_ops.storage.objects.s3 import Objects
from toolformer_ops.storage.postgres import database, queries

if TYPE_CHECKING:
    import pyarrow

PREFIX = "history"
MANIFEST_KEY = f"{PREFIX}/manifest.json"
FORMAT = "toolformer-ops/history/1"
CATALOG = "catalog"
"""The owner of the small tables, which each write holds whole."""
WRITE = "`toolformer-ops history write --all`"

_ID = "document_id=text call_id=text"
TABLES: Mapping[str, str] = MappingProxyType(
    {
        "candidate_calls": f"""sampling_recipe_id=text {_ID} paragraph=int position_token=int position_char=int
            position_probability=double call_input=text call_text=text input_key=text effective_input=text
            sample_count=int proposed_by=text input_only_after=bool parent_call=int text_before=text
            text_after=text url=text document_date=date""",
        "call_losses": f"""scoring_recipe_id=text {_ID} result_rank=int result=text reason=text
            loss_without_call=double loss_without_result=double loss_with_result=double
            loss_without_call_full_context=double number_format=text reduction_bound=double loss_reduction=double
            probability_without=double probability_with=double gain_bound=double
            result_follows=text answers=texts answer_reason=text answer_seconds=real
            token_log_probabilities=reals scored_tokens=texts""",
        "placebo_losses": f"""placebo_recipe_id=text {_ID} number=int source=int is_sampled=bool reason=text
            loss_with_result=double reduction_bound=double reduction=double information=double
            probability_with=double gain=double mean_reduction=double mean_information=double placebos=bigint""",
        "corpus_joined": "corpus_id=text document_id=text variant_id=text ordinal=int first_version=int",
        "corpus_left": "corpus_id=text document_id=text first_version=int left_version=int",
        "release_calls": f"release_id=text {_ID} scoring_recipe_id=text tool=text",
        "release_choices": f"release_id=text {_ID} left_out=text",
        "annotation_runs": """run_id=text corpus_id=text corpus_uri=text corpus_version=int ordinal_limit=int
            tools=texts parameters=text model_identity=text code_version=text image=text state=text started_at=time
            finished_at=time schedule=text previous_run_id=text chained_release_id=text cost=text estimate=text""",
        "run_tools": """run_id=text tool=text filter_recipe_id=text sampling_recipe_id=text execution_recipe_id=text
            scoring_recipe_id=text placebo_recipe_id=text tool_version=text keep_threshold=double prune_below=double
            reads_record=bool keep_rule=text last_document_id=text""",
        "recipes": "recipe_id=text stage=text tool=text parent_recipe_id=text definition=text created_at=time",
        "run_releases": """run_id=text release_id=text released_at=time uri=text documents=int calls=int
            lacking_tools=texts created_at=time withdrawn_at=time""",
        "failed_documents": "recipe_id=text document_id=text stage=text tool=text reason=text",
        "run_overlaps": "run_id=text document_id=text is_left_out=bool",
        "threshold_counts": """run_id=text tool=text threshold=double is_keep_threshold=bool calls=bigint texts=bigint
            releasable_calls=bigint placebos=bigint placebos_scored=bigint false_discovery_rate=double
            rate_low=double rate_high=double""",
        "yield_by_stage": """run_id=text tool=text step=int stage=text reason=text is_loss=bool count=bigint
            documents=bigint""",
        "gain_histogram": """run_id=text tool=text bucket=int at_least=double calls=bigint texts=bigint
            releasable_calls=bigint placebos=bigint""",
    }
)
"""The columns of each table of the history, each with its type."""
OF_STAGE: Mapping[str, str] = MappingProxyType(
    {"sample": "candidate_calls", "score": "call_losses", "placebo": "placebo_losses"}
)
"""The table that holds the rows of a stage; its owners are the stage's recipes."""
CATALOG_TABLES = tuple(list(TABLES)[7:])
"""The tables that each write holds whole."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"\w[\w.-]*")


def arrow_schema(table: str) -> "pyarrow.Schema":
    """The columns of a table as Parquet and engines have them."""
    import pyarrow as pa

    types = {
        "text": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "real": pa.float32(),
        "bool": pa.bool_(),
        "date": pa.date32(),
        "time": pa.timestamp("us", tz="UTC"),
        "texts": pa.list_(pa.string()),
        "reals": pa.list_(pa.list_(pa.float32())),
    }
    columns = (column.split("=") for column in TABLES[table].split())
    return pa.schema([(name, types[kind]) for name, kind in columns])


@dataclass(frozen=True)
class HistoryFile:
    """One Parquet file of the history."""

    file_key: str
    """Its key in the bucket."""
    table_name: str
    owner_id: str
    """The recipe, corpus or release whose rows it holds, or `CATALOG`."""
    sha256: str
    size_bytes: int
    rows: int

    @classmethod
    def of_row(cls, row: Row[Any]) -> "HistoryFile":
        """The file that a row of `history_files` registers."""
        fields = (field.name for field in dataclasses.fields(cls))
        return cls(**{name: row._mapping[name] for name in fields})

    @property
    def is_named_by_its_content(self) -> bool:
        """Whether its fields are of the form that a write gives them, and its key follows from the others.

        Whoever may write to the bucket may write any manifest: paths are made of nothing else.
        """
        texts = (self.file_key, self.table_name, self.owner_id, self.sha256)
        if not all(isinstance(text, str) for text in texts):
            return False
        if not all(type(number) is int and number >= 0 for number in (self.size_bytes, self.rows)):
            return False
        has_form = _SHA256.fullmatch(self.sha256) and _OWNER.fullmatch(self.owner_id)
        is_its_key = self.file_key == key_of(self.table_name, self.owner_id, self.sha256)
        return bool(has_form) and self.table_name in TABLES and is_its_key

    @property
    def name(self) -> str:
        """The name of its copy in the cache of a machine."""
        return f"{self.sha256}.parquet"


def key_of(table: str, owner_id: str, sha256: str) -> str:
    """The key of a file with this content."""
    return f"{PREFIX}/{table}/{owner_id}/{sha256[:32]}.parquet"


def manifest_bytes(files: Sequence[HistoryFile]) -> bytes:
    """The manifest of these files; that of equal files is equal, byte for byte."""
    listed = [
        {
            "key": file.file_key,
            "table": file.table_name,
            "owner": file.owner_id,
            "sha256": file.sha256,
            "size": file.size_bytes,
            "rows": file.rows,
        }
        for file in sorted(files, key=lambda file: file.file_key)
    ]
    value = {"format": FORMAT, "content_sha256": _sha256_of(listed), "files": listed}
    return json.dumps(value, indent=1).encode("ascii") + b"\n"


def read_manifest(objects: Objects) -> list[HistoryFile]:
    """The files that the history consists of.

    Raises:
        HistoryError: there is no manifest, or it is of another version, or was changed after it was written,
        or names what no write names so.
        ObjectStoreError: S3 refuses, or does not answer.
    """
    uri = objects.uri(MANIFEST_KEY)
    try:
        body = objects.get(MANIFEST_KEY)
    except ObjectNotFoundError as error:
        raise HistoryError(
            f"expected the manifest of the history at {uri}, found none: no finished run is written yet. "
            f"{WRITE} writes them."
        ) from error
    try:
        value = json.loads(body)
        written_as, listed, stated = value["format"], value["files"], value["content_sha256"]
        files = []
        for item in listed if written_as == FORMAT else ():
            file = HistoryFile(
                file_key=item["key"],
                table_name=item["table"],
                owner_id=item["owner"],
                sha256=item["sha256"],
                size_bytes=item["size"],
                rows=item["rows"],
            )
            files.append(file)
    except (ValueError, KeyError, TypeError):
        written_as, listed, files, stated = None, [], [], ""
    if isinstance(written_as, str) and written_as != FORMAT:
        raise HistoryError(
            f"{uri}: expected a history of format {FORMAT}, found {written_as!r:.60}. "
            f"Use the version of toolformer-ops that wrote it, or write it anew by {WRITE}."
        )
    if written_as is None or stated != _sha256_of(listed):
        raise HistoryError(
            f"{uri}: expected the manifest as it was written, found another content: it is damaged. {WRITE} "
            "writes it anew."
        )
    if wrong := [file for file in files if not file.is_named_by_its_content]:
        raise HistoryError(
            f"{uri}: expected files that are named by their content, found {wrong[0].file_key!r:.120}: it "
            f"was not written by toolformer-ops. {WRITE} writes it anew."
        )
    return files


def registered_manifest(objects: Objects, engine: Engine) -> list[HistoryFile]:
    """The files that the history consists of, each as Postgres registers it.

    Raises as `read_manifest`.

    Raises:
        HistoryError: the manifest names other files than `history_files`.
        DatabaseError: Postgres does not answer.
    """
    files = read_manifest(objects)
    while wrong := _unlike_registered(files, database.fetch_all(engine, queries.history.files)):
        before, files = files, read_manifest(objects)
        if files == before:  # else a write replaced it meanwhile
            raise HistoryError(
                f"{objects.uri(MANIFEST_KEY)}: expected the files of history_files in Postgres, found "
                f"{wrong}: it was exchanged, or it is of another deployment. {WRITE} writes it anew."
            )
    return files


def _unlike_registered(files: Sequence[HistoryFile], rows: Sequence[Row[Any]]) -> str:
    """What of a manifest is not as it is registered, in words; nothing if all is.

    A write registers a file before the manifest names it. So files that were registered last may lack.
    """
    written_at = {HistoryFile.of_row(row): row.written_at for row in rows}
    unknown = [file.file_key for file in files if file not in written_at]
    if unknown:
        return f"{len(unknown)} others, such as {min(unknown)}"
    newest = max((written_at[file] for file in files), default=None)
    counted = (row for row in rows if row.state in ("whole", "stale"))
    due = {row.file_key for row in counted if newest is None or row.written_at <= newest}
    lacking = due - {file.file_key for file in files}
    return f"{len(lacking)} lacking, such as {min(lacking)}" if lacking else ""


def _sha256_of(listed: object) -> str:
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode("ascii")).hexdigest()
