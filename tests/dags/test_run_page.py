"""The page in the Airflow UI: for those with the right alone, as the reader alone, and hostile input does no harm."""

import asyncio
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.serialization.serialized_objects import DagSerialization
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Connection

from tests.dags.run_pages import OF_R1, allowed, application, client, rows
from toolformer_ops.airflow_tasks.model_tasks import ReportLink
from toolformer_ops.airflow_tasks.run_ids import KEEPS_PARAMETERS
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.errors import ObjectNotFoundError, ObjectStoreError
from toolformer_ops.run_page import corpora, evaluation, reading
from toolformer_ops.run_page.overview import FunnelRow
from toolformer_ops.run_page.plugin import RunPagePlugin, serve
from toolformer_ops.run_page.reading import CACHE_BYTES, MOST_COUNTS, MOST_WAITING, Page, Reader

__all__ = ["allowed", "client", "rows"]  # fixtures

TIMED = "manual__2026-11-21T16:30:00+00:00"
D1, C1 = "d1000000-0000-0000-0000-000000000000", "c1000000-0000-0000-0000-000000000000"


def reader_of(client: TestClient) -> Reader:
    reader: Reader = client.app.state.reader  # type: ignore[attr-defined]
    return reader


def paths(app: Any) -> list[str]:
    """One address of every route."""
    found = [route.path for route in app.routes if isinstance(route, APIRoute)]
    values = {"dag_id": "annotate_corpus", "kind": "csv"}
    filled = [re.sub(r"\{(\w+)(:path)?\}", lambda match: values.get(match[1], "r1"), path) for path in found]
    return [f"{path}?{OF_R1}&call_id={C1}" for path in filled]


def test_nobody_sees_anything_without_signing_in(allowed, rows, reader_dsn):
    client = TestClient(application(reader_dsn=reader_dsn))
    for path in [*paths(client.app), "/", "/no/such/page", "/assets/page.css"]:
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert "/auth/login" in answer.text
        assert "r1" not in answer.text


def test_who_may_not_see_the_runs_of_the_dag_sees_no_page_of_them(client, allowed):
    about_runs = [path for path in paths(client.app) if not path.startswith(("/assets", "/r1"))]
    assert about_runs
    # Another DAG; the DAG without its runs.
    for allowed.dag_ids, allowed.without_runs in (
        ({"somebody_elses"}, set()),
        ({"annotate_corpus"}, {"annotate_corpus"}),
    ):
        for path in about_runs:
            answer = client.get(path)
            assert answer.status_code == 403, path
            assert "Calculator" not in answer.text


