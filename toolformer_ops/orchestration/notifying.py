"""Tell people how a night went: the run's note in the Airflow UI, mails, and webhooks.

What went wrong is told by the DAG's callbacks, which Airflow's DAG processor calls however the run failed, also where its time was
up; a good night by a callback of the last task. Passwords, tokens and secret addresses come from Airflow's Connections.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.exceptions import AirflowException

from toolformer_ops.config import load_settings
from toolformer_ops.orchestration.schedules import Schedule

if TYPE_CHECKING:
    from airflow.sdk import Context

logger = logging.getLogger(__name__)

SUMMARY = "summary"
"""Key of the XCom with the text about the run, which the last task pushes."""
LAST_TASK = "finish_run"
NOTE_CHARACTERS = 1000
"""Airflow refuses longer notes."""

_SUMMARY = f"{{% if ti is defined %}}{{{{ ti.xcom_pull(task_ids='{LAST_TASK}', key='{SUMMARY}') or '' }}}}{{% endif %}}"
_FAILURE = (
    "{% if reason == 'timed_out' %}The night took longer than its time limit, and was ended. "
    "What was committed is not done again.{% endif %}"
)


class WebhookNotifier(BaseNotifier):
    """Posts `{"text": ...}` to an address, as Slack, Mattermost and Teams take it.

    The Connection holds the address in `host` (with https://). Where a token is part of the address, `host` has {password} in its
    place; else a password is sent as a bearer token. Airflow masks passwords in logs.

    Args:
        connection_id: the Airflow Connection.
        text: what to say, in Markdown; templated.
    """

    template_fields: Sequence[str] = ("text",)
    seconds_a_try = 5.0
    tries = 3  # all of them within the time that the DAG processor has for callbacks, 50 seconds

    def __init__(self, *, connection_id: str, text: str) -> None:
        super().__init__()
        self.connection_id = connection_id
        self.text = text

    def notify(self, context: "Context") -> None:
        """Post the text; tries again where nobody answers, or the answer is 429 or 5xx.

        Raises:
            AirflowException: it was not taken; the message names the Connection, and not its address, which may hold a secret.
        """
        import httpx
        import tenacity

        connection = BaseHook.get_connection(self.connection_id)
        host, password = connection.host or "", connection.password or ""
        address = host if "://" in host else f"{connection.schema or 'https'}://{host}"
        if connection.port:
            address = f"{address.rstrip('/')}:{connection.port}"
        headers = {"Authorization": f"Bearer {password}"} if password and "{password}" not in address else {}
        url = address.replace("{password}", password)
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs addresses

        def post() -> int:
            return httpx.post(url, json={"text": self.text}, headers=headers, timeout=self.seconds_a_try).status_code

        patient = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(httpx.TransportError)
            | tenacity.retry_if_result(lambda status: status == 429 or status >= 500),
            stop=tenacity.stop_after_attempt(self.tries),
            wait=tenacity.wait_exponential(max=4.0),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        try:
            status = patient(post)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            found = type(error).__name__
        else:
            if status < 300:
                self.log.info("told %s", self.connection_id)
                return
            found = f"status {status}"
        raise AirflowException(
            f"expected the webhook of the Connection {self.connection_id} to take a message, found: {found}. Look at its host, and "
            "at its password."
        ) from None


def notifiers(schedule: Schedule, *, failed: bool) -> list[Callable[["Context"], None]]:
    """What tells people of a failed night, or each morning of a good one where the schedule wants it."""
    if not failed and not schedule.notify.every_morning:
        return []
    address = f"{load_settings().airflow_url.rstrip('/')}/dags/{schedule.dag_id}/runs/{{{{ run_id | urlencode }}}}"
    headline = f"{schedule.dag_id}: {'FAILED' if failed else 'done'}"
    summary = f"{_FAILURE if failed else ''}{_SUMMARY}"
    found: list[Callable[[Context], None]] = [
        WebhookNotifier(connection_id=webhook, text=f"{headline}\n\n{summary}\n\n{address}")
        for webhook in schedule.notify.webhooks
    ]
    if schedule.notify.emails:
        from airflow.providers.smtp.notifications.smtp import SmtpNotifier

        found.append(
            SmtpNotifier(
                to=list(schedule.notify.emails),
                subject=headline,
                html_content=f'<pre style="white-space: pre-wrap">{{% filter e %}}{summary}{{% endfilter %}}</pre>'
                f'<p><a href="{address}">{address}</a></p>',
                smtp_conn_id=schedule.notify.smtp,
            )
        )
    return found


def set_note(context: "Context", text: str) -> None:
    """Set the note of the DAG run; where Airflow does not take it, a warning says why, and the run is what it was.

    A task can set no note by Airflow's Task SDK (3.3), so this asks the REST API, at the address of the server that the worker
    talks to anyway, as the user of the settings.
    """
    from airflow.sdk.configuration import conf

    from toolformer_ops.errors import AirflowError
    from toolformer_ops.local_services.airflow_client import AirflowClient

    settings = load_settings()
    execution_api = conf.get("core", "execution_api_server_url", fallback="") or ""
    url = execution_api.rstrip("/").removesuffix("/execution") or settings.airflow_url
    instance = context["ti"]
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        with AirflowClient(
            url, settings.airflow_username, settings.airflow_password.get_secret_value(), patience_seconds=20.0
        ) as client:
            client.set_note(instance.dag_id, instance.run_id, shortened(text))
    except AirflowError as error:
        logger.warning(
            "the run's note was not set: %s Set TOOLFORMER_AIRFLOW_USERNAME and _PASSWORD where tasks run.", error
        )


def shortened(text: str) -> str:
    """The text, or as many of its whole lines as a note may hold; of a single line that is too long, its beginning."""
    if len(text) <= NOTE_CHARACTERS:
        return text
    lines = text.splitlines()
    while len(lines) > 1 and len("\n".join([*lines, "…"])) > NOTE_CHARACTERS:
        lines.pop()
    lines[0] = lines[0][: NOTE_CHARACTERS - 2]
    return "\n".join([*lines, "…"])
