"""A night's summary, to be read in ten seconds: what changed in the corpus, what the run did, and how its release differs.

Compares the run with the one before it (`changes.previous_run`). Reads Postgres and writes nothing.
"""

import datetime
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops.call_syntax import call_with_result, parse_call
from toolformer_ops.runs.changes import ReleaseChanges, find_changes
from toolformer_ops.runs.placebo_rates import kept_by_chance
from toolformer_ops.runs.reasons import title
from toolformer_ops.runs.run_tools import below_ordinal
from toolformer_ops.shown_text import count_of, gained, visible
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.registry import tools_on_device

SHOWN_CALLS = 2
SHOWN_FAILURES = 2
SHOWN_WARNINGS = 3
MOST_LINES = 9
"""A summary, and the address of the run below it, are ten lines."""
SHOWN_BEFORE, SHOWN_AFTER = 60, 30
"""Characters of the text that are shown around a call."""
SUCCESS = "success"
KEEPS_NONE, LACKS_TOOL = "some_call_is_kept", "every_tool_is_present"
"""Checks of which the second breaks where the first does."""
_HARMLESS = str.maketrans({"`": "'", "<": "("})


def failure_headline(problem: str) -> str:
    """The first sentence of what a failed run's row says, in at most 120 characters."""
    return f"FAILED: {problem.removeprefix('failed: ').partition('. ')[0].rstrip('.')}"[:120]


@dataclass(frozen=True)
class ToolSummary:
    """What a run did with one tool."""

    tool: str
    is_chosen: bool
    """False if only the previous run has it."""
    annotated: int
    """The run's own documents, as counted by its busiest stage."""
    done_by_stage: dict[str, int]
    """Documents that this run finished, by stage."""
    annotated_by_failed: int
    """Documents annotated by failed runs of the same schedule since the previous run."""
    reused: int
    """The run's other documents: earlier runs did their work under the same recipes."""
    calls_added: int
    """Calls in this release but not in the previous one."""
    calls_removed: int
    """Calls in the previous release but not in this one."""
    added_by_reason: dict[str, int]
    """Each key is one of `changes.REASONS`."""
    removed_by_reason: dict[str, int]
    kept: int
    """Kept calls of all the run's documents."""
    kept_by_chance: str
    """How many of these the run would keep with any result, as `placebo_rates.kept_by_chance` writes it."""


@dataclass(frozen=True)
class BestCall:
    """A call with the text around it."""

    tool: str
    call: str
    """With its result, in brackets."""
    text_before: str
    """The end of the text before it."""
    text_after: str
    gain: float
    """By the run's keep rule."""
    probability_with: float | None
    """With the rule `probability`: the probability of the next tokens with the result."""

    @classmethod
    def of(cls, row: Row[Any]) -> "BestCall":
        """The call of a row of `summary.best_calls`, `summary.released_calls` or `summary.nearest_calls`."""
        return cls(
            tool=row.tool,
            call=call_with_result(parse_call(row.call_text), row.result or ""),
            text_before=row.text_before[-SHOWN_BEFORE:],
            text_after=row.text_after[:SHOWN_AFTER],
            gain=row.gain,
            probability_with=row.probability_with,
        )

    def __str__(self) -> str:
        """One line.

        As code, and without the characters that end code, name a person in a chat or move a terminal: the
        text is untrusted.
        """
        quoted = visible(" ".join(f"{self.text_before} {self.call} {self.text_after}".split()))
        return f"`{quoted.translate(_HARMLESS)}` ({self.tool}, {gained(self.gain, self.probability_with)})"


@dataclass(frozen=True)
class TakenDocuments:
    """How many documents a run takes of its corpus."""

    documents: int
    corpus_documents: int
    """All documents of the corpus at the run's version."""
    document_limit: int | None
    """The most documents that the run takes; None if it takes all."""
    until_kept: int | None
    """The kept calls at which a tool's work ends; None if it ends after all documents."""

    @property
    def is_cut(self) -> bool:
        """Whether the limit leaves documents out."""
        return self.documents < self.corpus_documents

    def __str__(self) -> str:
        """Say how many texts, and by which limit: `20 of 1,400 texts (document limit 20)`."""
        limit = f"document limit {self.document_limit:,}" if self.document_limit else "no document limit"
        if self.until_kept:
            limit = f"fewer if {self.until_kept:,} calls of a tool are kept before; {limit}"
        return f"{self.documents:,} of {self.corpus_documents:,} texts ({limit})"