OURS, FOREIGN = {"annotate_corpus"}, {"somebody_elses"}
ALL = {*OURS, *FOREIGN, "nightly_posts", "finetune_release"}
OF_C1 = f"/call?{OF_R1}&call_id={C1}"
NO_PAGE = "There is no such page."
ANSWERS = [
    # A run is found under its own DAG alone.
    (ALL, f"/run?{OF_R1}", 200, "Calculator"),
    (ALL, "/run?dag_id=nightly_posts&run_id=n1", 200, "Calculator"),
    (ALL, "/run?dag_id=somebody_elses&run_id=r1", 404, "<h1>No such run</h1>"),
    (ALL, "/run?dag_id=nightly_posts&run_id=r1", 404, "nightly_posts has no run r1 in the database"),
    (
        ALL,
        "/run?dag_id=annotate_corpus&run_id=nightly_posts.n1",
        404,
        "annotate_corpus has no run nightly_posts.n1",
    ),
    (ALL, "/run?dag_id=annotate_corpus&run_id=waits", 404, "<h1>This run has not started</h1>"),
    (ALL, "/run?dag_id=annotate_corpus&run_id=r1%00", 404, NO_PAGE),
    (OURS, "/run?dag_id=annotate_corpus&run_id=r9", 404, "The run r9 never started; failed: ingest."),
    # Two values of a parameter: the one that is asked about is the one that is shown.
    (
        FOREIGN,
        "/run?dag_id=annotate_corpus&dag_id=somebody_elses&run_id=r1",
        404,
        "The DAG somebody_elses annotates",
    ),
    (FOREIGN, "/run?dag_id=somebody_elses&dag_id=annotate_corpus&run_id=r1", 403, "No right to see this"),
    # What is no question.
    (OURS, "/run?dag_id=&run_id=r1", 403, "No right to see this"),
    (OURS, "/run", 422, "dag_id: Field required; run_id: Field required"),
    (
        OURS,
        f"/run?dag_id=annotate_corpus&run_id={'x' * 1001}",
        422,
        "run_id: String should have at most 1000",
    ),
    (OURS, f"/run?dag_id=annotate_corpus&run_id={'x' * 1000}", 404, "annotate_corpus has no run xxx"),
    (OURS, "/no/such/page", 404, NO_PAGE),
    # Calls: of a run, of the newest run, of one by its id.
    (OURS, f"/calls?{OF_R1}", 200, "Calculator(400 / 1400)"),
    (OURS, "/calls", 200, "Calculator(400 / 1400)"),
    (OURS, "/calls?of=nightly_posts.n1", 404, "No run of this id has annotated anything."),
    ({"nightly_posts"}, f"/calls?{OF_R1}", 403, "No right to see this"),
    (OURS, f"/calls?{OF_R1}&status=other", 422, "status: expected one of scored, kept"),
    (OURS, f"/calls?{OF_R1}&information=x", 422, "information: expected a number of nats"),
    (OURS, f"/calls?{OF_R1}&after=1~2", 422, "expected the address of a next page"),
    (OURS, f"/calls?{OF_R1}&tool=Nothing", 200, "There is no such call."),
    (OURS, f"/calls?{OF_R1}&contains={D1}&status=every", 200, "Calculator(400 / 0)"),
    (OURS, f"/calls?{OF_R1}&contains={'x' * 36}", 200, "There is no such call."),
    # One call.
    (OURS, f"{OF_C1}&tool=Calculator&document_id={D1}", 200, "Calculator(400 / 1400)"),
    (
        OURS,
        f"{OF_C1}&tool=Calculator&document_id={D1}",
        200,
        "the text continues with the result</dt><dd>yes",
    ),
    (OURS, f"{OF_C1}&tool=Calendar&document_id={D1}", 404, NO_PAGE),
    (OURS, f"{OF_C1}&tool=Abacus&document_id={D1}", 404, NO_PAGE),
    (OURS, f"{OF_C1}&tool=Calculator&document_id={C1}", 404, NO_PAGE),
    # Thresholds, changes, corpora and releases.
    (
        OURS,
        f"/thresholds?{OF_R1}&threshold.Calculator=much",
        422,
        "threshold.Calculator: expected a number",
    ),
    (OURS, f"/changes?{OF_R1}&before=r2", 200, "r2"),
    (OURS, f"/changes?{OF_R1}&after=x", 422, "expected the address of a next page"),
    ({"finetune_release"}, "/corpora?corpus=c000000000000000", 404, NO_PAGE),
    ({"nightly_posts"}, "/corpora?corpus=c000000000000000", 200, "s3://toolformer/corpora/posts"),
    (OURS, "/release?release=none", 404, "There is no such release"),
    ({"nightly_posts"}, "/release?release=release-2", 404, "There is no such release"),
    (OURS, "/review", 200, "TOOLFORMER_REVIEWER_DSN"),
    (OURS, "/judge?release=release-2&number=99", 404, NO_PAGE),
]
"""The DAGs that the visitor may see, an address, the status, and what the page says."""


def test_an_address_has_its_answer(client, allowed):
    for allowed.dag_ids, address, status, words in ANSWERS:
        answer = client.get(address)
        assert (answer.status_code, words in answer.text) == (status, True), (address, answer.text)
        assert status in (200, 403) or "Calculator(" not in answer.text
    assert client.post(f"/run?{OF_R1}").status_code == 404, "only a form is posted"


