"""Whole DAG runs whose stages are pods: Airflow's real scheduler and triggerer, the operator, and the cluster of the tests.

The pods are those of a deployment: the A100 templates, with GPUs that are counted and a device that is a CPU; model, index, corpus
and evaluation data on S3; settings from a Secret, a tool file from a ConfigMap; the Role of `deploy/kubernetes`. What is disturbed
has the rows of the run of `test_killed_stages.py`, whose stages are processes and which nothing disturbs.
"""

import gzip
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from sqlalchemy import text as sql

from tests.kubernetes.cluster import (
    IMAGE,
    NAMESPACE,
    PodRecord,
    TestCluster,
    cpu_node,
    gpu_node,
    skip_where_no_cluster_runs,
)
from tests.system.conftest import ANNOTATE, OF_CALLS, RECORDS, SECONDS_FOR_A_RUN, rows_of_calls, wait_until_ended
from tests.system.writing_model import WORDS
from tests.tool_files import SERVERS, write_tool
from toolformer_ops.airflow_tasks.airflow_client import AirflowClient
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.language_model.models.publishing import publish_model
from toolformer_ops.local.state_folder import StatePaths, write_environment
from toolformer_ops.local.supervision import Supervisor
from toolformer_ops.storage import database
from toolformer_ops.storage.publication import ObjectStore
from toolformer_ops.tools.registry import PAPER_TOOLS

pytestmark = pytest.mark.system

BUILD_INDEX, INGEST = "build_wiki_index", "ingest_corpus"
SECRETS = ("database_dsn", "s3_access_key_id", "s3_secret_access_key")
CACHE_CLAIM = "toolformer-cache"
ANNOTATE_TASK = "Calculator.annotate"
COMMITTED = re.compile(r"(sample|execute|score): [1-9]\d* of \d+ documents")
"""In a stage's log: it has committed a micro-batch."""
FOREIGN = (
    "We met the people of the village and left for the day. Der Zug nach Berlin fährt heute leider nicht mehr, und das Wetter ist "
    "sehr schlecht geworden. We took a bus and saw a film on the way, as people do this year."
)
"""A paragraph with a foreign phrase between English ones."""


# The cluster


