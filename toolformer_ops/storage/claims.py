"""The claims of `sql/audits`: what is true of stored rows and of released files, a sentence and a statement each.

A file begins with what it says:

    -- fail: the claim, as in "expected ..."       (warn: what does not hold stops no run)
    -- tool: checked_calls                         (a line for each scope)
    -- remedy: what a person does

and then returns the rows that break the claim.

| scope | whose rows | behind the colon | read by |
|---|---|---|---|
| `tool` | a tool's new rows in a run, before they count as done | the table of rows to check, `{batch}` | `audit/checking.py` |
| `files` | the files of a run's release, as they are on S3 | the same | `audit/checking.py` |
| `corpus`, `run`, `release`, `model` | all rows of those that an audit looks at | kind of the finding, table | `audit/claims.py` |
| `all` | all rows, in an audit of everything alone | the same | `audit/claims.py` |

What a constraint of the tables makes true is no claim here (`tests/integration/test_checking.py` lists these).
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from toolformer_ops.errors import DatabaseError
from toolformer_ops.storage import database

_HEAD = re.compile(
    r"-- (?P<severity>fail|warn): (?P<sentence>.+)\n"
    r"(?P<scopes>(?:-- (?:tool|files|corpus|run|release|model|all): \w+(?: \w+)?\n)+)"
    r"-- remedy: (?P<remedy>.+)\n"
)


@dataclass(frozen=True)
class Claim:
    """What a file of `sql/audits` says."""

    name: str
    """The file's, and that of a check in `quality_results`."""
    severity: str
    """`fail` or `warn`."""
    sentence: str
    """The claim in words, such as `position probabilities in [0, 1]`."""
    scopes: Mapping[str, str]
    """By scope, what stands behind it."""
    remedy: str
    statement: str
    """Returns the rows that break the claim; the first column names a row."""

    @classmethod
    def load(cls, name: str) -> "Claim":
        """The claim in `sql/audits/NAME.sql`.

        Raises:
            DatabaseError: the file does not begin as it has to.
        """
        path = database.SQL_DIR / "audits" / f"{name}.sql"
        content = path.read_text(encoding="utf-8")
        head = _HEAD.match(content)
        if head is None:
            raise DatabaseError(
                f"{path}: expected lines '-- fail: CLAIM' (or warn), '-- SCOPE: ...' and '-- remedy: ...' at its head."
            )
        scopes = dict(line.removeprefix("-- ").split(": ") for line in head["scopes"].splitlines())
        return cls(name, head["severity"], head["sentence"], scopes, head["remedy"], content[head.end() :])


@functools.cache
def all_claims() -> tuple[Claim, ...]:
    """All claims, by name."""
    return tuple(Claim.load(path.stem) for path in sorted((database.SQL_DIR / "audits").glob("*.sql")))


def claims_of(scope: str) -> tuple[Claim, ...]:
    """The claims about rows of this scope, by name."""
    return tuple(claim for claim in all_claims() if scope in claim.scopes)
