"""Calls on the page: every filter shows what SQL shows, every page follows the one before, and hostile rows stay text."""

import dataclasses
import html
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from playwright.sync_api import expect
from pydantic import SecretStr
from sqlalchemy import Connection
from sqlalchemy import text as sql

from tests.annotated_runs import AnnotatedRun, recipe_id
from tests.dags.run_pages import Rights, allowed, application, browser, needs_chromium, sign_in
from tests.servers import RunningPostgres, copied_database
from toolformer_ops.airflow_tasks.forms import annotation_form
from toolformer_ops.airflow_tasks.run_ids import annotation_run_id
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.local.postgres import OWNER, PAGE
from toolformer_ops.release.choosing import ReleaseTool, choose_calls
from toolformer_ops.run_page import overview, thresholds
from toolformer_ops.run_page.call import token_rows
from toolformer_ops.run_page.calls import STATUSES, Asked, as_sql, find_calls
from toolformer_ops.run_page.reading import Reader
from toolformer_ops.run_page.rights import AskedRun
from toolformer_ops.run_page.shown_runs import ShownRun, load_run
from toolformer_ops.run_page.thresholds import PLACES_A_NAT, load_counts
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.run_tools import load_run_tool
from toolformer_ops.stages.run_setup import finish_run
from toolformer_ops.storage import database

__all__ = ["allowed"]  # a fixture

HOSTILE = "</pre><script>document.title = 'taken'</script><img src=x onerror=alert(1)>' \" \u202e \\'; drop table documents; --"
OF_RUN = "dag_id=annotate_corpus&run_id=run-1"
ASKED = AskedRun("annotate_corpus", "run-1", "somebody")
QUESTION = Asked(tool="", status="scored", contains="", information=None, sort="most_saved", after="")


def settings_of(postgres_dsn: str) -> Settings:
    return Settings(_env_file=None, database_dsn=SecretStr(postgres_dsn))


def write_run(postgres_dsn: str) -> AnnotatedRun:
    """Three tools over twelve texts; one text, one call and one result are hostile."""
    made = AnnotatedRun(settings_of(postgres_dsn), {"Calculator": 0.5, "Calendar": 1.0, "QA": 1.0})
    for number in range(12):
        text = f"Text {number} has 12 eggs in 7 boxes. {HOSTILE if number == 3 else 'It ends here.'}"
        document = made.add_text(text, f"https://x.example/2020/01/{number + 1:02}/{'a' if number % 2 else HOSTILE}")
        made.add_call("Calculator", document, "7 boxes", "12 * 7", "84", saves=number / 8)
        made.add_call("Calculator", document, "12 eggs", "1 / 0", None, reason="divides_by_zero")
        made.add_call(
            "Calendar", document, "It ends" if number != 3 else "eggs", "", "Today is Monday.", saves=1 - number / 16
        )
        if number % 3 == 0:
            made.add_call("QA", document, "eggs", HOSTILE, HOSTILE, saves=number / 4, input_only_after=number == 6)
    made.complete("Calculator", "Calendar", "QA")
    return made


def reading(reader_dsn: str) -> AbstractContextManager[Connection]:
    return database.transaction(database.connect_dsn(reader_dsn, "TOOLFORMER_READER_DSN"))


@contextmanager
def visiting(allowed: Rights, reader_dsn: str) -> Iterator[TestClient]:
    """A browser of somebody who may see all runs, and waits for what is counted."""
    allowed.dag_ids = {"annotate_corpus", "finetune_release"}
    app = application(reader_dsn=reader_dsn)
    app.state.reader.seconds_to_wait = 60.0
    sign_in(app)
    with TestClient(app) as client:
        yield client


@pytest.fixture(scope="module")
def written(postgres_server: RunningPostgres, migrated_template: str) -> Iterator[str]:
    """The reader's address of a database with the run, which no test writes to."""
    with copied_database(postgres_server, migrated_template, OWNER) as name:
        write_run(postgres_server.dsn(name, OWNER))
        yield postgres_server.dsn(name, PAGE)


@pytest.fixture
def shown(written: str) -> Iterator[Connection]:
    """The same database as the page reads it."""
    with reading(written) as connection:
        yield connection


@pytest.fixture
def visitor(allowed: Rights, written: str) -> Iterator[TestClient]:
    """A browser over the same database."""
    with visiting(allowed, written) as client:
        yield client


