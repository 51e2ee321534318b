"""Tell people how a night went: the run's note in the Airflow UI, mails, and webhooks.

The DAG `send_notifications` does it: Airflow starts no task of a run whose time was up, and calls a DAG's
callbacks in a process that it ends after a minute. Its task asks Postgres which runs of schedules have ended,
and sends what was not sent yet: at least once, and twice only if it was killed between a message and its row.
Owns `notifications`. Passwords, tokens and secret addresses come from Airflow's Connections.
"""

import datetime
import logging
import smtplib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from airflow.sdk import BaseHook, BaseOperator, Context
from airflow.sdk.exceptions import AirflowException
from sqlalchemy import Connection, Engine, Row

from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.airflow_tasks.bundles.dag_tools import from_json
from toolformer_ops.airflow_tasks.nights.schedules import Notification, load_schedule
from toolformer_ops.airflow_tasks.run_ends.reconciling import reconcile
from toolformer_ops.airflow_tasks.run_ids import NIGHTLY, dag_run_of
from toolformer_ops.airflow_tasks.run_notes import CREDENTIALS, NOTE_CHARACTERS, airflow_client, shortened
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import AirflowError, ConfigurationError, ToolformerError

logger = logging.getLogger(__name__)

SEND = "send_notifications"
"""Id of the DAG that tells people."""
TOLD_WITHIN = datetime.timedelta(days=3)
"""Who could not be told of a run for so long is not told any more."""
EVERYBODY = ""
"""In `notifications` instead of a Connection: no person is to be told."""
SECONDS_A_WEBHOOK = 5.0
NOT_TOLD = "\n\nNot told: "
"""Begins the part of a note that says who could not be told."""
MAIL_REMEDIES: tuple[tuple[type[Exception], str], ...] = (
    (smtplib.SMTPNotSupportedError, '"disable_tls": true, for a server without TLS'),
    (ssl.SSLError, '"disable_ssl": true, for a server without SSL, and "disable_tls": true if it has no TLS'),
)
"""By what goes wrong, what belongs into the extra of a mail server's Connection."""


@dataclass(frozen=True)
class Message:
    """What is told of a run."""

    subject: str
    text: str
    address: str
    """The address of the run in the UI."""
    note: str = ""
    """The note of the run in the UI, which has no subject."""


class SendNotifications(BaseOperator):
    """Sends a message about every ended run of a schedule whose message is outstanding."""

    def execute(self, context: Context) -> None:
        """Tell them; the notes of the runs say who could not be told.

        Raises:
            AirflowException: a person could not be told. The next try, or the next run of the DAG, tries it
            again.
            DatabaseError: Postgres does not answer.
        """
        from toolformer_ops.storage.postgres import database, queries

        settings = load_settings()
        since = datetime.datetime.now(datetime.UTC) - TOLD_WITHIN
        engine = database.connect(settings)
        with airflow_client(settings) as airflow:
            try:
                reconcile(settings, airflow)
            except AirflowError as error:
                self.log.warning("runs that are left open are not looked for: %s %s", error, CREDENTIALS)
            due = database.fetch_all(engine, queries.notifications.due, prefix=NIGHTLY, since=since)
            problems = []
            for run in due:
                try:
                    problems += tell(settings, engine, airflow, run)
                except ToolformerError as error:  # the others are told all the same
                    problems.append(f"{run.run_id}: {error}")
        self.log.info("%d runs had ended, %d messages could not be sent", len(due), len(problems))
        if problems:
            raise AirflowException(f"expected every message to be sent, found: {'; '.join(problems)}.")


def start_sending(run_id: str) -> None:
    """Start the DAG that tells people, since this run has ended.

    Raises:
        AirflowError: Airflow does not take it. The DAG starts by itself within an hour.
    """
    with airflow_client(load_settings()) as airflow:
        airflow.trigger(SEND, f"{run_id}.{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}", {})


