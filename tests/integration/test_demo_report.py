"""The report of the demo over a run in Postgres."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from sqlalchemy import Connection

from tests.annotated_runs import AnnotatedRun
from toolformer_ops.config import Settings
from toolformer_ops.local.demo.report import best_call, print_report, sign_in
from toolformer_ops.runs.progress import Progress, read_progress
from toolformer_ops.storage.postgres import database, queries

SETTINGS = Settings(
    _env_file=None, airflow_url="http://airflow", airflow_username="admin", state_dir=Path("/state")
)
SUM = "It is late. We had 520 shirts and sold 187, so 333 are left. Good night."
POST = "Good morning! Today is Friday, March 1, and it rains."


@pytest.fixture
def run(settings):
    run = AnnotatedRun(settings, {"Calculator": 0.5, "Calendar": 1.0})
    shirts, post = run.add_text(SUM), run.add_text(POST)
    run.add_call("Calculator", shirts, " 333", "520 - 187", "333", saves=2.25)
    run.add_call("Calculator", shirts, " 187", "520 - 333", "187", saves=1.5)
    run.add_call("Calendar", post, " Friday", "", "Today is Friday, March 1, 2019.", saves=1.25)
    run.add_call("Calendar", post, " rains", "", "Today is Friday, March 1, 2019.", saves=0.75)
    run.complete("Calculator", "Calendar")
    return run


@pytest.fixture
def connection(run):
    with database.transaction(run.engine) as connection:
        yield connection


def report_of(connection: Connection, run: AnnotatedRun) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_report(console, connection, run.run_id, "http://airflow/run")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown_calls(report: str) -> list[str]:
    return [line.strip() for line in report.splitlines() if re.match(r"  -?\d", line)]


def test_the_report_says_how_many_calls_of_each_tool_are_kept(connection, run):
    report = report_of(connection, run)
    assert "Kept 3 of 4 calls: Calculator 2/2, Calendar 1/2. What each saves:" in report


def test_a_run_that_did_all_the_work_itself_does_not_say_so(connection, run):
    assert "Annotated" not in report_of(connection, run)


def test_the_report_says_how_much_was_done_before(connection, run):
    connection.exec_driver_sql("update annotation_runs set started_at = now() + interval '1 day'")
    assert "Annotated 0 of 4 pairs of a document and a tool; the rest was done before." in report_of(
        connection, run
    )


def test_the_report_shows_the_best_calls(connection, run):
    report = report_of(connection, run)
    assert shown_calls(report) == [  # in their sentences, one a text
        "2.25 nats  We had 520 shirts and sold 187, so [Calculator(520 - 187) -> 333] 333 are left.",
        "1.25 nats  Today is [Calendar() -> Today is Friday, March 1, 2019.] Friday, March 1, and it rains.",
    ]
    assert "Release  none" in report
    assert "Model    none" in report


def test_the_report_shows_the_release_with_its_size(connection, run):
    connection.exec_driver_sql(
        "insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls, lacking_tools) "
        "values ('r1', 'run-1', 's3://b/releases/r1', 'x', 2, 3, '{MT}');"
        "insert into run_releases (run_id, release_id) values ('run-1', 'r1');"
        "insert into finetuned_models (model_id, release_id, run_id, uri, manifest_sha256, training_loss) "
        "values ('m1', 'r1', 'run-1', 's3://b/models/m1', 'x', 2.5);"
        "insert into run_models (run_id, model_id) values ('run-1', 'm1')"
    )
    report = report_of(connection, run)
    assert "Release  s3://b/releases/r1  (2 texts, 3 calls)" in report
    assert "it lacks MT" in report


def test_where_the_password_is_is_said_without_it(monkeypatch):
    assert sign_in(SETTINGS) == "user admin, password: TOOLFORMER_AIRFLOW_PASSWORD in /state/environment"
    monkeypatch.setenv("TOOLFORMER_AIRFLOW_PASSWORD", "of a deployment")
    assert sign_in(SETTINGS) == "user admin, password: TOOLFORMER_AIRFLOW_PASSWORD in the environment"


def test_a_long_call_fills_two_lines_of_a_terminal(settings):
    run = AnnotatedRun(settings, {"Mountains": 0.5})
    text = run.add_text(
        "From our hut we saw the Grossglockner, which is 3798 metres high and covered with snow all year."
    )
    query = "SELECT height FROM mountains WHERE name = 'Grossglockner'"
    run.add_call("Mountains", text, " 3798", query, "3798", saves=2.25)
    run.complete("Mountains")
    console = Console(file=io.StringIO(), width=80, force_terminal=True, no_color=True)
    with database.transaction(run.engine) as connection:
        print_report(console, connection, run.run_id, "http://airflow/run")
    assert isinstance(console.file, io.StringIO)
    first_words = [Text.from_ansi(line).plain.split()[0] for line in console.file.getvalue().splitlines()]
    assert first_words == ["Kept", "2.25", "WHERE", "Release", "Model", "Run"]


def test_the_report_of_a_run_has_few_lines_in_a_pipe(connection, run):
    # kept calls by tool, one call for each of two texts, release, model, and the run's page
    assert len(report_of(connection, run).splitlines()) == 6


def test_where_nothing_is_kept_the_nearest_calls_are_shown_under_lower_thresholds(settings):
    run = AnnotatedRun(settings, {"Calculator": 3.0, "Calendar": 1.0})
    shirts, post = run.add_text(SUM), run.add_text(POST)
    run.add_call("Calculator", shirts, " 333", "520 - 187", "333", saves=2.256)
    run.add_call("Calendar", post, " Friday", "", "Today is Friday, March 1, 2019.", saves=-0.5)
    run.complete("Calculator", "Calendar")
    with database.transaction(run.engine) as connection:
        report = report_of(connection, run)
        [found] = database.fetch_all(connection, queries.summary.kept_nothing, run_id=run.run_id)
        assert found.kept_nothing
    assert [call.split()[0] for call in shown_calls(report)] == ["2.26", "-0.50"]
    assert "Calculator: 2.25 keeps 1 (now 3;" in report
    assert "Calendar: " not in report  # no threshold keeps a call that makes the text less likely
    assert "toolformer-ops run CORPUS --thresholds=Calculator=2.25" in report


def test_progress_is_read_by_tool_with_the_calls_so_far(connection, run):
    progress = read_progress(connection, run.run_id)
    assert progress.counts == "4 calls, 3 kept"
    assert [(tool.tool, tool.at_work) for tool in progress.tools] == [
        ("Calculator", None),
        ("Calendar", None),
    ]
    assert {(stage.done, stage.total) for tool in progress.tools for stage in tool.stages} == {(2, 2)}


def test_a_run_that_has_not_started_has_no_progress(connection):
    assert read_progress(connection, "no-such-run") == Progress()


def test_the_best_call_so_far_is_the_first_of_the_report(connection, run):
    best = best_call(connection, run.run_id)
    assert best is not None
    assert (
        best.plain.replace("saves 2.25 nats: ", "2.25 nats  ") == shown_calls(report_of(connection, run))[0]
    )


def test_a_run_that_has_not_started_has_no_best_call(connection):
    assert best_call(connection, "no-such-run") is None