def test_versions_of_a_corpus_beyond_a_page_are_on_the_next(client, allowed, rows, monkeypatch):
    rows(
        "insert into corpus_versions (corpus_id, version, documents, added, removed, corrected, changed, kept, files, records, "
        "duplicates, rejected) values ('c000000000000000', 2, 4, 0, 0, 0, 0, 4, 2, 7, 0, 3)"
    )
    monkeypatch.setattr(corpora, "A_PAGE", 1)
    allowed.dag_ids = ALL
    newest, older = (client.get(f"/corpora?corpus=c000000000000000&page={page}").text for page in (0, 1))
    assert 'rel="next" href="corpora?corpus=c000000000000000&amp;page=1"' in newest
    version = '<th class="number">{}</th><td class="when">'
    assert [version.format(2) in newest, version.format(1) in newest] == [True, False]
    assert [version.format(2) in older, version.format(1) in older] == [False, True]


def test_no_view_takes_what_postgres_cannot_store(client):
    routes = [route for route in client.app.routes if isinstance(route, APIRoute) and "GET" in route.methods]  # type: ignore[attr-defined]
    asked = [
        (route.path, field.alias)
        for route in routes
        for field in get_flat_dependant(route.dependant).query_params
    ]
    assert {path for path, _ in asked} >= {
        "/run",
        "/calls",
        "/call",
        "/changes",
        "/corpora",
        "/review",
        "/judge",
    }
    for path, name in asked:
        values = {"dag_id": "annotate_corpus", "run_id": "r1", "release": "release-2", name: "a\0b"}
        assert client.get(path, params=values).status_code in (403, 404, 422), (path, name)


def test_a_run_id_that_is_no_run_is_said_as_text(client):
    for run_id in (
        "..%2F..%2Fr1",
        "%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "r1'%20or%20'1'='1",
        "%F0%9F%98%80",
    ):
        answer = client.get(f"/run?dag_id=annotate_corpus&run_id={run_id}")
        assert answer.status_code == 404
        assert "<script>alert" not in answer.text


def test_a_run_shows_each_stage_under_its_heading_beside_what_became_no_call(client, rows):
    lost = (
        "insert into lost_samples (sampling_recipe_id, document_id, sample_key, paragraph, position_char, reason, sample_text,"
        " sample_count) select rt.sampling_recipe_id, 'd1000000-0000-0000-0000-000000000000', md5(n::text)::uuid, 0, 6,"
        " 'sample_without_end', 'Calculator(<b>' || n, 1 from run_tools rt cross join generate_series(1, 7) n"
        " where run_id = 'r1' and tool = 'Calculator'"
    )
    # A tool that got its placebos later: the others have an empty cell.
    later = "update run_tools set placebo_recipe_id = 'p' where run_id = 'r1' and tool = 'Calendar'"
    suites = """update annotation_runs set parameters = parameters || '{"evaluation_suites": ["math"]}' where run_id = 'r1'"""
    for statement in (lost, later, suites):
        rows(statement)
    reader_of(client).seconds_to_wait = 60.0
    page = client.get(f"/run?{OF_R1}").text
    table = page.partition("<h2>How far it is</h2>")[2].partition("</table>")[0]
    head, _, body = table.partition("</thead>")
    headings = ["texts done", "filter", "sample", "execute", "score", "placebo", "work left"]
    assert re.findall(r"<th[^>]*>([^<]*)</th>", head) == headings
    assert [len(re.findall("<t[hd]", row)) for row in body.split("</tr>")[:-1]] == [len(headings)] * 3
    assert page.count('data-lost="Calculator.sample_without_end"') == 5
    assert 'Out of<mark class="dropped">[Calculator(&lt;b&gt;' in page
    assert 'href="evaluation?' in page
    assert 'href="evaluation?' not in client.get(f"/run?{OF_R1.replace('r1', 'r2')}").text, (
        "it asked for no evaluation"
    )


def test_pages_allow_no_script_but_ours_from_a_file(client):
    for path in paths(client.app):
        answer = client.get(path)
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy or path.startswith("/reports/")
        assert not re.search(r"<[^>]+\s(style|on\w+)\s*=", answer.text), path
        assert not re.search(r"<script(?![^>]*\ssrc=\")", answer.text), path
        for address in re.findall(r'(?:href|src|action)="([^"]*)"', answer.text):
            assert not address.startswith(("/", "http")) or address == "/auth/login", (path, address)
            if address.startswith("assets/"):
                kind = client.get(f"/{address}").headers["content-type"].split(";")[0]
                assert kind == ("text/css" if ".css" in address else "text/javascript")


# The connections, and what is kept


