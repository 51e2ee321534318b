"""For tests of whole DAG runs: the embedded services with two added tools, a tiny model that writes calls, a Kubernetes cluster."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from sqlalchemy import text as sql

from tests.kubernetes.cluster import IMAGE, TestCluster, cpu_node, gpu_node, skip_where_no_cluster_runs
from tests.servers import directory_in_memory, seconds_of_supervised
from tests.system.writing_model import save_model_that_writes_calls
from tests.tool_files import SERVERS, write_tool
from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.config import REPOSITORY, STATE_DIR_VARIABLE, Settings, load_settings
from toolformer_ops.language_model.models.publishing import publish_model
from toolformer_ops.local import airflow as local_airflow
from toolformer_ops.local.lifecycle import delete_state, up
from toolformer_ops.local.object_store import remove_sockets
from toolformer_ops.local.ports import recalled_ports
from toolformer_ops.local.state_folder import StatePaths, write_environment
from toolformer_ops.local.supervision import Supervisor
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database

TEXTS = (
    "The shop had 520 shirts and sold 187 of them, so it has 333 left.",
    "A box holds 12 eggs, so that 7 boxes hold 12 * 7 = 84 eggs.",
    "Of 1400 people, 400 passed the test, and 1000 did not.",
    "The motto of the club has three words, and the shop had sold shirts of them on a day.",
    "We meet today and the film has two words in its title, so people passed the test.",
    "This text has neither a sum nor what the others speak of.",
)
"""Three for the Calculator, two for WordCount, and one for neither."""
ANNOTATE = "annotate_corpus"
SECONDS_FOR_A_RUN = 900
SAMPLING = {
    "sampling_threshold": 0.0,
    "max_positions": 4,
    "samples_per_position": 3,
    "max_call_tokens": 16,
    "prune_below": 0.0,
    "placebos": 0,
    "placebo_sample": 0,
}
"""Chosen so that a model that knows nothing of a tool writes calls of it, and some are kept; without
placebos, which are a second process that loads the model."""
SECRETS = ("database_dsn", "s3_access_key_id", "s3_secret_access_key")
CACHE_CLAIM = "toolformer-cache"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder in which pip has installed the package of the tool `WordCount`, from its source and without a network."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    package = REPOSITORY / "tests" / "data" / "word_count_tool"
    run = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(package)]
    subprocess.run(run, check=True, timeout=600)
    return folder


@pytest.fixture(scope="session")
def tools_dir(tmp_path_factory):
    """The folder of tool files that Airflow reads: one, whose server's program is in it too, and is started beside stages alone."""
    folder = tmp_path_factory.mktemp("tools")
    server = {"command": ["python", str(folder / "faulty.py")], "folder": "/tmp"}  # noqa: S108
    write_tool(folder, "Echo", "echo", server=server, tables="[filter]\npattern = '1400 people'")
    shutil.copy(SERVERS / "faulty.py", folder)
    return folder


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """The cluster on which stages run, with a shared cache; None on a machine that can run none."""
    try:
        skip_where_no_cluster_runs()
    except pytest.skip.Exception:
        yield None
        return
    nodes = [gpu_node("gpus", gpus=8), cpu_node("cpu-0")]
    with TestCluster(tmp_path_factory.mktemp("cluster"), nodes) as running:
        running.add_claim(CACHE_CLAIM)
        yield running


@pytest.fixture(scope="session")
def services(tmp_path_factory, site, tools_dir, cluster):
    """The settings that lead to a Postgres, an S3 and an Airflow of the session's own, with no rows and no objects.

    Beside the tools of the paper Airflow has those of `site` and `tools_dir`. Its stages are pods where there
    is a cluster.
    """
    configuration = local_airflow.configuration
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(directory_in_memory(tmp_path_factory.mktemp("services")))
        paths = StatePaths(folder / "state")
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("TOOLFORMER_")]:
                patch.delenv(name)
            patch.setenv(STATE_DIR_VARIABLE, str(paths.state))
            patch.setenv("PYTHONPATH", str(site))
            # What changes starts a parsing by itself, or `run_stages_as` does; and each parsing counts,
            # however soon it follows.
            patch.setattr(
                local_airflow,
                "configuration",
                lambda *of: (
                    configuration(*of)
                    .replace("_process_interval = 120", "_process_interval = 3600")
                    .replace("[core]\n", "[core]\nmin_serialized_dag_update_interval = 0\n")
                ),
            )
            local_settings = paths.airflow_home / "config" / "airflow_local_settings.py"
            local_settings.parent.mkdir(parents=True)
            local_settings.write_text(LOCAL_SETTINGS, encoding="utf-8")
            deployment = {
                "tools_dir": str(tools_dir),
                "micro_batch_documents": "2",
                # On a Sunday both would start by themselves.
                "audit_schedule": "off",
                "retention_schedule": "off",
            }
            write_environment(paths.environment, deployment)
            if cluster:
                write_environment(
                    paths.environment, pod_settings(cluster, tmp_path_factory.mktemp("pods"), tools_dir)
                )
            load_settings.cache_clear()
            settings = load_settings()
            stack.callback(load_settings.cache_clear)
            stack.callback(delete_state, settings)  # also of an `up` that fails half-way
            found = up(settings)
        if cluster:
            values = {name: getattr(found, name).get_secret_value() for name in SECRETS}
            cluster.add_secret(
                "toolformer", {f"TOOLFORMER_{name.upper()}": value for name, value in values.items()}
            )
        stack.callback(kill_services, found)
        yield found


