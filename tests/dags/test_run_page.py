"""The page in the Airflow UI: for those with the right alone, as the reader alone, and hostile input does no harm."""

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import SecretStr

from tests.dags.run_pages import OF_R1, Rights, allowed, app, application, client, filled, reading, rows
from toolformer_ops.airflow_tasks.model_tasks import ReportLink
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.errors import ObjectNotFoundError, ObjectStoreError
from toolformer_ops.run_page import evaluation
from toolformer_ops.run_page.plugin import RunPagePlugin, serve
from toolformer_ops.run_page.reading import CACHE_BYTES, MOST_COUNTS, MOST_WAITING, Page, Reader

__all__ = ["allowed", "app", "client", "filled", "reading", "rows"]  # fixtures

TIMED = "manual__2026-11-21T16:30:00+00:00"
D1, C1 = "d1000000-0000-0000-0000-000000000000", "c1000000-0000-0000-0000-000000000000"


def reader_of(client: TestClient) -> Reader:
    reader: Reader = client.app.state.reader  # type: ignore[attr-defined]
    return reader


def paths(app: Any) -> list[str]:
    """One address of every route."""
    found = [route.path for route in app.routes if isinstance(route, APIRoute)]
    filled = [
        re.sub(r"\{dag_id\}", "annotate_corpus", re.sub(r"\{(run_id|name|path)(:path)?\}", "r1", path))
        for path in found
    ]
    return [f"{path}?{OF_R1}&call_id={C1}" for path in filled]


def test_nobody_sees_anything_without_signing_in(allowed: Rights, filled: str) -> None:
    app = application(reader_dsn=filled)
    client = TestClient(app)
    for path in [*paths(app), "/", "/no/such/page", "/assets/page.css"]:
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert "/auth/login" in answer.text
        assert "r1" not in answer.text


def test_who_may_not_see_the_runs_of_the_dag_sees_no_page_of_them(reading: TestClient, allowed: Rights) -> None:
    about_runs = [path for path in paths(reading.app) if not path.startswith(("/assets", "/r1"))]
    assert about_runs
    # Another DAG; the DAG without its runs.
    for allowed.dag_ids, allowed.without_runs in (
        ({"somebody_elses"}, set()),
        ({"annotate_corpus"}, {"annotate_corpus"}),
    ):
        for path in about_runs:
            answer = reading.get(path)
            assert answer.status_code == 403, path
            assert "Calculator" not in answer.text


