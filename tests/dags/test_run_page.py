"""The page in the Airflow UI: for those with the right alone, as the reader alone, and hostile input does no harm."""

import asyncio
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi import app as airflow_app
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api import security
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from fastapi import FastAPI
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import text as sql

from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.errors import ObjectNotFoundError, ObjectStoreError
from toolformer_ops.orchestration.model_tasks import ReportLink
from toolformer_ops.run_page import evaluation, rights
from toolformer_ops.run_page.app import create_app
from toolformer_ops.run_page.plugin import RunPagePlugin, serve
from toolformer_ops.storage import database

ROWS = REPOSITORY / "tests" / "integration" / "data" / "small_annotation.sql"
OF_R1 = "dag_id=annotate_corpus&run_id=r1"
TIMED = "manual__2026-11-21T16:30:00+00:00"


class Rights:
    """Airflow's auth manager, with the DAGs that the only user may read."""

    def __init__(self, *dag_ids: str) -> None:
        self.dag_ids = set(dag_ids)
        self.without_runs: set[str] = set()
        """DAGs of them whose runs the user may not read."""

    def is_authorized_dag(self, *, details: Any, access_entity: Any = None, **_: Any) -> bool:
        return details.id in self.dag_ids and not (
            access_entity == DagAccessEntity.RUN and details.id in self.without_runs
        )

    def get_authorized_dag_ids(self, **_: Any) -> set[str]:
        return self.dag_ids

    def get_url_login(self, **_: Any) -> str:
        return "/auth/login"


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> Rights:
    """What the user may read: the DAG `annotate_corpus`."""
    manager = Rights("annotate_corpus")
    for module in (security, airflow_app, rights):
        monkeypatch.setattr(module, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(security.DagModel, "get_team_name", lambda dag_id: None)
    return manager


@pytest.fixture
def rows(postgres_dsn: str) -> Callable[..., None]:
    """Writes rows as the owner; the two runs of the small annotation are there."""
    engine = database.connect_dsn(postgres_dsn, database.DSN_SETTING)
    with database.transaction(engine) as connection, database.raw_cursor(connection) as cursor:
        cursor.execute(ROWS.read_text())

    def write(statement: str, **values: object) -> None:
        with database.transaction(engine) as connection:
            connection.execute(sql(statement), values)

    return write


@pytest.fixture
def app(allowed: Rights, rows: object, reader_dsn: str) -> FastAPI:
    """The application with the reader's address, and no other."""
    return create_app(Settings(_env_file=None, reader_dsn=SecretStr(reader_dsn)))


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    """A browser of somebody who is signed in."""

    async def user() -> Any:
        return SimpleNamespace(get_id=lambda: "1", get_name=lambda: "somebody")

    app.dependency_overrides[security.get_user] = user
    with TestClient(app) as client:
        yield client


def paths(app: FastAPI) -> list[str]:
    """One address of every route."""
    found = [route.path for route in app.routes if isinstance(route, APIRoute)]
    filled = [
        re.sub(r"\{dag_id\}", "annotate_corpus", re.sub(r"\{(run_id|name|path)(:path)?\}", "r1", path))
        for path in found
    ]
    return [f"{path}?{OF_R1}&call_id=c1000000-0000-0000-0000-000000000000" for path in filled]


def test_nobody_sees_anything_without_signing_in(app: FastAPI) -> None:
    client = TestClient(app)
    for path in [*paths(app), "/", "/no/such/page", "/assets/page.css"]:
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert "/auth/login" in answer.text
        assert "r1" not in answer.text


def test_who_may_not_see_the_runs_of_the_dag_sees_no_page_of_them(client: TestClient, allowed: Rights) -> None:
    app: Any = client.app
    about_runs = [path for path in paths(app) if not path.startswith(("/assets", "/r1"))]
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


def test_a_run_is_found_under_its_own_dag_alone(client: TestClient, allowed: Rights, rows: Callable[..., None]) -> None:
    rows("update annotation_runs set schedule = 'posts', run_id = run_id where run_id = 'r2'")
    allowed.dag_ids = {"annotate_corpus", "somebody_elses", "nightly_posts", "finetune_release"}
    assert client.get(f"/run?{OF_R1}").status_code == 200
    for dag_id in ("somebody_elses", "nightly_posts", "finetune_release"):
        answer = client.get(f"/run?dag_id={dag_id}&run_id=r1")
        assert answer.status_code == 404
        assert "Calculator" not in answer.text
    assert client.get("/run?dag_id=annotate_corpus&run_id=r2").status_code == 404
    # Two values of a parameter: the one that is asked about is the one that is shown.
    allowed.dag_ids = {"somebody_elses"}
    for twice in ("dag_id=annotate_corpus&dag_id=somebody_elses", "dag_id=somebody_elses&dag_id=annotate_corpus"):
        assert client.get(f"/run?{twice}&run_id=r1").status_code in (403, 404)


def test_no_view_takes_what_postgres_cannot_store(client: TestClient) -> None:
    routes = [route for route in client.app.routes if isinstance(route, APIRoute) and "GET" in route.methods]  # type: ignore[attr-defined]
    asked = [
        (route.path, field.alias) for route in routes for field in get_flat_dependant(route.dependant).query_params
    ]
    assert {path for path, _ in asked} >= {"/run", "/calls", "/call", "/changes", "/corpora", "/review", "/judge"}
    for path, name in asked:
        values = {"dag_id": "annotate_corpus", "run_id": "r1", "release": "release-2", name: "a\0b"}
        assert client.get(path, params=values).status_code in (403, 404, 422), (path, name)


@pytest.mark.parametrize(
    "run_id",
    [
        "..%2F..%2Fr1",
        "r1%2F..",
        "r1%00",
        "%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "r1'%20or%20'1'='1",
        "%F0%9F%98%80",
        "x" * 900,
    ],
)
def test_a_run_id_that_is_no_run_is_said_as_text(client: TestClient, run_id: str) -> None:
    answer = client.get(f"/run?dag_id=annotate_corpus&run_id={run_id}")
    assert answer.status_code == 404
    assert "<script>alert" not in answer.text
    for name, other in (("run_id", "dag_id=annotate_corpus"), ("dag_id", "run_id=r1")):
        assert client.get(f"/run?{other}&{name}={'x' * 1001}").status_code == 422


@pytest.mark.parametrize(
    "stages", [("filter", "sample", "execute", "score"), ("filter", "sample", "execute", "score", "placebo")]
)
def test_each_stage_of_a_tool_is_under_its_heading(
    client: TestClient, rows: Callable[..., None], stages: tuple[str, ...]
) -> None:
    if "placebo" in stages:  # one tool got its placebos later: the others have an empty cell
        rows("update run_tools set placebo_recipe_id = 'p' where run_id = 'r1' and tool = 'Calendar'")
    table = client.get(f"/run?{OF_R1}").text.partition("<h2>Progress</h2>")[2].partition("</table>")[0]
    head, _, body = table.partition("</thead>")
    headings = ["texts done", *stages, "work left"]
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


def test_a_run_that_never_started_says_which_tasks_failed(client: TestClient, rows: Callable[..., None]) -> None:
    rows("insert into runs_not_started (run_id, problem) values ('r9', 'failed: ingest. There is no release.')")
    answer = client.get("/run?dag_id=annotate_corpus&run_id=r9")
    assert answer.status_code == 404
    assert "The run r9 never started; failed: ingest." in answer.text


def test_pages_allow_no_script_but_ours_and_nothing_inline(client: TestClient) -> None:
    app: Any = client.app
    for path in paths(app):
        answer = client.get(path)
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy or path.startswith(("/reports/", "/checks/"))
        assert not re.search(r"<[^>]+\s(style|on\w+)\s*=", answer.text), path
        assert not re.search(r"<script(?![^>]*\ssrc=\")", answer.text), path
        for address in re.findall(r'(?:href|src|action)="([^"]*)"', answer.text):
            assert not address.startswith(("/", "http")) or address == "/auth/login", (path, address)


def test_assets_are_served_with_their_type(client: TestClient) -> None:
    page = client.get(f"/run?{OF_R1}").text
    for address in re.findall(r'(?:href|src)="(assets/[^"]*)"', page):
        answer = client.get(f"/{address}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].split(";")[0] in ("text/css", "text/javascript")
    assert client.get("/assets/..%2Fapp.py").status_code == 404


def test_the_role_of_the_page_alone_is_used_and_may_not_write(client: TestClient) -> None:
    assert client.get(f"/run?{OF_R1}").status_code == 200
    engine = client.app.state.reader.engine()  # type: ignore[attr-defined]
    with engine.connect() as connection:
        role, read_only, limit = connection.exec_driver_sql(
            "select current_user, current_setting('transaction_read_only'), current_setting('statement_timeout')"
        ).one()
    assert (role, read_only, limit) == ("toolformer_page", "on", "8s")


def test_a_database_that_is_away_is_said_without_its_address(allowed: Rights, client: TestClient) -> None:
    reader = client.app.state.reader  # type: ignore[attr-defined]
    reader.settings = Settings(
        _env_file=None, reader_dsn=SecretStr("postgresql://reader:secret@127.0.0.1:1/toolformer")
    )
    answer = client.get(f"/run?{OF_R1}")
    assert answer.status_code == 503
    assert "TOOLFORMER_READER_DSN" in answer.text
    assert "secret" not in answer.text
    assert "127.0.0.1" not in answer.text


def test_equal_questions_at_once_are_answered_once(client: TestClient) -> None:
    reader = client.app.state.reader  # type: ignore[attr-defined]
    made = []

    def make(connection: Any) -> Any:
        made.append(connection)
        from toolformer_ops.run_page.reading import Page

        return Page("message.html.j2", {"title": "t", "text": "", "sign_in": None}, seconds=60)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(reader.answer("key", make) for _ in range(5)))

    answers = asyncio.run(ask())
    assert len(made) == 1
    assert len({answer.body for answer in answers}) == 1


def test_a_kept_answer_is_packed_anew_for_each_request(client: TestClient) -> None:
    packing = TestClient(GZipMiddleware(client.app, minimum_size=1))
    answers = [packing.get(f"/changes?{OF_R1}") for _ in range(3)]
    assert {answer.headers["content-encoding"] for answer in answers} == {"gzip"}
    assert len({answer.text for answer in answers}) == 1
    assert "</html>" in answers[0].text


# The report of evaluations


class FakeStore:
    """A store with one page in it."""

    error: Exception | None = None

    def __init__(self, settings: Any) -> None:
        pass

    def get(self, key: str) -> bytes:
        if self.error:
            raise self.error
        if key == f"reports/{TIMED}/checks/Calculator.html":
            return b"<!doctype html><p>checks</p>"
        if key != f"reports/{TIMED}/index.html":
            raise ObjectNotFoundError(f"expected object {key}, found nothing")
        return b"<!doctype html><p>page</p>"

    def exists(self, key: str) -> bool:
        if self.error:
            raise self.error
        return key == self.found

    found = "reports/r1/index.html"


REPORT = "/reports/annotate_corpus/manual__2026-11-21T16%3A30%3A00%2B00%3A00"


def test_a_report_is_served_and_may_run_nothing(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "ObjectStore", FakeStore)
    answer = client.get(REPORT)
    assert (answer.status_code, answer.text) == (200, "<!doctype html><p>page</p>")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert policy.endswith("sandbox")
    assert "script-src" not in policy


def test_a_run_without_a_report_is_said_without_markup_from_its_name(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "ObjectStore", FakeStore)
    answer = client.get("/reports/annotate_corpus/%3Cscript%3E")
    assert answer.status_code == 404
    assert "No evaluation was reported for the run &lt;script&gt; of annotate_corpus." in answer.text
    assert client.get("/reports/annotate_corpus/..%2F..%2Fmodels").status_code in (403, 404, 502)


@pytest.mark.parametrize(
    ("found", "error", "said"),
    [
        ("", None, "No evaluation was reported for the run r1 of annotate_corpus."),
        ("", ObjectStoreError("refused, key-id AKIA"), "cannot be read from S3"),
        ("reports/r1/index.html", None, None),
    ],
)
def test_the_view_of_the_evaluation_is_the_report_or_a_sentence(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, found: str, error: Exception | None, said: str | None
) -> None:
    monkeypatch.setattr(evaluation, "ObjectStore", FakeStore)
    monkeypatch.setattr(FakeStore, "error", error)
    monkeypatch.setattr(FakeStore, "found", found)
    page = client.get(f"/evaluation?{OF_R1}").text
    assert ("<iframe" in page) == (said is None)
    assert said is None or said in page
    assert "AKIA" not in page


def test_a_run_that_asked_for_no_evaluation_has_no_tab_for_it(client: TestClient, rows: Callable[..., None]) -> None:
    tab = 'href="evaluation?'
    assert tab not in client.get(f"/run?{OF_R1}").text
    suites = '{"evaluation_suites": ["math"]}'
    rows(
        "update annotation_runs set parameters = parameters || cast(:suites as jsonb) where run_id = 'r1'",
        suites=suites,
    )
    assert tab in client.get(f"/run?{OF_R1}&again=1").text


def test_the_page_of_a_check_is_served_as_a_report_is(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "ObjectStore", FakeStore)
    answer = client.get(REPORT.replace("/reports/", "/checks/") + "/Calculator")
    assert (answer.status_code, answer.text) == (200, "<!doctype html><p>checks</p>")
    assert answer.headers["content-security-policy"].endswith("sandbox")
    lacking = client.get("/checks/annotate_corpus/%3Cscript%3E/release")
    assert (lacking.status_code, "The checks of release in the run &lt;script&gt; of" in lacking.text) == (404, True)
    assert client.get(REPORT.replace("/reports/", "/checks/") + "/..%2F..").status_code == 404


def test_an_s3_that_cannot_be_read_is_said_without_its_secrets(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "ObjectStore", FakeStore)
    monkeypatch.setattr(FakeStore, "error", ObjectStoreError("refused, key-id AKIA"))
    answer = client.get(REPORT)
    assert answer.status_code == 502
    assert "AKIA" not in answer.text
    assert "TOOLFORMER_S3_" in answer.text


def test_the_task_that_reports_links_to_where_the_page_is_served(
    local_dags: dict[str, DAG], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (
        'toolformer_run_page = "toolformer_ops.run_page.plugin:RunPagePlugin"'
        in (REPOSITORY / "pyproject.toml").read_text()
    )
