"""Calls as a table: the columns that `annotate` writes, and placebos that are drawn from such a table."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolformer_ops.annotation.placebo import PlaceboDraw
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.annotate.annotator import judged_call_of
from toolformer_ops.on_a_file.annotate.pooled_placebos import PLACEBO_LOSSES
from toolformer_ops.runs.choices import PlaceboChoices
from toolformer_ops.runs.placebo_pools import Pool
from toolformer_ops.runs.reasons import title
from toolformer_ops.storage.corpora.addresses import CorpusAddress
from toolformer_ops.storage.corpora.files import find_files
from toolformer_ops.storage.corpora.records import read_values
from toolformer_ops.storage.corpora.unpacking import UnpackingLimits

if TYPE_CHECKING:
    import pyarrow

COLUMNS = """id=text document_id=text call_id=text tool=text position_char=int position_token=int
    position_probability=double before=text call=text result=text after=text sample_count=int proposed_by=text
    input_only_after=bool reason=text loss_without_call=double loss_without_result=double loss_with_result=double
    loss_without_call_full_context=double probability_without=double probability_with=double number_format=text
    reduction_bound=double loss_reduction=double information=double placebo_reduction=double placebos=int
    placebo_probability=double gain=double keep_threshold=double kept=bool not_kept=text"""
"""The columns of a call, each with its type."""
STORED_COLUMNS = """paragraph=int effective_input=text parent_call=int results=texts message=text result_rank=int
    token_log_probabilities=reals scored_tokens=texts"""
"""What a part holds of a call besides, for the tables of a run."""
PLACEBO_FIELDS = """number=int source=int is_sampled=bool reason=text loss_with_result=double
    reduction_bound=double information=double probability_with=double gain=double"""


def call_schema() -> "pyarrow.Schema":
    """The columns as Arrow has them, all of which may be null."""
    return _schema(COLUMNS)


def part_schema() -> "pyarrow.Schema":
    """The columns of a part: a call, with or without a result, and its placebos as `PlaceboLoss` has them."""
    import pyarrow as pa

    placebos = pa.list_(pa.struct(_schema(PLACEBO_FIELDS)))
    return _schema(f"{COLUMNS} {STORED_COLUMNS}").append(pa.field(PLACEBO_LOSSES, placebos))


def _schema(columns: str) -> "pyarrow.Schema":
    import pyarrow as pa

    types = {"text": pa.string(), "int": pa.int32(), "double": pa.float64(), "bool": pa.bool_()}
    types |= {"texts": pa.list_(pa.string()), "reals": pa.list_(pa.list_(pa.float32()))}
    named_types = (column.split("=") for column in columns.split())
    return pa.schema([(name, types[kind]) for name, kind in named_types])


def printed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row, in their order; null where it has none."""
    return {name: row.get(name) for name in call_names()}


@functools.cache
def call_names() -> tuple[str, ...]:
    """The names of the columns."""
    return tuple(column.partition("=")[0] for column in COLUMNS.split())


def call_table(rows: Iterable[Mapping[str, Any]]) -> "pyarrow.Table":
    """The rows as a table, which has all columns also if there is no row."""
    import pyarrow as pa

    return pa.Table.from_pylist(list(rows), schema=call_schema())


def draw_from(
    settings: Settings, address: str, tools: Sequence[str], placebos: int
) -> dict[str, PlaceboDraw]:
    """By tool, how placebos are drawn from the calls of a file or folder that `annotate` wrote.

    Each is `placebos` results a call. The same file gives the same placebos, whatever text a call is in.

    Raises:
        UsageError: a row is no call, or no call of a tool has a result.
        CorpusError: there is no such file.
    """
    calls: dict[str, list[tuple[Any, ...]]] = {tool: [] for tool in tools}
    for file in find_files(settings, CorpusAddress.parse(address).normal().files):
        for line, row in read_values(file, UnpackingLimits(), call_names()):
            if isinstance(row, str):
                raise UsageError(
                    f"placebo_pool: expected calls in {file.uri}, found another line {line} ({title(row)})."
                )
            try:
                call = judged_call_of(row) if row["tool"] in calls and row["result"] is not None else None
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(
                    f"placebo_pool: expected calls as `annotate` writes them, found a row of {file.uri} without "
                    f"{error}. Write a sample by `toolformer-ops annotate SAMPLE --all --out FILE`."
                ) from error
            if call is not None and call.has_losses:
                calls[call.call.tool].append((call.call_id, call.document_id, str(call.scored.result)))
    for tool, results in calls.items():
        if not results:
            raise UsageError(
                f"placebo_pool: expected results of {tool} in {address}, found none. Annotate more texts for the "
                "pool, with all tools."
            )
    chosen = PlaceboChoices(placebos=placebos, placebo_sample=0)
    return {tool: PlaceboDraw(Pool.of_calls(set(results), chosen)) for tool, results in calls.items()}