OURS, FOREIGN = {"annotate_corpus"}, {"somebody_elses"}
ALL = {*OURS, *FOREIGN, "nightly_posts", "finetune_release"}
OF_C1 = f"/call?{OF_R1}&call_id={C1}"
ANSWERS = [
    # A run is found under its own DAG alone.
    (ALL, f"/run?{OF_R1}", 200, "Calculator"),
    (ALL, "/run?dag_id=nightly_posts&run_id=n1", 200, "Calculator"),
    (ALL, "/run?dag_id=somebody_elses&run_id=r1", 404, "The DAG somebody_elses annotates nothing"),
    (ALL, "/run?dag_id=nightly_posts&run_id=r1", 404, "nightly_posts has no run r1 in the database"),
    (ALL, "/run?dag_id=finetune_release&run_id=r1", 404, "finetune_release has no run r1"),
    (ALL, "/run?dag_id=annotate_corpus&run_id=nightly_posts.n1", 404, "annotate_corpus has no run nightly_posts.n1"),
    (OURS, "/run?dag_id=annotate_corpus&run_id=r9", 404, "The run r9 never started; failed: ingest."),
    # Two values of a parameter: the one that is asked about is the one that is shown.
    (FOREIGN, "/run?dag_id=annotate_corpus&dag_id=somebody_elses&run_id=r1", 404, "The DAG somebody_elses annotates"),
    (FOREIGN, "/run?dag_id=somebody_elses&dag_id=annotate_corpus&run_id=r1", 403, "No right to see this"),
    # What is no question.
    (OURS, "/run?dag_id=&run_id=r1", 403, "No right to see this"),
    (OURS, "/run", 422, "dag_id: Field required; run_id: Field required"),
    (OURS, f"/run?dag_id=annotate_corpus&run_id={'x' * 1001}", 422, "run_id: String should have at most 1000"),
    (OURS, f"/run?run_id=r1&dag_id={'x' * 1001}", 422, "dag_id: String should have at most 1000"),
    (OURS, "/no/such/page", 404, "There is no such page."),
    (OURS, "/assets/none.js", 404, "There is no such page."),
    (OURS, "/assets/..%2Fapp.py", 404, "There is no such page."),
    # Calls: of a run, of the newest run, of one by its id.
    (OURS, f"/calls?{OF_R1}", 200, "Calculator(400 / 1400)"),
    (OURS, "/calls", 200, "Calculator(400 / 1400)"),
    (OURS, "/calls?of=r2", 200, "Calculator(400 / 1400)"),
    (OURS, "/calls?of=nobody", 404, "No run of this id has annotated anything."),
    (OURS, "/calls?of=nightly_posts.n1", 404, "No run of this id has annotated anything."),
    ({"finetune_release"}, "/calls", 404, "No run has annotated anything."),
    ({"nightly_posts"}, f"/calls?{OF_R1}", 403, "No right to see this"),
    (OURS, f"/calls?{OF_R1}&status=other", 422, "status: expected one of scored, kept"),
    (OURS, f"/calls?{OF_R1}&sort=other", 422, "sort: Input should be"),
    (OURS, f"/calls?{OF_R1}&information=x", 422, "information: expected a number of nats"),
    (OURS, f"/calls?{OF_R1}&after=no", 422, "expected the address of a next page"),
    (OURS, f"/calls?{OF_R1}&after=1~2", 422, "expected the address of a next page"),
    (OURS, f"/calls?{OF_R1}&contains={'x' * 201}", 422, "contains: String should have at most 200"),
    (OURS, f"/calls?{OF_R1}&tool=Nothing", 200, "There is no such call."),
    (OURS, f"/calls?{OF_R1}&contains={D1}&status=every", 200, "Calculator(400 / 0)"),
    (OURS, f"/calls?{OF_R1}&contains={'x' * 36}", 200, "There is no such call."),
    # One call.
    (OURS, f"{OF_C1}&tool=Calculator&document_id={D1}", 200, "Calculator(400 / 1400)"),
    (OURS, f"{OF_C1}&tool=Calculator", 404, "There is no such page."),
    (OURS, f"{OF_C1}&tool=Abacus&document_id={D1}", 404, "There is no such page."),
    (OURS, f"{OF_C1}&tool=Calendar&document_id={D1}", 404, "There is no such page."),
    (OURS, f"{OF_C1}&tool=Calculator&document_id={C1}", 404, "There is no such page."),
    (OURS, f"/call?{OF_R1}&call_id=c1", 422, "call_id: Input should be a valid UUID"),
    # Thresholds, changes, corpora and releases.
    (OURS, f"/thresholds?{OF_R1}&threshold.Calculator=much", 422, "threshold.Calculator: expected a number of nats"),
    (OURS, f"/thresholds?{OF_R1}&threshold.Calculator=nan", 200, '<tr data-tool="Calculator">'),
    (OURS, f"/changes?{OF_R1}", 200, "r2"),
    (OURS, f"/changes?{OF_R1}&before=r2", 200, "r2"),
    (OURS, f"/changes?{OF_R1}&before=release-2", 200, "r2"),
    (OURS, f"/changes?{OF_R1}&change=other", 422, "change: String should match pattern"),
    (OURS, f"/changes?{OF_R1}&after=x", 422, "expected the address of a next page"),
    (OURS, "/corpora?corpus=none", 404, "There is no such page."),
    ({"nightly_posts"}, "/corpora?corpus=c000000000000000", 200, "s3://toolformer/corpora/posts"),
    ({"finetune_release"}, "/corpora?corpus=c000000000000000", 404, "There is no such page."),
    (OURS, "/release?release=none", 404, "There is no such release, or it was made by a DAG whose runs you may not see."),
    ({"nightly_posts"}, "/release?release=release-2", 404, "There is no such release"),
    (OURS, "/release", 422, "release: Field required"),
    (OURS, "/review?release=none", 404, "There is no such release"),
    (OURS, "/review", 200, "TOOLFORMER_REVIEWER_DSN"),
    (OURS, "/judge?release=release-2&number=99", 404, "There is no such page."),
    (OURS, "/judge?release=release-2&calls=0", 422, "calls: Input should be greater than or equal to 1"),
]  # fmt: skip
"""The DAGs that the visitor may see, an address, the status, and what the page says."""


@pytest.mark.parametrize(("dag_ids", "address", "status", "words"), ANSWERS, ids=[item[1][:60] for item in ANSWERS])
def test_an_address_has_its_answer(
    reading: TestClient, allowed: Rights, dag_ids: set[str], address: str, status: int, words: str
) -> None:
    allowed.dag_ids = dag_ids
    answer = reading.get(address)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert status in (200, 403) or "Calculator(" not in answer.text


