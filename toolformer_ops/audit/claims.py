"""The claims of `sql/audits`: what is true of stored rows and of released files, a sentence and a statement each.

A file holds those of one subject. Below the name of a claim is what it says:

    -- name: probabilities_are_probabilities
    -- fail: the claim, as in "expected ..."       (warn: what does not hold stops no run)
    -- files: checked_calls                        (a line for each scope)
    -- remedy: what a person does                  (or a line at the head of the file, for its claims without)

and then the statement that returns the rows that break the claim.

| scope | whose rows | after the colon | read by |
|---|---|---|---|
| `tool` | a tool's new rows in a run, before they count as done | rows of `queries/checks.sql`, `{batch}` |
`checking.py` |
| `files` | the files of a run's release, as they are on S3 | the same | `checking.py` |
| `corpus`, `run`, `release`, `model` | all rows of those that an audit looks at | kind of the finding, table
| `claim_checks` |
| `all` | all rows, in an audit of everything alone | the same | `claim_checks` |

A statement of the first two returns a name of the row first; one of the others `place` and `found`,
`relation` if it is of several tables, and `repair` if `repairing.py` can mend it.

What a constraint of the tables makes true is no claim here (`tests/integration/test_checking.py` lists
these).
"""

import functools
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from sqlalchemy import text

from toolformer_ops.audit.auditing import MOST_FINDINGS, Auditing, Check, Kind, Page
from toolformer_ops.errors import DatabaseError
from toolformer_ops.storage.postgres import database
from toolformer_ops.storage.postgres.queries import HEADING

AUDIT_SCOPES = ("all", "corpus", "run", "release", "model")
_REMEDY = re.compile(r"^-- remedy: (.+)\n", re.MULTILINE)
_HEAD = re.compile(
    r"\n-- (?P<severity>fail|warn): (?P<sentence>.+)\n"
    r"(?P<scopes>(?:-- (?:tool|files|corpus|run|release|model|all): \w+(?: \w+)?\n)+)"
    r"(?:-- remedy: (?P<remedy>.+)\n)?"
)


@dataclass(frozen=True)
class Claim:
    """What `sql/audits` says of one claim."""

    name: str
    """Also that of a check in `quality_results`."""
    severity: str
    """`fail` or `warn`."""
    sentence: str
    """The claim in words, such as `position probabilities in [0, 1]`."""
    scopes: Mapping[str, str]
    """By scope, what is after it."""
    remedy: str
    statement: str
    """Returns the rows that break the claim."""


@functools.cache
def all_claims() -> tuple[Claim, ...]:
    """All claims, by name; raises `DatabaseError` if one does not begin as it has to."""
    claims = []
    for path in (database.SQL_DIR / "audits").glob("*.sql"):
        head_of_file, *parts = HEADING.split(path.read_text(encoding="utf-8"))
        remedy_of_file = _REMEDY.search(head_of_file)
        for name, content in zip(parts[::2], parts[1::2], strict=True):
            head = _HEAD.match(content)
            remedy = head and (head["remedy"] or (remedy_of_file and remedy_of_file[1]))
            if head is None or not remedy:
                raise DatabaseError(
                    f"{path}: expected lines '-- fail: CLAIM' (or warn), '-- SCOPE: ...' and '-- remedy: "
                    f"...' below {name}."
                )
            scopes = dict(line.removeprefix("-- ").split(": ") for line in head["scopes"].splitlines())
            statement = content[head.end() :].strip()
            claims.append(
                Claim(
                    name=name,
                    severity=head["severity"],
                    sentence=head["sentence"],
                    scopes=scopes,
                    remedy=remedy,
                    statement=statement,
                )
            )
    return tuple(sorted(claims, key=lambda claim: claim.name))


def claims_of(scope: str) -> tuple[Claim, ...]:
    """The claims about rows of this scope, by name."""
    return tuple(claim for claim in all_claims() if scope in claim.scopes)


def claim_checks() -> tuple[Check, ...]:
    """The checks of all claims with a scope of audits, by name: of two findings of one place the first is stored."""
    scopes = itertools.product(all_claims(), AUDIT_SCOPES)
    return tuple(claim_check(claim, scope) for claim, scope in scopes if scope in claim.scopes)


def claim_check(claim: Claim, scope: str) -> Check:
    """The check of an audit that a claim about all rows of this scope holds.

    It is one page, of what belongs to the audit's subjects.
    """

    def subjects(auditing: Auditing) -> list[str]:
        members = auditing.subjects
        looked_at = {
            "all": members.scope == "all",
            "corpus": bool(members.corpus_ids) and members.has_rows,
            "run": bool(members.run_ids) and members.has_rows,
            "release": bool(members.releases),
            "model": bool(members.models),
        }
        return [""] if looked_at[scope] else []

    def page(auditing: Auditing, _: str, __: str) -> Page:
        ids = {
            "corpus_ids": list(auditing.subjects.corpus_ids),
            "run_ids": list(auditing.subjects.run_ids),
            "release_ids": [row.release_id for row in auditing.subjects.releases],
            "model_ids": [row.model_id for row in auditing.subjects.models],
            "recipe_ids": auditing.subjects.recipe_ids(),
            "tool_checks": [check.name for check in claims_of("tool")],
            "release_checks": [check.name for check in claims_of("files")],
        }
        offending = f"select * from (\n{claim.statement}\n) offending"  # noqa: S608 - of sql/audits, without values
        statement = text(f"{offending} order by place limit {MOST_FINDINGS}")
        with database.transaction(auditing.engine) as connection, database.translating(f"audit {claim.name}"):
            rows = connection.execute(statement, ids).all()
        kind, relation = claim.scopes[scope].split(" ")
        page = Page(items=max(1, len(ids.get(f"{scope}_ids", ()))))
        for row in rows:
            more = {"relation": relation, "repair": None} | dict(row._mapping)
            what = f"expected {claim.sentence}, found {row.found}"
            page.add(cast(Kind, kind), more["relation"], row.place, what, claim.remedy, repair=more["repair"])
        return page

    return Check(claim.name.replace("_", " "), subjects, page)
