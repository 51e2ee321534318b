"""Calls on the page: every filter shows what SQL shows, every page follows the one before, and hostile rows stay text."""

import dataclasses
import re
import threading
from contextlib import AbstractContextManager
from itertools import product
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from playwright.sync_api import expect
from sqlalchemy import Connection
from sqlalchemy import text as sql

from tests.annotated_runs import AnnotatedRun, recipe_id
from tests.dags.run_pages import allowed, application, browser, needs_chromium, sign_in
from tests.servers import settings_of
from toolformer_ops.airflow_tasks.bundles.dag_tools import registered_tools
from toolformer_ops.airflow_tasks.forms import annotation_form
from toolformer_ops.config import load_settings
from toolformer_ops.records import content_uuid
from toolformer_ops.run_page import overview, thresholds
from toolformer_ops.run_page.call import token_rows
from toolformer_ops.run_page.calls import STATUSES, Asked, as_sql, find_calls
from toolformer_ops.run_page.reading import Reader
from toolformer_ops.run_page.rights import AskedRun
from toolformer_ops.run_page.shown_runs import load_run
from toolformer_ops.run_page.thresholds import PLACES, load_counts
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.stages.run_setup import finish_run
from toolformer_ops.storage.postgres import database

__all__ = ["allowed"]  # a fixture

HOSTILE = "</pre><script>document.title = 'taken'</script><img src=x onerror=alert(1)>' \" \u202e \\'; drop table documents; --"
OF_RUN = "dag_id=annotate_corpus&run_id=run-1"
ASKED = AskedRun("annotate_corpus", "run-1")
QUESTION = Asked(tool="", status="scored", contains="", information=None, sort="most_saved", after="")


@pytest.fixture
def run(postgres_dsn):
    """Three tools over twelve texts; one text, one call and one result are hostile."""
    made = AnnotatedRun(settings_of(postgres_dsn), {"Calculator": 0.5, "Calendar": 1.0, "QA": 1.0})
    for number in range(12):
        text = f"Text {number} has 12 eggs in 7 boxes. {HOSTILE if number == 3 else 'It ends here.'}"
        document = made.add_text(
            text, f"https://x.example/2020/01/{number + 1:02}/{'a' if number % 2 else HOSTILE}"
        )
        made.add_call("Calculator", document, "7 boxes", "12 * 7", "84", saves=number / 8)
        made.add_call("Calculator", document, "12 eggs", "1 / 0", None, reason="divides_by_zero")
        made.add_call(
            "Calendar",
            document,
            "It ends" if number != 3 else "eggs",
            "",
            "Today is Monday.",
            saves=1 - number / 16,
        )
        if number % 3 == 0:
            made.add_call(
                "QA", document, "eggs", HOSTILE, HOSTILE, saves=number / 4, input_only_after=number == 6
            )
    made.complete("Calculator", "Calendar", "QA")
    return made


def reading(reader_dsn: str) -> AbstractContextManager[Connection]:
    return database.transaction(database.connect_dsn(reader_dsn, "TOOLFORMER_READER_DSN"))


@pytest.fixture
def client(allowed, run, reader_dsn):
    """A browser of somebody who may see all runs, and waits for what is counted."""
    allowed.dag_ids = {"annotate_corpus", "finetune_release"}
    app = application(reader_dsn=reader_dsn)
    app.state.reader.seconds_to_wait = 60.0
    sign_in(app)
    with TestClient(app) as client:
        yield client


