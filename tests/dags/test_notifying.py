"""Who is told of the end of a night, what, and how often; and that no secret is told."""

import datetime as dt
import hashlib
import logging
import smtplib
import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowException
from sqlalchemy import text as sql

from tests.dags.test_schedules import written
from tests.mail_server import mail_server, self_signed
from tests.written_nights import Nights, Record, Tool
from toolformer_ops.airflow_tasks.airflow_client import AirflowClient, DagState, RunState, TaskState
from toolformer_ops.airflow_tasks.nights import notifying
from toolformer_ops.airflow_tasks.nights.notifying import Message, SendNotifications, send_to_webhook
from toolformer_ops.airflow_tasks.run_notes import NOTE_CHARACTERS, set_note, shortened
from toolformer_ops.config import load_settings
from toolformer_ops.errors import AirflowError
from toolformer_ops.storage.postgres import database, queries

SECRET = "T000-B000-hush"
NOTIFY = '[notify]\nwebhooks = ["chat"]\n'
EVERY_MORNING = f"{NOTIFY}every_morning = true\n"
DAG_RUN = "scheduled__2026-11-22T02:00:00+00:00"
NOW = dt.datetime(2026, 11, 22, 2, tzinfo=dt.UTC)
RUN = f"nightly_posts.{DAG_RUN}"
MESSAGE = Message("nightly_posts: nothing new", "- Nothing new", "http://airflow.example/run")
BEARER = {"Authorization": f"Bearer {SECRET}"}
TOOL = Tool("Calculator")