@pytest.mark.parametrize(
    ("address", "title"),
    [
        ("/run?dag_id=annotate_corpus&run_id=r9", "This run never started"),
        ("/run?dag_id=annotate_corpus&run_id=waits", "This run has not started"),
        ("/run?dag_id=somebody_elses&run_id=r1", "No such run"),
    ],
)
def test_a_page_without_a_run_is_titled_by_what_is_known_of_the_run(
    reading: TestClient, allowed: Rights, address: str, title: str
) -> None:
    allowed.dag_ids = ALL
    assert f"<h1>{title}</h1>" in reading.get(address).text


def test_only_a_form_is_posted(reading: TestClient) -> None:
    assert reading.post(f"/run?{OF_R1}").status_code == 404


def test_no_view_takes_what_postgres_cannot_store(reading: TestClient) -> None:
    routes = [route for route in reading.app.routes if isinstance(route, APIRoute) and "GET" in route.methods]  # type: ignore[attr-defined]
    asked = [
        (route.path, field.alias) for route in routes for field in get_flat_dependant(route.dependant).query_params
    ]
    assert {path for path, _ in asked} >= {"/run", "/calls", "/call", "/changes", "/corpora", "/review", "/judge"}
    for path, name in asked:
        values = {"dag_id": "annotate_corpus", "run_id": "r1", "release": "release-2", name: "a\0b"}
        assert reading.get(path, params=values).status_code in (403, 404, 422), (path, name)


@pytest.mark.parametrize(
    "run_id",
    ["..%2F..%2Fr1", "r1%2F..", "r1%00", "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "r1'%20or%20'1'='1",
     "%F0%9F%98%80", "x" * 1000],
)  # fmt: skip
def test_a_run_id_that_is_no_run_is_said_as_text(reading: TestClient, run_id: str) -> None:
    answer = reading.get(f"/run?dag_id=annotate_corpus&run_id={run_id}")
    assert answer.status_code == 404
    assert "<script>alert" not in answer.text


def test_each_stage_of_a_tool_is_under_its_heading(client: TestClient, rows: Callable[..., None]) -> None:
    """Also if one tool got its placebos later: the others have an empty cell."""
    stages = ["filter", "sample", "execute", "score"]
    for found in (stages, [*stages, "placebo"]):
        if "placebo" in found:
            rows("update run_tools set placebo_recipe_id = 'p' where run_id = 'r1' and tool = 'Calendar'")
        page = client.get(f"/run?{OF_R1}&again={len(found)}").text
        table = page.partition("<h3>Progress</h3>")[2].partition("</table>")[0]
        head, _, body = table.partition("</thead>")
        headings = ["texts done", *found, "work left"]
        assert re.findall(r"<th[^>]*>([^<]*)</th>", head) == headings
        assert [len(re.findall("<t[hd]", row)) for row in body.split("</tr>")[:-1]] == [len(headings)] * 3


def test_samples_that_became_no_call_are_shown_as_text(client: TestClient, rows: Callable[..., None]) -> None:
    assert "Samples that became no call" not in client.get(f"/run?{OF_R1.replace('r1', 'r2')}").text
    rows(
        "insert into lost_samples (sampling_recipe_id, document_id, sample_key, paragraph, position_char, reason, sample_text,"
        " sample_count) select rt.sampling_recipe_id, 'd1000000-0000-0000-0000-000000000000', md5(n::text)::uuid, 0, 6,"
        " 'sample_without_end', 'Calculator(<b>' || n, 1 from run_tools rt cross join generate_series(1, 7) n"
        " where run_id = 'r1' and tool = 'Calculator'"
    )
    page = client.get(f"/run?{OF_R1}").text
    assert page.count('data-lost="Calculator.sample_without_end"') == 5
    assert 'Out of<mark class="dropped">[Calculator(&lt;b&gt;' in page


def test_pages_allow_no_script_but_ours_and_nothing_inline(reading: TestClient) -> None:
    for path in paths(reading.app):
        answer = reading.get(path)
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy or path.startswith(("/reports/", "/checks/"))
        assert not re.search(r"<[^>]+\s(style|on\w+)\s*=", answer.text), path
        assert not re.search(r"<script(?![^>]*\ssrc=\")", answer.text), path
        for address in re.findall(r'(?:href|src|action)="([^"]*)"', answer.text):
            assert not address.startswith(("/", "http")) or address == "/auth/login", (path, address)