def test_the_role_of_the_page_alone_is_used_read_only(client):
    assert client.get(f"/run?{OF_R1}").status_code == 200
    with reader_of(client).engine().connect() as connection:
        role, read_only, limit = connection.exec_driver_sql(
            "select current_user, current_setting('transaction_read_only'), current_setting('statement_timeout')"
        ).one()
    assert (role, read_only, limit) == ("toolformer_page", "on", "8s")


def test_a_database_that_is_away_is_said_without_its_address(client):
    dsn = SecretStr("postgresql://reader:secret@127.0.0.1:1/toolformer")
    reader_of(client).settings = Settings(_env_file=None, reader_dsn=dsn)
    answer = client.get(f"/run?{OF_R1}")
    assert answer.status_code == 503
    assert "TOOLFORMER_READER_DSN" in answer.text
    assert "secret" not in answer.text
    assert "127.0.0.1" not in answer.text


def test_a_question_that_takes_too_long_is_said(client):
    with (
        reader_of(client).engine().connect() as connection
    ):  # the pool's own connection, which the page takes next
        connection.exec_driver_sql("set session statement_timeout = '1ms'")
        connection.commit()
        connection.exec_driver_sql("set session lock_timeout = 0")
        connection.commit()
    slow = client.get(f"/calls?{OF_R1}&contains=shirts")
    assert (slow.status_code, "Ask for less: one tool, or another filter." in slow.text) == (503, True)


def test_one_question_too_many_is_said(client):
    reader_of(client)._asked.update(dict.fromkeys(range(MOST_WAITING)))  # type: ignore[arg-type]
    busy = client.get(f"/calls?{OF_R1}")
    assert (busy.status_code, "Too many questions are being answered now." in busy.text) == (503, True)


def a_page(text: str) -> Page:
    return Page("message.html.j2", {"title": "t", "text": text, "sign_in": None, "dag_run": None}, seconds=60)