@pytest.fixture
def judged(postgres_dsn, reader_dsn):
    """A run with the keep rule probability: calls in every outcome, some without placebos, two
    released, in texts whose ids are in another order than the texts."""
    made = AnnotatedRun(settings_of(postgres_dsn), {"Calculator": 0.5, "QA": 1.0}, keep_rule="probability")
    released = []
    for number in range(9):
        document = made.add_text(f"Text {number} has 12 eggs in 7 boxes.")
        saves, after = 2.0 - 0.25 * number, number == 3
        call_id = made.add_call(
            "Calculator", document, "7 boxes", "12 * 7", "84", saves=saves, input_only_after=after
        )
        if number not in (1, 7):
            made.add_placebo("Calculator", document, call_id, 0.0, probability=(0.05, 0.25, 0.5)[number % 3])
        rival = made.add_call("QA", document, "7 boxes", "how many", "7", saves=2.0)
        if number % 2:
            made.add_placebo("QA", document, rival, 0.0, probability=0.25)
        refused = made.add_call("Calculator", document, "12 eggs", "1 / 0", None, reason="divides_by_zero")
        released += [("QA", rival)] if number in (3, 5) else []
    made.complete("Calculator", "QA")
    made.change(
        "insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls) "
        "values ('0123456789abcdef', 'run-1', 's3://b/r', repeat('0', 64), 2, 2); "
        "delete from call_losses where call_id = :not_scored; "
        "insert into run_releases (run_id, release_id) values ('run-1', '0123456789abcdef')",
        not_scored=refused,
    )
    of_release = {"release_id": "0123456789abcdef", "document_id": made.documents[0].document_id}
    for tool, call_id in released:
        of_call = {"call_id": call_id, "scoring_recipe_id": recipe_id("score", tool), "tool": tool}
        made.write("release_calls", of_release | of_call)
        made.write("release_choices", of_release | {"call_id": call_id})
    with reading(reader_dsn) as connection:
        yield connection


COLUMNS = (
    "tool", "outcome", "release_outcome", "reason", "gain", "text_before", "call_text", "result", "text_after",
)  # fmt: skip
RELEASED = "call_uuid in (select call_id from release_calls)"
KEPT = "gain >= keep_threshold"
BY_STATUS = {
    "scored": "loss_reduction is not null",
    "kept": KEPT,
    "near": "abs(gain_bound - keep_threshold) <= 0.25 and gain_bound <> keep_threshold + 0.25",
    "below": "gain_bound < keep_threshold",
    "released": RELEASED,
    "not_released": f"{KEPT} and not {RELEASED}",
    "input_only_after": f"{KEPT} and input_only_after",
    "uninformative": "gain_bound >= keep_threshold and coalesce(gain, -1) < keep_threshold",
    "not_scored": "loss_reduction is null and reason is null",
    "every": "true",
    "reason:divides_by_zero": "reason = 'divides_by_zero'",
}
"""The calls of each status, by what is stored and not by their outcome."""


def test_all_pages_together_are_what_sql_finds_in_its_order(judged):
    connection = judged
    run = load_run(connection, ASKED)
    assert set(STATUSES) == set(BY_STATUS) - {"reason:divides_by_zero"}
    hostile = {"contains": "' or '1' = '1"}
    assert find_calls(connection, run, dataclasses.replace(QUESTION, **hostile), at_most=1).rows == []
    sorts: tuple[Any, ...] = ("most_saved", "least_saved", "text_order")
    for sort, (status, condition) in product(sorts, BY_STATUS.items()):
        asked = dataclasses.replace(QUESTION, status=status, sort=sort, contains="BOXES")
        # 1. All calls at once are those of the status, as the statement finds them that the page shows.
        whole = find_calls(connection, run, asked, at_most=1000)
        assert (whole.is_whole, whole.next) == (True, None)
        ids = [row["call_id"] for row in whole.rows]
        expected = (
            connection.execute(sql(f"select call_uuid from candidates where {condition}")).scalars().all()
        )
        assert ids
        assert sorted(ids) == sorted(expected), status
        statement = as_sql(connection, run, asked).removesuffix(";").replace("%", "%%")
        in_order = [tuple(row) for row in connection.exec_driver_sql(statement)]
        assert [tuple(row[name] for name in COLUMNS) for row in whole.rows] == in_order
        gains = [row["gain_bound"] for row in whole.rows]
        if sort != "text_order" and None not in gains:
            assert gains == sorted(gains, reverse=sort == "most_saved")
        # 2. Page by page they are the same.
        paged, after = [], ""
        while after is not None:
            page = find_calls(connection, run, dataclasses.replace(asked, after=after), at_most=7)
            paged += [row["call_id"] for row in page.rows]
            after = page.next
        assert paged == ids, status