class Webhook:
    """Answers with these statuses, one after the other, and then with 200; an exception is raised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[int | BaseException] = []
        self.posted: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(httpx, "post", self.post)

    def post(self, url: str, **request: Any) -> httpx.Response:
        assert request["timeout"] <= 5.0
        self.posted.append((url, request))
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, BaseException):
            raise answer
        return httpx.Response(answer)

    @property
    def texts(self) -> list[str]:
        return [request["json"]["text"] for _, request in self.posted]


@dataclass
class Airflow:
    """The runs that Airflow shows as ended, those that are open in DAGs that are gone, and the notes of all."""

    ended: list[RunState] = field(default_factory=list)
    halted: list[RunState] = field(default_factory=list)
    notes: dict[tuple[str, str], str] = field(default_factory=dict)
    is_away: bool = False

    def _ask(self) -> None:
        if self.is_away:
            raise AirflowError("Airflow refused GET: 401.")

    def ended_runs(self, prefix: str, since: dt.datetime) -> list[RunState]:
        self._ask()
        return [run for run in self.ended if run.dag_id.startswith(prefix)]

    def open_runs(self) -> list[RunState]:
        self._ask()
        return list(self.halted)

    def find_run(self, dag_id: str, run_id: str) -> RunState | None:
        return next((run for run in self.ended if (run.dag_id, run.run_id) == (dag_id, run_id)), None)

    def dag(self, dag_id: str) -> DagState:
        return DagState(is_paused=False, is_stale=True)

    def tasks(self, dag_id: str, run_id: str) -> list[TaskState]:
        return []

    def end_run(self, dag_id: str, run_id: str, state: str, note: str) -> None:
        self.halted.clear()
        self.notes[dag_id, run_id] = note

    def note(self, dag_id: str, run_id: str) -> str:
        self._ask()
        return self.notes.get((dag_id, run_id), "")

    def set_note(self, dag_id: str, run_id: str, note: str) -> None:
        assert len(note) <= NOTE_CHARACTERS
        self.notes[dag_id, run_id] = note


@dataclass
class World:
    """A database with nights, what Airflow shows of them, its Connections, and the webhook of one."""

    nights: Nights
    airflow: Airflow
    folder: Path
    webhook: Webhook
    connections: dict[str, Connection]

    def schedule(self, sections: str, **values: str) -> None:
        """The schedule file holds this from now on."""
        content = written(self.folder, sections, **values).read_bytes()
        with database.transaction(self.nights.engine) as connection:
            version = hashlib.sha256(content).hexdigest()
            database.execute(
                connection, queries.bundles.store, version=version, name="posts", content=content
            )

    def night(self, run_id: str = RUN, state: str = "success", problem: str = "") -> None:
        """A night that annotates, releases and ends so; `running`: it has no end in Postgres."""
        self.nights.ingest(
            Record("We bought {{ 1 / 0 }} pens & <b>"), *(Record(f"text {n}") for n in range(8))
        )
        self.nights.start(run_id, TOOL, schedule="posts", corpus="c", model="m")
        self.nights.work(run_id, TOOL)
        self.nights.release(run_id)
        if state != "running":
            self.nights.finish(run_id, state, problem)

    def send(self) -> None:
        SendNotifications(task_id="send").execute({})

    @property
    def note(self) -> str:
        return self.airflow.notes.get(("nightly_posts", DAG_RUN), "")


@pytest.fixture
def world(postgres_dsn, engine, monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", postgres_dsn)
    load_settings.cache_clear()
    address = "https://hooks.example/services/{password}"
    chat = Connection(conn_id="chat", conn_type="http", host=address, password=SECRET)
    made = World(Nights(engine), Airflow(), tmp_path, Webhook(monkeypatch), {"chat": chat})

    @contextmanager
    def client(_: object) -> Any:
        yield made.airflow

    monkeypatch.setattr(notifying, "airflow_client", client)
    monkeypatch.setattr(BaseHook, "get_connection", lambda *names: made.connections[names[-1]])
    return made


# Who is told, and how often


def test_a_night_that_failed_is_told_once_with_its_cause_at_its_address(world):
    # The newest file that is a schedule says who is told: this one was corrected, and mistaken later.
    world.schedule('[notify]\nwebhooks = ["gone"]\n')
    world.schedule(NOTIFY)
    world.schedule("[notify]\nwebhoks = []\n", hours="0")
    world.night(state="failed", problem="failed: MT.annotate (2 shards). The release is out.")
    for _ in range(2):
        world.send()
    [text] = world.webhook.texts
    assert text.startswith(
        "nightly_posts: FAILED: MT.annotate (2 shards)\n\nThe release is out.\n\n- Corpus: 9 texts"
    )
    assert text.endswith("/dags/nightly_posts/runs/scheduled__2026-11-22T02%3A00%3A00%2B00%3A00")
    # Cleared, it ends again.
    world.nights.finish(RUN, "failed", "failed: release. None.")
    world.send()
    assert world.webhook.texts[1].startswith("nightly_posts: FAILED: release\n\n")


@pytest.mark.parametrize(
    ("state", "sections", "is_told"),
    [("success", NOTIFY, False), ("success", EVERY_MORNING, True), ("failed", "", False)],
)
def test_only_who_asks_for_it_is_told(world, state, sections, is_told):
    world.night(state=state)
    for of_the_time in (sections, EVERY_MORNING):
        world.schedule(of_the_time)
        world.send()
        assert len(world.webhook.posted) == is_told


@pytest.mark.parametrize("has_started", [True, False])
def test_a_night_is_told_though_whoever_saw_its_end_was_killed(world, has_started):
    """As of a scheduler that dies, or a Postgres that is away, when the time of a night is up."""
    world.schedule(NOTIFY)
    if has_started:
        world.night(state="running")
    world.airflow.ended = [
        RunState("nightly_posts", DAG_RUN, "failed", NOW),
        RunState("nightly_posts", "skipped", "success", NOW),
    ]
    for _ in range(2):
        world.send()
    [text] = world.webhook.texts
    assert text.startswith("nightly_posts: FAILED: ended by a person, or by its time limit")
    assert world.note.startswith("ended by a person, or by its time limit.")
    assert "skipped" not in str(world.airflow.notes)


def test_of_a_night_whose_schedule_was_deleted_in_mid_run_people_are_told(world):
    world.schedule(NOTIFY)
    world.night(state="running")
    world.airflow.halted = [RunState("nightly_posts", DAG_RUN, "running", NOW, looked_at=NOW)]
    for _ in range(2):
        world.send()
    [text] = world.webhook.texts
    assert text.startswith("nightly_posts: FAILED: Its DAG nightly_posts is gone: its file was deleted")
    assert world.note.startswith("Its DAG nightly_posts is gone")


def test_a_message_has_at_most_ten_lines_beside_its_subject(world):
    world.schedule(EVERY_MORNING)
    world.night()
    world.send()
    _, *lines = filter(None, world.webhook.texts[0].splitlines())
    assert 4 <= len(lines) <= 10
    assert [line.startswith("http") for line in lines] == [False] * (len(lines) - 1) + [True]


def test_without_airflows_api_what_postgres_knows_is_told(world, caplog):
    world.schedule(NOTIFY)
    world.airflow.is_away = True
    with database.transaction(world.nights.engine) as connection:
        for run_id in (RUN, "by-hand", "nightly_posts.old"):
            problem = "failed: ingest. There is no release."
            database.execute(connection, queries.runs.insert_not_started, run_id=run_id, problem=problem)
        old = "update runs_not_started set ended_at = now() - interval '4 days' where run_id like '%old'"
        connection.execute(sql(old))
    world.send()
    [text] = world.webhook.texts
    assert text.startswith("nightly_posts: FAILED: ingest\n\nThere is no release.\n\nhttp")
    assert "TOOLFORMER_AIRFLOW_USERNAME" in caplog.text


def test_who_was_killed_before_the_row_was_there_tells_it_again(world):
    world.webhook.answers = [SystemExit(143)]
    world.schedule(NOTIFY)
    world.night(state="failed")
    with pytest.raises(SystemExit):
        world.send()
    for _ in range(2):
        world.send()
    assert len(world.webhook.posted) == 2


# Mails and webhooks


class Smtp:
    """In place of the provider's hook: sends no mail as long as there are errors to raise."""

    errors: list[Exception]
    mails: list[dict[str, Any]]

    def __init__(self, smtp_conn_id: str) -> None:
        assert smtp_conn_id == "smtp_default"

    def __enter__(self) -> "Smtp":
        return self

    def __exit__(self, *_: object) -> None: ...

    def send_email_smtp(self, **mail: Any) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.mails.append(mail)


