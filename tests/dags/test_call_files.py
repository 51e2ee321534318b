"""Calls of a run as files: those of the page, for who may see the page, and nothing that a spreadsheet computes."""

import csv
import io
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from tests.annotated_runs import AnnotatedRun
from tests.dags.run_pages import allowed, application, sign_in
from tests.servers import settings_of
from toolformer_ops.run_page import calls
from toolformer_ops.run_page.call_files import COLUMNS, FileKind, as_csv, file_of

__all__ = ["allowed"]  # a fixture

OF_RUN = "dag_id=annotate_corpus&run_id=run-1"
FORMULA = '=HYPERLINK("http://x.example","look")'


@pytest.fixture
def client(allowed, postgres_dsn, reader_dsn):
    made = AnnotatedRun(settings_of(postgres_dsn), {"Calculator": 0.5})
    for number in range(4):
        text = made.add_text(f"{FORMULA} {number} has 12 eggs in 7 boxes.")
        made.add_call("Calculator", text, "7 boxes", "12 * 7", FORMULA, saves=number / 4)
    made.complete("Calculator")
    app = application(reader_dsn=reader_dsn)
    sign_in(app)
    with TestClient(app) as client:
        yield client


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"))))


def test_csv_has_the_calls_of_the_page_in_its_order(client):
    answer = client.get(f"/calls.csv?{OF_RUN}&status=kept")
    assert [row["gain"] for row in rows_of(answer.content)] == ["0.75", "0.5"]
    assert answer.headers["content-disposition"] == 'attachment; filename="calls-run-1.csv"'
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_parquet_has_each_text_as_it_is(client):
    table = pq.read_table(io.BytesIO(client.get(f"/calls.parquet?{OF_RUN}").content))
    assert table.column_names == list(COLUMNS)
    assert table["result"].to_pylist() == [FORMULA] * 4
    assert table["gain"].to_pylist() == [0.75, 0.5, 0.25, 0.0]


def test_a_file_that_has_not_all_calls_says_so_in_its_name(client, monkeypatch):
    monkeypatch.setattr(calls, "MOST_DOWNLOADED", 2)
    answer = client.get(f"/calls.csv?{OF_RUN}")
    assert "calls-run-1-first-2.csv" in answer.headers["content-disposition"]
    assert len(rows_of(answer.content)) == 2


def test_who_may_not_see_the_page_gets_no_file(client, allowed):
    allowed.dag_ids = set()
    assert client.get(f"/calls.csv?{OF_RUN}").status_code == 403


@pytest.mark.parametrize(
    ("address", "status"), [("calls.xlsx", 422), ("calls.csv", 404)], ids=["another kind", "no run"]
)
def test_a_file_that_there_is_not_is_an_error_page(client, address, status):
    assert client.get(f"/{address}?dag_id=annotate_corpus&run_id=nobody").status_code == status


def row(**values: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS), **values}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n=1"])
def test_a_text_that_a_spreadsheet_would_compute_begins_with_an_apostrophe(text):
    [written] = rows_of(as_csv([row(text_after=text)]))
    assert written["text_after"].startswith("'")


def test_a_number_below_zero_stays_a_number():
    [written] = rows_of(as_csv([row(gain=-0.25, text_after="5 - 3")]))
    assert (written["gain"], written["text_after"]) == ("-0.25", "5 - 3")


def test_a_name_of_a_run_cannot_leave_the_header():
    assert file_of([], FileKind.CSV, 'a"\r\nX: é', is_whole=True).name == "calls-a___X___.csv"
