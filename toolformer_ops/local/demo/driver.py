"""Take a corpus through Airflow while a person watches: prepare, start, trigger, show progress, report.

`run_demo` is `toolformer-ops demo`, `run_corpus` is `toolformer-ops run`. All the work is done by the DAGs: a
run continues when this process ends, by Ctrl-C or otherwise, and `attach` watches it again. Writes no table.
"""

import concurrent.futures
import contextlib
import datetime
import hashlib
import logging
import multiprocessing
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from toolformer_ops.airflow_tasks.airflow_client import ENDED_STATES, AirflowClient, TaskState
from toolformer_ops.airflow_tasks.run_ids import ANNOTATE
from toolformer_ops.config import IS_CHECKOUT, Settings
from toolformer_ops.errors import AirflowError, NoKeptCallError, ToolformerError, UsageError
from toolformer_ops.language_model.models.publishing import publish_model
from toolformer_ops.local.demo.corpus import corpus_key, demo_documents, json_lines, write_kilt_records
from toolformer_ops.local.demo.fresh_mountains import ask_both_models
from toolformer_ops.local.demo.model import demo_model_path, prepare_demo_model
from toolformer_ops.local.demo.mountains import MOUNTAINS, write_mountains
from toolformer_ops.local.demo.report import (
    best_call,
    print_fresh_mountains,
    print_next,
    print_report,
    say,
    seconds_in_words,
    sign_in,
)
from toolformer_ops.local.lifecycle import up
from toolformer_ops.local.state_folder import OBJECT_STORE, POSTGRES, write_environment
from toolformer_ops.runs.choices import TOOL_OR_MODEL_PROPOSES, RunChoices
from toolformer_ops.runs.presets import ON_ONE_MACHINE
from toolformer_ops.runs.progress import Progress, read_progress
from toolformer_ops.runs.shown_progress import shown
from toolformer_ops.stages.index_building import build_index
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.registry import DEFAULT_TOOLS, forget_tools, get_tool

INDEX_DAG = "build_wiki_index"
TRAINING_TASKS = frozenset({"finetune", "finetune_without_calls"})
TRAINING_STEP = re.compile(r"step \d+ of \d+: .*")
"""What `finetuning/training_log.py` logs of a step: its loss, the speed, the time left."""
LAST_TASK = "finish_run"
LAST_TASKS = {"annotation": "check", "release": "check_release", "training": LAST_TASK}
"""By phase of a run the task that it ends with."""
CONSEQUENT_TASKS = frozenset({"check", LAST_TASK})
"""Mostly red because another task is."""
OPENING_TASKS = frozenset({"build_index", "ingest", "start_run"})
"""Tasks that look whether the request is right. A task that failed at its first try was not tried again: it
is wrong."""
SECONDS_BETWEEN_LOOKS = 3.0
LARGEST_SHARE_OF_LOOKING = 0.2
"""Looking into Postgres takes at most this share of the time: a million documents are not counted every
three seconds."""
LOG_LINES = 12
PATIENCE_SECONDS = 600.0
"""How long a watched run's Airflow may give no answer; the run continues meanwhile."""
SERVICES_CONTINUE = f"`{'make' if IS_CHECKOUT else 'toolformer-ops'} down` stops Postgres, S3 and Airflow."
"""The last words of what starts the embedded services for a run."""


@dataclass(frozen=True)
class Outputs:
    """What a run made."""

    release_uri: str | None = None
    model_uri: str | None = None
    """The finetuned model."""


