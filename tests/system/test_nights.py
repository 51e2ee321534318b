"""Airflow's scheduler starts the nights of a schedule file, whose stages are processes, and people are told what they brought.

The clock is given: a schedule's next date is moved to now. Two nights: the first annotates the corpus with
the tool of a package, and a process of it is killed; the second finds nothing new. The file is edited while
the first is under way. A second file, with a mistake, is an import error of its own.
"""

import configparser
import datetime as dt
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from sqlalchemy import create_engine
from sqlalchemy import text as sql

from tests.system.conftest import (
    SAMPLING,
    TEXTS,
    held_stages,
    put_lines,
    rows,
    run_stages_as,
    stage_process,
    until,
)
from toolformer_ops.airflow_tasks.airflow_client import ENDED_STATES, AirflowClient
from toolformer_ops.config import Settings

DAG_ID, TOOL = "nightly_shop", "WordCount"
TOKEN = "token-that-nobody-logs"
MOST_STARTED_TASKS = 12
SCHEDULE = """
corpus = "{corpus}"
model = "{model}"
cron = "0 0 1 {month} *"
owner = "tests"

[run]
tools = ["WordCount"]
keep_thresholds = {{WordCount = 0.0}}
call_prefix = "tool_name"
finetune = false
{sampling}

[finetune]
min_changed_examples = 1000

[notify]
webhooks = ["morning"]
every_morning = true
"""
"""`month` is half a year from now: no date of its own comes while the tests run."""
NEXT_DATE = """
update dag
set next_dagrun = :date, next_dagrun_create_after = :date, next_dagrun_data_interval_start = :date,
    next_dagrun_data_interval_end = :date
where dag_id = :dag_id
"""

Nights = Told = list[dict[str, Any]]

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def received(services, airflow):
    """What a webhook was sent, whose connection in Airflow is `morning`: the path and the text."""
    found: Told = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            found.append({"path": self.path, **json.loads(content)})
            self.send_response(200)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/services/{{password}}"
    webhook = {"conn_type": "http", "host": address, "password": TOKEN}
    airflow._request("POST", "/connections", json={"connection_id": "morning", **webhook})
    yield found
    server.shutdown()


def runs(airflow: AirflowClient) -> list[dict[str, Any]]:
    """The nights, the first one first."""
    found: list[dict[str, Any]] = airflow.get(f"/dags/{DAG_ID}/dagRuns", order_by="run_after", limit=100)[
        "dag_runs"
    ]
    return found


def ended(airflow: AirflowClient) -> list[dict[str, Any]]:
    """The nights that are over."""
    return [run for run in runs(airflow) if run["state"] in ENDED_STATES]


def night_falls(services: Settings, airflow: AirflowClient) -> None:
    """The next date of the schedule is now; returns once the scheduler has made its run."""
    configuration = configparser.ConfigParser(interpolation=None)
    configuration.read(services.state_dir / "airflow" / "airflow.cfg")
    engine = create_engine(configuration["database"]["sql_alchemy_conn"])
    before, date = len(runs(airflow)), dt.datetime.now(dt.UTC)

    def is_made() -> bool:
        with engine.begin() as connection:  # again where the dag processor has set it
            connection.execute(sql(NEXT_DATE), {"date": date, "dag_id": DAG_ID})
        return len(runs(airflow)) > before

    until("a night", is_made)
    engine.dispose()


def waiting_filter(settings: Settings, run_id: str) -> psutil.Process | None:
    """The process that filters, once it waits to say that it has finished a text."""
    process = stage_process("filter", TOOL, run_id)
    waiting = {
        port
        for (port,) in rows(
            settings, "select client_port from pg_stat_activity where wait_event_type = 'Lock'"
        )
    }
    return (
        process if process and waiting & {open_.laddr.port for open_ in process.net_connections()} else None
    )


@pytest.fixture(scope="module")
def nights(services, airflow, model, received):
    """The two nights as Airflow shows them; their schedule is gone after the tests."""
    assert services.schedules_dir is not None
    run_stages_as(services, airflow, "local")
    schedule, mistaken = (services.schedules_dir / f"{name}.toml" for name in ("shop", "mistaken"))
    sampling = "\n".join(f"{name} = {value}" for name, value in SAMPLING.items())
    month = (dt.datetime.now(dt.UTC).month + 5) % 12 + 1
    corpus = put_lines(services, "corpora/shop.jsonl", TEXTS[3:])
    text = SCHEDULE.format(corpus=corpus, model=model, sampling=sampling, month=month)
    mistaken.write_text(text.replace("owner", "ownr"), encoding="utf-8")
    schedule.write_text(text, encoding="utf-8")
    until(
        "the schedule", lambda: DAG_ID in {dag["dag_id"] for dag in airflow.get("/dags", limit=100)["dags"]}
    )
    night_falls(services, airflow)
    with held_stages(services, "micro_batches"):
        # A try waits with its first text until Airflow knows the edited file, however slow the dag processor
        # is.
        run_id = f"{DAG_ID}.{runs(airflow)[0]['dag_run_id']}"
        killed = until("a filter at work", lambda: waiting_filter(services, run_id))
        killed.kill()
        killed.wait(30)
        schedule.write_text(text.replace("finetune = false", "finetune = true"), encoding="utf-8")
        until(
            "the edited schedule",
            lambda: len(airflow.get(f"/dags/{DAG_ID}/dagVersions")["dag_versions"]) == 2,
        )
    until("the first night", lambda: ended(airflow))
    night_falls(services, airflow)
    until("the second night", lambda: len(ended(airflow)) == 2)
    until("the notifications", lambda: len(received) >= 2)
    for run in runs(airflow):
        assert run["state"] == "success", airflow.tasks(DAG_ID, run["dag_run_id"], "failed")
    yield runs(airflow)
    schedule.unlink()
    mistaken.unlink()