def test_hostile_rows_are_text_on_every_page(client, reader_dsn):
    with reading(reader_dsn) as connection:
        [row, *_] = find_calls(
            connection, load_run(connection, ASKED), dataclasses.replace(QUESTION, tool="QA")
        ).rows
    one_call = f"tool=QA&document_id={row['variant_id']}&call_id={row['call_id']}"
    for address in (
        "calls?status=every",
        "run?",
        "thresholds?threshold.QA=0.5",
        "changes?",
        f"call?{one_call}",
    ):
        answer = client.get(f"/{address}&{OF_RUN}")
        assert answer.status_code == 200, address
        assert not re.search("<script>document|<img|\u202e", answer.text)
    assert "&lt;script&gt;document.title" in answer.text


def test_the_page_of_a_call_without_a_result_says_what_its_tool_said(client, run):
    document = run.documents[0]
    call_id = run.add_call("Calculator", document, "boxes", "price('ham')", None, reason="invalid_expression")
    run.write(
        "call_results",
        {
            "tool": "Calculator",
            "tool_version": "1",
            "input_key": content_uuid("price('ham')"),
            "input": "price('ham')",
            "reason": "invalid_expression",
            "message": "no such column: <b>prise</b>",
        },
    )
    page = client.get(
        f"/call?{OF_RUN}&tool=Calculator&document_id={document.document_id}&call_id={call_id}"
    ).text
    assert 'id="said">no such column: &lt;b&gt;prise&lt;/b&gt;</dd>' in page


@pytest.mark.parametrize("is_finished", [False, True])
def test_every_place_of_a_slider_counts_what_sql_counts(client, postgres_dsn, reader_dsn, is_finished):
    if is_finished:
        finish_run(settings_of(postgres_dsn), "run-1", "success")
    kept = sql(
        "select count(*), count(distinct document_id), count(*) filter (where releasable) "
        "from kept_calls_at('run-1', :tool, :at)"
    )
    with reading(reader_dsn) as connection:
        found = load_run(connection, ASKED)
        assert found.has_stored_numbers == is_finished
        counts = load_counts(connection, found)
        some = 0
        for tool in ("Calculator", "Calendar", "QA"):
            places = PLACES["paper"]
            for place in range(round(0.5 * places), round(2.5 * places)):  # from prune_below on
                at = counts.at(tool, place)
                expected = connection.execute(
                    kept, {"tool": tool, "at": float(f"{place / places:.2f}")}
                ).one()
                assert (at.calls, at.texts, at.releasable_calls) == tuple(expected), (tool, place)
                some += at.calls
        assert some
        [calls, texts, _] = connection.execute(kept, {"tool": "Calculator", "at": 0.75}).one()
    page = client.get(f"/thresholds?{OF_RUN}&threshold.Calculator=0.7504").text
    row = page[page.index('<tr data-tool="Calculator">') :]
    assert re.search(rf'data-count="calls">{calls}<', row)
    assert re.search(rf'data-count="texts">{texts}<', row)
    assert '<td class="number">0.75<' in row


def test_calls_that_come_in_are_drawn_with_the_line_of_the_threshold_that_lets_them_in(client):
    """The run keeps calls of the Calendar from 1 nat on."""
    page = client.get(f"/thresholds?{OF_RUN}&threshold.Calendar=0.5").text
    moved = page[page.index("<h2>Calendar: come in</h2>") :]
    assert "left of here: 0.5 nats below the smallest other" in moved
    assert "left of here: 1.0 nats below the smallest other" not in moved