def run_demo(console: Console, settings: Settings, documents: int, *, deployed: bool = False) -> None:
    """Run the whole demo over the first `documents` of the demo corpus.

    `deployed`: through the services that the settings name, on other machines perhaps, so that model and
    Wikipedia go there by S3, and the demo's database is left out.

    Raises:
        ToolformerError: a DAG run failed, and what failed was printed; or something could not be prepared or
        reached.
    """
    started = time.monotonic()
    seconds: dict[str, float] = {}
    tools: tuple[str, ...] = DEFAULT_TOOLS
    if not deployed:
        write_mountains(settings.tools_folder)
        forget_tools()
        tools = (*DEFAULT_TOOLS, MOUNTAINS)
        settings = start_all(console, settings, with_index=True)
        seconds["services"] = time.monotonic() - started
    source = wikipedia(settings.state_dir)
    store = ObjectStore(settings)
    content = json_lines(demo_documents(source))
    store.put_if_absent(corpus_key(content), content)
    uri = store.uri(corpus_key(content))
    model, records_uri = str(demo_model_path(settings.state_dir)), None
    if deployed:
        say(console, "Publishing the demo model and its Wikipedia on S3 ...")
        model = publish_model(settings, str(prepare_demo_model(settings.state_dir))).address
        records = source.read_bytes()
        key = f"corpora/wikipedia-{hashlib.sha256(records).hexdigest()[:16]}.jsonl"
        store.put_if_absent(key, records)
        records_uri = store.uri(key)
    choices = RunChoices.parse(
        {
            "preset": ON_ONE_MACHINE,
            "corpus": uri,
            "model": model,
            "document_limit": documents,
            "tools": tools,
            # A tool that knows its calls says them; what is sampled is sampled where it is asked for.
            "proposer": TOOL_OR_MODEL_PROPOSES,
            "filter_rule": "sharp",
            # With eight the model asks the database about most mountains that no text has.
            "finetune_steps": 10,
        }
    )
    run_id = new_run_id("demo")
    seconds |= run_dags(console, settings, choices, run_id, records_uri)
    model_uri = outputs_of(settings, run_id).model_uri
    if not deployed and model_uri:
        began = time.monotonic()
        with another_process() as worker:
            written = worker.submit(ask_both_models, settings, model, model_uri).result()
        print_fresh_mountains(console, written)
        seconds["ten mountains"] = time.monotonic() - began
    print_next(console, model_uri, tools)
    done = seconds_in_words(time.monotonic() - started, seconds)
    say(console, done if deployed else f"{done} {SERVICES_CONTINUE}")


def new_run_id(name: str) -> str:
    """Return the id of a run that begins now, such as `demo-20261123-081500`."""
    return f"{name}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"


def run_corpus(console: Console, settings: Settings, choices: RunChoices, run_id: str) -> None:
    """Run over a user's own corpus, which `choices.corpus_choices` has checked; raises as `run_demo`."""
    started = time.monotonic()
    settings = start_all(
        console,
        settings,
        with_model=choices.model == str(demo_model_path(settings.state_dir)),
        with_index=any(get_tool(tool).spec.needs_index for tool in choices.tools),
    )
    if choices.corpus.startswith("s3://"):
        ObjectStore(settings).list_uri(choices.corpus)  # raises if nothing exists
    seconds = {"services": time.monotonic() - started}
    seconds |= run_dags(console, settings, choices, run_id)
    print_next(console, outputs_of(settings, run_id).model_uri, choices.tools)
    say(console, f"{seconds_in_words(time.monotonic() - started, seconds)} {SERVICES_CONTINUE}")


def attach(console: Console, settings: Settings, run_id: str) -> None:
    """Watch a run of `annotate_corpus` that was started before, to its end, and report it.

    Raises:
        UsageError: there is no such run.
        ToolformerError: as `run_demo`.
    """
    settings = start_all(console, settings, with_model=False)
    with AirflowClient.of(settings, patience_seconds=PATIENCE_SECONDS) as client:
        if client.find_run(ANNOTATE, run_id) is None:
            raise UsageError(
                f"--attach: expected a run of {ANNOTATE}, found none called {run_id}. `toolformer-ops runs` "
                "lists the runs."
            )
        kept = _watch(console, client, settings, ANNOTATE, run_id)
    _report(console, settings, run_id, client.run_url(ANNOTATE, run_id), kept=kept)
    print_next(console, outputs_of(settings, run_id).model_uri, ())


def start_all(
    console: Console, settings: Settings, *, with_model: bool = True, with_index: bool = False
) -> Settings:
    """Convert the model, then index Wikipedia, while the services start; returns their settings."""
    state = settings.state_dir
    model = demo_model_path(state)
    if not settings.default_model:  # the trigger form in the UI then starts with the demo model
        state.mkdir(parents=True, exist_ok=True)
        write_environment(state / "environment", {"default_model": str(model)})
    logging.getLogger("toolformer_ops").setLevel(logging.WARNING)
    converting = with_model and not model.is_dir()
    say(
        console,
        "Converting the demo model to safetensors, and starting Postgres, S3 and Airflow ..."
        if converting
        else "Starting Postgres, S3 and Airflow ...",
    )
    waiting = console.status("") if console.is_terminal else contextlib.nullcontext()
    with waiting, another_process() as worker:
        works: list[concurrent.futures.Future[Any]] = []
        if with_model:
            works.append(worker.submit(prepare_demo_model, state))
        if with_index:  # it is published on S3, and registered in Postgres
            settings = up(settings, (POSTGRES, OBJECT_STORE))
            works.append(worker.submit(build_index, settings, str(wikipedia(state)), publish=True))
        settings = up(settings)
        for work in works:
            work.result()
    return settings


