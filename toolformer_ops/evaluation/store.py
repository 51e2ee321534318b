"""Scores in Postgres (`evaluation_scores`).

On S3, `reports/RUN/` holds the run's page and every evaluated input as JSON Lines. The inputs are
`inputs/SUITE/VARIANT-kK.jsonl` there, a file for each suite and variant; a new evaluation replaces it. Each
row of a score names its file with its hash. Files are written before rows, so that no row names what is not
there. What writes or reads raises ObjectStoreError or DatabaseError if S3 or Postgres refuse.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter
from sqlalchemy import Connection

from toolformer_ops.errors import UsageError
from toolformer_ops.evaluation.records import EvaluatedInput, SuiteScore
from toolformer_ops.storage.postgres import database, queries

if TYPE_CHECKING:
    from toolformer_ops.storage.objects.publication import ObjectStore

CONTENT_TYPE = "application/x-ndjson"
_INPUT = TypeAdapter(EvaluatedInput)
_RUN_ID = re.compile(r"(?!\.+\Z)[^/\x00-\x1f\x7f]{1,250}")


@dataclass(frozen=True)
class InputsFile:
    """The evaluated inputs of one suite and variant, on S3."""

    uri: str
    sha256: str
    """64 hex digits."""


def report_prefix(run_id: str) -> str:
    """Key of the folder with a run's page and its evaluated inputs, without a slash at its end.

    Raises:
        UsageError: no run has such an id, since it would lead elsewhere.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"--run: expected a run id without slashes and control characters, found {run_id!r:.80}."
        )
    return f"reports/{run_id}"


def report_key(run_id: str) -> str:
    """Key of the page."""
    return f"{report_prefix(run_id)}/index.html"


def write_inputs(store: "ObjectStore", run_id: str, inputs: Sequence[EvaluatedInput]) -> InputsFile:
    """Write the evaluated inputs of one suite and variant over those of an earlier evaluation.

    There is at least one.
    """
    first = inputs[0]
    key = f"{report_prefix(run_id)}/inputs/{first.suite}/{first.variant}-k{first.call_start_rank}.jsonl"
    content = input_lines(inputs)
    store.put(key, content, CONTENT_TYPE)
    return InputsFile(store.uri(key), hashlib.sha256(content).hexdigest())


def input_lines(inputs: Iterable[EvaluatedInput]) -> bytes:
    """One JSON line for each input, with the fields of `EvaluatedInput`."""
    values = [dataclasses.asdict(answer) | {"date": answer.date.isoformat()} for answer in inputs]
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()


def read_inputs(store: "ObjectStore", run_id: str) -> Iterator[EvaluatedInput]:
    """All evaluated inputs of a run, file by file."""
    for key in store.list(f"{report_prefix(run_id)}/inputs/"):
        yield from parsed_inputs(store.get(key))


def parsed_inputs(content: bytes) -> Iterator[EvaluatedInput]:
    """The inputs of a file; raises `ValueError` if a line is none."""
    for line in content.splitlines():  # of bytes: a text may hold other line ends than "\n"
        yield _INPUT.validate_json(line)


def write_scores(
    connection: Connection,
    run_id: str,
    scores: Sequence[SuiteScore],
    model_ids: Mapping[str, str | None],
    files: Mapping[tuple[str, str, int], InputsFile],
) -> int:
    """Write scores that are not there yet; how many were written.

    `model_ids` has the id of the finetuned model, or None, by the model of a score; `files` the inputs by
    suite, variant and k.
    """
    written = 0
    for score in scores:
        file = files.get((score.suite, score.variant, score.call_start_rank))
        written += database.execute(
            connection,
            queries.evaluation.insert_score,
            run_id=run_id,
            model_id=model_ids[score.model],
            inputs_uri=file.uri if file else None,
            inputs_sha256=file.sha256 if file else None,
            **dataclasses.asdict(score),
        )
    return written


def scores_of_run(connection: Connection, run_id: str) -> list[SuiteScore]:
    """The scores of a run by suite, variant and k.

    If other inputs were evaluated again, the newest scores count.
    """
    rows = database.fetch_all(connection, queries.evaluation.scores_of_run, run_id=run_id)
    return [SuiteScore(**row._mapping) for row in rows]