def test_who_could_not_be_told_is_in_the_note_until_told_later_alone(world, monkeypatch):
    monkeypatch.setattr("airflow.providers.smtp.hooks.smtp.SmtpHook", Smtp)
    Smtp.mails, Smtp.errors = (
        [],
        [smtplib.SMTPNotSupportedError("no STARTTLS"), ssl.SSLError("wrong version number")],
    )
    world.webhook.answers = [404]
    world.schedule(f'{NOTIFY}emails = ["a@example.org", "b@example.org"]\n')
    world.night(state="failed", problem="failed: release. <b>.")
    own = "failed: release. <b>.\n\n- Corpus"
    for first, remedy in (("chat", '"disable_tls": true'), ("smtp_default", '"disable_ssl": true')):
        with pytest.raises(AirflowException, match="expected every message to be sent, found: "):
            world.send()
        assert world.note.startswith(own)
        assert f"\n\nNot told: {first}: " in world.note
        assert f"Put into the extra of the Connection: {remedy}" in world.note
    for _ in range(2):
        world.send()
        assert (world.note.startswith(own), "Not told" in world.note) == (True, False)
    [mail] = Smtp.mails
    assert (mail["to"], mail["subject"]) == (
        ["a@example.org", "b@example.org"],
        "nightly_posts: FAILED: release",
    )
    assert mail["html_content"].startswith('<pre style="white-space: pre-wrap">&lt;b&gt;.')
    assert "http://127.0.0.1:8080/dags/nightly_posts/runs/" in mail["html_content"]
    assert len(world.webhook.posted) == 2