def pod_settings(cluster: TestCluster, folder: Path, tools_dir: Path) -> dict[str, str]:
    """Those of a deployment: the A100 templates with a shared cache and this machine's tool files, whose device is a CPU."""
    for path in (REPOSITORY / "deploy" / "pod-templates" / "a100").glob("*.yaml"):
        pod = yaml.safe_load(path.read_text(encoding="utf-8"))
        [stage] = pod["spec"]["containers"]
        stage["env"] = [{"name": "TOOLFORMER_DEVICE", "value": "cpu"}]
        [tools] = [mount for mount in stage["volumeMounts"] if mount["name"] == "tools"]
        tools["mountPath"] = str(tools_dir)
        pod["spec"]["volumes"].append({"name": "cache", "persistentVolumeClaim": {"claimName": CACHE_CLAIM}})
        (folder / path.name).write_text(yaml.safe_dump(pod), encoding="utf-8")
    cluster.add_config_map("toolformer-tools", {path.name: path.read_text() for path in tools_dir.iterdir()})
    return {
        "runner": "kubernetes",
        "kubernetes_image": IMAGE,
        "kubernetes_config_file": str(cluster.kubeconfig),
        "kubernetes_templates": str(folder),
    }


LOCAL_SETTINGS = """
import toolformer_ops.airflow_tasks.annotation_dag
import toolformer_ops.airflow_tasks.kubernetes.pods
toolformer_ops.airflow_tasks.kubernetes.watching.POLL_SECONDS = 1.0
"""
"""What the Airflow of the tests imports when it starts: a task is a fork of the scheduler, and would import
it in a CPU second. It looks at a pod each second."""


def run_stages_as(settings: Settings, airflow: AirflowClient, runner: str) -> None:
    """Have stages run as processes ("local") or as pods ("kubernetes") from now on; returns once all DAGs are parsed so."""
    operator = {"local": "StageProcess", "kubernetes": "StagePod"}[runner]
    airflow.open_dag(ANNOTATE)

    def is_so() -> bool:
        return bool(airflow.get(f"/dags/{ANNOTATE}/tasks/ingest")["operator_name"] == operator)

    if is_so():
        return
    write_environment(settings.state_dir / "environment", {"runner": runner})
    reports = Supervisor(StatePaths(settings.state_dir)).reports()
    [processor] = [report.process_id for report in reports if "dag-processor" in report.name]
    process = psutil.Process(processor)
    process.terminate()  # it keeps the settings that it started with; its supervisor starts another
    try:
        process.wait(20)
    except psutil.TimeoutExpired:  # it was just starting, and did not hear
        process.kill()
    until(f"stages as {runner}", is_so)


def kill_services(settings: Settings) -> None:
    """End all services at once, since nobody needs their data; Postgres hears that its supervisor ended, and tidies up."""
    paths = StatePaths(settings.state_dir)
    supervisor = psutil.Process(int((paths.state / "supervisord.pid").read_text()))
    processes = [supervisor, *supervisor.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            spent = process.cpu_times()
            seconds_of_supervised.append(
                spent.user + spent.system + spent.children_user + spent.children_system
            )
            if process.name() != "postgres":
                process.kill()
    _, living = psutil.wait_procs(processes, timeout=60)
    assert living == []
    remove_sockets(recalled_ports(paths))


@pytest.fixture(scope="session")
def model(services, tmp_path_factory):
    """The address on S3 of a tiny model that writes calls."""
    folder = save_model_that_writes_calls(tmp_path_factory.mktemp("models") / "writing")
    return publish_model(services, str(folder)).address


def put_lines(settings: Settings, key: str, texts: Iterable[str]) -> str:
    """The address of a corpus of these texts."""
    store = ObjectStore(settings)
    store.put(key, "".join(json.dumps({"text": text}) + "\n" for text in texts).encode(), "application/jsonl")
    return store.uri(key)


@pytest.fixture(scope="session")
def airflow(services):
    """Airflow's REST API, logged in."""
    with AirflowClient.of(services) as client:
        yield client


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
def held_stages(settings: Settings, table: str = "stage_ledger") -> Iterator[None]:
    """In the block, a stage that has finished a document waits before it says so.

    A run that begins in the block adds partitions to the ledger, for which it would wait; then `micro_batches`
    is the table, of which a stage writes a row in the same transaction.
    """
    with database.transaction(database.connect(settings)) as connection:
        connection.execute(sql(f"lock table {table} in share mode"))
        yield


def stage_process(*words: str) -> psutil.Process | None:
    """The process of a stage with these words in its command line, as a task started it."""
    for process in psutil.process_iter(["cmdline"]):
        if {"toolformer_ops", "stage", *words} <= set(process.info["cmdline"] or []):
            return process
    return None
