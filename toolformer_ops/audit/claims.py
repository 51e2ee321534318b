"""Claims about stored rows, a statement each: `sql/audits/NAME.sql` returns the rows that break the claim.

A file begins with what it says:

    -- fail: the claim, as in "expected ..."
    -- corpus | run | release | all: whose rows; the kind of finding; the table
    -- remedy: what a person does

and returns `place` and `found`, and `relation` if it is of several tables. Nothing here is repaired: what breaks a claim
follows from nothing older.
"""

import functools
import re
from dataclasses import dataclass

from sqlalchemy import text

from toolformer_ops.audit.auditing import MOST_FINDINGS, Auditing, Check, Finding, Kind, Page
from toolformer_ops.errors import DatabaseError
from toolformer_ops.stages.checking import RELEASE_CHECKS, TOOL_CHECKS
from toolformer_ops.storage import database

HEAD = re.compile(
    r"-- fail: (?P<claim>.+)\n-- (?P<scope>corpus|run|release|all): (?P<kind>\w+) (?P<relation>\w+)\n-- remedy: (?P<remedy>.+)\n"
)


@dataclass(frozen=True)
class Claim:
    """What a file of `sql/audits` says."""

    name: str
    claim: str
    scope: str
    """Whose rows: those of the audit's corpora, runs or releases; all: of an audit of everything alone."""
    kind: Kind
    relation: str
    remedy: str
    statement: str

    @classmethod
    def load(cls, name: str) -> "Claim":
        """The claim in `sql/audits/NAME.sql`.

        Raises:
            DatabaseError: the file does not begin as it has to.
        """
        path = database.SQL_DIR / "audits" / f"{name}.sql"
        content = path.read_text(encoding="utf-8")
        head = HEAD.match(content)
        if head is None:
            raise DatabaseError(
                f"{path}: expected lines '-- fail: ', '-- SCOPE: KIND TABLE' and '-- remedy: ' at its head."
            )
        return cls(name=name, statement=content[head.end() :], **head.groupdict())  # type: ignore[arg-type]

    def check(self) -> Check:
        """The check of an audit."""
        return Check(self.name.replace("_", " "), self._subjects, self._page)

    def _subjects(self, auditing: Auditing) -> list[str]:
        subjects = auditing.subjects
        looked_at = {
            "all": subjects.is_all,
            "corpus": bool(subjects.corpora) and subjects.has_rows,
            "run": bool(subjects.run_ids) and subjects.has_rows,
            "release": bool(subjects.releases),
        }
        return [""] if looked_at[self.scope] else []

    def _page(self, auditing: Auditing, _: str, __: str) -> Page:
        subjects = auditing.subjects
        ids = {
            "corpus_ids": [corpus_id for corpus_id, _ in subjects.corpora],
            "run_ids": list(subjects.run_ids),
            "release_ids": [row.release_id for row in subjects.releases],
            "recipe_ids": subjects.recipe_ids(),
            "tool_checks": sorted({name for names in TOOL_CHECKS.values() for name in names}),
            "release_checks": sorted({name for names in RELEASE_CHECKS.values() for name in names}),
        }
        statement = text(f"select * from (\n{self.statement}\n) offending order by place limit {MOST_FINDINGS}")  # noqa: S608
        with database.transaction(auditing.engine) as connection, database.translating(f"audit {self.name}"):
            rows = connection.execute(statement, ids).all()
        page = Page(items=max(1, len(ids.get(f"{self.scope}_ids", ()))))
        for row in rows:
            relation = row._mapping.get("relation", self.relation)
            what = f"expected {self.claim}, found {row.found}"
            page.findings.append(Finding(self.kind, relation, row.place, what, self.remedy))
        return page


@functools.cache
def claim_checks() -> tuple[Check, ...]:
    """The checks of all files of `sql/audits`."""
    names = sorted(path.stem for path in (database.SQL_DIR / "audits").glob("*.sql"))
    return tuple(Claim.load(name).check() for name in names)
