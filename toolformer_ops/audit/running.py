"""A whole audit: every check of a scope, one after the other, and the repair of what can be repaired.

One audit of a scope runs at a time; a second waits for its end.
"""

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta

from toolformer_ops.audit.auditing import (
    ORPHANS_AFTER,
    PAGE_DOCUMENTS,
    Auditing,
    AuditOutcome,
    Check,
    Scope,
    conclude,
    findings_of,
    run_check,
    subjects_of,
)
from toolformer_ops.audit.claims import claim_checks
from toolformer_ops.audit.evaluations import EVALUATION_CHECKS
from toolformer_ops.audit.history import HISTORY_CHECKS
from toolformer_ops.audit.objects import OBJECT_CHECKS
from toolformer_ops.audit.repairing import accept_numbers, planned, repair
from toolformer_ops.audit.resampling import resampling_check
from toolformer_ops.audit.rows import NUMBER_CHECKS, ROW_CHECKS
from toolformer_ops.config import Settings
from toolformer_ops.errors import NoResultError
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, queries, sessions

logger = logging.getLogger(__name__)

MOST_SHOWN = 50
"""Findings that are printed; the table `audit_findings` holds all."""


def audit(
    settings: Settings,
    scope: Scope = "all",
    scope_id: str = "",
    *,
    sample: int = 0,
    seed: str = "",
    plans: bool = False,
    repairs: bool = False,
    accepts: bool = False,
    say: Callable[[str], None] = logger.info,
    orphans_after: timedelta = ORPHANS_AFTER,
    page_documents: int = PAGE_DOCUMENTS,
) -> AuditOutcome:
    """Audit everything, or what belongs to one corpus, run, release or model.

    Continues an interrupted audit of the same scope.

    Args:
        settings: of the deployment.
        scope: what to audit.
        scope_id: the corpus (or its address), run, release or model.
        sample: about how many calls the engine computes again.
        seed: chooses which ones, together with their content.
        plans: say what `repairs` would do.
        repairs: mend what can be mended.
        accepts: store what the rows of the run `scope_id` give instead of its stored numbers.
        say: takes one line for each check, finding and repair, as they come.
        orphans_after: minimum age of an orphan; younger ones may still be in use.
        page_documents: documents of one statement; decides no finding.

    Raises:
        UsageError: there is no such corpus, run, release or model.
        DatabaseError, ObjectStoreError: the next audit continues there.
    """
    with database.session(database.connect(settings)) as session:
        with database.transaction(session) as connection:
            name = f"audit of {scope} {scope_id}"
            database.fetch_all(connection, queries.locks.session, name=name, seconds=sessions.OTHERS_SECONDS)
        # 1. Begin, or continue the audit of this scope that was interrupted.
        auditing = _begin(settings, scope, scope_id, orphans_after, page_documents)
        # 2. The checks.
        checks: tuple[Check, ...] = (
            *ROW_CHECKS,
            *claim_checks(),
            *OBJECT_CHECKS,
            *HISTORY_CHECKS,
            *EVALUATION_CHECKS,
            *NUMBER_CHECKS,
            resampling_check(sample, seed),
        )
        for check in checks:
            run_check(auditing, check)
        outcome = conclude(auditing, checks)
        for line in (*check_lines(outcome), *report(auditing, outcome)):
            say(line)
        # 3. Repair, or what it would do.
        if accepts and outcome.wrong:
            accepted = accept_numbers(auditing, scope_id)
            say(f"accepted: {accepted} findings; the numbers of {scope_id} are those of its rows")
            outcome = conclude(auditing, checks)
        elif repairs and outcome.wrong:
            repaired = f"repaired {repair(auditing)} of {outcome.findings}"
            say(f"{repaired}; the next run with these recipes computes the rows that were deleted")
            outcome = conclude(auditing, checks)
        elif plans and outcome.wrong:
            for line in plan_lines(auditing):
                say(line)
        auditing.engine.dispose()
        return outcome


def _begin(
    settings: Settings, scope: Scope, scope_id: str, orphans_after: timedelta, page_documents: int
) -> Auditing:
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        subjects = subjects_of(connection, scope, scope_id)
        row = database.fetch_one(connection, queries.audits.open, scope=scope, scope_id=subjects.scope_id)
    if row.is_continued:
        logger.info(
            "audit %d of %s %s was interrupted: continuing it", row.audit_id, scope, subjects.scope_id
        )
    return Auditing(
        settings=settings,
        engine=engine,
        store=ObjectStore(settings),
        subjects=subjects,
        audit_id=row.audit_id,
        orphans_after=orphans_after,
        page_documents=page_documents,
    )


def check_lines(outcome: AuditOutcome) -> Iterator[str]:
    """What each check looked at, in a line."""
    for check in outcome.checks:
        unprovable = f", {check.unprovable:,} that could not be compared" if check.unprovable else ""
        findings = f"{check.findings:,} found" if check.findings else "nothing found"
        yield f"{check.name}: {check.items:,} looked at{unprovable}, {findings}, {check.seconds:.1f} s"


def plan_lines(auditing: Auditing) -> Iterator[str]:
    """What a repair would do, in at most `MOST_SHOWN` lines and one for the rest."""
    lines = list(planned(auditing))
    for line in lines[:MOST_SHOWN]:
        yield f"--repair --yes would {line}"
    if not lines:
        yield "nothing of it can be repaired by this command"
    elif len(lines) > MOST_SHOWN:
        yield f"and {len(lines) - MOST_SHOWN} more"


def report(auditing: Auditing, outcome: AuditOutcome) -> list[str]:
    """The findings, a line each, as Markdown: the first ones, and how many more there are."""
    if not outcome.findings:
        return [f"audit {outcome.audit_id}: nothing is wrong"]
    lines = [f"audit {outcome.audit_id}: {outcome.findings} findings (table audit_findings)"]
    for number, row in enumerate(findings_of(auditing.engine, outcome.audit_id)):
        if number == MOST_SHOWN:
            lines.append(f"- and {outcome.findings - MOST_SHOWN} more")
            break
        lines.append(f"- {row.kind}: {row.relation} {row.place}: {row.what}. {row.remedy}")
    return lines


def require_sound(outcome: AuditOutcome) -> None:
    """Raise a `NoResultError` that says how much is wrong and not repaired, if something is."""
    if outcome.wrong:
        raise NoResultError(
            f"audit {outcome.audit_id}: expected nothing lost, doubled, changed or orphaned, found "
            f"{outcome.wrong} places. The table audit_findings names each with its remedy; `toolformer-ops "
            "audit --repair` mends what can be derived again."
        )