def test_what_is_kept_by_chance_says_on_how_many_placebos_it_rests(client, run):
    document = run.add_text("So 7 boxes of 12 eggs.")
    call_id = run.add_call("Calculator", document, "12 eggs", "12 * 7", "84", saves=2.5)
    run.add_placebo("Calculator", document, call_id, 0.5)
    rate = (
        "insert into placebo_rates (run_id, tool, threshold, placebo_recipe_id, calls, placebos, placebos_scored, calls_sampled, "
        "false_discovery_rate, rate_low, rate_high) values ('run-1', 'Calculator', 0.5, :recipe, 9, 3, 40, 40, 0.25, 0.01, 1)"
    )
    run.change(rate, recipe=recipe_id("placebo", "Calculator"))
    run.change("update annotation_runs set state = 'success', finished_at = now()")
    client.app.state.reader.seconds_to_wait = 60.0
    stored = "25 % (1 to 100 %), 40 placebos"
    for address, words in (("run?", stored), ("thresholds?threshold.Calculator=0.75&", "0 %, 40 placebos")):
        assert f'<td class="number">{words}</td>' in client.get(f"/{address}{OF_RUN}").text


def test_what_takes_long_to_count_is_shown_later(client, monkeypatch):
    reader: Reader = client.app.state.reader  # type: ignore[attr-defined]
    may_count = threading.Event()

    def slowly(count: Any) -> Any:
        def counting(*arguments: Any, **options: Any) -> Any:
            if not options:  # without counts of all texts it is quick
                may_count.wait()
            return count(*arguments, **options)

        return counting

    monkeypatch.setattr(overview, "read_numbers", slowly(overview.read_numbers))
    monkeypatch.setattr(thresholds, "load_counts", slowly(thresholds.load_counts))
    reader.seconds_to_wait = 0.0
    asked = (f"/run?{OF_RUN}", f"/thresholds?{OF_RUN}&threshold.Calculator=0.75")
    first = [client.get(address).text for address in asked]
    assert "<p>The next process starts, or rows are checked.</p>" in first[0]
    assert 'id="total-kept"' not in first[0]
    assert all("data-look-again" in page for page in first)
    may_count.set()
    reader.seconds_to_wait = 60.0
    # Another address than before, since the answer about a run that works holds for some seconds.
    then = [client.get(f"{address}&again=1").text for address in asked]
    assert 'id="total-kept"' in then[0]
    assert "being counted" not in "".join(then)


def test_a_run_that_works_shows_its_best_calls_so_far(client):
    page = client.get(f"/run?{OF_RUN}").text
    best = page[page.index("<h2>Best calls of each tool</h2>") :]
    assert re.findall(r'<td class="number">([^<]*)<', best)[:3] == ["2.25 nats", "1.38 nats", "1.00 nats"]


WITHOUT_PLACEBOS = """
update run_tools set keep_rule = 'probability';
update call_losses set probability_without = 0.01, probability_with = 0.01 * exp(loss_reduction) where reason is null
"""
"""The rule probability, and calls that gain what they save, without a placebo."""


def test_a_run_that_works_says_what_calls_that_gain_enough_wait_for(client, run):
    run.change(WITHOUT_PLACEBOS)
    page = client.get(f"/run?{OF_RUN}").text
    best = page[page.index("<h2>No call is kept so far: those that gain most</h2>") :]
    assert "kept is known once its placebos are scored" in best


def test_a_call_that_waits_for_its_placebo_is_not_lost(client, run):
    run.change(WITHOUT_PLACEBOS)
    run.change("update run_tools set placebo_recipe_id = 'p'")
    run.change("""update annotation_runs set parameters = parameters || '{"placebos": 1}'""")
    client.app.state.reader.seconds_to_wait = 60.0
    page = client.get(f"/run?{OF_RUN}").text
    keep = page[page.index('data-row="keep.kept"') :]
    assert "lost: " not in keep.partition("</table>")[0]


