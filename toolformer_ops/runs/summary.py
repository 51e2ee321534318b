"""A night's summary, to be read in ten seconds: what changed in the corpus, what the run did, and how its release differs.

Compares the run with the one before it (`changes.previous_run`). Reads Postgres and writes nothing.
"""

import datetime
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from toolformer_ops.runs.changes import ReleaseChanges, find_changes
from toolformer_ops.runs.run_tools import below_ordinal
from toolformer_ops.storage import database
from toolformer_ops.tools.registry import tools_on_device


@dataclass(frozen=True)
class ToolSummary:
    """What a run did with one tool."""

    tool: str
    annotated: int
    """Documents that the run itself worked on: of the stage with the most."""
    done_by_stage: dict[str, int]
    """Documents that the run itself finished, by stage."""
    reused: int
    """The run's other documents: earlier runs did their work under the same recipes."""
    calls_added: int
    """Calls of the release that the release before does not hold."""
    calls_removed: int
    """Calls of the release before that the release does not hold."""
    added_by_reason: dict[str, int]
    """One of `changes.REASONS` each."""
    removed_by_reason: dict[str, int]
    kept: int
    """Kept calls of all the run's documents."""


@dataclass(frozen=True)
class RunSummary:
    """What a run brought, compared with the run before it."""

    run_id: str
    state: str
    schedule: str | None
    previous_run_id: str | None
    """None where it is the first of its schedule."""
    corpus_uri: str
    corpus_version: int
    previous_corpus_version: int | None
    documents: int
    """Documents of the run. The four that follow are documents, too, compared with the run before."""
    documents_added: int
    documents_removed: int
    documents_corrected: int
    """In both runs; the record has another url, date or title."""
    documents_changed: int
    """Records with an id that have another text; counted in added and removed, too."""
    tools: tuple[ToolSummary, ...]
    device_seconds: float
    """Of this run's own sampling and scoring, and of the execution of tools that need a device."""
    release_id: str | None
    """None where the run released nothing."""
    previous_release_id: str | None
    examples: int
    """Texts of the release."""
    examples_added: int
    examples_removed: int
    examples_with_other_calls: int
    lacking_tools: tuple[str, ...]
    warnings: tuple[str, ...]
    """Checks that did not succeed, and what else a reader must know."""

    @property
    def examples_changed(self) -> int:
        """Texts of the release that are new, gone or hold other calls."""
        return self.examples_added + self.examples_removed + self.examples_with_other_calls

    @property
    def is_nothing_new(self) -> bool:
        """Whether the run had the documents of the run before, did nothing and released the same."""
        documents = self.documents_added, self.documents_removed, self.documents_corrected
        return (
            self.previous_run_id is not None
            and not any(documents)
            and not any(tool.annotated for tool in self.tools)
            and self.release_id == self.previous_release_id
        )

    def as_dict(self) -> dict[str, Any]:
        """All numbers, as JSON values."""
        return {**asdict(self), "examples_changed": self.examples_changed, "is_nothing_new": self.is_nothing_new}

    def as_text(self) -> str:
        """Markdown of about fifteen lines."""
        # 1. The corpus.
        versions = f"version {self.corpus_version}"
        if self.previous_corpus_version not in (None, self.corpus_version):
            versions = f"version {self.previous_corpus_version} -> {self.corpus_version}"
        compared = f", compared with {self.previous_run_id}" if self.previous_run_id else ", the first of its kind"
        lines = [f"**{self.run_id}**: {self.state}{compared}", ""]
        if self.is_nothing_new:
            lines.append(
                f"**Nothing new**: {self.documents:,} documents as before, nothing computed, the same release."
            )
        else:
            moves = (
                f"{self.documents_added:,} added",
                f"{self.documents_removed:,} removed",
                f"{self.documents_corrected:,} corrected",
                f"{self.documents_changed:,} with a changed text",
            )
            lines.append(f"Corpus {versions}: {self.documents:,} documents ({', '.join(moves)})")
            # 2. The tools.
            lines += [
                "",
                "| tool | annotated | reused | kept | new in release | dropped |",
                "|---|---|---|---|---|---|",
            ]
            for tool in self.tools:
                reasons = ", ".join(f"{reason} {count:,}" for reason, count in tool.removed_by_reason.items())
                dropped = f"{tool.calls_removed:,}" + (f" ({reasons})" if reasons else "")
                lines.append(
                    f"| {tool.tool} | {tool.annotated:,} | {tool.reused:,} | {tool.kept:,} | {tool.calls_added:,} | {dropped} |"
                )
            lines.append("")
        # 3. The release.
        if self.release_id is None:
            neither = self.previous_run_id and self.previous_release_id is None
            lines.append(
                f"Release: none{', as before: new and dropped are the calls that the runs keep' if neither else ''}."
            )
        elif self.release_id == self.previous_release_id:
            lines.append(f"Release: {self.release_id} as before, {self.examples:,} texts.")
        else:
            of_examples = (
                f"{self.examples_added:,} new",
                f"{self.examples_removed:,} gone",
                f"{self.examples_with_other_calls:,} with other calls",
            )
            before = self.previous_release_id or "none"
            lines.append(f"Release: {before} -> {self.release_id}, {self.examples:,} texts ({', '.join(of_examples)})")
        lines.append(f"Device time of this run: {self.device_seconds:,.1f} s")
        lines += [f"- Warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


@dataclass(frozen=True)
class ListedRun:
    """A run in a list of runs."""

    run_id: str
    state: str
    schedule: str | None
    corpus_uri: str
    corpus_version: int
    started_at: datetime.datetime
    finished_at: datetime.datetime | None
    documents: int
    """Documents of the run."""
    kept_calls: int
    release_id: str | None
    examples: int
    """Texts of the release."""
    own_documents: int
    """Documents that the run itself worked on, of each tool the stage with the most, summed over the tools."""
    device_seconds: float


def list_runs(connection: Connection, at_most: int) -> list[ListedRun]:
    """The newest runs, the newest first."""
    rows = database.fetch_all(connection, "summary_runs", at_most=at_most, device_tools=tools_on_device())
    return [ListedRun(**row._asdict()) for row in rows]


def summarise(connection: Connection, run_id: str, other: str | None = None) -> RunSummary:
    """The summary of a run that is registered; before its end it is about what is there so far.

    It is compared with the run before it; with `other`, the later of the two is compared with the earlier.

    Raises:
        ParameterError: there is no such run.
    """
    changes = find_changes(connection, run_id, other)
    run_id = changes.now.run_id
    [run] = database.fetch_all(connection, "changes_runs", run_ids=[run_id])
    # 1. The corpus, compared with the run before; the first run has all its documents anew.
    moved = Counter[str]()
    if changes.before is not None:
        [before] = database.fetch_all(connection, "changes_runs", run_ids=[changes.before.run_id])
        [counted] = database.fetch_all(
            connection,
            "summary_corpus_changes",
            corpus_id=run.corpus_id,
            version=run.corpus_version,
            ordinal_limit=below_ordinal(run.ordinal_limit),
            before_version=before.corpus_version,
            before_ordinal_limit=below_ordinal(before.ordinal_limit),
        )
        moved.update(counted._asdict())
    # 2. The tools.
    found = database.fetch_all(connection, "summary_tools", run_id=run_id, device_tools=tools_on_device())
    rows = {row.tool: row for row in found}
    tools = []
    for tool in sorted({*rows, *(one.tool for one in changes.counts)}):  # also a tool that only the run before has
        done = rows[tool].done_by_stage if tool in rows else {}
        annotated = max(done.values(), default=0)
        tools.append(
            ToolSummary(
                tool=tool,
                annotated=annotated,
                done_by_stage=done,
                reused=rows[tool].documents - annotated if tool in rows else 0,
                calls_added=changes.calls(is_added=True, tool=tool),
                calls_removed=changes.calls(is_added=False, tool=tool),
                added_by_reason=_by_reason(changes, tool, is_added=True),
                removed_by_reason=_by_reason(changes, tool, is_added=False),
                kept=rows[tool].kept or 0 if tool in rows else 0,
            )
        )
    documents = max((row.documents for row in rows.values()), default=0)
    added = documents if changes.before is None else moved["added"]
    # 3. What a reader must know.
    checks = database.fetch_all(connection, "summary_warnings", run_id=run_id)
    warnings = [f"{row.subject}: {row.message or row.check_name}" for row in checks]
    warnings += [f"the release lacks {tool}" for tool in changes.now.lacking_tools]
    if added and not changes.calls(is_added=True):
        warnings.append(f"{added:,} new documents, but no new kept call")
    return RunSummary(
        run_id=run_id,
        state=run.state,
        schedule=run.schedule,
        previous_run_id=changes.before.run_id if changes.before else None,
        corpus_uri=run.corpus_uri,
        corpus_version=run.corpus_version,
        previous_corpus_version=changes.before.corpus_version if changes.before else None,
        documents=documents,
        documents_added=added,
        documents_removed=moved["removed"],
        documents_corrected=moved["corrected"],
        documents_changed=moved["changed"],
        tools=tuple(tools),
        device_seconds=float(sum(row.device_seconds for row in rows.values())),
        release_id=changes.now.release_id,
        previous_release_id=changes.before.release_id if changes.before else None,
        examples=changes.now.texts if changes.now.release_id else 0,
        examples_added=changes.texts_added,
        examples_removed=changes.texts_removed,
        examples_with_other_calls=changes.texts_changed,
        lacking_tools=changes.now.lacking_tools,
        warnings=tuple(warnings),
    )


def _by_reason(changes: ReleaseChanges, tool: str, *, is_added: bool) -> dict[str, int]:
    return {one.reason: one.calls for one in changes.counts if one.tool == tool and one.is_added == is_added}