@pytest.fixture
def run(postgres_dsn: str) -> AnnotatedRun:
    """The run in a database of the test's own."""
    return write_run(postgres_dsn)


@pytest.fixture
def client(allowed: Rights, run: AnnotatedRun, reader_dsn: str) -> Iterator[TestClient]:
    """A browser over the test's own database."""
    with visiting(allowed, reader_dsn) as client:
        yield client


def shown_sql(page: str) -> str:
    """The statement that the page shows, as SQLAlchemy takes it."""
    found = re.search(r'<pre id="sql">(.*?)</pre>', page, re.DOTALL)
    assert found
    return html.unescape(found[1]).rstrip().removesuffix(";").replace("%", "%%")


@pytest.mark.parametrize(
    "query",
    ["", "&status=kept", "&tool=QA", "&contains=TEXT+3+HAS", "&contains=' or 1=1 --", "&status=every",
     "&status=reason:divides_by_zero", "&status=near&sort=least_saved"],
)  # fmt: skip
def test_copied_sql_finds_what_the_page_shows(visitor: TestClient, shown: Connection, query: str) -> None:
    page = visitor.get(f"/calls?{OF_RUN}{query}").text
    assert page.count('<td class="number">') == len(shown.exec_driver_sql(shown_sql(page)).all())


@pytest.fixture(scope="module")
def judged(postgres_server: RunningPostgres, migrated_template: str) -> Iterator[tuple[Connection, AnnotatedRun]]:
    """A run that asks for information of at least 0: calls in every outcome, some without placebos, two released, in texts whose
    ids are in another order than the texts; read by all tests."""
    with copied_database(postgres_server, migrated_template, OWNER) as name:
        made = write_judged_run(postgres_server.dsn(name, OWNER))
        with reading(postgres_server.dsn(name, PAGE)) as connection:
            yield connection, made


def write_judged_run(postgres_dsn: str) -> AnnotatedRun:
    made = AnnotatedRun(settings_of(postgres_dsn), {"Calculator": 0.5, "QA": 1.0}, tau_information=0.0)
    released = []
    for number in range(9):
        document = made.add_text(f"Text {number} has 12 eggs in 7 boxes.")
        saves, after = 2.5 - 0.3 * number, number == 4
        call_id = made.add_call("Calculator", document, "7 boxes", "12 * 7", "84", saves=saves, input_only_after=after)
        if number not in (1, 7):
            made.add_placebo("Calculator", document, call_id, (number % 3 - 1) / 2)
        rival = made.add_call("QA", document, "7 boxes", "how many", "7", saves=2.0)
        if number % 2:
            made.add_placebo("QA", document, rival, 0.0)
        refused = made.add_call("Calculator", document, "12 eggs", "1 / 0", None, reason="divides_by_zero")
        released += [("QA", rival)] if number in (3, 5) else []
    made.complete("Calculator", "QA")
    with database.transaction(made.engine) as connection:
        connection.execute(
            sql(
                "insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls) "
                "values ('0123456789abcdef', 'run-1', 's3://b/r', repeat('0', 64), 2, 2); "
                "delete from call_losses where call_id = :not_scored; "
                "insert into run_releases (run_id, release_id) values ('run-1', '0123456789abcdef')"
            ),
            {"not_scored": refused},
        )
        database.copy_insert(
            connection,
            "release_calls",
            ("release_id", "document_id", "call_id", "scoring_recipe_id", "tool"),
            [("0123456789abcdef", made.documents[0].document_id, call_id, recipe_id("score", tool), tool)
             for tool, call_id in released],
        )  # fmt: skip
    return made


COLUMNS = (
    "tool", "outcome", "release_outcome", "reason", "loss_reduction", "text_before", "call_text", "result", "text_after",
)  # fmt: skip
RELEASED = "call_id in (select call_id from release_calls)"
KEPT = "loss_reduction >= keep_threshold and information >= 0"
BY_STATUS = {
    "scored": "loss_reduction is not null",
    "kept": KEPT,
    "near": "abs(loss_reduction - keep_threshold) <= 0.25 and loss_reduction <> keep_threshold + 0.25",
    "below": "loss_reduction < keep_threshold",
    "released": RELEASED,
    "not_released": f"{KEPT} and not {RELEASED}",
    "input_only_after": f"{KEPT} and input_only_after",
    "uninformative": "loss_reduction >= keep_threshold and coalesce(information, -1) < 0",
    "not_scored": "loss_reduction is null and reason is null",
    "every": "true",
    "reason:divides_by_zero": "reason = 'divides_by_zero'",
}
"""The calls of each status, by what is stored and not by their outcome."""