def test_of_kept_answers_the_oldest_go_first(client):
    reader = reader_of(client)
    large = "x" * (CACHE_BYTES // 3)
    for key in "abac":  # the third time it was kept
        asyncio.run(reader.answer(key, lambda connection: a_page(large)))
    assert list(reader._kept) == ["a", "c"]
    assert sum(len(response.body) for _, response in reader._kept.values()) <= CACHE_BYTES


def test_of_kept_counts_the_oldest_go_first(client):
    reader = reader_of(client)
    reader.seconds_to_wait = 60.0
    for number in range(MOST_COUNTS + 1):
        counted = reader.counted(number, lambda connection, number=number: number)
        assert counted is not None
        assert counted.values == number
    assert list(reader._counts) == list(range(1, MOST_COUNTS + 1))


def test_a_page_waits_longer_for_a_count_that_is_old(client, monkeypatch):
    monkeypatch.setattr(reading, "OLD_COUNT", 0.0)
    monkeypatch.setattr(reading, "KEPT_LONGER_THAN_IT_TOOK", 0.0)
    reader = reader_of(client)
    reader.seconds_to_wait = 60.0
    numbers = iter(range(2))

    def count(_: Connection) -> int:
        time.sleep(0.2)
        return next(numbers)

    reader.counted("numbers", count)
    reader.seconds_to_wait = 0.0
    newest = reader.counted("numbers", count)
    assert newest is not None
    assert newest.values == 1


def test_funnels_count_a_text_once_however_many_tools_read_it():
    assert FunnelRow("filter", "texts", "texts", False, {"QA": 64, "MT": 64}).total == 64


def test_a_kept_answer_is_packed_anew_for_each_request(client):
    packing = TestClient(GZipMiddleware(client.app, minimum_size=1))
    answers = [packing.get(f"/changes?{OF_R1}") for _ in range(3)]
    assert {(answer.headers["content-encoding"], answer.text) for answer in answers} == {
        ("gzip", answers[0].text)
    }


# A run that has not started


def test_the_page_of_a_run_that_has_not_started_asks_airflow_for_its_failed_tasks(client):
    page = client.get("/run?dag_id=annotate_corpus&run_id=waits").text
    assert 'data-failed-tasks data-dag-id="annotate_corpus" data-run-id="waits"' in page
    assert "data-until-there" in page


def test_a_run_that_never_started_is_not_to_be_cleared_for_a_wrong_parameter(client):
    assert KEEPS_PARAMETERS in client.get("/run?dag_id=annotate_corpus&run_id=r9").text


def test_what_a_person_answered_is_on_the_page_of_the_run(client, rows):
    rows(
        "insert into approvals (run_id, step, is_approved, answered_by, answered_at, max_tries) "
        "values ('r1', 'before_finetuning', false, 'anna <b>', '2026-11-24 05:10Z', 22)"
    )
    page = client.get(f"/run?{OF_R1}").text
    assert "<p>Before finetuning: rejected by anna &lt;b&gt;, 2026-11-24 05:10 UTC.</p>" in page


NETWORK = (
    "insert into micro_batches (run_id, tool, stage, recipe_id, documents, rows_written, network_tokens, network_seconds,"
    " network_operations, peak_operations, cards)"
    " values ('r1', 'Calculator', 'score', 'r', 1, 1, :tokens, 2, :operations, :peak, :cards)"
)
READS = "the language model reads"


@pytest.mark.parametrize(
    ("operations", "peak", "cards", "words"),
    [
        (5e14, 1e15, "NVIDIA <b>H200", "35,000 tokens/s, 50.0 % of the peak of NVIDIA &lt;b&gt;H200"),
        (5e14, None, "cpu", "35,000 tokens/s"),
        (5e14, None, "Tesla T4", "35,000 tokens/s (no peak is known of Tesla T4 with this model)"),
        (None, 1e15, "NVIDIA H200", "35,000 tokens/s (no peak is known of NVIDIA H200 with this model)"),
    ],
)
def test_a_run_shows_how_fast_its_models_read(client, rows, operations, peak, cards, words):
    rows(NETWORK, tokens=70_000, operations=operations, peak=peak, cards=cards)
    rows("update annotation_runs set state = 'success', finished_at = now() where run_id = 'r1'")
    page = client.get(f"/run?{OF_R1}").text
    assert f"<dt>{READS}</dt><dd>{words}</dd>" in page


def test_a_run_whose_models_read_nothing_shows_no_speed(client):
    assert READS not in client.get(f"/run?{OF_R1}").text


# A run that failed


OF_A_TASK = "The message of the failed task says what was expected"


@pytest.mark.parametrize(
    ("problem", "said", "not_said"),
    [
        ("Its DAG nightly_posts is gone: <b>.", "Its DAG nightly_posts is gone: &lt;b&gt;.", OF_A_TASK),
        ("failed: release. There is no release.", OF_A_TASK, "There is no release."),
    ],
)
def test_the_page_of_a_failed_run_says_why_where_no_task_does(client, rows, problem, said, not_said):
    ended = "update annotation_runs set state = 'failed', finished_at = now(), problem = :problem where run_id = 'r1'"
    rows(ended, problem=problem)
    page = client.get(f"/run?{OF_R1}").text
    assert said in page
    assert not_said not in page


# The quality checks


BROKEN = """
insert into quality_results (run_id, subject, check_name, severity, success, observed, message)
values ('r1', 'Calculator', 'some_call_is_kept', 'warn', false,
        '{"rows": 1, "unexpected": 1, "examples": [{"tool": "<b>Calculator", "kept_calls": 0}]}', 'stored message')
"""


def test_a_check_that_does_not_hold_is_shown_with_its_claim_its_rows_its_remedy(client, rows):
    rows(BROKEN)
    page = client.get(f"/checks?{OF_R1}").text
    broken = page[page.index('data-check="Calculator.some_call_is_kept"') :]
    assert "Expected at least one kept call. Found otherwise in 1 of 1 row:" in broken
    assert "<th>kept calls</th>" in broken
    assert ">&lt;b&gt;Calculator</td>" in broken
    assert "<strong>What to do.</strong>" in broken


def test_checks_that_only_warn_are_not_shown_as_failures(client, rows):
    rows(BROKEN)
    page = client.get(f"/checks?{OF_R1}").text
    assert "2 of 3 checks do not hold. They only warn: the run goes on." in page
    assert "fails</span>" not in page


def test_a_check_that_this_version_does_not_have_any_more_keeps_its_sentence(client):
    page = client.get(f"/checks?{OF_R1}").text
    assert "<p>60 % of the scored calls are kept, more than 50 %</p>" in page


def test_a_run_without_checks_says_when_they_come(client, allowed):
    allowed.dag_ids = {"nightly_posts"}
    page = client.get("/checks?dag_id=nightly_posts&run_id=n1").text
    assert "No check has run yet: a tool is checked once its calls are scored" in page


# The report of evaluations


STORED = {
    f"reports/{TIMED}/index.html": b"<!doctype html><p>page</p>",
    "reports/r2/index.html": b"<!doctype html>",
}


class FakeStore:
    """S3 with these pages; with an error it answers nothing else."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def get(self, key: str) -> bytes:
        if not self.exists(key):
            raise ObjectNotFoundError(f"expected object {key}, found nothing")
        return STORED[key]

    def exists(self, key: str) -> bool:
        if self.error:
            raise self.error
        return key in STORED


REFUSED = ObjectStoreError("refused, key-id AKIA")
OF_TIMED = "annotate_corpus/manual__2026-11-21T16%3A30%3A00%2B00%3A00"
REPORT = f"/reports/{OF_TIMED}"
UNREPORTED = "No evaluation was reported for the run {} of annotate_corpus."
FROM_S3 = [
    (REPORT, None, 200, "<!doctype html><p>page</p>"),
    ("/reports/annotate_corpus/%3Cscript%3E", None, 404, UNREPORTED.format("&lt;script&gt;")),
    ("/reports/annotate_corpus/..%2F..%2Fmodels", None, 404, "There is no such page."),
    (REPORT, REFUSED, 502, "TOOLFORMER_S3_"),
    (f"/evaluation?{OF_R1}", None, 200, UNREPORTED.format("r1")),
    (f"/evaluation?{OF_R1}", REFUSED, 200, "cannot be read from S3"),
    (f"/evaluation?{OF_R1.replace('r1', 'r2')}", None, 200, "<iframe"),
]


def test_a_page_from_s3_may_run_nothing(client, monkeypatch):
    for number, (address, error, status, words) in enumerate(FROM_S3):
        monkeypatch.setattr(evaluation, "ObjectStore", lambda settings, error=error: FakeStore(error))
        answer = client.get(
            f"{address}{'&' if '?' in address else '?'}again={number}"
        )  # no answer that was kept
        policy = answer.headers["content-security-policy"]
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
        assert "default-src 'none'" in policy
        assert "AKIA" not in answer.text
        assert ("<iframe" in answer.text) == (words == "<iframe")
        if words.startswith("<!doctype"):
            assert (answer.text, policy.endswith("sandbox"), "script-src" in policy) == (words, True, False)


def test_the_task_that_reports_links_to_where_the_page_is_served(local_dags):
    key: Any = SimpleNamespace(dag_id="annotate_corpus", run_id=TIMED)
    assert ReportLink().get_link(SimpleNamespace(), ti_key=key) == f"http://127.0.0.1:8080/toolformer{REPORT}"  # type: ignore[arg-type]
    for dag_id in ("finetune_release", "annotate_corpus"):
        again = DagSerialization.from_dict(DagSerialization.to_dict(local_dags[dag_id]))
        assert again.task_dict["evaluation.report"].extra_links == ["Evaluation report"]


# What Airflow loads


def test_the_plugin_is_what_airflow_mounts(allowed):
    [mounted] = RunPagePlugin.fastapi_apps
    assert (mounted["app"], mounted["url_prefix"]) == (serve, "/toolformer")
    for view in RunPagePlugin.external_views:
        assert view["href"].startswith("toolformer/")  # relative: Airflow may be below a path
        if view["destination"] == "dag_run":
            assert view["href"].endswith("?dag_id={DAG_ID}&run_id={RUN_ID}")
    entry_point = 'toolformer_run_page = "toolformer_ops.run_page.plugin:RunPagePlugin"'
    assert entry_point in (REPOSITORY / "pyproject.toml").read_text()


def test_the_mounted_application_asks_to_sign_in(allowed):
    answer = TestClient(serve).get("/run")
    assert (answer.status_code, "Not signed in" in answer.text) == (401, True)