def test_assets_are_served_with_their_type(reading: TestClient) -> None:
    addresses = re.findall(r'(?:href|src)="(assets/[^"]*)"', reading.get(f"/run?{OF_R1}").text)
    answers = [reading.get(f"/{address}") for address in addresses]
    assert {(answer.status_code, answer.headers["content-type"].split(";")[0]) for answer in answers} == {
        (200, "text/css"), (200, "text/javascript"),
    }  # fmt: skip


# The connections, and what is kept


def test_the_role_of_the_page_alone_is_used_and_may_not_write(reading: TestClient) -> None:
    assert reading.get(f"/run?{OF_R1}").status_code == 200
    with reader_of(reading).engine().connect() as connection:
        role, read_only, limit = connection.exec_driver_sql(
            "select current_user, current_setting('transaction_read_only'), current_setting('statement_timeout')"
        ).one()
    assert (role, read_only, limit) == ("toolformer_page", "on", "8s")


def test_a_database_that_is_away_is_said_without_its_address(reading: TestClient) -> None:
    dsn = SecretStr("postgresql://reader:secret@127.0.0.1:1/toolformer")
    reader_of(reading).settings = Settings(_env_file=None, reader_dsn=dsn)
    answer = reading.get(f"/run?{OF_R1}")
    assert answer.status_code == 503
    assert "TOOLFORMER_READER_DSN" in answer.text
    assert "secret" not in answer.text
    assert "127.0.0.1" not in answer.text


def test_a_question_that_takes_too_long_is_said_and_so_is_one_too_many(reading: TestClient) -> None:
    with reader_of(reading).engine().connect() as connection:  # the pool's own connection, which the page takes next
        connection.exec_driver_sql("set session statement_timeout = '1ms'")
        connection.commit()
        connection.exec_driver_sql("set session lock_timeout = 0")
        connection.commit()
    slow = reading.get(f"/calls?{OF_R1}&contains=shirts")
    assert (slow.status_code, "Ask for less: one tool, or another filter." in slow.text) == (503, True)
    reader_of(reading)._waiting = MOST_WAITING
    busy = reading.get(f"/calls?{OF_R1}")
    assert (busy.status_code, "Too many questions are being answered now." in busy.text) == (503, True)


def a_page(text: str, seconds: float = 60) -> Page:
    return Page("message.html.j2", {"title": "t", "text": text, "sign_in": None}, seconds=seconds)


def test_equal_questions_at_once_are_answered_once(reading: TestClient) -> None:
    made = []

    def make(connection: Any) -> Page:
        made.append(connection)
        return a_page("")

    async def ask() -> list[Any]:
        return await asyncio.gather(*(reader_of(reading).answer("key", make) for _ in range(5)))

    answers = asyncio.run(ask())
    assert len(made) == 1
    assert len({answer.body for answer in answers}) == 1