@pytest.mark.parametrize(
    ("has_tls", "extra", "remedy"),
    [
        (False, '"disable_ssl": true, "disable_tls": true', None),
        (True, '"disable_ssl": true, "ssl_context": "none"', None),
        (False, '"disable_ssl": true', 'Put into the extra of the Connection: "disable_tls": true'),
        (False, '"disable_tls": true', 'Put into the extra of the Connection: "disable_ssl": true'),
        (True, '"disable_ssl": true', "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_a_mail_server_with_or_without_tls_takes_a_mail_or_the_note_says_what_its_connection_lacks(
    world, tmp_path, has_tls, extra, remedy
):
    world.schedule('[notify]\nemails = ["a@example.org", "b@example.org"]\nevery_morning = true\n')
    world.night()
    with mail_server(self_signed(tmp_path) if has_tls else None) as server:
        extra = f'{{{extra}, "from_email": "nights@example.org", "timeout": 5, "retry_limit": 0}}'
        world.connections["smtp_default"] = Connection(
            conn_id="smtp_default", conn_type="smtp", host="localhost", port=server.port, extra=extra
        )
        if remedy:
            with pytest.raises(AirflowException):
                world.send()
            assert "Not told: smtp_default: " in world.note
            assert remedy in world.note
            assert server.mails == []
            return
        world.send()
    [mail] = server.mails
    assert (mail["from"], server.encrypted) == ("nights@example.org", [has_tls])
    assert server.recipients == ["a@example.org", "b@example.org"]


def test_a_webhook_is_posted_to_with_its_token(world):
    world.webhook.answers = [204]
    for values, url, headers in (
        ({}, f"https://hooks.example/services/{SECRET}", {}),  # the token is part of the address
        ({"host": "own.example", "schema": "http", "port": 8099}, "http://own.example:8099", BEARER),
        ({"schema": None, "port": None, "password": None}, "https://own.example", {}),
    ):
        for name, value in values.items():
            setattr(world.connections["chat"], name, value)
        send_to_webhook("chat", MESSAGE)
        found, request = world.webhook.posted[-1]
        assert (found, request["headers"]) == (url, headers)
    assert (
        world.webhook.texts[0] == "nightly_posts: nothing new\n\n- Nothing new\n\nhttp://airflow.example/run"
    )


@pytest.mark.parametrize("answer", [500, httpx.ConnectTimeout(SECRET), httpx.InvalidURL(SECRET)])
def test_a_webhook_that_does_not_take_it_is_named_without_its_address(world, caplog, answer):
    world.webhook.answers = [answer]
    world.schedule(NOTIFY)
    world.night(state="failed")
    with caplog.at_level(logging.DEBUG), pytest.raises(AirflowException, match="chat") as caught:
        world.send()
    assert SECRET not in str(caught.value) + caplog.text + world.note


# Notes


def test_a_note_that_airflow_refuses_where_the_worker_reaches_it_is_a_warning(monkeypatch, caplog):
    notes: list[tuple[str, ...]] = []

    def take(client: AirflowClient, *note: str) -> None:
        notes.append((client.url, *note))
        if len(notes) > 1:
            raise AirflowError("Airflow refused PATCH: 401.")

    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "http://api-server:8080/execution/")
    monkeypatch.setattr(AirflowClient, "set_note", take)
    run: Any = {"ti": SimpleNamespace(dag_id="nightly_posts", run_id=DAG_RUN)}
    set_note(run, "text")
    assert notes == [("http://api-server:8080", "nightly_posts", DAG_RUN, "text")]
    assert caplog.text == ""
    set_note(run, "text")
    assert "TOOLFORMER_AIRFLOW_USERNAME" in caplog.text


def test_a_long_note_keeps_its_first_lines():
    assert shortened("short") == "short"
    long = "\n".join(f"line {number} {'x' * 50}" for number in range(40))
    note = shortened(long)
    assert len(note) <= NOTE_CHARACTERS
    assert (long.startswith(note.removesuffix("\n…")), note[-2:]) == (True, "\n…")
    alone = shortened("x" * (NOTE_CHARACTERS + 1))
    assert (len(alone), alone[-3:]) == (NOTE_CHARACTERS, "x\n…")