def test_the_scheduler_starts_night_after_night_each_summed_up_in_its_note(services, nights):
    versions = "select corpus_version from annotation_runs where schedule = 'shop' order by started_at"
    assert rows(services, versions) == [(1,), (1,)]
    first, second = (run["note"] for run in nights)
    assert first.startswith("- 3 new texts, ")
    assert second.startswith("- Nothing new\n- 3 texts and ")
    assert [run["run_type"] for run in nights] == ["scheduled"] * 2
    assert nights[0]["end_date"] <= nights[1]["start_date"]


def test_a_killed_stage_is_tried_again_with_each_text_done_once(services, airflow, nights):
    run_id = nights[0]["dag_run_id"]
    tries = {task.name: task.try_number for task in airflow.tasks(DAG_ID, run_id, "success")}
    assert tries[f"{TOOL}.filter [0]"] >= 2
    done = "select 1 from stage_ledger join run_tools on recipe_id = filter_recipe_id where run_id = :run"
    assert len(rows(services, done, run=f"{DAG_ID}.{run_id}")) == len(TEXTS[3:])
    assert rows(services, "select * from micro_batch_tries") == []  # no text is suspected any more
    kept = rows(
        services, "select call_text, result from kept_calls where run_id = :run", run=f"{DAG_ID}.{run_id}"
    )
    assert kept
    for text, result in kept:  # the package's tool has run
        assert result == str(len(text.removeprefix(f"{TOOL}(").removesuffix(")").split()))


def test_a_file_that_is_edited_counts_for_the_next_night_alone(airflow, nights):
    first, second = nights
    numbers = [[version["version_number"] for version in run["dag_versions"]] for run in (first, second)]
    assert numbers == [[1], [2]]
    assert first["bundle_version"] != second["bundle_version"]
    skipped = []
    for run in (first, second):
        path = f"/dags/{DAG_ID}/dagRuns/{quote(run['dag_run_id'])}/taskInstances/release/xcomEntries/skipped"
        skipped.append(str(airflow.get(path)["value"]))
    assert "not asked for: finetune is false" in skipped[0]
    assert "the schedule asks for 1000" in skipped[1]


def test_each_morning_the_webhook_is_told(nights, received):
    assert {message["path"] for message in received} == {f"/services/{TOKEN}"}
    for run in nights:
        address = f"/dags/{DAG_ID}/runs/{quote(run['dag_run_id'])}"
        [message] = [found["text"] for found in received if found["text"].endswith(address)]
        subject, text, _ = message.split("\n\n")
        assert re.fullmatch(rf"{DAG_ID}: (\d new texts?, \d+ new calls?|nothing new)", subject)
        headline, _, lines = run["note"].removesuffix("\n…").partition("\n")
        assert subject.lower().endswith(headline.removeprefix("- ").lower())
        assert text.startswith(lines)


def test_no_log_holds_the_token_of_the_webhook(services, nights, received):
    logs = [path for path in services.state_dir.glob("**/*.log") if path.is_file()]
    assert logs
    assert [path for path in logs if TOKEN in path.read_text(errors="replace")] == []


def test_a_night_with_nothing_new_starts_few_tasks(airflow, nights):
    run_id = nights[1]["dag_run_id"]
    done = [task.task_id for task in airflow.tasks(DAG_ID, run_id, "success")]
    assert {"ingest", "start_run", "tools_to_do", "check", "release", "finish_run"} <= set(done)
    skipped = airflow.get(f"/dags/{DAG_ID}/dagRuns/{quote(run_id)}/taskInstances", limit=100, state="skipped")
    started = [task["task_id"] for task in skipped["task_instances"] if task["pid"] is not None]
    assert not any(task.startswith(f"{TOOL}.") for task in [*done, *started])
    assert len(done) + len(started) <= MOST_STARTED_TASKS


def test_a_file_with_a_mistake_is_an_import_error_of_its_own(airflow, nights):
    [error] = airflow.get("/importErrors")["import_errors"]
    assert (error["filename"], error["bundle_name"]) == ("mistaken.py", "schedules")
    assert "mistaken.toml: expected a schedule, found 1 mistake: ownr: unknown key" in error["stack_trace"]
