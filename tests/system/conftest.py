"""The embedded services with three added tools, a small corpus and a tiny model that writes calls, for tests of whole DAG runs."""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import psutil
import pytest
from sqlalchemy import text as sql

from tests.servers import directory_in_memory, seconds_of_supervised
from tests.system.writing_model import save_model_that_writes_calls
from tests.tool_files import SERVERS, served, write_tool
from toolformer_ops.airflow_tasks.airflow_client import ENDED_STATES, AirflowClient
from toolformer_ops.config import REPOSITORY, STATE_DIR_VARIABLE, Settings, load_settings
from toolformer_ops.local.lifecycle import delete_state, up
from toolformer_ops.local.object_store import remove_sockets
from toolformer_ops.local.ports import recalled_ports
from toolformer_ops.local.state_folder import StatePaths, write_environment
from toolformer_ops.storage import database

RECORDS = (
    {
        "text": "The shop had 520 shirts and sold 187 of them, so it has 333 left.",
        "url": "https://shop.example/2023/01/30/x",
    },
    {
        "text": "We sold 31 tickets on Monday and 45 on Sunday, which is 76 in all.",
        "url": "https://x.example/2022/11/05/y",
    },
    {
        "text": "A box holds 12 eggs, so that 7 boxes hold 12 * 7 = 84 eggs.",
        "url": "https://farm.example/2021-06-14/eggs",
    },
    {"text": "Of 1400 people, 400 passed the test, and 1000 did not.", "url": "https://news.example/2020/02/29/test"},
    {"text": "This text has neither a sum nor a date in its address.", "url": "https://blog.example/about"},
)
"""Four texts for the Calculator and the Calendar, and one for neither."""
ANNOTATE = "annotate_corpus"
UNDISTURBED = "undisturbed"
SECONDS_FOR_A_RUN = 900
ROWS = {
    "candidate_calls": "select * from candidate_calls order by sampling_recipe_id, call_id",
    "call_losses": "select * from call_losses order by scoring_recipe_id, call_id",
    "stage_ledger": "select stage, recipe_id, document_id, case when stage <> 'execute' then rows_written end, "
    "counts - '{executed,from_cache}'::text[] from stage_ledger order by 1, 2, 3",
    "executed": "select recipe_id, sum(rows_written), sum((counts ->> 'executed')::integer), "
    "sum((counts ->> 'from_cache')::integer) from stage_ledger where stage = 'execute' group by 1 order by 1",
}
"""What a killed run and an undisturbed one have in common, the ledger without its times. Of documents that ask the same, the first
one executes it, and those at which a process died come last: what is executed is compared in sum."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the package of the tool `WordCount`, from its source and without a network."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    package = REPOSITORY / "tests" / "data" / "word_count_tool"
    run = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(package)]
    subprocess.run(run, check=True, timeout=600)
    return folder


@pytest.fixture(scope="session")
def tool_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`Length` asks a server of fastmcp over stdio, `Convert` the same one over HTTP, which a thread of this process serves."""
    folder = tmp_path_factory.mktemp("tool-files")
    specification = importlib.util.spec_from_file_location("facts", SERVERS / "facts.py")
    assert specification is not None
    assert specification.loader is not None
    facts = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(facts)
    command = [sys.executable, str(SERVERS / "facts.py")]
    with served(facts.server.http_app()) as address:
        write_tool(folder, "Length", "length", server={"command": command}, ask=True)
        write_tool(folder, "Convert", "convert", server={"command": [], "url": f"{address}/mcp"}, ask=True)
        yield folder


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory, site: Path, tool_files: Path) -> Iterator[Settings]:
    """The settings that lead to a Postgres, an S3 and an Airflow of the session's own, with no rows and no objects.

    Beside the tools of the paper Airflow has those of `site` and `tool_files`.
    """
    with directory_in_memory(tmp_path_factory.mktemp("services")) as folder:
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("TOOLFORMER_")]:
                patch.delenv(name)
            patch.setenv(STATE_DIR_VARIABLE, str(folder / "state"))
            patch.setenv("PYTHONPATH", str(site))
            shutil.copytree(tool_files, folder / "state" / "tools")
            local_settings = folder / "state" / "airflow" / "config" / "airflow_local_settings.py"
            local_settings.parent.mkdir(parents=True)
            local_settings.write_text(LOCAL_SETTINGS, encoding="utf-8")
            load_settings.cache_clear()
            # One at a time: two that look for free ports at once find the same.
            with filelock.FileLock(Path(tempfile.gettempdir()) / "toolformer-tests-up.lock"):
                found = up(load_settings())
        try:
            yield found
        finally:
            kill_services(found)
            delete_state(found)
            load_settings.cache_clear()


LOCAL_SETTINGS = """
import toolformer_ops.airflow_tasks.annotation_dag
import toolformer_ops.airflow_tasks.kubernetes.pods
"""
"""What the Airflow of the tests imports when it starts: a task is a fork of the scheduler, and would import it in a CPU second."""