@pytest.mark.parametrize("sort", ["most_saved", "least_saved", "text_order"])
@pytest.mark.parametrize("status", BY_STATUS)
def test_all_pages_together_are_what_sql_finds_in_its_order(
    judged: tuple[Connection, AnnotatedRun], status: str, sort: Any
) -> None:
    connection, _ = judged
    run = load_run(connection, ASKED)
    asked = dataclasses.replace(QUESTION, status=status, sort=sort)
    # 1. All calls at once are those of the status, as the statement finds them that the page shows.
    whole = find_calls(connection, run, asked, at_most=1000)
    assert (whole.is_whole, whole.next) == (True, None)
    ids = [row["call_id"] for row in whole.rows]
    expected = connection.execute(sql(f"select call_id from candidates where {BY_STATUS[status]}")).scalars().all()
    assert ids
    assert sorted(ids) == sorted(expected)
    statement = as_sql(connection, run, asked).removesuffix(";").replace("%", "%%")
    in_order = [tuple(row) for row in connection.exec_driver_sql(statement)]
    assert [tuple(row[name] for name in COLUMNS) for row in whole.rows] == in_order
    reductions = [row["loss_reduction"] for row in whole.rows]
    if sort != "text_order" and None not in reductions:
        assert reductions == sorted(reductions, reverse=sort == "most_saved")
    # 2. Page by page they are the same.
    paged, after = [], ""
    while True:
        page = find_calls(connection, run, dataclasses.replace(asked, after=after), at_most=7)
        paged += [row["call_id"] for row in page.rows]
        if page.next is None:
            break
        after = page.next
    assert paged == ids


def test_every_status_of_the_page_has_its_calls() -> None:
    assert set(STATUSES) == set(BY_STATUS) - {"reason:divides_by_zero"}


def test_the_kept_calls_are_those_of_every_view_and_of_the_release(judged: tuple[Connection, AnnotatedRun]) -> None:
    connection, run = judged

    def ids(query: str) -> set[Any]:
        return set(connection.execute(sql(query)).scalars())

    kept = ids("select call_id from candidates where outcome = 'kept'")
    assert kept == ids("select call_id from kept_calls")
    # Calculator saves 2.5 - 0.3 n, so 0.5 up to text 6, and has information (n % 3 - 1) / 2, but none in 1 and 7: 2, 4, 5. QA has
    # 0 in texts 1, 3, 5 and 7, and no placebo in the others.
    assert len(kept) == 3 + 4
    # What a release takes, now that only one call stands at a place, and none whose input stands only after it.
    outcomes = "select call_id from candidates where outcome = 'kept' and release_outcome "
    with database.transaction(run.engine) as own:
        tools = [load_run_tool(own, "run-1", tool) for tool in ("Calculator", "QA")]
        names = [field.name for field in dataclasses.fields(ReleaseTool) if hasattr(tools[0], field.name)]
        keep_rules = [ReleaseTool(**({name: getattr(tool, name) for name in names} | tool.keep_rule)) for tool in tools]
        left_out = choose_calls(own, "run-1", keep_rules, 1000)
        chosen = set(own.execute(sql("select call_id from releasable_calls where left_out is null")).scalars())
    assert chosen == ids(f"{outcomes} in ('released', 'above_max_examples')")
    assert len(chosen) == 1 + 4
    assert left_out["Calculator"] == {"better_call_at_position": 1}
    assert len(ids(f"{outcomes} = 'better_call_at_position'")) == len(ids(f"{outcomes} = 'input_only_after'")) == 1


def test_hostile_rows_are_text_on_every_page(visitor: TestClient, shown: Connection) -> None:
    [row, *_] = find_calls(shown, load_run(shown, ASKED), dataclasses.replace(QUESTION, tool="QA")).rows
    one_call = f"call?{OF_RUN}&tool=QA&document_id={row['variant_id']}&call_id={row['call_id']}"
    pages = (f"calls?{OF_RUN}", f"calls?{OF_RUN}&status=every", f"run?{OF_RUN}", one_call,
             f"thresholds?{OF_RUN}&threshold.QA=0.5", f"changes?{OF_RUN}")  # fmt: skip
    for address in pages:
        answer = visitor.get(f"/{address}")
        assert answer.status_code == 200, address
        assert "<script>document" not in answer.text
        assert "<img" not in answer.text
        assert "\u202e" not in answer.text
    assert "&lt;script&gt;document.title" in visitor.get(f"/{one_call}").text


