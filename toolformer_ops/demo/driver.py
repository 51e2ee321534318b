"""Take a corpus through Airflow while somebody watches: prepare, start, trigger, show progress, report.

`run_demo` is `make demo`, `run_corpus` is `make run`. All the work is done by the DAGs; ending this process, by Ctrl-C or
otherwise, leaves a run going. Writes no table.
"""

import concurrent.futures
import datetime
import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from toolformer_ops.config import Settings
from toolformer_ops.demo.corpus import corpus_key, demo_documents, json_lines
from toolformer_ops.demo.model import demo_model_path, prepare_demo_model
from toolformer_ops.demo.parameters import demo_parameters
from toolformer_ops.demo.progress import Snapshot, display_for, read_progress
from toolformer_ops.demo.report import Address, print_next_query, print_report, say
from toolformer_ops.demo.watching import ANNOTATION_DAG, INDEX_DAG, print_failure, watch
from toolformer_ops.demo.wikipedia import write_kilt_records
from toolformer_ops.errors import RunFailedError
from toolformer_ops.local_services.airflow_client import AirflowClient
from toolformer_ops.local_services.lifecycle import up
from toolformer_ops.local_services.state_folder import write_environment
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage import database
from toolformer_ops.storage.object_store import ObjectStore
from toolformer_ops.tools.registry import get_tool


def run_demo(console: Console, settings: Settings, documents: int) -> None:
    """The whole demo over the first `documents` of the demo corpus.

    Raises:
        RunFailedError: a DAG run failed, and what failed was printed.
        ToolformerError: something could not be prepared or reached.
    """
    started = time.monotonic()
    settings = start_all(console, settings)
    uri = upload_demo_corpus(settings)
    say(console, f"The demo corpus is {uri}; this run takes its first {documents} documents.")
    choices = demo_parameters(uri, str(demo_model_path(settings.state_dir)), document_limit=documents)
    run_dags(console, settings, choices, "demo")
    say(console, f"\nDone in {_minutes(time.monotonic() - started)}.")


def run_corpus(console: Console, settings: Settings, choices: RunChoices) -> None:
    """A run over a user's own corpus, which `choices.corpus_parameters` has already checked.

    Raises:
        As `run_demo`.
    """
    started = time.monotonic()
    settings = start_all(console, settings, with_model=choices.model == str(demo_model_path(settings.state_dir)))
    if choices.corpus.startswith("s3://"):
        ObjectStore(settings).list_uri(choices.corpus)  # raises where nothing is there
    run_dags(console, settings, choices, "run")
    say(console, f"\nDone in {_minutes(time.monotonic() - started)}.")


def start_all(console: Console, settings: Settings, with_model: bool = True) -> Settings:
    """Convert the model while the services start; returns the settings that lead to the services."""
    state = settings.state_dir
    _remember_model(settings)
    wikipedia = wikipedia_path(state)
    if not wikipedia.is_file():
        write_kilt_records(wikipedia)
    # A process of its own, so that this one never holds torch and the weights.
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as workers:
        if with_model and not demo_model_path(state).is_dir():
            say(console, "Converting the demo model to safetensors, and starting Postgres, S3 and Airflow ...")
        else:
            say(console, "Starting Postgres, S3 and Airflow ...")
        converted = workers.submit(prepare_demo_model, state) if with_model else None
        settings = up(settings)
        if converted is not None:
            converted.result()
    return settings


def _remember_model(settings: Settings) -> None:
    """Let the trigger form in the UI start with the demo model, unless a default model is set."""
    if not settings.default_model:
        values = {"default_model": str(demo_model_path(settings.state_dir))}
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        write_environment(settings.state_dir / "environment", values)


def wikipedia_path(state: Path) -> Path:
    """The demo's Wikipedia as KILT records, below the state folder."""
    return state / "demo" / "wikipedia.jsonl"


def upload_demo_corpus(settings: Settings) -> str:
    """Write the demo corpus to S3 unless it is there; returns its address."""
    content = json_lines(demo_documents(wikipedia_path(settings.state_dir)))
    store = ObjectStore(settings)
    key = corpus_key(content)
    store.put_if_absent(key, content)
    return store.uri(key)


def run_dags(console: Console, settings: Settings, choices: RunChoices, name: str) -> None:
    """Build the index where a tool needs it, annotate, and report.

    Raises:
        RunFailedError: a DAG run failed, and what failed was printed.
        KeyboardInterrupt: the user left; the run goes on, and where to look was printed.
    """
    run_id = f"{name}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    with AirflowClient.of(settings) as client:
        if any(get_tool(name).spec.needs_index for name in choices.tools):
            _build_index(console, client, settings, run_id)
        _run(console, client, settings, ANNOTATION_DAG, run_id, choices.model_dump(mode="json"))
        _report(console, client, settings, run_id)


def _build_index(console: Console, client: AirflowClient, settings: Settings, run_id: str) -> None:
    say(console, "Building the search index (a second's work where it is there) ...")
    source = str(wikipedia_path(settings.state_dir))
    _run(console, client, settings, INDEX_DAG, run_id, {"source": source})


def _run(
    console: Console, client: AirflowClient, settings: Settings, dag_id: str, run_id: str, conf: Mapping[str, Any]
) -> None:
    client.open_dag(dag_id)
    client.trigger(dag_id, run_id, conf)
    say(console, f"{dag_id}: {client.run_url(dag_id, run_id)}")
    engine = database.connect(settings)

    def look() -> Snapshot:
        with database.transaction(engine) as connection:
            return read_progress(connection, run_id)

    try:
        state = watch(client, dag_id, run_id, look if dag_id == ANNOTATION_DAG else None, display_for(console))
    except KeyboardInterrupt:
        say(console, f"\nThe run goes on without this window. Look at it: {client.run_url(dag_id, run_id)}")
        say(console, 'or ask Postgres: make sql Q="$(cat sql/examples/01_how_far_is_my_run.sql)"')
        say(console, "`make down` stops it, and a later run goes on where it stopped.")
        raise
    finally:
        engine.dispose()
    if state != "success":
        print_failure(console, client, dag_id, run_id)
        raise RunFailedError(f"{dag_id} {run_id} ended as {state}. Look at {client.run_url(dag_id, run_id)}")


def _report(console: Console, client: AirflowClient, settings: Settings, run_id: str) -> None:
    address = Address(
        airflow_url=settings.airflow_url,
        username=settings.airflow_username,
        password_hint=f"TOOLFORMER_AIRFLOW_PASSWORD in {settings.state_dir / 'environment'}",
        run_url=client.run_url(ANNOTATION_DAG, run_id),
    )
    engine = database.connect(settings)
    reader = database.connect_dsn(settings.reader_dsn.get_secret_value(), "TOOLFORMER_READER_DSN")
    try:
        with database.transaction(engine) as connection:
            print_report(console, connection, run_id, address)
        with database.transaction(reader) as connection:
            print_next_query(console, connection)
    finally:
        engine.dispose()
        reader.dispose()


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"
