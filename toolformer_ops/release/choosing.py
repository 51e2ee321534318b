"""Choose the calls of a release in Postgres, and read the texts that hold them.

The rules are in `sql/queries`: kept calls (`release_kept_calls.sql`), one a position, at most so many texts a tool
(`release_choose_calls.sql`). Both functions work in one transaction, in the temporary table `releasable_calls`. Does not decide
which tools take part; `stages/release.py` does.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from toolformer_ops.release.format import ReleasedCall
from toolformer_ops.runs.micro_batches import load_run_tool, members_of_run
from toolformer_ops.storage import database

PAGE_TEXTS = 500
"""Texts in memory at once."""


@dataclass(frozen=True)
class ReleaseTool:
    """A tool whose calls are released; part of the release's id."""

    tool: str
    sampling_recipe_id: str
    execution_recipe_id: str
    scoring_recipe_id: str
    keep_threshold: float
    """tau_f, in nats."""


@dataclass(frozen=True)
class ChosenText:
    """A text with the calls that the release puts into it."""

    document_id: uuid.UUID
    variant_id: uuid.UUID
    """The row of `documents` with this text and the url and date that count in the run."""
    text: str
    """Without calls."""
    url: str | None
    """That of the variant."""
    calls: Sequence[ReleasedCall]


def choose_calls(
    connection: Connection,
    run_id: str,
    tools: Sequence[ReleaseTool],
    max_examples: int | None,
) -> dict[str, dict[str, int]]:
    """Choose among the kept calls of `tools`, with at most `max_examples` texts a tool; returns what is left out.

    The result is the number of calls by tool and reason, as in `run_releases.left_out`.
    """
    database.execute(connection, "release_choice_table")
    for tool in tools:
        members = members_of_run(load_run_tool(connection, run_id, tool.tool))
        database.execute(connection, "release_kept_calls", **members, **vars(tool))
    database.execute(connection, "release_choose_calls", max_examples=max_examples)
    database.execute(connection, "release_index_chosen_calls")
    left_out: dict[str, dict[str, int]] = defaultdict(dict)
    for row in database.fetch_all(connection, "release_left_out"):
        left_out[row.tool][row.reason] = row.calls
    return dict(left_out)


def chosen_texts(connection: Connection, run_id: str, tools: Sequence[ReleaseTool]) -> Iterator[ChosenText]:
    """The texts that hold a chosen call, in the order of their ids, after `choose_calls` with the same run and tools."""
    after = uuid.UUID(int=0)
    while page := database.fetch_all(connection, "release_texts", run_id=run_id, after=after, page_size=PAGE_TEXTS):
        until = page[-1].document_id
        rows = database.fetch_all(
            connection,
            "release_calls_of_texts",
            sampling_recipe_ids=[tool.sampling_recipe_id for tool in tools],
            scoring_recipe_ids=[tool.scoring_recipe_id for tool in tools],
            after=after,
            until=until,
        )
        calls: dict[uuid.UUID, list[ReleasedCall]] = defaultdict(list)
        for row in rows:
            columns = row._asdict()
            calls[columns.pop("document_id")].append(ReleasedCall(**columns))
        for row in page:
            yield ChosenText(
                document_id=row.document_id,
                variant_id=row.variant_id,
                text=row.text,
                url=row.url,
                calls=calls[row.document_id],
            )
        after = until
