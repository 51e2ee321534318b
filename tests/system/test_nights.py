"""Airflow's scheduler starts the nights of a schedule file, and people are told what they brought.

The clock is given: a schedule's next date is moved to now. Two nights: the first annotates the corpus; the second finds nothing
new. The file is edited while the first is under way. A second file, with a mistake, is an import error of its own. A run that an
asset starts beside them waits for a row that the test holds, until its time is up, while the dag processor is stopped. The slow
test leaves the nights to the wall clock, one a minute.
"""

import configparser
import datetime as dt
import functools
import json
import re
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

from tests.system.conftest import RECORDS, held_stages, processes_of, rows, until
from toolformer_ops.airflow_tasks.airflow_client import ENDED_STATES, AirflowClient
from toolformer_ops.config import Settings

DAG_ID = "nightly_shop"
TOKEN = "token-that-nobody-logs"
MOST_STARTED_TASKS = 12
SLOW = "nightly_slow"
SEND = "send_notifications"
BY_THE_MINUTE, FAILING = "nightly_minutes", "nightly_failing"
NOT_SOON = f'cron = "0 0 1 {(dt.datetime.now(dt.UTC).month + 5) % 12 + 1} *"'
"""Half a year from now: no date of its own comes while the tests run."""
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


@pytest.fixture(scope="module")
def schedule(
    services: Settings, airflow: AirflowClient, writing_model_dir: Path, messages: tuple[str, list[dict[str, Any]]]
) -> Iterator[Callable[..., Path]]:
    """Writes a schedule file, which is gone after the tests; who wants to be told has a webhook."""
    assert services.schedules_dir is not None
    folder = services.schedules_dir
    webhook = {"conn_type": "http", "host": f"{messages[0]}/services/{{password}}", "password": TOKEN}
    airflow._request("POST", "/connections", json={"connection_id": "morning", **webhook})

    def write(dag_id: str, corpus: Path, start: str, finetune: str = "false") -> Path:
        path = folder / f"{dag_id.removeprefix('nightly_')}.toml"
        text = SCHEDULE.format(corpus=corpus, model=writing_model_dir, start=start, hours=1, finetune=finetune)
        path.write_text(text, encoding="utf-8")
        return path

    yield write
    for path in folder.iterdir():
        path.unlink()


def write_corpus(path: Path, *numbers: int) -> Path:
    path.write_text("".join(json.dumps(RECORDS[number]) + "\n" for number in numbers), encoding="utf-8")
    return path


def runs(airflow: AirflowClient, dag_id: str = DAG_ID) -> list[dict[str, Any]]:
    """The runs of a schedule, the first one first."""
    found: list[dict[str, Any]] = airflow.get(f"/dags/{dag_id}/dagRuns", order_by="run_after", limit=100)["dag_runs"]
    return found


def ended(airflow: AirflowClient, dag_id: str = DAG_ID) -> list[dict[str, Any]]:
    """The runs of a schedule that are over."""
    return [run for run in runs(airflow, dag_id) if run["state"] in ENDED_STATES]


def has_done(airflow: AirflowClient, dag_id: str, task_id: str) -> bool:
    """Whether a night of the schedule has come through the task."""
    return any(
        task.task_id == task_id
        for run in runs(airflow, dag_id)
        for task in airflow.tasks(dag_id, run["dag_run_id"], "success")
    )


def are_there(airflow: AirflowClient, *dag_ids: str) -> bool:
    """Whether Airflow has read the files of these DAGs."""
    return set(dag_ids) <= {dag["dag_id"] for dag in airflow.get("/dags", limit=100)["dags"]}


def new_index(airflow: AirflowClient) -> None:
    """Say that there is a new version of the asset that schedules wait for."""
    find = functools.partial(airflow.get, "/assets", limit=100)
    [index] = until("the asset", lambda: [one for one in find()["assets"] if one["name"] == "wiki_index"])
    airflow._request("POST", "/assets/events", json={"asset_id": index["id"], "extra": {"index_id": "new"}})


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


def in_airflows_database(services: Settings, statement: str, **values: object) -> None:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(services.state_dir / "airflow" / "airflow.cfg")
    engine = create_engine(settings["database"]["sql_alchemy_conn"])
    with engine.begin() as connection:
        connection.execute(sql(statement), values)
    engine.dispose()


def began_earlier(services: Settings, dag_id: str) -> None:
    """The time of a run that is under way is up, since it now began two hours ago."""
    earlier = "update dag_run set start_date = start_date - interval '2 hours' where dag_id = :dag_id"
    in_airflows_database(services, earlier, dag_id=dag_id)