def tell(settings: Settings, engine: Engine, airflow: AirflowClient, run: Row[Any]) -> list[str]:
    """Tell whoever is to be told of the end of a run, a row of `notifications_due`.

    Returns who could not be told, and why.
    """
    from toolformer_ops.storage.postgres import database, queries

    dag_id = run.run_id.partition(".")[0]
    end = {"run_id": run.run_id, "ended_at": run.ended_at}
    with database.transaction(engine) as connection:
        notify = notification_of(connection, dag_id.removeprefix(NIGHTLY))
        if run.state == "success" and not notify.every_morning:
            database.execute(connection, queries.notifications.told, **end, connection_id=EVERYBODY)
            return []
        message = message_about(settings, connection, run)
    senders: dict[str, Callable[[Message], None]]
    senders = {connection_id: partial(send_to_webhook, connection_id) for connection_id in notify.webhooks}
    if notify.emails:
        senders[notify.smtp] = partial(send_mail, notify)
    problems = []
    for connection_id, send in senders.items():
        try:
            with database.transaction(engine) as connection:
                if database.execute(
                    connection, queries.notifications.told, **end, connection_id=connection_id
                ):
                    send(message)
                    logger.info("told %s of %s", connection_id, run.run_id)
        except Exception as error:  # said in the note, and raised by the task once the others were told
            text = " ".join((str(error) or type(error).__name__).split())[:200].rstrip(".")
            remedies = [remedy for kind, remedy in MAIL_REMEDIES if isinstance(error, kind)]
            if remedies:
                text += f". Put into the extra of the Connection: {remedies[0]}"
            problems.append(f"{connection_id}: {text}")
    # The run's note: who could not be told, and the message if its last task set none.
    dag_run_id = dag_run_of(run.run_id, dag_id)
    not_told = f"{NOT_TOLD}{'; '.join(problems)}."[: NOTE_CHARACTERS // 2] if problems else ""
    try:
        before = airflow.note(dag_id, dag_run_id)
        text = before.partition(NOT_TOLD)[0] or message.note
        if (note := shortened(text, NOTE_CHARACTERS - len(not_told)) + not_told) != before:
            airflow.set_note(dag_id, dag_run_id, note)
    except AirflowError as error:
        logger.warning("the note of %s was not set: %s %s", dag_run_id, error, CREDENTIALS)
    if not problems:
        database.execute(engine, queries.notifications.told, **end, connection_id=EVERYBODY)
    return problems


def notification_of(connection: Connection, name: str) -> Notification:
    """Who is told of the runs of a schedule: as its file says now, or as it said when it was a schedule last."""
    from toolformer_ops.storage.postgres import database, queries

    for row in database.fetch_all(connection, queries.bundles.schedule, name=name):
        tools = from_json(bytes(row.tools)) if row.tools else ()
        try:
            return load_schedule(
                Path(f"{name}.toml"), bytes(row.content), [tool.name for tool in tools]
            ).notify
        except ConfigurationError as error:
            logger.warning("%s", error)
    return Notification()


def message_about(settings: Settings, connection: Connection, run: Row[Any]) -> Message:
    """What is told of the end of a run, a row of `notifications_due`."""
    from toolformer_ops.runs.summary import failure_headline, summarise

    dag_id = run.run_id.partition(".")[0]
    path = f"dags/{dag_id}/runs/{quote(dag_run_of(run.run_id, dag_id), safe='')}"
    if run.has_started:
        summary = summarise(connection, run.run_id)
        headline, problem, body, note = summary.headline, summary.problem, summary.body, summary.as_text()
    else:
        headline, problem, body, note = failure_headline(run.problem), run.problem, "", run.problem
    why = problem or ""
    first, _, others = why.partition(". ")
    if headline.endswith(first.removeprefix("failed: ").rstrip(".")):  # the subject has it whole
        why = others
    return Message(
        subject=f"{dag_id}: {headline}",
        text="\n\n".join(filter(None, (why, body))),
        address=f"{settings.airflow_url.rstrip('/')}/{path}",
        note=note,
    )


def send_mail(notify: Notification, message: Message) -> None:
    """Send a mail to all addresses of a schedule, by the Connection of its mail server.

    Raises:
        AirflowException, OSError: the server is not there, or does not take it, or its Connection names no
        sender.
    """
    from airflow.providers.smtp.hooks.smtp import SmtpHook

    with SmtpHook(smtp_conn_id=notify.smtp) as server:
        server.send_email_smtp(
            to=list(notify.emails),
            subject=" ".join(message.subject.split()),
            html_content=f'<pre style="white-space: pre-wrap">{escape(message.text)}</pre>'
            f'<p><a href="{escape(message.address)}">{escape(message.address)}</a></p>',
        )


def send_to_webhook(connection_id: str, message: Message) -> None:
    """Post `{"text": ...}` to an address, as Slack, Mattermost and Teams take it.

    The Connection holds the address in `host` (with https://). If a token is part of the address, `host` has
    {password} in its place; else a password is sent as a bearer token. Airflow masks passwords in logs.

    Raises:
        AirflowException: it was not taken; the message holds no address, which may be a secret.
    """
    connection = BaseHook.get_connection(connection_id)
    host, password = connection.host or "", connection.password or ""
    address = host if "://" in host else f"{connection.schema or 'https'}://{host}"
    if connection.port:
        address = f"{address.rstrip('/')}:{connection.port}"
    headers = {"Authorization": f"Bearer {password}"} if password and "{password}" not in address else {}
    url = address.replace("{password}", password)
    text = f"{message.subject}\n\n{message.text}\n\n{message.address}"
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs addresses
    try:
        status = httpx.post(url, json={"text": text}, headers=headers, timeout=SECONDS_A_WEBHOOK).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        problem = type(error).__name__
    else:
        if status < 300:
            return
        problem = f"status {status}"
    raise AirflowException(
        f"expected the webhook to take a message, found: {problem}. Look at the host and the password of the "
        "Connection"
    ) from None