def documents_taken(connection: Connection, run_id: str) -> TakenDocuments:
    """How many documents a registered run takes."""
    row = database.fetch_one(connection, queries.summary.documents, run_id=run_id)
    return TakenDocuments(**row._asdict())


@dataclass(frozen=True)
class LowerThresholds:
    """The thresholds below a tool's own that would keep some of its calls."""

    tool: str
    keep_threshold: float
    """The tool's threshold in this run."""
    prune_below: float
    """Calls that save less were not computed to the end, and are not counted."""
    keeps: Mapping[int, float]
    """The thresholds that would keep 1, 10 and 100 calls."""

    @classmethod
    def of(cls, row: Row[Any]) -> "LowerThresholds":
        """The thresholds in a row of `summary.lower_thresholds`."""
        # Rounded down, so that a threshold that is typed as it is printed keeps what it says.
        keeps = {}
        for calls, saves in ((1, row.keeps_1), (10, row.keeps_10), (100, row.keeps_100)):
            if saves is not None and saves < row.keep_threshold:
                keeps[calls] = math.floor(saves * 100) / 100
        return cls(tool=row.tool, keep_threshold=row.keep_threshold, prune_below=row.prune_below, keeps=keeps)

    def __str__(self) -> str:
        """Write them in one line: `Calculator: 0.31 keeps 1, 0.2 keeps 10 (now 0.5)`."""
        keeps = ", ".join(f"{threshold:g} keeps {calls}" for calls, threshold in self.keeps.items())
        pruned = f"; what is pruned below {self.prune_below:g} is not counted" if self.prune_below else ""
        return f"{self.tool}: {keeps} (now {self.keep_threshold:g}{pruned})"


@dataclass(frozen=True)
class CountedFailure:
    """Calls of a tool that have no result for one reason."""

    tool: str
    reason: str
    message: str
    """What the tool said of them; empty if the reason says all."""
    calls: int
    query: str
    """The first of their inputs."""

    def __str__(self) -> str:
        """Write them in one line: `50 calls of Shop, no such column: prise, as in SELECT prise FROM shop`."""
        said = f"{self.message or title(self.reason)}, as in {self.query:.200}"
        return f"{count_of(self.calls, 'call')} of {self.tool}, {visible(' '.join(said.split()))}"


@dataclass(frozen=True)
class NothingReleased:
    """Why a run that succeeded has no release, and what would give it one."""

    sampled: int
    """Candidate calls."""
    scored: int
    is_nothing_kept: bool
    """False if calls are kept, but the release leaves out each of them."""
    nearest: tuple[BestCall, ...]
    """The scored calls nearest to their tool's threshold, one a text."""
    thresholds: tuple[LowerThresholds, ...]
    """For each tool with calls just below its threshold, lower ones that would keep some."""
    failures: tuple[CountedFailure, ...]
    """The most frequent reasons of calls without a result."""

    @property
    def headline(self) -> str:
        """That there is no release, and why."""
        why = "No call was kept" if self.is_nothing_kept else "Each kept call is left out of the release"
        return f"{why}, so nothing is released"

    def lines(self, documents: int) -> list[str]:
        """What a note says of it; `documents` are the run's."""
        lines = [f"{documents:,} texts, {self.sampled:,} calls sampled, {self.scored:,} of them scored"]
        lines += [f"Without result: {failure}" for failure in self.failures]
        lines += [f"Nearest: {call}" for call in self.nearest]
        if self.thresholds:
            lines.append(f"Thresholds in nats: {'. '.join(map(str, self.thresholds))}")
        elif self.is_nothing_kept:
            lines.append("No threshold keeps one: no call saves anything")
        return lines


@dataclass(frozen=True)
class EvaluatedSuite:
    """The score of a trained model that calls tools, beside its base model's."""

    name: str
    """Suite and subset."""
    metric: str
    inputs: int
    score: float
    base_score: float | None
    """None if the base model was not evaluated."""

    def __str__(self) -> str:
        def written(score: float) -> str:
            return f"{score:.1%}" if self.metric == "share_correct" else f"{score:.4g}"

        before = "" if self.base_score is None else f", before finetuning {written(self.base_score)}"
        return f"{self.name} {self.metric.replace('_', ' ')} {written(self.score)} of {self.inputs:,} inputs{before}"


