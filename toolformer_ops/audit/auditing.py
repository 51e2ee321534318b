"""One audit: what it looks at, its checks page by page, and what it found (tables `audits`, `audit_checks`, `audit_findings`).

A check looks at subjects (a recipe, a corpus, a release) in pages of bounded size. The findings of a page and
how far the check has come are committed together, so that an audit that was interrupted continues after its
last page. Each page reads one snapshot of the database, in which a document's rows and its ledger row are
both there or both missing: an audit can run beside the stages.
"""

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import Connection, Engine, Row

from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.runs.run_tools import RECIPE_OF_STAGE
from toolformer_ops.storage.corpora.addresses import corpus_id_of
from toolformer_ops.storage.history.files import OF_STAGE
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.partitions import PARTITIONED_TABLES
from toolformer_ops.storage.postgres.queries import Statement

logger = logging.getLogger(__name__)

Scope = Literal["all", "corpus", "run", "release", "model"]
Kind = Literal["lost", "doubled", "changed", "orphaned"]

PAGE_DOCUMENTS = 5000
"""Documents of one statement: their rows are some 100 MB in Postgres, which sorts them by index."""
MOST_FINDINGS = 1000
"""Findings of one page that are stored: if a whole partition is lost, one example of each document adds
nothing."""
ORPHANS_AFTER = timedelta(hours=24)
"""The age from which objects, folders and texts that nothing names are orphans; until then a process may be
writing them."""
NO_DOCUMENT = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Finding:
    """Something that is not what it should be."""

    kind: Kind
    relation: str
    """Table, `object` or `folder`."""
    place: str
    what: str
    """What was expected, and what was found."""
    remedy: str
    repair: dict[str, Any] | None = None
    """What `repairing.py` does about it."""


@dataclass
class Page:
    """What a check found on one page."""

    items: int = 0
    unprovable: int = 0
    """Items with nothing to compare with."""
    findings: list[Finding] = field(default_factory=list)
    position: str | None = None
    """Where the next page begins; None: the subject is done."""

    def add(
        self,
        kind: Kind,
        relation: str,
        place: str,
        what: str,
        remedy: str,
        repair: dict[str, Any] | None = None,
    ) -> None:
        """Add a finding; the arguments are its fields."""
        self.findings.append(
            Finding(kind=kind, relation=relation, place=place, what=what, remedy=remedy, repair=repair)
        )


@dataclass(frozen=True)
class Subjects:
    """What an audit looks at."""

    scope: Scope
    """`all`: everything is looked at, so that what nothing names is an orphan."""
    scope_id: str
    corpus_ids: tuple[str, ...]
    run_ids: tuple[str, ...]
    tools: tuple[Row[Any], ...]
    """The tools of the runs, with their recipes; `placebo_recipe_id` is None if the run has no placebos."""
    releases: tuple[Row[Any], ...]
    models: tuple[Row[Any], ...]
    artifacts: tuple[Row[Any], ...]

    def recipe_ids(self, stages: Collection[str] = RECIPE_OF_STAGE) -> list[str]:
        """The recipes of these stages of the tools, each once."""
        recipe_ids: dict[str, None] = {}
        for tool in self.tools:
            for stage in stages:
                if recipe_id := getattr(tool, RECIPE_OF_STAGE[stage]):
                    recipe_ids[recipe_id] = None
        return list(recipe_ids)

    @property
    def has_rows(self) -> bool:
        """Whether rows of stages belong to it; a release and a model are their objects."""
        return self.scope in ("all", "corpus", "run")


@dataclass
class Auditing:
    """What checks need: services and subjects."""

    settings: Settings
    engine: Engine
    store: ObjectStore
    subjects: Subjects
    audit_id: int
    orphans_after: timedelta = ORPHANS_AFTER
    page_documents: int = PAGE_DOCUMENTS

    def in_history_alone(self) -> set[str]:
        """The recipes whose calls, losses or placebos retention has dropped, as the history has them."""
        rows = database.fetch_all(
            self.engine,
            queries.audited_rows.in_history_alone,
            recipe_ids=self.subjects.recipe_ids(OF_STAGE),
            table_of_stage=dict(OF_STAGE),
        )
        return {row.recipe_id for row in rows}

    def detached(self) -> list[Row[Any]]:
        """The partitions of the recipes, as `relation` and `recipe_id`, that were detached from their tables."""
        return database.fetch_all(
            self.engine,
            queries.audited_rows.detached,
            tables=list(PARTITIONED_TABLES),
            recipe_ids=self.subjects.recipe_ids(),
        )


@dataclass(frozen=True)
class Check:
    """One question about each of some subjects."""

    name: str
    subjects: Callable[[Auditing], Sequence[str]]
    page: Callable[[Auditing, str, str], Page]
    """Computes the page of a subject after a position; the position is empty at first."""


