"""Claims about all stored rows as checks of an audit: those of `sql/audits` with a scope of audits (`storage/claims.py`).

Their statements return `place` and `found`, `relation` if it is of several tables, and `repair` if `repairing.py` can mend it.
"""

import functools
from typing import cast

from sqlalchemy import text

from toolformer_ops.audit.auditing import MOST_FINDINGS, Auditing, Check, Finding, Kind, Page
from toolformer_ops.storage import database
from toolformer_ops.storage.claims import Claim, all_claims, claims_of

SCOPES = ("all", "corpus", "run", "release", "model")


def claim_checks() -> tuple[Check, ...]:
    """The checks of all claims with a scope of audits, by name: of two findings of one place the first is stored."""
    return tuple(
        Check(claim.name.replace("_", " "), functools.partial(_subjects, scope), functools.partial(_page, claim, scope))
        for claim in all_claims()
        for scope in SCOPES
        if scope in claim.scopes
    )


def _subjects(scope: str, auditing: Auditing) -> list[str]:
    subjects = auditing.subjects
    looked_at = {
        "all": subjects.is_all,
        "corpus": bool(subjects.corpora) and subjects.has_rows,
        "run": bool(subjects.run_ids) and subjects.has_rows,
        "release": bool(subjects.releases),
        "model": bool(subjects.models),
    }
    return [""] if looked_at[scope] else []


def _page(claim: Claim, scope: str, auditing: Auditing, _: str, __: str) -> Page:
    subjects = auditing.subjects
    ids = {
        "corpus_ids": [corpus_id for corpus_id, _ in subjects.corpora],
        "run_ids": list(subjects.run_ids),
        "release_ids": [row.release_id for row in subjects.releases],
        "model_ids": [row.model_id for row in subjects.models],
        "recipe_ids": subjects.recipe_ids(),
        "tool_checks": [check.name for check in claims_of("tool")],
        "release_checks": [check.name for check in claims_of("files")],
    }
    statement = text(f"select * from (\n{claim.statement}\n) offending order by place limit {MOST_FINDINGS}")  # noqa: S608
    with database.transaction(auditing.engine) as connection, database.translating(f"audit {claim.name}"):
        rows = connection.execute(statement, ids).all()
    kind, relation = claim.scopes[scope].split(" ")
    page = Page(items=max(1, len(ids.get(f"{scope}_ids", ()))))
    for row in rows:
        what = f"expected {claim.sentence}, found {row.found}"
        more = {"relation": relation, "repair": None} | dict(row._mapping)
        page.findings.append(
            Finding(cast(Kind, kind), more["relation"], row.place, what, claim.remedy, repair=more["repair"])
        )
    return page