def test_a_finished_run_opens_with_what_it_found(client, run, postgres_dsn):
    def numbers(after: str, page: str) -> list[str]:
        return re.findall(r'<td class="number">([^<]*)<', page[page.index(after) :])[:3]

    finish_run(settings_of(postgres_dsn), "run-1", "success")
    page = client.get(f"/run?{OF_RUN}").text
    # The best of each tool: QA saves 2.25 nats in text 9, the Calculator 11 / 8 in text 11.
    assert numbers("<h2>Best calls of each tool</h2>", page) == ["2.25 nats", "1.38 nats", "1.00 nats"]
    assert numbers('<tr data-tool="QA">', page) == ["4", "4", "2"]
    run.change("update run_tools set keep_threshold = 9")
    finish_run(settings_of(postgres_dsn), "run-1", "success")
    page = client.get(f"/run?{OF_RUN}&again=1").text
    assert numbers("<h2>No call was kept: those that gain most</h2>", page) == [
        "2.25 nats",
        "1.38 nats",
        "1.00 nats",
    ]
    assert numbers('<tr data-tool="QA">', page) == ["4", "4", "0"]
    AnnotatedRun(
        settings_of(postgres_dsn), {"Calculator": 0.5}, run_id="empty"
    )  # nothing was ingested for it
    finish_run(settings_of(postgres_dsn), "empty", "failed")
    empty = client.get("/run?dag_id=annotate_corpus&run_id=empty")
    assert (empty.status_code, re.search(r"<tbody>\s*</tbody>", empty.text)) == (200, None)


def test_tokens_are_those_that_are_stored():
    weights = [0.5, 0.25, 0.125, 0.1, 0.025]
    stored = [[-1.0, -2.0, None, None, None], [None, None, None, None, None], [-0.5, -0.25, None, None, None]]
    rows = token_rows(weights, stored)
    expected = [("1", 0.5, (-1.0, None, -0.5)), ("2", 0.25, (-2.0, None, -0.25))]
    assert [(row.text, row.weight, row.log_probabilities) for row in rows] == expected
    assert [row.text for row in token_rows(weights, [[-1.0, -2.0]], [" 33", "3"])] == ["' 33'", "'3'"]
    assert token_rows(weights, None) == []


@needs_chromium
def test_the_browser_triggers_a_run_with_other_thresholds_then_says_what_airflow_answers(client, reader_dsn):
    airflow = FastAPI()
    confs: list[dict[str, Any]] = []

    @airflow.post("/api/v2/dags/annotate_corpus/dagRuns")
    def trigger(body: dict[str, Any]) -> Any:
        confs.append(body["conf"])
        if len(confs) == 1:
            return JSONResponse({"detail": "corpus: expected a file, found none."}, 400)
        return {"dag_run_id": "manual__1"}

    airflow.mount("/toolformer", client.app)
    with browser(airflow) as (page, server):
        page.goto(f"{server}/toolformer/thresholds?{OF_RUN}")
        page.locator('input[name="threshold.Calculator"]').fill("0.75")
        expect(page.locator('[data-tool="Calculator"]')).to_contain_text("was 0.50")
        output = page.locator("form[data-trigger] output")
        for answer in ("expected a file, found none.", "manual__1"):
            page.get_by_role("button", name="Trigger a run with these").click()
            expect(output).to_contain_text(answer)
        assert output.locator("a").get_attribute("href") == "../dags/annotate_corpus/runs/manual__1"
    # What was sent are values that Airflow's form takes if it has the field, and all the run's choices but
    # the thresholds.
    conf = confs[-1]
    form = annotation_form(load_settings(), registered_tools())
    for name in form.keys() & conf.keys():
        form[name].resolve(conf[name])
    with reading(reader_dsn) as connection:
        before = RunChoices.parse(load_run(connection, ASKED).parameters)
    chosen = {"keep_thresholds": {"Calculator": 0.75, "Calendar": 1.0, "QA": 1.0}, "finetune": False}
    assert RunChoices.parse(conf).model_dump() == before.model_dump() | chosen
