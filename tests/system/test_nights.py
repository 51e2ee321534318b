"""Airflow's scheduler runs the nights of a schedule file at steps of a minute, and people are told what they brought.

Three nights: the first annotates the corpus; the second finds a text added and one removed; the third finds nothing new. The file
is edited while the first is under way. A second file, with a mistake, is an import error of its own. Two more are started by an
asset, beside the nights: one fails at once, since its corpus is not there; the other waits for a row that the test holds, until
its time is up, while the dag processor is stopped.
"""

import configparser
import functools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from sqlalchemy import create_engine
from sqlalchemy import text as sql

from tests.system.conftest import RECORDS
from tests.system.test_killed_airflow import processes_of
from toolformer_ops.config import Settings
from toolformer_ops.local_services.airflow_client import ENDED_STATES, AirflowClient
from toolformer_ops.storage import database

DAG_ID = "nightly_shop"
TOKEN = "token-that-nobody-logs"
SECONDS = 900
MOST_STARTED_TASKS = 12
FAILING = "nightly_failing"
SLOW = "nightly_slow"
EACH_MINUTE = 'cron = "* * * * *"'
AFTER_THE_INDEX = 'after = ["wiki_index"]'
SCHEDULE = """
corpus = "{corpus}"
model = "{model}"
{start}
owner = "tests"
hours = {hours}

[run]
tools = ["Calendar"]
sampling_threshold = 0.0
max_positions = 4
samples_per_position = 3
max_call_tokens = 16
keep_thresholds = {{Calendar = 0.0}}
prune_below = 0.0
placebos = 0
placebo_sample = 0
finetune = {finetune}

[finetune]
min_changed_examples = 1000

[notify]
webhooks = ["morning"]
every_morning = true
"""

pytestmark = pytest.mark.system


def until(what: str, look: Callable[[], Any]) -> Any:
    """What `look` returns, once that is something."""
    end = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < end, f"waited {SECONDS} s for {what}"
        time.sleep(0.5)
    return found


@pytest.fixture(scope="module")
def messages() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a webhook, and what it was sent: the path and the text."""
    received: list[dict[str, Any]] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            received.append({"path": self.path, **json.loads(content)})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()


def write_corpus(path: Path, *numbers: int) -> None:
    path.write_text("".join(json.dumps(RECORDS[number]) + "\n" for number in numbers), encoding="utf-8")


def runs(airflow: AirflowClient, dag_id: str = DAG_ID) -> list[dict[str, Any]]:
    """The runs of a schedule, the first one first."""
    found: list[dict[str, Any]] = airflow.get(f"/dags/{dag_id}/dagRuns", order_by="run_after", limit=100)["dag_runs"]
    return found


def told(airflow: AirflowClient) -> list[dict[str, Any]]:
    """The runs that have ended, but for those whose date was missed, as on a machine that is slow; fails where one failed."""
    over = ended(airflow, DAG_ID)
    for run in over:
        assert run["state"] == "success", [
            line
            for task in airflow.tasks(DAG_ID, run["dag_run_id"], "failed")
            for line in airflow.log_tail(DAG_ID, run["dag_run_id"], task, 20)
        ]
    return [run for run in over if run["note"] and not run["note"].startswith("Skipped: ")]


def has_done(airflow: AirflowClient, dag_id: str, task_id: str) -> bool:
    """Whether a night of the schedule has come through the task."""
    return any(
        task.task_id == task_id
        for run in runs(airflow, dag_id)
        for task in airflow.tasks(dag_id, run["dag_run_id"], "success")
    )


def ended(airflow: AirflowClient, dag_id: str) -> list[dict[str, Any]]:
    """The runs of a schedule that are over."""
    return [run for run in runs(airflow, dag_id) if run["state"] in ENDED_STATES]


def are_there(airflow: AirflowClient, *dag_ids: str) -> bool:
    """Whether Airflow has read the files of these DAGs."""
    return set(dag_ids) <= {dag["dag_id"] for dag in airflow.get("/dags", limit=100)["dags"]}


@contextmanager
def stopped(services: Settings, component: str) -> Iterator[None]:
    """A component of Airflow does nothing in the block, as one that is slow, or was killed."""
    processes = processes_of(services, component)
    assert processes
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def began_earlier(services: Settings, dag_id: str) -> Iterator[None]:
    """The time of a run that is under way is up, since it now began two hours ago."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(services.state_dir / "airflow" / "airflow.cfg")
    engine = create_engine(settings["database"]["sql_alchemy_conn"])
    with engine.begin() as connection:
        connection.execute(
            sql("update dag_run set start_date = start_date - interval '2 hours' where dag_id = :dag_id"),
            {"dag_id": dag_id},
        )
    engine.dispose()
    yield