@dataclass(frozen=True)
class RunSummary:
    """What a run brought, compared with the run before it."""

    run_id: str
    state: str
    problem: str | None
    """Which tasks failed, or how it was ended; None for a success."""
    schedule: str | None
    previous_run_id: str | None
    """None if it is the first of its schedule."""
    corpus_uri: str
    corpus_version: int
    previous_corpus_version: int | None
    documents: int
    """Documents of the run. The next four fields count documents, too, compared with the previous run."""
    taken: TakenDocuments
    """How many the run was to take."""
    documents_added: int
    documents_removed: int
    documents_corrected: int
    """Documents of both runs whose record has another url, date or title."""
    documents_changed: int
    """Records whose id now has another text; counted in added and removed, too."""
    tools: tuple[ToolSummary, ...]
    device_seconds: float
    """Seconds of this run's own sampling and scoring, and of the execution of tools that need a device."""
    release_id: str | None
    """None if the run released nothing."""
    previous_release_id: str | None
    examples: int
    """Texts of the release."""
    examples_added: int
    examples_removed: int
    examples_with_other_calls: int
    nothing_released: NothingReleased | None
    """None if the run has a release, failed or works."""
    best_calls: tuple[BestCall, ...]
    """The new calls that save most."""
    model_id: str | None
    """The model that the run trained; None if it trained none."""
    scores: tuple[EvaluatedSuite, ...]
    lacking_tools: tuple[str, ...]
    approvals: tuple[str, ...]
    """What a person was asked before the run continued, and the answer."""
    warnings: tuple[str, ...]
    """Failed checks, and what else a reader must know."""

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
            and not any(tool.annotated or tool.annotated_by_failed for tool in self.tools)
            and self.release_id == self.previous_release_id
        )

    def as_dict(self) -> dict[str, Any]:
        """All numbers, as JSON values."""
        return {
            **asdict(self),
            "examples_changed": self.examples_changed,
            "is_nothing_new": self.is_nothing_new,
        }

    @property
    def headline(self) -> str:
        """What a reader must know, in one line of at most 120 characters."""
        if self.problem:
            return failure_headline(self.problem)
        if self.is_nothing_new:
            return "nothing new"
        if self.nothing_released:
            return self.nothing_released.headline
        calls = sum(tool.calls_added for tool in self.tools)
        news = [count_of(self.documents_added, "new text"), count_of(calls, "new call")]
        if self.model_id:
            news.append(f"model {self.model_id[:8]}")
        return ", ".join(news)

    def as_text(self) -> str:
        """Lines that a chat and Airflow's note show alike: what failed, or else the headline, and the rest."""
        if self.problem:
            return f"{self.problem}\n\n{self.body}"
        return f"- {self.headline[:1].upper()}{self.headline[1:]}\n{self.body}"

    @property
    def body(self) -> str:
        """What comes after the headline, and does not repeat it: at most nine lines, the first matter most."""
        # 1. What there is.
        if self.is_nothing_new:
            release = f"release {self.release_id}" if self.release_id else "no release"
            lines = [f"{self.documents:,} texts and {release} as before, nothing computed"]
        else:
            lines = self.nothing_released.lines(self.documents) if self.nothing_released else []
            lines.append(f"Corpus: {self._corpus()}")
            if not self.nothing_released:  # the headline says that there is none
                lines.append(f"Release: {self._release()}")
        # 2. What needs a person.
        told = [*self.approvals, *(f"Warning: {warning}" for warning in self.warnings)]
        if len(told) > SHOWN_WARNINGS:
            told[SHOWN_WARNINGS - 1 :] = [f"{len(told) - SHOWN_WARNINGS + 1} more warnings on the run's page"]
        lines += told
        # 3. What was kept, and what it made.
        if not self.is_nothing_new and not self.nothing_released:
            # That a person chose other tools before is no news; that a schedule's file did is.
            tools = [tool for tool in self.tools if tool.is_chosen or self.schedule]
            lines.append(f"Kept: {', '.join(map(self._kept_by, tools))}")
        lines += [f"New call: {call}" for call in self.best_calls]
        if self.scores:
            lines.append(f"Evaluation: {'; '.join(map(str, self.scores))}")
        return "\n".join(f"- {line}" for line in lines[:MOST_LINES])

    def _corpus(self) -> str:
        """Its texts, and those that are not new and moved; `of 1,400` if the run takes a part."""
        moves = {
            "gone": self.documents_removed,
            "with another url, date or title": self.documents_corrected,
            "of a record with another text": self.documents_changed,
        }
        moved = [f"{number:,} {what}" for what, number in moves.items() if number]
        words = f"{self.documents:,} texts"
        if self.taken.until_kept:
            words += (
                f" of {self.taken.documents:,}, until {self.taken.until_kept:,} calls of each tool are kept"
            )
        elif self.taken.is_cut:
            words += f" of {self.taken.corpus_documents:,}, by the document limit"
        compared = (
            f"compared with {self.previous_run_id}" if self.previous_run_id else "the first of its kind"
        )
        return f"{', '.join([words, *moved])}; {compared}"

    def _release(self) -> str:
        if self.release_id is None:
            neither = self.previous_run_id and self.previous_release_id is None
            return f"none{', as before: new and gone are the calls that the runs keep' if neither else ''}"
        if self.release_id == self.previous_release_id:
            return f"{self.release_id} as before, {self.examples:,} texts"
        words = f"{self.release_id}, {self.examples:,} texts"
        if self.previous_release_id is None:
            return words
        moves = {
            "new": self.examples_added,
            "gone": self.examples_removed,
            "with other calls": self.examples_with_other_calls,
        }
        moved = [f"{number:,} {what}" for what, number in moves.items() if number]
        return f"{words} ({', '.join(moved)}), before {self.previous_release_id}"

    def _kept_by(self, tool: ToolSummary) -> str:
        """What a tool keeps, such as `Calculator 14 (2 new, 1 gone)`; of a first run all are new."""
        kept = f"{tool.tool} {tool.kept:,}"
        moves = {"new": tool.calls_added, "gone": tool.calls_removed}
        moved = [f"{number:,} {what}" for what, number in moves.items() if number]
        return f"{kept} ({', '.join(moved)})" if moved and self.previous_run_id else kept


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
    """Documents that the run itself worked on, of each tool the stage with the most, summed over the
    tools."""
    device_seconds: float