NEXT_DATE = """
update dag
set next_dagrun = :date, next_dagrun_create_after = :date, next_dagrun_data_interval_start = :date,
    next_dagrun_data_interval_end = :date
where dag_id = :dag_id
"""


def night_falls(services: Settings, airflow: AirflowClient) -> None:
    """The next date of the schedule is now; returns once the scheduler has made its run."""
    before, date = len(runs(airflow)), dt.datetime.now(dt.UTC)

    def is_made() -> bool:
        in_airflows_database(services, NEXT_DATE, date=date, dag_id=DAG_ID)  # again where the dag processor has set it
        return len(runs(airflow)) > before

    until("a night", is_made)


@dataclass(frozen=True)
class Nights:
    """What happened."""

    runs: list[dict[str, Any]]
    """The two nights as Airflow shows them."""
    import_errors: list[dict[str, Any]]
    received: list[dict[str, Any]]
    """What the webhook was sent."""
    timed_out: dict[str, Any]
    """The run whose time was up."""


@pytest.fixture(scope="module")
def nights(
    services: Settings,
    airflow: AirflowClient,
    schedule: Callable[..., Path],
    messages: tuple[str, list[dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Nights:
    """The two nights, and the run whose time is up; their schedules are gone after them."""
    _, received = messages
    folder = tmp_path_factory.mktemp("shop")
    corpus = write_corpus(folder / "shop.jsonl", 0, 1, 2)
    mistaken = schedule("nightly_mistaken", corpus, NOT_SOON)
    mistaken.write_text(mistaken.read_text().replace("owner", "ownr"), encoding="utf-8")
    schedule(DAG_ID, corpus, NOT_SOON)
    slow = schedule(SLOW, write_corpus(folder / "waits.jsonl", 4), AFTER_THE_INDEX)
    until("the schedules", lambda: are_there(airflow, DAG_ID, SLOW))
    import_errors = until("the mistake", lambda: airflow.get("/importErrors")["import_errors"])
    airflow.set_pool("cpu", 4, "", include_deferred=True)  # two are taken by the runs that wait
    night_falls(services, airflow)
    new_index(airflow)
    with held_stages(services):
        # Both runs wait with their next text until Airflow knows the edited file, however slow the dag processor is.
        until("the first night's ingestion", lambda: has_done(airflow, DAG_ID, "ingest"))
        schedule(DAG_ID, corpus, NOT_SOON, finetune="true")
        until("the edited schedule", lambda: len(airflow.get(f"/dags/{DAG_ID}/dagVersions")["dag_versions"]) == 2)
        until("the start of the slow night", lambda: has_done(airflow, SLOW, "start_run"))
        with stopped(services, "dag-processor"):
            # Who sends each ten minutes would close the run, too, and know less of its end than the scheduler.
            in_airflows_database(services, NEXT_DATE, date=dt.datetime.now(dt.UTC) + dt.timedelta(days=1), dag_id=SEND)
            until("the messages before", lambda: len(ended(airflow, SEND)) == len(runs(airflow, SEND)))
            began_earlier(services, SLOW)
            until("the end of the slow night", lambda: ended(airflow, SLOW))
            until("the message about the slow night", lambda: [one for one in received if SLOW in one["text"]])
    until("the first night", lambda: ended(airflow))
    night_falls(services, airflow)
    until("the second night", lambda: len(ended(airflow)) == 2)
    until("the notifications", lambda: len(received) >= 3)
    slow.unlink()
    [timed_out] = until("the slow night's note", lambda: [run for run in runs(airflow, SLOW) if run["note"]])
    for run in runs(airflow):
        assert run["state"] == "success", failures(airflow, run)
    return Nights(runs(airflow), import_errors, received, timed_out)


def failures(airflow: AirflowClient, run: dict[str, Any]) -> list[str]:
    """The ends of the logs of the tasks of a night that failed."""
    failed = airflow.tasks(run["dag_id"], run["dag_run_id"], "failed")
    return [line for task in failed for line in airflow.log_tail(run["dag_id"], run["dag_run_id"], task, 20)]


def message_about(received: list[dict[str, Any]], run: dict[str, Any]) -> str:
    """The only message about a run."""
    [text] = [
        message["text"]
        for message in received
        if message["text"].endswith(f"/dags/{run['dag_id']}/runs/{quote(run['dag_run_id'])}")
    ]
    return str(text)


def test_a_new_version_of_an_asset_starts_the_schedules_that_wait_for_it(nights: Nights) -> None:
    assert nights.timed_out["run_type"] == "asset_triggered"


def test_a_night_whose_time_is_up_ends_is_told_and_is_not_left_open(services: Settings, nights: Nights) -> None:
    assert nights.timed_out["state"] == "failed"
    took_too_long = "The night took longer than its time limit, and was ended"
    said = message_about(nights.received, nights.timed_out)
    assert said.startswith(f"{SLOW}: FAILED: {took_too_long}\n\n{took_too_long}. ")
    assert nights.timed_out["note"].startswith(took_too_long)
    assert rows(services, "select state from annotation_runs where schedule = 'slow'") == [("failed",)]


def test_each_night_is_of_its_version_and_its_note_sums_it_up(services: Settings, nights: Nights) -> None:
    versions = "select corpus_version from annotation_runs where schedule = 'shop' order by started_at"
    assert rows(services, versions) == [(1,), (1,)]
    first, second = (run["note"] for run in nights.runs)
    assert first.startswith("- Corpus: 3 texts (3 new, 0 gone, ")
    assert second.startswith("- Nothing new: 3 texts as before")


def test_a_file_that_is_edited_counts_for_the_next_night_alone(airflow: AirflowClient, nights: Nights) -> None:
    first, second = nights.runs
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
    assert [run["run_type"] for run in nights.runs] == ["scheduled"] * 2
    first, second = nights.runs
    assert first["end_date"] <= second["start_date"]
    assert first["logical_date"] < second["logical_date"]


def test_each_morning_somebody_is_told_and_no_log_holds_the_token(services: Settings, nights: Nights) -> None:
    assert {message["path"] for message in nights.received} == {f"/services/{TOKEN}"}
    for run in nights.runs:
        subject, text, _ = message_about(nights.received, run).split("\n\n")
        assert re.fullmatch(rf"{DAG_ID}: (\d new texts?, \d+ new calls?|nothing new)", subject)
        assert text.startswith(run["note"].removesuffix("\n…"))
    logs = [path for path in services.state_dir.glob("**/*.log") if path.is_file()]
    assert logs
    assert [path for path in logs if TOKEN in path.read_text(errors="replace")] == []


def test_a_night_with_nothing_new_starts_few_tasks(airflow: AirflowClient, nights: Nights) -> None:
    run_id = nights.runs[1]["dag_run_id"]
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


@pytest.mark.slow
def test_nights_at_each_minute_follow_one_another_and_one_that_fails_is_told_with_its_cause(
    services: Settings,
    airflow: AirflowClient,
    schedule: Callable[..., Path],
    messages: tuple[str, list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    """The first annotates; the second finds a text added and one removed; the third finds nothing new."""
    _, received = messages
    corpus = write_corpus(tmp_path / "minutes.jsonl", 0, 1, 2)
    schedule(BY_THE_MINUTE, corpus, EACH_MINUTE)
    schedule(FAILING, tmp_path / "gone.jsonl", AFTER_THE_INDEX)
    until("the schedules", lambda: are_there(airflow, BY_THE_MINUTE, FAILING))
    new_index(airflow)
    until("the first night's ingestion", lambda: has_done(airflow, BY_THE_MINUTE, "ingest"))
    write_corpus(corpus, 1, 2, 3)

    def told() -> list[dict[str, Any]]:
        """The nights that are over but for those whose date was missed, as on a machine that is slow."""
        over = ended(airflow, BY_THE_MINUTE)
        for run in over:
            assert run["state"] == "success", failures(airflow, run)
        return [run for run in over if run["note"] and not run["note"].startswith("Skipped: ")]

    until("three nights", lambda: len(told()) >= 3)
    first, second, third = told()[:3]
    assert first["end_date"] <= second["start_date"] < second["end_date"] <= third["start_date"]
    assert first["note"].startswith("- Corpus: 3 texts (3 new, 0 gone, ")
    assert second["note"].startswith("- Corpus: 3 texts (1 new, 1 gone, ")
    assert "version 1 to 2" in second["note"]
    assert third["note"].startswith("- Nothing new: 3 texts as before")
    done = [task.task_id for task in airflow.tasks(BY_THE_MINUTE, third["dag_run_id"], "success")]
    assert len(done) <= MOST_STARTED_TASKS

    [failed] = until("the end of the failing night", lambda: ended(airflow, FAILING))
    assert (failed["run_type"], failed["state"]) == ("asset_triggered", "failed")
    until("its message", lambda: [one for one in received if FAILING in one["text"]])
    subject, text, _ = message_about(received, failed).split("\n\n")
    assert subject.startswith(f"{FAILING}: FAILED: ingest: corpus: expected files at ")
    assert text.startswith("failed: ingest: corpus: expected files at ")
    assert text.endswith(" There is no release.")