@pytest.mark.parametrize("is_finished", [False, True])
def test_every_place_of_a_slider_counts_what_sql_counts(
    client: TestClient, postgres_dsn: str, reader_dsn: str, is_finished: bool
) -> None:
    if is_finished:
        finish_run(settings_of(postgres_dsn), "run-1", "success")
    with reading(reader_dsn) as connection:
        found = load_run(connection, ASKED)
        assert found.has_stored_numbers == is_finished
        check_slider(client, connection, found)


def check_slider(client: TestClient, connection: Connection, found: ShownRun) -> None:
    counts = load_counts(connection, found)
    kept = sql(
        "select count(*), count(distinct document_id), count(*) filter (where releasable) "
        "from kept_calls_at('run-1', :tool, :at)"
    )
    some = 0
    for tool in ("Calculator", "Calendar", "QA"):
        for place in range(round(0.5 * PLACES_A_NAT), round(2.5 * PLACES_A_NAT)):  # from prune_below on
            at = counts.at(tool, place)
            expected = connection.execute(kept, {"tool": tool, "at": float(f"{place / PLACES_A_NAT:.2f}")}).one()
            assert (at.calls, at.texts, at.releasable_calls) == tuple(expected), (tool, place)
            some += at.calls
    assert some
    page = client.get(f"/thresholds?{OF_RUN}&threshold.Calculator=0.7504").text
    row = page[page.index('<tr data-tool="Calculator">') :]
    [calls, texts, _] = connection.execute(kept, {"tool": "Calculator", "at": 0.75}).one()
    assert re.search(rf'data-count="calls">{calls}<', row)
    assert re.search(rf'data-count="texts">{texts}<', row)
    assert '<td class="number">0.75<' in row


@pytest.mark.parametrize(("scored", "words"), [(12, "too few: 12 placebos"), (40, "25 % (1 to 100 %), 40 placebos")])
def test_what_is_kept_by_chance_says_on_how_many_placebos_it_rests(
    client: TestClient, run: AnnotatedRun, scored: int, words: str
) -> None:
    document = run.add_text("So 7 boxes of 12 eggs.")
    call_id = run.add_call("Calculator", document, "12 eggs", "12 * 7", "84", saves=2.5)
    run.add_placebo("Calculator", document, call_id, 0.5)
    rate = (
        "insert into placebo_rates (run_id, tool, threshold, placebo_recipe_id, calls, placebos, placebos_scored, calls_sampled, "
        "false_discovery_rate, rate_low, rate_high) "
        "values ('run-1', 'Calculator', 0.5, :recipe, 9, 3, :scored, :scored, 0.25, 0.01, 1)"
    )
    with database.transaction(run.engine) as connection:
        connection.execute(sql(rate), {"recipe": recipe_id("placebo", "Calculator"), "scored": scored})
    moved = f"/thresholds?{OF_RUN}&threshold.Calculator=0.75"
    for address, expected in ((f"/run?{OF_RUN}", words), (f"/thresholds?{OF_RUN}", words),
                              (moved, words if scored < 30 else "0 %, 40 placebos")):  # fmt: skip
        cells = re.findall(r'<td class="number">([^<]*)</td>', client.get(address).text)
        assert expected in cells, address