def another_process() -> concurrent.futures.Executor:
    """A process for what needs torch and weights, which this one never holds."""
    return concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def wikipedia(state: Path) -> Path:
    """Return the file below the state folder with the demo's Wikipedia as KILT records, written now if it is not there."""
    path = state / "demo" / "wikipedia.jsonl"
    if not path.is_file():
        write_kilt_records(path)
    return path


def run_dags(
    console: Console, settings: Settings, choices: RunChoices, run_id: str, records_uri: str | None = None
) -> dict[str, float]:
    """Build the index of KILT records, if any are named, annotate, and report; the seconds by phase.

    Raises:
        UsageError: a DAG run refused its request, and why was printed.
        ToolformerError: a DAG run failed, and what failed was printed.
        NoKeptCallError: all is done, and no call was kept; the report says which come nearest.
        KeyboardInterrupt: the user left; the run continues, and where to look was printed.
    """
    seconds: dict[str, float] = {}
    with AirflowClient.of(settings, patience_seconds=PATIENCE_SECONDS) as client:
        # 1. the search index
        if records_uri is not None:
            began = time.monotonic()
            _watch(console, client, settings, INDEX_DAG, run_id, {"source": records_uri})
            seconds["search index"] = time.monotonic() - began
        # 2. annotation, release, finetuning
        began_at = datetime.datetime.now(datetime.UTC)
        kept = _watch(console, client, settings, ANNOTATE, run_id, choices.model_dump(mode="json"))
        seconds |= seconds_by_phase(client.tasks(ANNOTATE, run_id), began_at)
    _report(console, settings, run_id, client.run_url(ANNOTATE, run_id), kept=kept)
    return seconds


def seconds_by_phase(tasks: Sequence[TaskState], began_at: datetime.datetime) -> dict[str, float]:
    """How long each phase of a run took that began then; a phase ends with its last task (`LAST_TASKS`)."""
    ended_at = {task.task_id: task.ended_at for task in tasks if task.state == "success"}
    seconds = {}
    for phase, last_task in LAST_TASKS.items():
        if last_task in ended_at:
            end = datetime.datetime.fromisoformat(ended_at[last_task])
            seconds[phase] = (end - began_at).total_seconds()
            began_at = end
    return seconds


def outputs_of(settings: Settings, run_id: str) -> Outputs:
    """The release and the model of a run; none if a person marked it as a success before it was started."""
    engine = database.connect(settings)
    try:
        with database.transaction(engine) as connection:
            rows = database.fetch_all(connection, queries.demo.outputs, run_id=run_id)
    finally:
        engine.dispose()
    return Outputs(rows[0].release_uri, rows[0].model_uri) if rows else Outputs()


def _report(console: Console, settings: Settings, run_id: str, run_url: str, *, kept: bool) -> None:
    """Print the report of a run, then raise if no call was kept."""
    engine = database.connect(settings)
    try:
        with database.transaction(engine) as connection:
            print_report(console, connection, run_id, run_url)
    finally:
        engine.dispose()
    if not kept:
        raise NoKeptCallError(
            "expected calls that save as much as their tool's threshold, found none: nothing is released."
        )


