"""Whose run it is."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from toolformer_ops.errors import UsageError
from toolformer_ops.runs.owners import COMMAND_LINE, DagRun

NIGHT = datetime(2026, 11, 26, 2, 0, 0, 123456, tzinfo=UTC)


def row(dag_id: str | None, run_after: datetime | None) -> Any:
    return SimpleNamespace(dag_id=dag_id, dag_run_after=run_after)


def test_a_dag_run_is_read_as_it_is_written():
    text = "nightly_posts@2026-11-26T02:00:00.123456+00:00"
    assert DagRun.parse(text) == DagRun("nightly_posts", NIGHT)
    assert str(DagRun.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "nightly_posts", "@2026-11-26T02:00:00+00:00", "d@yesterday", "d@2026-11-26T02:00:00"]
)
def test_what_is_no_dag_with_a_time_is_refused(text):
    with pytest.raises(UsageError, match="expected DAG@TIME"):
        DagRun.parse(text)


@pytest.mark.parametrize(
    ("dag_id", "run_after", "owns"),
    [
        ("annotate_corpus", NIGHT, True),
        ("finetune_release", NIGHT, False),
        ("annotate_corpus", NIGHT + timedelta(microseconds=1), False),
        (COMMAND_LINE, None, False),
        (None, None, True),  # a run from before owners were stored
    ],
)
def test_a_dag_run_owns_what_it_opened(dag_id, run_after, owns):
    assert DagRun("annotate_corpus", NIGHT).owns(row(dag_id, run_after)) == owns