def list_runs(connection: Connection, at_most: int) -> list[ListedRun]:
    """The newest runs, the newest first."""
    rows = database.fetch_all(
        connection, queries.summary.runs, at_most=at_most, device_tools=tools_on_device()
    )
    return [ListedRun(**row._asdict()) for row in rows]


def summarise(connection: Connection, run_id: str, other: str | None = None) -> RunSummary:
    """The summary of a run that is registered; before its end it is about what exists so far.

    It is compared with the run before it; with `other`, the later of the two is compared with the earlier.

    Raises:
        UsageError: there is no such run.
    """
    changes = find_changes(connection, run_id, other)
    run, before, run_id = changes.now, changes.before, changes.now.run_id
    # 1. The corpus, compared with the run before; the first run has all its documents anew.
    moved = Counter[str]()
    if before is not None:
        counted = database.fetch_one(
            connection,
            queries.summary.corpus_changes,
            corpus_id=run.corpus_id,
            version=run.corpus_version,
            ordinal_limit=below_ordinal(run.ordinal_limit),
            before_version=before.corpus_version,
            before_ordinal_limit=below_ordinal(before.ordinal_limit),
        )
        moved.update(counted._asdict())
    # 2. The tools.
    tool_rows = database.fetch_all(
        connection, queries.summary.tools, run_id=run_id, device_tools=tools_on_device()
    )
    rows = {row.tool: row for row in tool_rows}
    tools = _tool_summaries(connection, changes, rows)
    documents = max((row.documents for row in rows.values()), default=0)
    added = documents if before is None else moved["added"]
    # 3. What a reader must know.
    checks = database.fetch_all(connection, queries.summary.warnings, run_id=run_id)
    keeps_none = [row.subject for row in checks if row.check_name == KEEPS_NONE]
    said_once = {KEEPS_NONE, LACKS_TOOL} if keeps_none else set()
    warnings = [
        f"{row.subject}: {row.message or row.check_name}" for row in checks if row.check_name not in said_once
    ]
    if keeps_none:
        warnings.append(f"no call is kept of {', '.join(keeps_none)}")
    has_no_release = bool(rows) and run.state == SUCCESS and run.release_id is None
    if not has_no_release:
        warnings += [f"the release lacks {tool}" for tool in run.lacking_tools]
        if added and not changes.calls(is_added=True):
            warnings.append(f"{added:,} new documents, but no new kept call")
    answers = database.fetch_all(connection, queries.summary.approvals, run_id=run_id)
    # 4. The model, and how it does.
    models = database.fetch_all(connection, queries.summary.model, run_id=run_id)
    scores = database.fetch_all(connection, queries.summary.scores, run_id=run_id)
    best = database.fetch_all(connection, queries.summary.best_calls, at_most=SHOWN_CALLS)
    return RunSummary(
        run_id=run_id,
        state=run.state,
        problem=run.problem,
        schedule=run.schedule,
        previous_run_id=before.run_id if before else None,
        corpus_uri=run.corpus_uri,
        corpus_version=run.corpus_version,
        previous_corpus_version=before.corpus_version if before else None,
        documents=documents,
        taken=documents_taken(connection, run_id),
        documents_added=added,
        documents_removed=moved["removed"],
        documents_corrected=moved["corrected"],
        documents_changed=moved["changed"],
        tools=tools,
        device_seconds=float(sum(row.device_seconds for row in rows.values())),
        release_id=run.release_id,
        previous_release_id=before.release_id if before else None,
        examples=run.texts if run.release_id else 0,
        examples_added=changes.texts_added,
        examples_removed=changes.texts_removed,
        examples_with_other_calls=changes.texts_changed,
        nothing_released=_nothing_released(connection, run_id) if has_no_release else None,
        best_calls=tuple(map(BestCall.of, best)),
        model_id=models[0].model_id if models else None,
        scores=tuple(EvaluatedSuite(**row._asdict()) for row in scores),
        lacking_tools=run.lacking_tools,
        approvals=tuple(
            answer_in_words(row.step, row.is_approved, row.answered_by, row.answered_at) for row in answers
        ),
        warnings=tuple(warnings),
    )