def _watch(
    console: Console,
    client: AirflowClient,
    settings: Settings,
    dag_id: str,
    run_id: str,
    conf: Mapping[str, Any] | None = None,
) -> bool:
    """Watch a DAG run to its end, started now if `conf` is given; raises as `run_dags`.

    Returns whether the run has what it is for: False if it kept no call, and did all else.
    """
    if conf is not None:
        client.open_dag(dag_id)
        client.trigger(dag_id, run_id, conf)
    url = client.run_url(dag_id, run_id)
    again = f"toolformer-ops run --attach {run_id}" if dag_id == ANNOTATE else ""
    if again:
        say(console, f"{dag_id}: {url}  ({sign_in(settings)}; to watch it again: {again})")
    engine = database.connect(settings)

    best: Text | None = None
    newest = Progress()

    def show(progress: Progress) -> None:
        nonlocal newest
        newest = progress

    def look() -> Progress:
        nonlocal best
        with database.transaction(engine) as connection:
            is_first = best is None
            best = best_call(connection, run_id)
            if is_first and best is not None:
                say(console, f"A first kept call, {best.plain}")
            return replace(read_progress(connection, run_id), best=best)

    try:
        with shown(lambda: newest, console):
            state = watch(client, dag_id, run_id, look if dag_id == ANNOTATE else None, show)
        if state == "success":
            if dag_id != ANNOTATE:
                return True
            return outputs_of(settings, run_id).release_uri is not None
        failed = client.tasks(dag_id, run_id, "failed")
        causes = [task for task in failed if task.task_id not in CONSEQUENT_TASKS] or failed
    except (KeyboardInterrupt, ToolformerError):
        say(console, f"\nThe run continues without this window. Look at it: {url}")
        if again:
            say(console, f"or watch it again: {again}")
        say(console, 'or ask Postgres: toolformer-ops sql "select * from how_far_is_my_run()"')
        say(console, "`toolformer-ops down` stops it, and a later run continues where it stopped.")
        raise
    finally:
        engine.dispose()
    print_failure(console, client, dag_id, run_id, causes)
    if was_refused(failed):
        raise UsageError(f"{dag_id} {run_id} could not start, as its request is wrong. Look at {url}")
    raise ToolformerError(f"{dag_id} {run_id} ended as {state}. Look at {url}")


def was_refused(failed: Sequence[TaskState]) -> bool:
    """Whether a run with these failed tasks could not start, as its request is wrong.

    Of a run that a person ended its last task has not failed; the DAG of the index has no such task.
    """
    opening = [task for task in failed if task.task_id in OPENING_TASKS]
    others = {task.task_id for task in failed} - OPENING_TASKS
    is_index = any(task.task_id == "build_index" for task in opening)
    return any(task.try_number == 1 for task in opening) and (is_index or others == {LAST_TASK})


def watch(
    airflow: AirflowClient,
    dag_id: str,
    run_id: str,
    look: Callable[[], Progress] | None,
    show: Callable[[Progress], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Give the run's progress to `show` until it ends; returns the state it ended in.

    `look` gives the progress in Postgres; None for a DAG that has none.
    """

    def at_work(task: TaskState) -> str:
        """The task's name, and how far a training is: `finetune (step 3 of 12: loss 3.0174, 18 tokens/s, 5 min left)`."""
        if task.task_id not in TRAINING_TASKS:
            return task.name
        # Airflow's log of the task is the only place that every runner fills, pods included.
        try:
            lines = airflow.log_tail(dag_id, run_id, task, LOG_LINES)
        except AirflowError:  # the log may not be there yet; the run does not need it
            lines = []
        steps = [TRAINING_STEP.search(line) for line in lines]
        newest = next((step.group() for step in reversed(steps) if step), "before the first step")
        return f"{task.name} ({newest})"

    while True:
        state = airflow.run_state(dag_id, run_id)
        began = clock()
        progress = look() if look is not None else Progress()
        looking = clock() - began
        if not progress.phase:
            tasks = map(at_work, airflow.tasks(dag_id, run_id, "running"))
            progress = replace(progress, phase=", ".join(tasks) or "the next task starts")
        show(progress)
        if state in ENDED_STATES:
            return state
        sleep(max(SECONDS_BETWEEN_LOOKS, looking / LARGEST_SHARE_OF_LOOKING - looking))


def print_failure(
    console: Console, airflow: AirflowClient, dag_id: str, run_id: str, causes: Sequence[TaskState]
) -> None:
    """Which tasks failed themselves, the last log lines of the first, and where to look."""
    if not causes:
        cause = "it ran out of time, or was marked by hand"
        say(console, f"{dag_id} {run_id} failed, though none of its tasks did: {cause}.")
        return
    first = causes[0]
    say(console, f"\nFailed: {', '.join(task.name for task in causes)}")
    say(console, f"The last lines of {first.name}, try {first.try_number}:\n")
    for line in airflow.log_tail(dag_id, run_id, first, LOG_LINES):
        say(console, f"  {line}")
    say(console, f"\nThe whole log: {airflow.task_url(dag_id, run_id, first)}")
    say(console, "Mend the cause, then run the same command again: what is done stays done.")