def kill_services(settings: Settings) -> None:
    """End all services at once, since nobody needs their data; Postgres hears that its supervisor ended, and tidies up."""
    paths = StatePaths(settings.state_dir)
    supervisor = psutil.Process(int((paths.state / "supervisord.pid").read_text()))
    processes = [supervisor, *supervisor.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            spent = process.cpu_times()
            seconds_of_supervised.append(spent.user + spent.system + spent.children_user + spent.children_system)
            if process.name() != "postgres":
                process.kill()
    _, living = psutil.wait_procs(processes, timeout=60)
    assert living == []
    remove_sockets(recalled_ports(paths))


@pytest.fixture(scope="session")
def writing_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that writes calls of the Calculator and the Calendar."""
    return save_model_that_writes_calls(tmp_path_factory.mktemp("models") / "writing")


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`RECORDS` as JSON Lines."""
    path = tmp_path_factory.mktemp("corpus") / "small.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def airflow(services: Settings) -> Iterator[AirflowClient]:
    """Airflow's REST API, logged in."""
    with AirflowClient.of(services) as client:
        yield client


def wait_until_ended(airflow: AirflowClient, dag_id: str, run_id: str) -> str:
    """The state in which a run ended."""
    until(f"the end of {run_id}", lambda: airflow.run_state(dag_id, run_id) in ENDED_STATES, seconds=2.0)
    return airflow.run_state(dag_id, run_id)


def until(what: str, look: Callable[[], Any], seconds: float = 1.0) -> Any:
    """What `look` returns, asked each so many seconds, once that is something."""
    end = time.monotonic() + SECONDS_FOR_A_RUN
    while not (found := look()):
        assert time.monotonic() < end, f"waited {SECONDS_FOR_A_RUN} s for {what}"
        time.sleep(seconds)
    return found


def rows(settings: Settings, query: str, **values: object) -> list[tuple[Any, ...]]:
    """The rows of a query, as the owner of the database sees them."""
    with database.transaction(database.connect(settings)) as connection:
        return [tuple(row) for row in connection.execute(sql(query), values)]


@contextlib.contextmanager
def held_stages(settings: Settings) -> Iterator[None]:
    """In the block, a stage that has finished a document waits before it says so."""
    with database.transaction(database.connect(settings)) as connection:
        connection.execute(sql("lock table stage_ledger in share mode"))
        yield


def processes_of(settings: Settings, component: str) -> list[psutil.Process]:
    """The processes of a component of this state folder's Airflow."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = " ".join(process.info["cmdline"] or []).replace(
            "_", "-"
        )  # some name themselves anew: airflow api_server
        if f"airflow {component}" in words and str(process.info["cwd"]).startswith(str(settings.state_dir)):
            found.append(process)
    return found


def stage_process(*words: str) -> psutil.Process | None:
    """The process of a stage with these words in its command line, as a task started it."""
    for process in psutil.process_iter(["cmdline"]):
        if {"toolformer_ops", "stage", *words} <= set(process.info["cmdline"] or []):
            return process
    return None


SUMS = 120
"""Enough texts that a kill meets a stage at work."""


@pytest.fixture(scope="session")
def sums(services: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts for the Calculator; all in one shard, of which a stage commits every second text."""
    write_environment(
        services.state_dir / "environment", {"micro_batch_documents": "2", "seconds_per_document": "0.01"}
    )
    path = tmp_path_factory.mktemp("sums") / "sums.jsonl"
    texts = [
        f"The shop had {n} shirts and sold {n // 2} of them on day {n}, so it has {n - n // 2} left."
        for n in range(100, 100 + SUMS)
    ]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


OF_CALLS = (
    "candidate_calls",
    "pruned_positions",
    "call_losses",
    "call_results",
    "stage_ledger",
    "filter_decisions",
    "quality_results",
    "finished_work",
    "placebo_losses",
    "placebo_counts",
    "placebo_rates",
    "placebo_pool_results",
    "placebo_pools",
)
"""What a run leaves of a text, and from which the next one knows that a tool has nothing to do."""


def annotate_anew(settings: Settings, airflow: AirflowClient, run_id: str, corpus: Path, model: Path) -> None:
    """Forget all calls, and that they passed their checks, and start a run with the Calculator.

    It has no placebos: a second process that loads the model, for rows that no test of these runs looks at.
    """
    with database.transaction(database.connect(settings)) as connection:
        connection.execute(sql(f"truncate {', '.join(OF_CALLS)}"))
    conf = {
        "corpus": str(corpus),
        "model": str(model),
        "tools": ["Calculator"],
        "sampling_threshold": 0.0,
        "max_positions": 4,
        "samples_per_position": 3,
        "max_call_tokens": 16,
        "keep_thresholds": {"Calculator": 0.0},
        "prune_below": 0.0,
        "placebos": 0,
        "placebo_sample": 0,
        "finetune": False,
    }
    airflow.open_dag(ANNOTATE)
    airflow.trigger(ANNOTATE, run_id, conf)


def rows_of_calls(settings: Settings) -> dict[str, list[list[Any]]]:
    """All rows by table, as JSON has them."""
    rows_by_table = {table: rows(settings, query) for table, query in ROWS.items()}
    found: dict[str, list[list[Any]]] = json.loads(json.dumps(rows_by_table, default=str))
    return found


@pytest.fixture(scope="session")
def undisturbed(
    services: Settings, airflow: AirflowClient, sums: Path, writing_model_dir: Path
) -> dict[str, list[list[Any]]]:
    """The rows of a run, `UNDISTURBED`, that annotates `sums` and releases its calls."""
    annotate_anew(services, airflow, UNDISTURBED, sums, writing_model_dir)
    assert wait_until_ended(airflow, ANNOTATE, UNDISTURBED) == "success"
    found = rows_of_calls(services)
    assert found["candidate_calls"]
    assert found["call_losses"]
    return found


PROBLEMS = 3


@pytest.fixture(scope="session")
def evaluation_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three problems of SVAMP, in its published format, and nothing else."""
    folder = tmp_path_factory.mktemp("data")
    problems = [
        {
            "Body": f"The shop had {n} shirts and sold {n // 2}.",
            "Question": "How many are left?",
            "Answer": float(n - n // 2),
        }
        for n in range(10, 10 * PROBLEMS + 1, 10)
    ]
    (folder / "svamp").mkdir()
    (folder / "svamp" / "SVAMP.json").write_text(json.dumps(problems), encoding="utf-8")
    return folder