@pytest.fixture(scope="module")
def tools_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tool files that Airflow reads: one, whose server's program is in it too, and is started in pods alone."""
    folder = tmp_path_factory.mktemp("tools")
    server = {"command": ["python", str(folder / "faulty.py")], "folder": "/tmp"}  # noqa: S108
    write_tool(folder, "Echo", "echo", server=server, tables="[filter]\npattern = '1400 people'")
    shutil.copy(SERVERS / "faulty.py", folder)
    return folder


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory, tools_dir: Path) -> Path:
    """The A100 templates with a shared cache and this machine's tool files; their stages ask for a GPU and run on a CPU."""
    folder = tmp_path_factory.mktemp("templates")
    for path in (REPOSITORY / "deploy" / "pod-templates" / "a100").glob("*.yaml"):
        pod = yaml.safe_load(path.read_text(encoding="utf-8"))
        [stage] = pod["spec"]["containers"]
        stage["env"] = [{"name": "TOOLFORMER_DEVICE", "value": "cpu"}]
        [tools] = [mount for mount in stage["volumeMounts"] if mount["name"] == "tools"]
        tools["mountPath"] = str(tools_dir)
        pod["spec"]["volumes"].append({"name": "cache", "persistentVolumeClaim": {"claimName": CACHE_CLAIM}})
        (folder / path.name).write_text(yaml.safe_dump(pod), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def cluster(
    services: Settings,
    airflow: AirflowClient,
    undisturbed: object,
    tools_dir: Path,
    templates: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TestCluster]:
    """The cluster on which Airflow runs all stages while these tests run. A GPU a node, so that a node can be lost with one pod."""
    skip_where_no_cluster_runs()
    rights = yaml.safe_load_all(
        (REPOSITORY / "deploy" / "kubernetes" / "base" / "rights.yaml").read_text(encoding="utf-8")
    )
    [role] = [found for found in rights if found["kind"] == "Role"]
    single = [gpu_node(f"gpu-{number}", gpus=1) for number in range(5)]
    nodes = [*single, gpu_node("gpus", gpus=8), cpu_node("cpu-0")]  # finetuning takes a whole node
    environment = services.state_dir / "environment"
    before = environment.read_text(encoding="utf-8")
    slots = {name: airflow.get(f"/pools/{name}")["slots"] for name in ("gpu", "cpu")}
    with TestCluster(tmp_path_factory.mktemp("cluster"), nodes, role=role["rules"]) as running:
        running.add_claim(CACHE_CLAIM)
        values = {name: getattr(services, name).get_secret_value() for name in SECRETS}
        running.add_config_map("toolformer-tools", {path.name: path.read_text() for path in tools_dir.iterdir()})
        running.add_secret("toolformer", {f"TOOLFORMER_{name.upper()}": value for name, value in values.items()})
        settings = {
            "runner": "kubernetes",
            "kubernetes_image": IMAGE,
            "kubernetes_config_file": str(running.kubeconfig),
            "kubernetes_templates": str(templates),
            "kubernetes_poll_seconds": "1",
            "tools_dir": str(tools_dir),
            "shard_seconds": "10",
            "start_up_seconds": "0",
        }
        write_environment(environment, settings)
        try:
            parse_again(services, airflow, "StagePod")
            for name in slots:
                airflow.set_pool(name, 8, "", include_deferred=True)
            yield running
        finally:
            environment.write_text(before, encoding="utf-8")
            parse_again(services, airflow, "StageProcess")
            for name, count in slots.items():
                airflow.set_pool(name, count, "", include_deferred=True)


def parse_again(services: Settings, airflow: AirflowClient, operator: str) -> None:
    """Have all DAGs parsed with the settings of now, and return once their stages are of this class."""
    reports = Supervisor(StatePaths(services.state_dir)).reports()
    [processor] = [report.process_id for report in reports if "dag-processor" in report.name]
    process = psutil.Process(processor)
    process.terminate()  # it keeps the settings that it started with; its supervisor starts another
    try:
        process.wait(20)
    except psutil.TimeoutExpired:  # it was just starting, and did not hear
        process.kill()
    for dag_id, task_id in ((ANNOTATE, "ingest"), (INGEST, "ingest"), (BUILD_INDEX, "build_index")):
        airflow.open_dag(dag_id)
        until = time.monotonic() + 180
        while airflow.get(f"/dags/{dag_id}/tasks/{task_id}")["operator_name"] != operator:
            assert time.monotonic() < until, f"{task_id} is no {operator}: {airflow.get('/importErrors')}"
            time.sleep(0.5)


@pytest.fixture(scope="module")
def model(services: Settings, writing_model_dir: Path) -> str:
    """The address of the model on S3."""
    return publish_model(services, str(writing_model_dir)).address


def put_lines(settings: Settings, key: str, lines: Iterable[str]) -> str:
    """The address of an object of these lines."""
    store = ObjectStore(settings)
    store.put(key, "".join(f"{line}\n" for line in lines).encode(), "application/jsonl")
    return store.uri(key)


def run(airflow: AirflowClient, dag_id: str, run_id: str, **conf: Any) -> str:
    """The state in which the run ends."""
    airflow.trigger(dag_id, run_id, conf)
    return wait_until_ended(airflow, dag_id, run_id)


def failures(airflow: AirflowClient, dag_id: str, run_id: str) -> str:
    """The ends of the logs of all tasks that failed."""
    failed = airflow.tasks(dag_id, run_id, "failed")
    return "\n\n".join(f"{task.name}:\n" + "\n".join(airflow.log_tail(dag_id, run_id, task, 25)) for task in failed)


def log_of_try(airflow: AirflowClient, run_id: str, map_index: int, number: int) -> str:
    """What Airflow shows of one try of a shard's task."""
    path = f"/dags/{ANNOTATE}/dagRuns/{run_id}/taskInstances/{ANNOTATE_TASK}/logs/{number}"
    return json.dumps(airflow.get(path, map_index=map_index, full_content="true")["content"])


def nothing_is_left(cluster: TestCluster) -> bool:
    """No pod works and no GPU is in use; pods that have ended are kept for a while."""
    ended = ("Succeeded", "Failed")
    cluster.wait_for(lambda: all(pod["status"]["phase"] in ended for pod in cluster.pods()), "no pod works on")
    return cluster.gpus_in_use() == 0 and not any(record.is_at_work for record in cluster.records)


# A whole run


def test_a_run_of_all_tools_with_an_index_built_in_a_pod_ends_green(
    services: Settings, airflow: AirflowClient, cluster: TestCluster, model: str, evaluation_data: Path
) -> None:
    # 1. The index, by the other DAG.
    pages = (
        {
            "wikipedia_id": str(n),
            "wikipedia_title": f"Page {n}",
            "text": [f"Page {n}\n", f"{WORDS} {n} and {n + 1}.\n"],
        }
        for n in range(2, 100)
    )
    source = put_lines(services, "wikipedia/pages.jsonl", map(json.dumps, pages))
    assert run(airflow, BUILD_INDEX, "index", source=source) == "success", failures(airflow, BUILD_INDEX, "index")

    # 2. Annotation, release, finetuning, evaluation. One tool is of a tool file, and its server runs beside the stage.
    tools = [*PAPER_TOOLS, "Echo"]
    problems = (evaluation_data / "svamp" / "SVAMP.json").read_bytes()
    ObjectStore(services).put("evaluation/svamp/SVAMP.json", problems, "application/json")
    state = run(
        airflow,
        ANNOTATE,
        "all-tools",
        corpus=put_lines(services, "corpora/all-tools.jsonl", map(json.dumps, [*RECORDS, {"text": FOREIGN}])),
        model=model,
        tools=tools,
        call_prefix="tool_name",
        sampling_threshold=0.0,
        max_positions=3,
        samples_per_position=2,
        max_call_tokens=16,
        keep_thresholds=dict.fromkeys(tools, 0.0),
        prune_below=0.0,
        finetune_steps=2,
        finetune_batch=2,
        finetune_device_batch=2,
        finetune_length=64,
        evaluation_suites=["math"],
        evaluation_data=ObjectStore(services).uri("evaluation"),
    )
    assert state == "success", failures(airflow, ANNOTATE, "all-tools")

    # 3. What ran, what it fetched, and what is left: nothing.
    expected = {stage: len(tools) for stage in ("filter", "annotate", "check")}  # `annotate` scores all placebos
    expected |= dict.fromkeys(
        ("build-index", "ingest", "release", "check-release", "finetune", "publish", "evaluate"), 1
    )
    tasks = {
        tuple(record.labels.get(name) for name in ("run_id", "task_id", "map_index")) for record in cluster.records
    }
    assert len(tasks) == len(cluster.records), "no task has two pods, also if Airflow starts it twice"
    assert cluster.started_by_stage() == expected
    assert nothing_is_left(cluster)
    assert cluster.most_gpus_in_use >= 1
    downloads = cluster.kubelet.claim_folder(CACHE_CLAIM) / "downloads.jsonl"
    fetched = [json.loads(line) for line in downloads.read_text(encoding="utf-8").splitlines()]
    addresses = [line["artifact"] for line in fetched]
    assert len(addresses) == len(set(addresses)), "a node downloads an artifact once, for all of its pods"
    assert model in addresses
    assert [line["kind"] for line in fetched].count("index") == 1
    assert count(services, "evaluation_scores where run_id = 'all-tools'") == 3  # untuned; with and without its tools
    searched = "call_results where tool in ('WikiSearch', 'QA') and cardinality(results) > 0"
    assert count(services, searched) > 0, "no pod found anything in the index"
    answered = "call_results where tool = 'Echo' and cardinality(results) > 0"
    assert count(services, answered) > 0, "no pod asked the server of the tool file"


def count(settings: Settings, what: str) -> int:
    with database.transaction(database.connect(settings)) as connection:
        return int(connection.execute(sql(f"select count(*) from {what}")).scalar_one())


# Faults


def annotate_sums(
    services: Settings, airflow: AirflowClient, sums: Path, run_id: str, *, model: str, shards: int, **conf: Any
) -> None:
    """Forget all calls, and start a run that does what the undisturbed one did, in so many pods."""
    with database.transaction(database.connect(services)) as connection:
        connection.execute(sql(f"truncate {', '.join(OF_CALLS)}, micro_batches"))
    lines = sums.read_text(encoding="utf-8").splitlines()
    seconds = (10 * shards + 1) / len(lines)  # so that the plan splits the work, which is measured by no run now
    write_environment(services.state_dir / "environment", {"seconds_per_document": str(seconds)})
    choices = {
        "corpus": put_lines(services, "corpora/sums.jsonl", lines),
        "model": model,
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
    airflow.trigger(ANNOTATE, run_id, choices | conf)


def disturb(
    airflow: AirflowClient,
    cluster: TestCluster,
    run_id: str,
    try_number: int,
    faults: Mapping[str, Callable[[PodRecord], None]],
) -> dict[str, PodRecord]:
    """Each fault befalls the pod of another shard, in that try, once it has committed something; returns the pod of each."""
    befallen: dict[str, PodRecord] = {}
    api = cluster.client()
    until = time.monotonic() + SECONDS_FOR_A_RUN
    while len(befallen) < len(faults):
        assert time.monotonic() < until, f"only {', '.join(befallen)} had a pod at work"
        for record in list(cluster.records):
            wanted = {"run_id": run_id, "try_number": str(try_number)}
            if not (record.is_at_work and record.stage == "annotate" and wanted.items() <= record.labels.items()):
                continue
            if shard_of(record) in map(shard_of, befallen.values()) or len(befallen) == len(faults):
                continue
            log = api.read_namespaced_pod_log(record.name, NAMESPACE, _preload_content=False)
            if COMMITTED.search(log.data.decode()):
                fault = list(faults)[len(befallen)]
                faults[fault](record)
                befallen[fault] = record
        time.sleep(0.02)
    return befallen


def shard_of(record: PodRecord) -> int:
    return int(record.labels["map_index"])


def test_no_fault_loses_or_repeats_a_row_and_what_cannot_succeed_is_not_tried_again(
    services: Settings,
    airflow: AirflowClient,
    cluster: TestCluster,
    sums: Path,
    model: str,
    undisturbed: dict[str, list[list[Any]]],
) -> None:
    # 1. A corpus that is half copied: exit status 2. The other run ends with a check that does not pass: exit status 3.
    write_environment(services.state_dir / "environment", {"kubernetes_deferrable": "False"})
    store = ObjectStore(services)
    store.put("corpora/cut.jsonl.gz", gzip.compress(b'{"text": "A text."}\n')[:-8], "application/gzip")
    airflow.trigger(INGEST, "cut-corpus", {"corpus": store.uri("corpora/cut.jsonl.gz")})
    annotate_sums(services, airflow, sums, "faults", model=model, shards=4, min_kept_texts=1_000_000)

    # 2. The tasks wait for their pods themselves. A worker is killed, which Airflow sees a minute later; a task is told to end.
    orphans: list[psutil.Process] = []

    def kill_worker(record: PodRecord) -> None:
        task = task_process(airflow, "faults", record)
        worker = task.parent()
        assert worker is not None
        assert "LocalExecutor" in " ".join(worker.cmdline())
        orphans.append(task)
        worker.kill()

    first = disturb(
        airflow,
        cluster,
        "faults",
        1,
        {
            "worker killed": kill_worker,
            "told to end": lambda record: task_process(airflow, "faults", record).terminate(),
            "deleted": lambda record: cluster.delete(record.name),
            "evicted": lambda record: cluster.evict(record.name),
        },
    )
    write_environment(services.state_dir / "environment", {"kubernetes_deferrable": "True"})

    # 3. In the next try the tasks are deferred. Two pods meet another end, and while the third works the API server goes away.
    second = disturb(
        airflow,
        cluster,
        "faults",
        2,
        {
            "out of memory": lambda record: cluster.oom(record.name),
            "lost": lambda record: cluster.kill_node(record.node),
            "left alone": lambda _: None,
        },
    )
    cluster.outage()
    threading.Timer(30, cluster.back).start()

    # 4. What cannot succeed was tried once.
    assert wait_until_ended(airflow, INGEST, "cut-corpus") == "failed"
    assert wait_until_ended(airflow, ANNOTATE, "faults") == "failed"
    for dag_id, run_id, task_id, exit_code in (
        (INGEST, "cut-corpus", "ingest", 2),
        (ANNOTATE, "faults", "Calculator.check", 3),
    ):
        found = {task.name: task.try_number for task in airflow.tasks(dag_id, run_id, "failed")}
        assert found[task_id] == 1, failures(airflow, dag_id, run_id)
        ended = [
            record.exit_code
            for record in cluster.records
            if record.labels.items() >= {"run_id": run_id, "task_id": task_id}.items()
        ]
        assert ended == [exit_code]

    # 5. No try was a success with its work undone; the rows are those of the undisturbed run; nothing works on.
    pods = first | second
    codes = {fault: pods[fault].exit_code for fault in ("deleted", "evicted", "out of memory", "told to end")}
    assert codes == {"deleted": 143, "evicted": 137, "out of memory": 137, "told to end": 143}
    done = [task for task in airflow.tasks(ANNOTATE, "faults", "success") if task.task_id == ANNOTATE_TASK]
    tries = {task.map_index: task.try_number for task in done}
    for fault, number in {"worker killed": 2, "left alone": 2, "out of memory": 3, "lost": 3}.items():
        assert tries[shard_of(pods[fault])] in (number, number + 1), f"{fault}: one more where a try met the outage"
    for number, fault, words in (
        (1, "evicted", "low on resource: memory"),
        (2, "out of memory", "OOMKilled"),
        (2, "lost", "node"),
    ):
        assert words in log_of_try(airflow, "faults", shard_of(pods[fault]), number), fault
    assert not any(task.is_running() for task in orphans), "a task outlived its worker"
    assert comparable(rows_of_calls(services)) == comparable(undisturbed)
    assert nothing_is_left(cluster)


def comparable(rows: Mapping[str, list[list[Any]]]) -> dict[str, list[list[Any]]]:
    """Rows without what depends on the order of shards: which of the documents that ask the same runs the tool for all of them."""
    ledger = [
        row if row[0] != "execute" else [*row[:3], row[4]["calls"], row[4]["inputs"]] for row in rows["stage_ledger"]
    ]
    return {**rows, "stage_ledger": ledger}


def task_process(airflow: AirflowClient, run_id: str, record: PodRecord) -> psutil.Process:
    """The process in which Airflow runs the task of a pod."""
    found = airflow.get(f"/dags/{ANNOTATE}/dagRuns/{run_id}/taskInstances/{ANNOTATE_TASK}/{shard_of(record)}")
    title = f"airflow worker -- {found['id']}"
    [process] = [found for found in psutil.process_iter(["cmdline"]) if title in " ".join(found.info["cmdline"] or ())]
    return process


def test_airflow_uses_each_right_of_its_role_and_no_other(cluster: TestCluster) -> None:
    [user] = {user for _, _, user in cluster.api.requests if user != "admin"}
    used = {(verb, resource) for verb, resource, name in cluster.api.requests if name == user}
    allowed = {(verb, resource) for rule in cluster.role for resource in rule["resources"] for verb in rule["verbs"]}
    assert used == allowed
    assert cluster.api.forbidden == []
