"""What changed between the releases of two runs: every call that only one of them holds, with the one reason why.

If neither made a release, the calls are compared that they keep (`calls_to_compare`).

Postgres decides: the function `release_changes_between`, which the views `release_changes` and
`run_comparison` ask, too. A call is the same in both if text, tool, place, call and result are the same. The
reason is the first, in the order in which a run decides, for which the run without the call does not release
it (`REASONS`). Owns no table; `compared_calls` is a temporary table of the transaction.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy import Connection

from toolformer_ops.errors import UsageError
from toolformer_ops.storage.postgres import database, queries

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "first_run": "there is no run to compare with",
        "text_new": "the text joined the corpus",
        "text_removed": "the text left the corpus",
        "text_changed": "the record of this id has another text",
        "document_limit": "the text is outside of the run's document limit",
        "until_kept": "a run had enough kept calls before it came to the text",
        "tool_lacking": "a run is without the tool, or its rows were incomplete or failed a check",
        "record_corrected": "the record has another url or date, which the tool reads",
        "result_changed": "the tool answers the same call otherwise",
        "model_changed": "another language model or proposer",
        "prompt_changed": "another prompt of the tool",
        "tool_changed": "another version or index of the tool",
        "code_changed": "another version of the code that filters, samples, executes or scores",
        "choices_changed": "other choices of sampling or scoring",
        "threshold": "the keep threshold was moved across its loss reduction",
        "no_release": "a run kept it and made no release",
        "result_has_other_sign": "the text continues with the number of the other sign",
        "result_does_not_follow": "the text does not continue with the result, and a run asks for that",
        "better_call_at_position": "another call at the place saves more",
        "holds_evaluation_data": "its text shares words with evaluation data",
        "above_max_examples": "its tool has max_examples_per_tool texts without it",
        "other": "none of these",
    }
)
"""Why a call is in one release and not in the other."""


@dataclass(frozen=True)
class ComparedRun:
    """A run with what it released."""

    run_id: str
    state: str
    problem: str | None
    """Which tasks failed, or how it was ended; None for a success."""
    schedule: str | None
    corpus_id: str
    corpus_uri: str
    corpus_version: int
    ordinal_limit: int | None
    """The run takes documents with an ordinal below it; None if it takes all."""
    release_id: str | None
    """None if it made no release."""
    texts: int
    """Texts of the release; if neither of the compared runs made one, texts with a call that a release would
    hold."""
    calls: int
    """Calls of the release, likewise."""
    lacking_tools: tuple[str, ...]


@dataclass(frozen=True)
class ChangeCount:
    """Calls of one tool that joined or left for one reason."""

    is_added: bool
    tool: str
    reason: str
    calls: int
    texts: int
    """Texts that hold them."""


@dataclass(frozen=True)
class ChangedCall:
    """A call that only one of the two releases holds."""

    is_added: bool
    """Whether the newer release holds it."""
    tool: str
    reason: str
    """One of `REASONS`."""
    detail: str | None
    """Both thresholds or results, the record's id, the better call, or what differs in the recipe."""
    document_id: uuid.UUID
    position_char: int | None
    """Offset in the text. None, as the three that follow, if the recipe's rows were dropped."""
    call_text: str | None
    result: str | None
    gain: float | None
    """By the keep rule of its run."""


@dataclass(frozen=True)
class ReleaseChanges:
    """How the release of a run differs from that of an earlier one."""

    before: ComparedRun | None
    """None if there is no earlier run."""
    now: ComparedRun
    counts: tuple[ChangeCount, ...]
    texts_added: int
    """Texts that only the newer release holds."""
    texts_removed: int
    texts_changed: int
    """Texts of both releases with other calls."""

    def calls(self, *, is_added: bool) -> int:
        """The number of calls that joined, or that left."""
        return sum(count.calls for count in self.counts if count.is_added == is_added)


def previous_run(connection: Connection, run_id: str) -> str | None:
    """The run that a run is compared with: the newest successful one before it over the same corpus and of the same schedule.

    A run that no schedule started is compared with one of the same model. None if there is no such run.
    """
    previous_runs = database.fetch_all(connection, queries.changes.previous_run, run_id=run_id)
    return previous_runs[0].run_id if previous_runs else None


def find_changes(connection: Connection, run_id: str, other: str | None = None) -> ReleaseChanges:
    """Compare two runs, from the run that was started earlier to the later.

    A run alone is compared with its `previous_run`. Instead of a run, a release may be named: the run that
    made it first is compared.

    Raises:
        UsageError: there is no such run or release.
    """
    ids: list[str] = []
    for name in [run_id] if other is None else [run_id, other]:
        named = database.fetch_all(connection, queries.changes.run_named, name=name)
        if not named:
            raise UsageError(
                f"expected the id of a run or a release, found {name!r}. `toolformer-ops runs` lists them."
            )
        ids.append(named[0].run_id)
    if other is None and (before_id := previous_run(connection, ids[0])) is not None:
        ids.insert(0, before_id)
    database.execute(connection, queries.changes.compare, run_ids=ids)
    rows = database.fetch_all(connection, queries.changes.runs, run_ids=ids)
    runs = [ComparedRun(**{**row._asdict(), "lacking_tools": tuple(row.lacking_tools)}) for row in rows]
    if other is None:  # the stored previous run may have been started in the same instant
        runs.sort(key=lambda run: run.run_id == ids[-1])
    now, before = runs[-1], runs[0] if len(runs) > 1 else None
    pair = {"run_id": now.run_id, "before_run_id": before.run_id if before else None}
    database.execute(connection, queries.changes.find, **pair)
    texts = database.fetch_one(connection, queries.changes.texts, **pair)
    return ReleaseChanges(
        before=before,
        now=now,
        counts=change_counts(connection),
        texts_added=texts.added,
        texts_removed=texts.removed,
        texts_changed=texts.changed,
    )


def change_counts(connection: Connection) -> tuple[ChangeCount, ...]:
    """How many calls joined or left by tool and reason, in the comparison that `find_changes` made in this transaction."""
    return tuple(
        ChangeCount(**row._asdict()) for row in database.fetch_all(connection, queries.changes.by_reason)
    )


def changed_calls(connection: Connection, at_most: int | None = None) -> list[ChangedCall]:
    """The calls of the comparison that `find_changes` made in this transaction, text by text."""
    rows = database.fetch_all(connection, queries.changes.calls, at_most=at_most)
    return [ChangedCall(**row._asdict()) for row in rows]
