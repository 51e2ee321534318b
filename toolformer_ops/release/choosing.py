"""Choose the calls of a release in Postgres, and read the texts that hold them.

The rules are in `sql/queries/choosing.sql`: kept calls (`kept_calls`), one a position, at most so many texts
a tool (`choosing.choose_calls`). Both functions work in one transaction, in the temporary table
`releasable_calls`. Does not decide which tools take part; `stages/release.py` does.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.release.format import ReleasedCall
from toolformer_ops.runs.numbers import count_kept
from toolformer_ops.runs.run_tools import load_run_tool, members_of_run
from toolformer_ops.storage.postgres import database, queries

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
    """tau_f, in the unit of the keep rule."""
    placebo_recipe_id: str | None = None
    """None under the paper's keep rule, for which placebos decide nothing."""
    keep_rule: str = "paper"


@dataclass(frozen=True)
class ChosenText:
    """A text with the calls that the release puts into it."""

    document_id: uuid.UUID
    text: str
    """Without calls."""
    url: str | None
    """That of the record that counts in the run."""
    calls: Sequence[ReleasedCall]


def more_than(texts: int) -> int:
    """How many texts to read for so many in which a tool has the best call at a position.

    Tools lose some positions to others.
    """
    return texts + texts // 8 + 1


def choose_calls(
    connection: Connection,
    run_id: str,
    tools: Sequence[ReleaseTool],
    max_examples: int,
    *,
    require_following: bool = False,
) -> dict[str, dict[str, int]]:
    """Choose among the kept calls of `tools`, with at most `max_examples` texts a tool.

    Returns what is left out. A call is refused if its text continues with the number of the other sign, and with
    `require_following` if it does not continue with the result (`release_refusal` in SQL): a call
    that saves less may have their place. Only the first texts of each tool are read, in the order of their
    ids, until there are enough. The result is the number of calls by tool and reason, as in
    `run_releases.left_out`: calls in texts that are not read are above `max_examples`.
    """
    runs = {tool.tool: load_run_tool(connection, run_id, tool.tool) for tool in tools}
    tool_arguments = [
        {
            **vars(tool),
            "reads_record": runs[tool.tool].reads_record,
            "last_document_id": runs[tool.tool].last_document_id,
            "require_following": require_following,
        }
        for tool in tools
    ]
    members = members_of_run(next(iter(runs.values())))
    # 1. Choose among the first texts of each tool, until there are enough.
    texts = dict.fromkeys(runs, more_than(max_examples))
    while True:
        choice = _choose(connection, tool_arguments, texts, members, max_examples)
        needed = choice.texts_needed(max_examples)
        if not needed:
            break
        texts = texts | needed
    database.execute(connection, queries.choosing.index_chosen_calls)
    # 2. What is left out.
    left_out: dict[str, dict[str, int]] = {}
    for tool, row in choice.counts.items():
        reasons = {
            "result_has_other_sign": row.result_has_other_sign,
            "result_does_not_follow": row.result_does_not_follow,
            "better_call_at_position": row.better_call_at_position,
        }
        above = row.above_max_examples
        if tool in choice.unread:
            above = count_kept(connection, runs[tool]).releasable_calls - row.released - sum(reasons.values())
        reasons["above_max_examples"] = above
        counted = {reason: number for reason, number in reasons.items() if number}
        if counted:
            left_out[tool] = counted
    return left_out


@dataclass(frozen=True)
class _Choice:
    """What a choice among the first texts of each tool gave."""

    texts_asked: Mapping[str, int]
    """By tool, how many texts were to be read at most."""
    texts_read: Mapping[str, int]
    """By tool, how many texts with calls were read."""
    counts: Mapping[str, Row[Any]]
    """The counts of the tools with a call that could be released."""

    @property
    def unread(self) -> list[str]:
        """The tools that may have more texts with calls."""
        return [tool for tool, number in self.texts_read.items() if number == self.texts_asked[tool]]

    def texts_needed(self, max_examples: int) -> dict[str, int]:
        """How many texts to read of each tool that lost more positions to others than expected."""
        needed = {}
        for tool in self.unread:
            best_texts = getattr(self.counts.get(tool), "best_texts", 0)
            if best_texts < max_examples:
                needed[tool] = more_than(self.texts_read[tool] * max_examples // max(best_texts, 1))
        return needed


def _choose(
    connection: Connection,
    tool_arguments: Sequence[dict[str, Any]],
    texts: Mapping[str, int],
    members: dict[str, object],
    max_examples: int,
) -> _Choice:
    """Choose among the first texts of each tool, as many as `texts` says."""
    # 1. Each tool's first texts with calls, and the calls of all tools in all of these: they compete for the
    #    positions.
    database.execute(connection, queries.choosing.choice_table)
    texts_read = {}
    for arguments in tool_arguments:
        tool = arguments["tool"]
        first = queries.choosing.first_records if arguments["reads_record"] else queries.choosing.first_texts
        texts_read[tool] = database.execute(connection, first, **arguments, texts=texts[tool])
    database.execute(connection, queries.choosing.texts_to_choose_from, members=members)
    for arguments in tool_arguments:
        database.execute(connection, queries.choosing.kept_calls, **arguments)
    # 2. The best at each position, and the first texts of each tool.
    database.execute(connection, queries.choosing.choose_calls, max_examples=max_examples)
    counts = {row.tool: row for row in database.fetch_all(connection, queries.choosing.left_out)}
    return _Choice(texts_asked=texts, texts_read=texts_read, counts=counts)


def own_texts(connection: Connection) -> Iterator[tuple[uuid.UUID, str]]:
    """The texts that hold a chosen call, in the order of their ids, without their calls.

    It is asked after `choose_calls`.
    """
    after = uuid.UUID(int=0)
    while page := database.fetch_all(connection, queries.choosing.texts, after=after, page_size=PAGE_TEXTS):
        yield from ((row.document_id, row.text) for row in page)
        after = page[-1].document_id


def leave_out(connection: Connection, document_ids: Sequence[uuid.UUID], reason: str) -> dict[str, int]:
    """Take these texts from what `choose_calls` chose, for one reason.

    Returns how many calls of each tool leave with them.
    """
    rows = database.fetch_all(
        connection, queries.choosing.leave_out, document_ids=list(document_ids), reason=reason
    )
    return {row.tool: row.calls for row in rows}


def chosen_texts(connection: Connection, tools: Sequence[ReleaseTool]) -> Iterator[ChosenText]:
    """The texts that hold a chosen call, in the order of their ids.

    `choose_calls` was called before, with the same tools.
    """
    database.execute(connection, queries.choosing.read_pages_by_index)
    after = uuid.UUID(int=0)
    while page := database.fetch_all(connection, queries.choosing.texts, after=after, page_size=PAGE_TEXTS):
        until = page[-1].document_id
        rows = database.fetch_all(
            connection,
            queries.choosing.calls_of_texts,
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
            yield ChosenText(**row._asdict(), calls=calls[row.document_id])
        after = until