def test_of_kept_answers_and_counts_the_oldest_go_first(reading: TestClient) -> None:
    reader = reader_of(reading)
    large = "x" * (CACHE_BYTES // 3)
    for key in "abac":  # the third time it was kept
        asyncio.run(reader.answer(key, lambda connection: a_page(large)))
    assert list(reader._kept) == ["a", "c"]
    assert reader._kept_bytes == sum(len(response.body) for _, response in reader._kept.values()) <= CACHE_BYTES
    reader.seconds_to_wait = 60.0
    for number in range(MOST_COUNTS + 1):
        counted = reader.counted(number, lambda connection, number=number: number)
        assert counted is not None
        assert counted.values == number
    assert list(reader._counts) == list(range(1, MOST_COUNTS + 1))


def test_a_kept_answer_is_packed_anew_for_each_request(reading: TestClient) -> None:
    packing = TestClient(GZipMiddleware(reading.app, minimum_size=1))
    answers = [packing.get(f"/changes?{OF_R1}") for _ in range(3)]
    assert {answer.headers["content-encoding"] for answer in answers} == {"gzip"}
    assert len({answer.text for answer in answers}) == 1
    assert "</html>" in answers[0].text


# The report of evaluations, and the pages of checks


class FakeStore:
    """S3 with the pages of one run in it."""

    error: Exception | None = None

    def __init__(self, settings: Any) -> None:
        self.pages = {
            f"reports/{TIMED}/index.html": b"<!doctype html><p>page</p>",
            f"reports/{TIMED}/checks/Calculator.html": b"<!doctype html><p>checks</p>",
            "reports/r2/index.html": b"<!doctype html>",
        }

    def get(self, key: str) -> bytes:
        if not self.exists(key):
            raise ObjectNotFoundError(f"expected object {key}, found nothing")
        return self.pages[key]

    def exists(self, key: str) -> bool:
        if self.error:
            raise self.error
        return key in self.pages


REFUSED = ObjectStoreError("refused, key-id AKIA")
OF_TIMED = "annotate_corpus/manual__2026-11-21T16%3A30%3A00%2B00%3A00"
REPORT = f"/reports/{OF_TIMED}"
UNREPORTED = "No evaluation was reported for the run {} of annotate_corpus."


@pytest.mark.parametrize(
    ("address", "error", "status", "words"),
    [
        (REPORT, None, 200, "<!doctype html><p>page</p>"),
        (f"/checks/{OF_TIMED}/Calculator", None, 200, "<!doctype html><p>checks</p>"),
        ("/reports/annotate_corpus/%3Cscript%3E", None, 404, UNREPORTED.format("&lt;script&gt;")),
        ("/checks/annotate_corpus/%3Cscript%3E/release", None, 404,
         "The checks of release in the run &lt;script&gt; of annotate_corpus have no page."),
        (f"/checks/{OF_TIMED}/..%2F..", None, 404, "There is no such page."),
        (f"/checks/{OF_TIMED}/release-2", None, 404, "The checks of release-2 in the run"),
        ("/reports/annotate_corpus/..%2F..%2Fmodels", None, 404, "There is no such page."),
        (REPORT, REFUSED, 502, "TOOLFORMER_S3_"),
        (f"/evaluation?{OF_R1}", None, 200, UNREPORTED.format("r1")),
        (f"/evaluation?{OF_R1}", REFUSED, 200, "cannot be read from S3"),
        (f"/evaluation?{OF_R1.replace('r1', 'r2')}", None, 200, "<iframe"),
    ],
)  # fmt: skip
def test_a_page_from_s3_is_served_and_may_run_nothing_or_a_sentence_says_why_not(
    reading: TestClient, monkeypatch: pytest.MonkeyPatch, address: str, error: Exception | None, status: int, words: str
) -> None:
    monkeypatch.setattr(evaluation, "ObjectStore", FakeStore)
    monkeypatch.setattr(FakeStore, "error", error)
    answer = reading.get(address)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "AKIA" not in answer.text
    assert ("<iframe" in answer.text) == (words == "<iframe")
    if words.startswith("<!doctype"):
        assert answer.text == words
        policy = answer.headers["content-security-policy"]
        assert (policy.endswith("sandbox"), "script-src" in policy) == (True, False)


def test_a_run_that_asked_for_no_evaluation_has_no_tab_for_it(client: TestClient, rows: Callable[..., None]) -> None:
    tab = 'href="evaluation?'
    assert tab not in client.get(f"/run?{OF_R1}").text
    suites = '{"evaluation_suites": ["math"]}'
    rows(
        "update annotation_runs set parameters = parameters || cast(:suites as jsonb) where run_id = 'r1'",
        suites=suites,
    )
    assert tab in client.get(f"/run?{OF_R1}&again=1").text


def test_the_task_that_reports_links_to_where_the_page_is_served(local_dags: dict[str, DAG]) -> None:
    key: Any = SimpleNamespace(dag_id="annotate_corpus", run_id=TIMED)
    assert ReportLink().get_link(SimpleNamespace(), ti_key=key) == f"http://127.0.0.1:8080/toolformer{REPORT}"  # type: ignore[arg-type]
    for dag_id in ("finetune_release", "annotate_corpus"):
        again = DagSerialization.from_dict(DagSerialization.to_dict(local_dags[dag_id]))
        assert again.task_dict["evaluation.report"].extra_links == ["Evaluation report"]


# What Airflow loads


def test_the_plugin_is_what_airflow_mounts() -> None:
    [mounted] = RunPagePlugin.fastapi_apps
    assert (mounted["app"], mounted["url_prefix"]) == (serve, "/toolformer")
    routes = [view["url_route"] for view in RunPagePlugin.external_views]
    assert len(set(routes)) == len(routes)
    for view in RunPagePlugin.external_views:
        assert view["href"].startswith("toolformer/")  # relative: Airflow may be below a path
        if view["destination"] == "dag_run":
            assert view["href"].endswith("?dag_id={DAG_ID}&run_id={RUN_ID}")
    entry_point = 'toolformer_run_page = "toolformer_ops.run_page.plugin:RunPagePlugin"'
    assert entry_point in (REPOSITORY / "pyproject.toml").read_text()


def test_what_airflow_mounts_is_the_application(allowed: Rights) -> None:
    answer = TestClient(serve).get("/run")
    assert (answer.status_code, "Not signed in" in answer.text) == (401, True)