@dataclass(frozen=True)
class Nights:
    """What happened."""

    runs: list[dict[str, Any]]
    """The three nights as Airflow shows them."""
    import_errors: list[dict[str, Any]]
    received: list[dict[str, Any]]
    """What the webhook was sent."""
    failed: dict[str, Any]
    """The run whose corpus is not there."""
    timed_out: dict[str, Any]
    """The run whose time was up."""


@pytest.fixture(scope="module")
def nights(
    services: Settings,
    airflow: AirflowClient,
    writing_model_dir: Path,
    messages: tuple[str, list[dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Nights:
    """The three nights; the schedule is gone after them."""
    assert services.schedules_dir is not None
    address, received = messages
    corpus = tmp_path_factory.mktemp("shop") / "shop.jsonl"
    write_corpus(corpus, 0, 1, 2)
    webhook = {"conn_type": "http", "host": f"{address}/services/{{password}}", "password": TOKEN}
    airflow._request("POST", "/connections", json={"connection_id": "morning", **webhook})
    waits = corpus.with_name("waits.jsonl")
    write_corpus(waits, 4)
    text = functools.partial(SCHEDULE.format, model=writing_model_dir, hours=1, finetune="false")
    files = {
        "mistaken": text(corpus=corpus, start=EACH_MINUTE).replace("owner", "ownr"),
        DAG_ID: text(corpus=corpus, start=EACH_MINUTE),
        FAILING: text(corpus=corpus.with_name("gone.jsonl"), start=AFTER_THE_INDEX),
        SLOW: text(corpus=waits, start=AFTER_THE_INDEX),
    }
    paths = [services.schedules_dir / f"{name.removeprefix('nightly_')}.toml" for name in files]
    for path, content in zip(paths, files.values(), strict=True):
        path.write_text(content, encoding="utf-8")
    try:
        until("the schedules", lambda: are_there(airflow, DAG_ID, FAILING, SLOW))
        [index] = until(
            "the asset",
            lambda: [one for one in airflow.get("/assets", limit=100)["assets"] if one["name"] == "wiki_index"],
        )
        airflow._request("POST", "/assets/events", json={"asset_id": index["id"], "extra": {"index_id": "new"}})
        until("the first night's ingestion", lambda: has_done(airflow, DAG_ID, "ingest"))
        write_corpus(corpus, 1, 2, 3)  # the first night has its version, and its file
        paths[1].write_text(text(corpus=corpus, start=EACH_MINUTE, finetune="true"), encoding="utf-8")
        with database.transaction(database.connect(services)) as connection:
            # The first night waits with its next document until Airflow knows the edited file, however slow the dag processor is.
            connection.exec_driver_sql("lock table stage_ledger in share mode")
            until("the edited schedule", lambda: len(airflow.get(f"/dags/{DAG_ID}/dagVersions")["dag_versions"]) == 2)
        until("the start of the slow night", lambda: has_done(airflow, SLOW, "start_run"))
        with database.transaction(database.connect(services)) as connection:
            # A stage that finishes a document waits, whichever stage the night has come to by now.
            connection.exec_driver_sql("lock table stage_ledger in share mode")
            with stopped(services, "dag-processor"), began_earlier(services, SLOW):
                until("the end of the slow night", lambda: ended(airflow, SLOW))
                until("the message about the slow night", lambda: [one for one in received if SLOW in one["text"]])
        [failed] = until("the end of the failing night", lambda: ended(airflow, FAILING))
        until("three nights", lambda: len(told(airflow)) >= 3)
        until("the notifications", lambda: len(received) >= 5)
        timed_out = until(
            "the slow night's note", lambda: next((run for run in runs(airflow, SLOW) if run["note"]), None)
        )
        import_errors = airflow.get("/importErrors")["import_errors"]
        return Nights(told(airflow)[:3], import_errors, received, failed, timed_out)
    finally:
        for path in paths:
            path.unlink()


def message_about(nights: Nights, run: dict[str, Any]) -> str:
    """The only message about a run."""
    [text] = [
        message["text"]
        for message in nights.received
        if message["text"].endswith(f"/dags/{run['dag_id']}/runs/{quote(run['dag_run_id'])}")
    ]
    return str(text)


def test_a_new_version_of_an_asset_starts_the_schedules_that_wait_for_it(nights: Nights) -> None:
    for run in (nights.failed, nights.timed_out):
        assert run["run_type"] == "asset_triggered"


def test_a_night_that_fails_is_told_with_its_cause(nights: Nights) -> None:
    assert nights.failed["state"] == "failed"
    subject, text, _ = message_about(nights, nights.failed).split("\n\n")
    assert subject.startswith(f"{FAILING}: FAILED: ingest: corpus: expected files at ")
    assert text.startswith("failed: ingest: corpus: expected files at ")
    assert text.endswith(" There is no release.")


def test_a_night_whose_time_is_up_ends_is_told_and_is_not_left_open(services: Settings, nights: Nights) -> None:
    assert nights.timed_out["state"] == "failed"
    took_too_long = "The night took longer than its time limit, and was ended"
    assert message_about(nights, nights.timed_out).startswith(f"{SLOW}: FAILED: {took_too_long}\n\n{took_too_long}. ")
    assert nights.timed_out["note"].startswith(took_too_long)
    with database.transaction(database.connect(services)) as connection:
        states = connection.exec_driver_sql("select state from annotation_runs where schedule = 'slow'").scalars()
        assert list(states) == ["failed"]


def test_each_night_is_of_its_version_and_its_note_sums_it_up(services: Settings, nights: Nights) -> None:
    with database.transaction(database.connect(services)) as connection:
        versions = connection.exec_driver_sql(
            "select corpus_version from annotation_runs where schedule = 'shop' order by started_at"
        ).scalars()
        assert list(versions)[:3] == [1, 2, 2]
    first, second, third = (run["note"] for run in nights.runs)
    assert first.startswith("- Corpus: 3 texts (3 new, 0 gone, ")
    assert second.startswith("- Corpus: 3 texts (1 new, 1 gone, ")
    assert "version 1 to 2" in second
    assert third.startswith("- Nothing new: 3 texts as before")


def test_a_file_that_is_edited_counts_for_the_next_night_alone(airflow: AirflowClient, nights: Nights) -> None:
    first, second, _ = nights.runs
    numbers = [[version["version_number"] for version in run["dag_versions"]] for run in (first, second)]
    assert numbers == [[1], [2]]
    assert first["bundle_version"] != second["bundle_version"]
    skipped = []
    for run in (first, second):
        path = f"/dags/{DAG_ID}/dagRuns/{quote(run['dag_run_id'])}/taskInstances/release/xcomEntries/skipped"
        skipped.append(str(airflow.get(path)["value"]))
    assert "not asked for: finetune is false" in skipped[0]
    assert "the schedule asks for 1000" in skipped[1]


def test_the_nights_were_started_by_the_scheduler_one_after_the_other(nights: Nights) -> None:
    assert [run["run_type"] for run in nights.runs] == ["scheduled"] * 3
    first, second, _ = nights.runs
    assert first["end_date"] <= second["start_date"]
    assert first["logical_date"] < second["logical_date"]


def test_each_morning_somebody_is_told_and_no_log_holds_the_token(services: Settings, nights: Nights) -> None:
    assert {message["path"] for message in nights.received} == {f"/services/{TOKEN}"}
    for run in nights.runs:
        subject, text, _ = message_about(nights, run).split("\n\n")
        assert re.fullmatch(rf"{DAG_ID}: (\d new texts?, \d+ new calls?|nothing new)", subject)
        assert text.startswith(run["note"].removesuffix("\n…"))
    logs = [path for path in services.state_dir.glob("**/*.log") if path.is_file()]
    assert logs
    assert [path for path in logs if TOKEN in path.read_text(errors="replace")] == []


def test_a_night_with_nothing_new_starts_few_tasks(airflow: AirflowClient, nights: Nights) -> None:
    run_id = nights.runs[2]["dag_run_id"]
    done = [task.task_id for task in airflow.tasks(DAG_ID, run_id, "success")]
    assert {"ingest", "start_run", "tools_to_do", "gather_tools", "release", "finish_run"} <= set(done)
    skipped = airflow.get(f"/dags/{DAG_ID}/dagRuns/{quote(run_id)}/taskInstances", limit=100, state="skipped")
    started = [task["task_id"] for task in skipped["task_instances"] if task["pid"] is not None]
    assert not any(task.startswith("Calendar.") for task in [*done, *started])
    assert len(done) + len(started) <= MOST_STARTED_TASKS


def test_a_file_with_a_mistake_is_an_import_error_of_its_own(nights: Nights) -> None:
    [error] = nights.import_errors
    assert (error["filename"], error["bundle_name"]) == ("mistaken.py", "schedules")
    assert (
        "mistaken.toml: expected a schedule, found 1 mistake: ownr: unknown key; did you mean owner?"
        in error["stack_trace"]
    )
