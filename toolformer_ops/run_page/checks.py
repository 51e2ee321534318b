"""Checks: what the quality checks of a run found, of each tool and of the release, with what to do where one does not hold.

The claims and their remedies are those of `sql/audits`; what was found is in `quality_results`.
"""

import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection, Row

from toolformer_ops.audit.claims import all_claims
from toolformer_ops.run_page.reading import Page, ReaderDep, answer
from toolformer_ops.run_page.rights import AskedRunDep
from toolformer_ops.run_page.shown_runs import SECONDS_WHILE_RUNNING, load_run
from toolformer_ops.storage.postgres import queries
from toolformer_ops.storage.postgres.database import fetch_all

router = APIRouter()

EXAMPLE_CHARACTERS = 200
"""Longest value of an example that is shown whole."""


@dataclass(frozen=True)
class ShownCheck:
    """The newest outcome of a check."""

    subject: str
    """A tool's name, or release."""
    name: str
    sentence: str
    """What it claims; the stored message for a check that this version does not have any more."""
    remedy: str
    """What a person does if it does not hold; empty for such a check."""
    severity: str
    """fail stops the run, warn reports."""
    success: bool
    rows: int
    """Rows that were looked at."""
    unexpected: int
    """Rows of them that break the claim."""
    columns: tuple[str, ...]
    examples: tuple[tuple[str, ...], ...]
    """The first rows that break it, as text."""
    checked_at: datetime.datetime

    @classmethod
    def of(cls, row: Row[Any]) -> "ShownCheck":
        """The check of a row of `page.quality`."""
        claim = next((claim for claim in all_claims() if claim.name == row.check_name), None)
        examples: Sequence[Mapping[str, Any]] = row.observed.get("examples", ())
        columns = tuple(dict.fromkeys(itertools.chain.from_iterable(examples)))
        return cls(
            subject=row.subject,
            name=row.check_name,
            sentence=claim.sentence if claim else row.message,
            remedy=claim.remedy if claim else "",
            severity=row.severity,
            success=row.success,
            rows=row.observed.get("rows", 0),
            unexpected=row.observed.get("unexpected", 0),
            columns=columns,
            examples=tuple(_cells(example, columns) for example in examples),
            checked_at=row.checked_at,
        )


@router.get("/checks")
async def show(request: Request, reader: ReaderDep, run_address: AskedRunDep) -> Response:
    """The checks of a run: those that do not hold with examples, then all others."""

    def make(connection: Connection) -> Page:
        run = load_run(connection, run_address)
        checks = [
            ShownCheck.of(row) for row in fetch_all(connection, queries.page.quality, run_id=run.run_id)
        ]
        values = {
            "run": run,
            "view": "checks",
            "broken": [check for check in checks if not check.success],
            "holding": [check for check in checks if check.success],
            "subjects": sorted({check.subject for check in checks}),
            "refresh": None if run.has_stored_numbers else SECONDS_WHILE_RUNNING,
        }
        return Page("checks.html.j2", values, run.seconds_to_keep)

    return await answer(request, make)


def _cells(example: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    """An example's values in the order of the columns, long ones cut."""
    cells = []
    for name in columns:
        value = example.get(name)
        text = "" if value is None else str(value)
        cells.append(text if len(text) <= EXAMPLE_CHARACTERS else f"{text[: EXAMPLE_CHARACTERS - 1]}…")
    return tuple(cells)
