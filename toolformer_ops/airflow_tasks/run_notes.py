"""The note of a run in Airflow's UI, and Airflow's REST API as a task reaches it.

Airflow's Task SDK (3.3) cannot set a note, so a task asks the REST API, as the user whom the settings name.
"""

import logging
from collections.abc import Mapping

from airflow.sdk import Context
from airflow.sdk.configuration import conf

from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import AirflowError

logger = logging.getLogger(__name__)

NOTE_CHARACTERS = 1000
"""Airflow refuses longer notes."""
CREDENTIALS = "Set TOOLFORMER_AIRFLOW_USERNAME and _PASSWORD where tasks run."
"""The remedy where the REST API refuses a task."""


def airflow_client(settings: Settings) -> AirflowClient:
    """Airflow's REST API, at the address of the server that tasks talk to anyway, as the user of the settings."""
    logging.getLogger("httpx").setLevel(logging.WARNING)
    execution_api = conf.get("core", "execution_api_server_url", fallback="") or ""
    url = execution_api.rstrip("/").removesuffix("/execution") or settings.airflow_url
    return AirflowClient.of(settings.model_copy(update={"airflow_url": url}), patience_seconds=20.0)


def set_note(context: Context, text: str) -> None:
    """Set the note of the DAG run.

    If Airflow does not take it, a warning says why, and the run continues without it.
    """
    instance = context["ti"]
    try:
        with airflow_client(load_settings()) as airflow:
            airflow.set_note(instance.dag_id, instance.run_id, shortened(text))
    except AirflowError as error:
        logger.warning("the run's note was not set: %s %s", error, CREDENTIALS)


def set_report(context: Context, printed: Mapping[str, str]) -> None:
    """Set what an audit found, or what retention did, as its stage prints it, as the run's note."""
    set_note(context, printed["report"])


def shortened(text: str, characters: int = NOTE_CHARACTERS) -> str:
    """The text, or as many of its whole lines as a note may hold; of a single line that is too long, its beginning."""
    if len(text) <= characters:
        return text
    lines = text.splitlines()
    while len(lines) > 1 and len("\n".join([*lines, "…"])) > characters:
        lines.pop()
    lines[0] = lines[0][: characters - 2]
    return "\n".join([*lines, "…"])