def test_what_takes_long_to_count_is_said_and_shown_later(visitor: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    reader: Reader = visitor.app.state.reader  # type: ignore[attr-defined]
    may_count = threading.Event()

    def slowly(count: Any) -> Any:
        def counting(*arguments: Any) -> Any:
            may_count.wait()
            return count(*arguments)

        return counting

    monkeypatch.setattr(overview, "count_numbers", slowly(overview.count_numbers))
    monkeypatch.setattr(thresholds, "load_counts", slowly(thresholds.load_counts))
    reader.seconds_to_wait = 0.0
    asked = (f"/run?{OF_RUN}", f"/thresholds?{OF_RUN}&threshold.Calculator=0.75")
    first = [visitor.get(address).text for address in asked]
    assert "This run is being counted." in first[0]
    assert 'id="total-kept"' not in first[0]
    assert "data-look-again" in first[1]
    may_count.set()
    reader.seconds_to_wait = 60.0
    # Another address than before, since the answer about a run that works holds for some seconds.
    then = [visitor.get(f"{address}&again=1").text for address in asked]
    assert 'id="total-kept"' in then[0]
    assert "being counted" not in "".join(then)


def test_the_funnel_is_that_of_sql(visitor: TestClient, shown: Connection) -> None:
    page = visitor.get(f"/run?{OF_RUN}").text
    counts = "select stage, reason, sum(count) from yield_by_stage where run_id = 'run-1' group by 1, 2 having sum(count) > 0"
    rows = shown.execute(sql(counts)).all()
    assert rows
    for stage, reason, count in rows:
        row = page[page.index(f'data-row="{stage}.{reason}"') :]
        assert f'<td class="number">{count:,}</td>' in row[: row.index("</tr>")]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_finished_run_opens_with_what_it_found(
    client: TestClient, run: AnnotatedRun, postgres_dsn: str, is_kept: bool
) -> None:
    parts = ["What came out", "What to decide", "What to look at", "How it ran"]
    headings = re.compile("<h2>([^<]*)</h2>")
    running = client.get(f"/run?{OF_RUN}").text
    assert headings.findall(running) == parts
    if not is_kept:
        with database.transaction(run.engine) as connection:
            connection.execute(sql("update run_tools set keep_threshold = 9"))
    finish_run(settings_of(postgres_dsn), "run-1", "success")
    page = client.get(f"/run?{OF_RUN}&again=1").text
    first = "Best calls" if is_kept else "No call was kept: those that save most"
    assert headings.findall(page) == parts
    assert re.search(r"<details><summary>Progress of each stage</summary>\s*<div[^>]*><table class=\"progress\">", page)
    # The best of them: QA saves 2.25, 1.5 and 0.75 nats in texts 9, 6 and 3, and the Calculator 11 / 8 in text 11.
    best = page[page.index(f"<h3>{first}</h3>") : page.index("<h3>Each tool")]
    assert re.findall(r'<td class="number">([^<]*)<', best)[:3] == ["2.25", "1.50", "1.38"]
    cells = re.findall(r'<td class="number">([^<]*)<', page[page.index('<tr data-tool="QA">') :])
    assert cells[:3] == ["4", "4", "2" if is_kept else "0"]


@pytest.mark.parametrize("dag_id", ["annotate_corpus", "finetune_release"])
def test_a_table_without_rows_is_a_sentence(client: TestClient, postgres_dsn: str, dag_id: str) -> None:
    settings = settings_of(postgres_dsn)
    annotates = dag_id == "annotate_corpus"
    for state in ("running", "success", "failed"):
        run_id = annotation_run_id(dag_id, state)
        empty = AnnotatedRun(settings, {"Calculator": 0.5}, run_id=run_id)  # nothing was ingested for it
        if not annotates:
            with database.transaction(empty.engine) as connection:
                connection.execute(sql("delete from run_tools where run_id = :run_id"), {"run_id": run_id})
        if state != "running":
            finish_run(settings, run_id, state)
        said = ""
        for path in ("run", "calls", "thresholds", "changes", "corpora", "review"):
            answer = client.get(f"/{path}?dag_id={dag_id}&run_id={state}")
            assert answer.status_code == 200
            assert not re.search(r"<tbody>\s*</tbody>", answer.text), path
            said += answer.text
        assert ("There is no such call." in said) == annotates
        assert ("This run annotates nothing, so it keeps no call." in said) != annotates
        assert ("No call is stored with its losses." in said) == (annotates and state != "running")


def test_tokens_are_those_that_are_stored() -> None:
    rows = token_rows([[-1.0, -2.0, None, None, None], [None, None, None, None, None], [-0.5, -0.25, None, None, None]])
    assert [(row.text, row.log_probabilities) for row in rows] == [
        ("1", (-1.0, None, -0.5)),
        ("2", (-2.0, None, -0.25)),
    ]
    assert [row.text for row in token_rows([[-1.0, -2.0]], [" 33", "3"])] == ["' 33'", "'3'"]
    assert rows[0].weight == pytest.approx(1 / 3)
    assert token_rows(None) == []


LOG = [
    "plain line of a log",
    {"event": "::group::Pre Execute", "level": "info"},
    {"event": "Task failed with exception", "level": "error", "logger": "task", "error_detail": [
        {"exc_type": "ValueError", "exc_value": "the cause", "frames": [], "is_cause": True},
        {"exc_type": "AirflowException", "exc_value": "release: expected a kept call, found none. Lower <b>tau</b>."}]},
]  # fmt: skip
"""As Airflow 3.3 gives a task's log."""


@needs_chromium
def test_the_browser_shows_what_failed_tasks_said_and_triggers_a_run_with_other_thresholds(
    client: TestClient, run: AnnotatedRun, reader_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "SECONDS_WHILE_RUNNING", 0.3)
    with reading(reader_dsn) as connection:
        of_run = load_run(connection, ASKED)
        [row, *_] = find_calls(connection, of_run, QUESTION).rows
    for tool in ("Calculator", "Calendar", "QA"):  # all stages
        [document] = [document for document in run.documents if document.document_id == row["document_id"]]
        run.add_placebo(tool, document, row["call_id"], 0.5)
    airflow = FastAPI()
    asked: list[str] = []
    confs: list[dict[str, Any]] = []
    runs = "/api/v2/dags/annotate_corpus/dagRuns"

    @airflow.get(f"{runs}/run-1/taskInstances")
    def failed() -> Any:
        asked.append("tasks")
        return {"task_instances": [{"task_id": "release", "map_index": -1, "try_number": 2}]}

    @airflow.get(f"{runs}/run-1/taskInstances/release/logs/2")
    def log() -> Any:
        asked.append("log")
        return {"content": LOG, "continuation_token": None}

    @airflow.post(runs)
    def trigger(body: dict[str, Any]) -> Any:
        confs.append(body["conf"])
        if len(confs) == 1:
            return JSONResponse({"detail": "corpus: expected a file, found none."}, 400)
        return {"dag_run_id": "manual__1"}

    airflow.mount("/toolformer", client.app)
    with browser(airflow) as (page, server):
        address = f"{server}/toolformer"
        # 1. The message of the failed task, as text. It stays while the page looks again, and its log is read once.
        page.goto(f"{address}/run?{OF_RUN}")
        notice = page.locator("[data-failed-tasks] .notice")
        expect(notice).to_contain_text("release: expected a kept call, found none. Lower <b>tau</b>.")
        for _ in range(600):
            if asked.count("tasks") >= 4:
                break
            page.wait_for_timeout(100)
        assert asked.count("tasks") >= 4
        expect(notice).to_have_count(1)
        assert asked.count("log") == 1
        of_task = notice.get_by_role("link").get_attribute("href")
        assert of_task == "../dags/annotate_corpus/runs/run-1/tasks/release"
        # Every stage is to be seen at 1,280 pixels, beside Airflow's own menu and list of tasks.
        page.set_viewport_size({"width": 800, "height": 800})
        page.locator('[data-stage="Calculator.filter"]').scroll_into_view_if_needed()  # down to its row
        expect(page.locator('[data-stage="Calculator.placebo"]')).to_be_in_viewport(ratio=1)
        # 2. A slider moved, and a run with that: what Airflow answers is said.
        page.goto(f"{address}/thresholds?{OF_RUN}")
        page.locator('input[name="threshold.Calculator"]').fill("0.75")
        expect(page.locator('[data-tool="Calculator"]')).to_contain_text("was 0.50")
        page.get_by_role("button", name="Trigger a run with these").click()
        expect(page.locator("form[data-trigger] output")).to_contain_text("expected a file, found none.")
        page.get_by_role("button", name="Trigger a run with these").click()
        link = page.locator("form[data-trigger] output a")
        expect(link).to_have_text("manual__1")
        assert link.get_attribute("href") == "../dags/annotate_corpus/runs/manual__1"
    # 3. What was sent are values that Airflow's form takes where it has the field, and all the run's choices but the thresholds.
    conf = confs[-1]
    assert confs[0] == conf
    form = annotation_form(load_settings())
    for name in form.keys() & conf.keys():
        form[name].resolve(conf[name])
    chosen, before = RunChoices.parse(conf), RunChoices.parse(of_run.parameters)
    assert chosen.kept_from() == {"Calculator": 0.75, "Calendar": 1.0, "QA": 1.0}
    assert chosen.finetune is False
    same = {"keep_thresholds", "finetune"}
    assert chosen.model_dump(exclude=same) == before.model_dump(exclude=same)
