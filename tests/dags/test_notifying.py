"""What people are told, where it is sent to, and that no secret is told."""

import logging
import smtplib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowException

from tests.dags.test_schedules import written
from toolformer_ops.errors import AirflowError
from toolformer_ops.local_services.airflow_client import AirflowClient
from toolformer_ops.orchestration.nightly import nightly_dag
from toolformer_ops.orchestration.notifying import NOTE_CHARACTERS, WebhookNotifier, set_note, shortened

SECRET = "T000-B000-hush"
NOTIFY = '[notify]\nwebhooks = ["chat"]\nemails = ["a@example.org"]\nevery_morning = true\n'
RUN_ID = "scheduled__2026-11-22T02:00:00+00:00"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    """The Connection of the webhook."""
    found = Connection(
        conn_id="chat", conn_type="http", host="https://hooks.example/services/{password}", password=SECRET
    )
    monkeypatch.setattr(BaseHook, "get_connection", lambda connection_id: found)
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda seconds: None))
    return found


class Webhook:
    """Answers with these statuses, one after the other; an exception is raised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.posted: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(httpx, "post", self.post)

    def post(self, url: str, **request: Any) -> httpx.Response:
        assert request["timeout"] <= 5.0
        self.posted.append((url, request))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer)


def context(summary: str | None = "3 documents are new.", **values: Any) -> dict[str, Any]:
    instance = SimpleNamespace(
        xcom_pull=lambda task_ids, key: summary if (task_ids, key) == ("finish_run", "summary") else ""
    )
    return {"ti": instance, "run_id": RUN_ID, "reason": "success", **values}


def test_a_token_is_put_into_the_address_and_the_text_is_rendered(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = Webhook(monkeypatch, 200)
    WebhookNotifier(connection_id="chat", text="{{ run_id }} ended")(context())
    [(url, request)] = webhook.posted
    assert url == f"https://hooks.example/services/{SECRET}"
    assert request["json"] == {"text": f"{RUN_ID} ended"}
    assert request["headers"] == {}


def test_a_password_that_is_no_part_of_the_address_is_a_bearer_token(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = Webhook(monkeypatch, 204)
    connection.host, connection.schema, connection.port = "own.example", "http", 8099
    WebhookNotifier(connection_id="chat", text="x")(context())
    [(url, request)] = webhook.posted
    assert url == "http://own.example:8099"
    assert request["headers"] == {"Authorization": f"Bearer {SECRET}"}


def test_a_webhook_that_is_busy_is_asked_again(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook = Webhook(monkeypatch, httpx.ConnectError("refused"), 503, 200)
    WebhookNotifier(connection_id="chat", text="x")(context())
    assert len(webhook.posted) == 3


@pytest.mark.parametrize("answers", [[404], [500, 500, 500], [httpx.ConnectTimeout(SECRET)] * 3])
def test_a_webhook_that_does_not_take_it_is_named_without_its_address(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answers: list[Any]
) -> None:
    webhook = Webhook(monkeypatch, *answers)
    with caplog.at_level(logging.DEBUG), pytest.raises(AirflowException, match="the Connection chat") as caught:
        WebhookNotifier(connection_id="chat", text="x")(context())
    assert len(webhook.posted) == len(answers)
    assert SECRET not in str(caught.value) + caplog.text


def test_a_failed_night_is_told_with_its_cause_and_its_address(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dag = nightly_dag(str(written(tmp_path, NOTIFY)))
    webhook = Webhook(monkeypatch, 200, 200)
    failed = next(notifier for notifier in dag.on_failure_callback if isinstance(notifier, WebhookNotifier))
    failed(context("failed: MT.annotate.", reason="task_failure", dag=dag))
    text = webhook.posted[0][1]["json"]["text"]
    assert text.startswith("nightly_posts: FAILED\n\nfailed: MT.annotate.")
    assert text.endswith("/dags/nightly_posts/runs/scheduled__2026-11-22T02%3A00%3A00%2B00%3A00")


def test_a_night_that_took_too_long_is_told_though_no_task_was_left_to_say_so(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dag = nightly_dag(str(written(tmp_path, NOTIFY)))
    webhook = Webhook(monkeypatch, 200)
    failed = next(notifier for notifier in dag.on_failure_callback if isinstance(notifier, WebhookNotifier))
    failed({"dag": dag, "run_id": RUN_ID, "reason": "timed_out"})
    assert "The night took longer than its time limit" in webhook.posted[0][1]["json"]["text"]


def test_a_mail_holds_the_summary_as_text_and_no_markup_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mails: list[tuple[Any, str]] = []

    class Server:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def sendmail(self, *, from_addr: str, to_addrs: Any, msg: str) -> None:
            mails.append((to_addrs, msg))

        def close(self) -> None: ...

    server = Connection(
        conn_id="smtp_default",
        conn_type="smtp",
        host="mail.example",
        extra='{"disable_ssl": true, "disable_tls": true, "from_email": "t@e.org"}',
    )
    monkeypatch.setattr(BaseHook, "get_connection", lambda *_: server)
    monkeypatch.setattr(smtplib, "SMTP", Server)
    dag = nightly_dag(str(written(tmp_path, '[notify]\nemails = ["a@example.org"]\nevery_morning = true\n')))
    [told] = dag.get_task("finish_run").on_success_callback
    told(context("**3** documents <new>", dag=dag))
    [(to, message)] = mails
    assert to == ["a@example.org"]
    assert "Subject: nightly_posts: done" in message
    assert "<new>" not in message


def test_a_note_is_set_where_the_worker_reaches_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[tuple[str, ...]] = []
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "http://api-server:8080/execution/")
    monkeypatch.setattr(AirflowClient, "set_note", lambda self, *note: notes.append((self.url, *note)))
    run = {"ti": SimpleNamespace(dag_id="nightly_posts", run_id=RUN_ID)}
    set_note(run, "text")
    assert notes == [("http://api-server:8080", "nightly_posts", RUN_ID, "text")]


def test_a_note_that_airflow_refuses_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise AirflowError("Airflow refused PATCH: 401.")

    monkeypatch.setattr(AirflowClient, "set_note", refuse)
    set_note({"ti": SimpleNamespace(dag_id="nightly_posts", run_id=RUN_ID)}, "text")
    assert "TOOLFORMER_AIRFLOW_USERNAME" in caplog.text


def test_a_long_note_keeps_its_first_lines() -> None:
    assert shortened("short") == "short"
    long = "\n".join(f"line {number} {'x' * 50}" for number in range(40))
    note = shortened(long)
    assert len(note) <= NOTE_CHARACTERS
    assert long.startswith(note.removesuffix("\n…"))
    assert note.endswith("\n…")
    alone = shortened("x" * (NOTE_CHARACTERS + 1))
    assert (len(alone), alone[-3:]) == (NOTE_CHARACTERS, "x\n…")