@dataclass(frozen=True)
class AuditOutcome:
    """What an audit looked at and found."""

    audit_id: int
    checks: tuple[Row[Any], ...]
    """What each looked at and found: `name`, `items`, `unprovable`, `findings`, `seconds`."""
    findings: int
    repaired: int

    @property
    def wrong(self) -> int:
        """Findings that are not repaired."""
        return self.findings - self.repaired


def subjects_of(connection: Connection, scope: Scope, scope_id: str) -> Subjects:
    """What belongs to a corpus (given by id or address), run, release or model, or everything.

    It raises `UsageError` if it is not known.
    """
    if scope == "corpus":
        corpora_of_id = database.fetch_all(
            connection, queries.audits.scope_corpora, scope=scope, scope_id=scope_id
        )
        scope_id = scope_id if corpora_of_id else corpus_id_of(scope_id)
    key = {"scope": scope, "scope_id": scope_id}
    runs = database.fetch_all(connection, queries.audits.scope_runs, **key)
    corpora = database.fetch_all(connection, queries.audits.scope_corpora, **key)
    releases = database.fetch_all(connection, queries.audits.scope_releases, **key)
    models = database.fetch_all(connection, queries.audits.scope_models, **key)
    members = {"all": True, "corpus": corpora, "run": runs, "release": releases, "model": models}[scope]
    if not members:
        tables = {
            "corpus": "corpora",
            "run": "annotation_runs",
            "release": "dataset_releases",
            "model": "finetuned_models",
        }
        raise UsageError(
            f"--{scope}: expected a known {scope}, found {scope_id!r}. The table {tables[scope]} lists them."
        )
    return Subjects(
        scope=scope,
        scope_id=scope_id,
        corpus_ids=tuple(row.corpus_id for row in corpora),
        run_ids=tuple(dict.fromkeys(row.run_id for row in runs)),
        tools=tuple(row for row in runs if row.tool is not None),
        releases=tuple(releases),
        models=tuple(models),
        artifacts=tuple(database.fetch_all(connection, queries.audits.scope_artifacts))
        if scope == "all"
        else (),
    )


def run_check(auditing: Auditing, check: Check) -> None:
    """Do what is left of a check, page by page."""
    for subject in check.subjects(auditing):
        place = {"audit_id": auditing.audit_id, "check_name": check.name, "subject": subject}
        begun = database.fetch_all(auditing.engine, queries.audits.progress, **place)
        if begun and begun[0].is_finished:
            continue
        position: str | None = begun[0].position if begun else ""
        items, told = 0, time.monotonic()
        while position is not None:
            started = time.monotonic()
            page = check.page(auditing, subject, position)
            position = page.position
            items += page.items
            with database.transaction(auditing.engine) as connection:
                if page.findings:
                    findings = json.dumps([vars(finding) for finding in page.findings])
                    database.execute(
                        connection,
                        queries.audits.insert_findings,
                        audit_id=auditing.audit_id,
                        check_name=check.name,
                        found=findings,
                    )
                database.execute(
                    connection, queries.audits.advance, **place, position=position, items=page.items, unprovable=page.unprovable,
                    seconds=time.monotonic() - started,
                )  # fmt: skip
            if time.monotonic() - told > 10:
                told = time.monotonic()
                logger.info("%s %s: %d looked at", check.name, subject, items)


def conclude(auditing: Auditing, checks: Sequence[Check]) -> AuditOutcome:
    """Close the audit, and return what it looked at and found."""
    with database.transaction(auditing.engine) as connection:
        rows = database.fetch_all(connection, queries.audits.sums, audit_id=auditing.audit_id)
        count = database.fetch_one(connection, queries.audits.count, audit_id=auditing.audit_id)
        database.execute(connection, queries.audits.close, audit_id=auditing.audit_id)
    sums = {row.name: row for row in rows}
    looked_at = tuple(sums[check.name] for check in checks if check.name in sums)
    return AuditOutcome(auditing.audit_id, looked_at, count.found, count.repaired)


def findings_of(engine: Engine, audit_id: int) -> Iterator[Row[Any]]:
    """The findings of an audit, in the order in which they were found."""
    after = 0
    while rows := database.fetch_all(
        engine, queries.audits.findings, audit_id=audit_id, after=after, page_size=MOST_FINDINGS
    ):
        yield from rows
        after = rows[-1].finding_id


def statement_page(auditing: Auditing, statement: Statement, **parameters: object) -> Page:
    """The page that a statement returns: one row with `position`, `items`, `unprovable` and `found`."""
    row = database.fetch_one(auditing.engine, statement, most_findings=MOST_FINDINGS, **parameters)
    return Page(row.items, row.unprovable, [Finding(**finding) for finding in row.found], row.position)