def _nothing_released(connection: Connection, run_id: str) -> NothingReleased:
    kept = database.fetch_one(connection, queries.summary.kept_nothing, run_id=run_id)
    counts = database.fetch_all(connection, queries.summary.scored_by_tool, run_id=run_id)
    nearest = database.fetch_all(
        connection, queries.summary.nearest_calls, run_id=run_id, at_most=SHOWN_CALLS
    )
    lower = database.fetch_all(connection, queries.summary.lower_thresholds, run_id=run_id)
    failures = database.fetch_all(connection, queries.summary.failures, run_id=run_id, at_most=SHOWN_FAILURES)
    thresholds = [LowerThresholds.of(row) for row in lower]
    return NothingReleased(
        sampled=sum(row.calls for row in counts),
        scored=sum(row.scored for row in counts),
        is_nothing_kept=kept.kept_nothing,
        nearest=tuple(map(BestCall.of, nearest)),
        thresholds=tuple(threshold for threshold in thresholds if threshold.keeps),
        failures=tuple(CountedFailure(**row._asdict()) for row in failures),
    )


def answer_in_words(
    step: str, is_approved: bool, answered_by: str | None, answered_at: datetime.datetime
) -> str:
    """What a person answered, in one line; `answered_at` is in UTC."""
    question = step.replace("_", " ").capitalize()
    at = f"{answered_at:%Y-%m-%d %H:%M} UTC"
    if answered_by is None:
        return f"{question}: no answer by {at}; this counts as no"
    return f"{question}: {'approved' if is_approved else 'rejected'} by {answered_by}, {at}"


def _tool_summaries(
    connection: Connection, changes: ReleaseChanges, rows: Mapping[str, Row[Any]]
) -> tuple[ToolSummary, ...]:
    """What each tool brought, also a tool that only the run before has.

    `rows` are those of this run's tools.
    """
    run_id, before_run_id = changes.now.run_id, changes.before.run_id if changes.before else None
    rates = {row.tool: row for row in database.fetch_all(connection, queries.summary.rates, run_id=run_id)}
    failed = Counter[tuple[str, str]]()
    for earlier in database.fetch_all(
        connection, queries.summary.failed_runs, run_id=run_id, before_run_id=before_run_id
    ):
        work = database.fetch_all(
            connection, queries.summary.failed_work, run_id=run_id, failed_run_id=earlier.run_id
        )
        failed.update({(row.tool, row.stage): row.documents for row in work})
    summaries = []
    for tool in sorted({*rows, *(count.tool for count in changes.counts)}):
        done = rows[tool].done_by_stage if tool in rows else {}
        annotated = max(done.values(), default=0)
        added: dict[str, int] = {}
        removed: dict[str, int] = {}
        for count in changes.counts:
            if count.tool == tool:
                by_reason = added if count.is_added else removed
                by_reason[count.reason] = count.calls
        with_failed = max((count + failed[tool, stage] for stage, count in done.items()), default=0)
        summaries.append(
            ToolSummary(
                tool=tool,
                is_chosen=tool in rows,
                annotated=annotated,
                done_by_stage=done,
                annotated_by_failed=with_failed - annotated,
                reused=max(rows[tool].documents - with_failed, 0) if tool in rows else 0,
                calls_added=sum(added.values()),
                calls_removed=sum(removed.values()),
                added_by_reason=added,
                removed_by_reason=removed,
                kept=rates[tool].calls if tool in rates else 0,
                kept_by_chance=kept_by_chance(rates[tool]) if tool in rates else "no placebos",
            )
        )
    return tuple(summaries)
