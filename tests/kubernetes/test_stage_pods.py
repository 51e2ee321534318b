"""Stage tasks on the cluster of the tests: how they end as their pods end.

`tests/kubernetes/real` asks some of it of a real cluster.
"""

import asyncio
import re
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import API_TIMEOUT
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from tests.kubernetes.cluster import GPU, NAMESPACE, TestCluster, cpu_node
from tests.kubernetes.tasks import RUN, SPOILED, STOPS_WELL, Task, deferral, first, restored, settings
from toolformer_ops.airflow_tasks import endings
from toolformer_ops.airflow_tasks.kubernetes import pods
from toolformer_ops.airflow_tasks.kubernetes.pods import end_pods_of_run


@pytest.fixture(autouse=True)
def airflow(cluster, monkeypatch):
    """The deployment's Secret, and Airflow without a database: no connection is looked up there."""
    cluster.add_secret("toolformer", {"TOOLFORMER_DATABASE_DSN": "postgresql://owner:secret@db/toolformer"})
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", "kubernetes://")
    monkeypatch.setattr(endings, "LOST_SECONDS", 1)


@pytest.fixture
def background():
    with ThreadPoolExecutor(16) as pool:
        yield pool


def run_all(tasks: Sequence[Task], background: ThreadPoolExecutor) -> list[BaseException | None]:
    """How one try of each ended: with which error, or None. They run at the same time."""
    futures = [background.submit(task.run) for task in tasks]
    return [future.exception(timeout=60) for future in futures]


def test_a_stage_that_succeeds_leaves_its_pod_for_a_second_start_of_its_try(cluster):
    script = "echo working; sleep 0.3; echo done"
    task = Task(cluster, "succeeds", script)
    task.run()
    assert task.deferrals == 1
    assert task.extra == {"release_id": "r1"}
    (record,) = cluster.records_of(task.name)
    assert (record.exit_code, record.arguments) == (0, ["stage", "sample", "--shard", "1/3"])
    assert [pod["status"]["phase"] for pod in task.pods()] == ["Succeeded"]


def test_a_pods_exit_status_decides_on_the_retry(cluster, background):
    for_good = {1: False, 2: True, 143: False}
    script = "echo 'expected x, found none.'; exit {}"
    tasks = [Task(cluster, f"exits-{code}", script.format(code)) for code in for_good]
    for task, code, error in zip(tasks, for_good, run_all(tasks, background), strict=True):
        assert isinstance(error, AirflowException)
        assert isinstance(error, AirflowFailException) is for_good[code]
        assert str(error).startswith("stage sample: ")
        assert ("expected x, found none" in str(error)) is (code != 143)
        (kept,) = task.pods()  # for a look at it
        assert kept["metadata"]["labels"]["already_checked"] == "True"
        assert task.extra == {}


# A pod that cannot start


def test_what_keeps_a_pod_from_starting_is_said_by_name_before_the_pod_goes(cluster, background):
    tasks = [Task(cluster, name, "exit 0") for name in SPOILED]
    for task, (spoil, _) in zip(tasks, SPOILED.values(), strict=True):
        spoil(task)
    for task, error in zip(tasks, run_all(tasks, background), strict=True):
        assert isinstance(error, AirflowException)
        assert re.search(SPOILED[task.name][1], str(error)), error
        assert vars(error)["fault"] == "setup"
        assert cluster.records_of(task.name)[0].started is None
        cluster.wait_for(lambda: not task.pods(), "the pod is gone")  # noqa: B023


def test_a_pod_waits_for_a_gpu_that_is_busy(cluster, background, capfd):
    def with_gpu(name: str, script: str) -> Task:
        task = Task(cluster, name, script)
        task.manifest["spec"]["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
        task.stage["resources"]["limits"][GPU] = 2
        return task

    holder = with_gpu("has-the-gpus", STOPS_WELL)
    busy = holder.in_background(background)
    waits = with_gpu("waits-for-gpus", "exit 0")
    waiting = background.submit(waits.run)
    said: list[str] = []

    def says() -> list[str]:
        said.append(capfd.readouterr().out)
        return re.findall("waits-for-gpus.* waits: .*Insufficient nvidia.com/gpu", "".join(said))

    cluster.wait_for(says, "it is said")
    assert not waiting.done()  # after more than the patience with what does not come by itself
    cluster.delete(holder.pod())
    waiting.result(timeout=30)
    assert len(says()) == 1, "why a pod waits is said once, not at each look"
    with pytest.raises(AirflowException):
        busy.result(timeout=30)
    assert cluster.gpus_in_use() == 0


def test_an_api_server_that_is_away_before_there_is_a_pod_is_named(cluster):
    task = Task(cluster, "api-away", "exit 0")
    cluster.outage()
    try:
        with pytest.raises(
            AirflowException, match=r"the Kubernetes API does not answer: .* No pod was made\."
        ) as caught:
            task.run()
    finally:
        cluster.back()
    assert vars(caught.value)["fault"] == "away"


def test_a_pod_that_kubernetes_refuses_fails_for_good(cluster):
    task = Task(cluster, "refused", "exit 0")
    task.manifest["spec"]["hostNetwork"] = True
    with pytest.raises(
        AirflowFailException, match=r"Kubernetes refused the pod: .*PodSecurity.*doctor --kubernetes"
    ):
        task.run()


# A pod that ends otherwise than by itself


FATES: dict[str, tuple[Callable[[TestCluster, str], None], str]] = {
    "evicted": (TestCluster.evict, "Evicted by node .*The node was low on resource: memory"),
    "deleted": (TestCluster.delete, "ended by SIGTERM|was deleted"),
    "out-of-memory": (TestCluster.oom, "OOMKilled at its limit of 4Gi of memory"),
}


def test_how_a_pod_ended_is_in_the_tasks_message_before_a_retry(cluster, background, capfd):
    tasks = [Task(cluster, fate, STOPS_WELL) for fate in FATES]
    futures = [task.in_background(background) for task in tasks]
    for fate, task in zip(FATES, tasks, strict=True):
        FATES[fate][0](cluster, task.pod())
    for fate, task, future in zip(FATES, tasks, futures, strict=True):
        error = future.exception(timeout=60)
        assert isinstance(error, AirflowException)
        assert not isinstance(error, AirflowFailException)
        assert re.search(FATES[fate][1], str(error)), error
        assert vars(error)["fault"] == "outside", error
        assert "HTTP response headers" not in "".join(traceback.format_exception(error))
        assert task.extra == {}
        task.stage["command"] = ["sh", "-c", "exit 0"]
    assert "HTTP response headers" not in capfd.readouterr().out
    assert run_all(tasks, background) == [None] * len(tasks)
    assert all(task.extra == {"release_id": "r1"} for task in tasks)


def test_a_pod_that_goes_between_two_looks_is_asked_once_for_its_log(cluster, monkeypatch):
    task = Task(cluster, "goes", STOPS_WELL)
    task.manifest["spec"]["terminationGracePeriodSeconds"] = 1
    read = pods.StagePod._read

    def then_gone(stage: pods.StagePod, name: str, namespace: str) -> Any:
        pod = read(stage, name, namespace)
        if pod is not None:
            cluster.delete(name)
            cluster.wait_for(lambda: not task.pods(), "the pod is gone")
        return pod

    def asked_for_logs() -> int:
        return sum(
            times for (_, resource, _), times in cluster.api.requests.items() if resource == "pods/log"
        )

    before = asked_for_logs()
    event = {"status": "failed", "name": task.new_pod(), "namespace": NAMESPACE, "message": "ended"}
    monkeypatch.setattr(pods.StagePod, "_read", then_gone)
    with pytest.raises(AirflowException, match=r"ended by SIGTERM|was deleted"):
        task.new_operator().trigger_reentry(task.context(), event)
    assert asked_for_logs() == before + 1


def test_a_pod_whose_node_is_gone_is_given_up(cluster, background):
    cluster.add_node(cpu_node("shaky", labels={"shaky": "yes"}))
    task = Task(cluster, "node-lost", STOPS_WELL, logging_interval=1)
    task.manifest["spec"] |= {"nodeSelector": {"shaky": "yes"}, "terminationGracePeriodSeconds": 1}
    future = task.in_background(background)
    cluster.kill_node("shaky", gone_after=20)
    cluster.delete(task.pod())  # as Kubernetes does after five minutes; nobody on the node hears it
    assert re.search("node shaky does not answer", str(future.exception(timeout=60)))
    assert not task.pods()  # removed by force


def test_a_stage_works_through_an_outage_of_the_api_server(cluster, background):
    task = Task(cluster, "outage", "echo ready; sleep 1; echo done")
    future = task.in_background(background)
    (record,) = cluster.records_of(task.name)
    cluster.outage()
    cluster.wait_for(lambda: record.ended, "the pod ends meanwhile")
    cluster.back()
    # A request that was under way when the server went may be lost: it is asked again after the provider's
    # limit.
    assert future.exception(timeout=3 * API_TIMEOUT) is None
    assert len(cluster.records_of(task.name)) == 1


def test_the_time_limit_ends_a_stage_with_its_pod(cluster):
    task = Task(cluster, "too-long", STOPS_WELL, execution_timeout=timedelta(seconds=2))
    task.new_pod()  # which the try takes over: however slow the machine is, it works when the time is up
    cluster.wait_for(lambda: "ready" in task.log(), "the pod works")
    with pytest.raises(
        AirflowException, match=r"deadline.*; the next try starts after the last committed micro-batch"
    ):
        task.run()
    cluster.wait_for(lambda: not task.pods(), "the pod is gone")
    (record,) = cluster.records_of(task.name)
    assert record.exit_code == 143


# A task that ends before its pod


def test_a_task_that_was_told_to_end_ends_its_pod_without_success(cluster):
    task = Task(cluster, "sigterm", STOPS_WELL)
    operator = task.new_operator()
    # What Airflow's task runner does at SIGTERM, here before the task is deferred.
    vars(operator)["defer"] = lambda **_: operator.on_kill()
    with pytest.raises(AirflowException) as caught:
        operator.execute(task.context())
    assert not isinstance(caught.value, AirflowFailException)
    assert task.extra == {}
    cluster.wait_for(lambda: not task.pods(), "the pod is gone")


def test_a_deferred_task_that_is_told_to_end_when_it_is_back_is_no_success(cluster):
    task = Task(cluster, "sigterm-back", "exit 0")
    context = task.context()
    with pytest.raises(TaskDeferred) as caught:
        task.new_operator().execute(context)
    event = asyncio.run(first(restored(caught.value.trigger))).payload
    operator = task.new_operator()
    vars(operator)["_write_logs"] = lambda *_, **__: operator.on_kill()
    with pytest.raises(AirflowException, match=r"SIGTERM|was deleted"):
        operator.trigger_reentry(context, event)
    assert task.extra == {}


def test_a_pod_that_works_is_no_success_whatever_its_trigger_said(cluster):
    task = Task(cluster, "works", STOPS_WELL)
    name = task.new_pod()
    cluster.wait_for(lambda: "ready" in task.log(), "the pod works")
    for status in ("success", "failed"):
        event = {"status": status, "name": name, "namespace": NAMESPACE, "message": ""}
        with pytest.raises(AirflowException, match=f"the pod {name} runs") as caught:
            task.new_operator().trigger_reentry(task.context(), event)
        assert vars(caught.value)["fault"] == "away"
        assert task.pod() == name
    assert task.extra == {}
    cluster.delete(name)


def test_a_deferred_task_that_a_user_ends_takes_its_pod_along(cluster):
    task = Task(cluster, "marked-failed", STOPS_WELL)
    trigger = deferral(task)

    async def watch_and_end() -> None:
        watching = asyncio.ensure_future(first(trigger))
        while "ready" not in await asyncio.to_thread(task.log):
            await asyncio.sleep(0.05)
        watching.cancel()
        await trigger.on_kill()  # what Airflow's triggerer does

    asyncio.run(watch_and_end())
    cluster.wait_for(lambda: not task.pods(), "the pod is gone")


def test_a_retry_takes_over_the_pod_of_a_worker_that_died(cluster):
    task = Task(cluster, "worker-died", "echo ready; sleep 1; echo done")
    deferral(task)  # and then nobody comes back
    task.run()
    assert task.extra == {"release_id": "r1"}
    assert len(cluster.records_of(task.name)) == 1


def test_a_try_that_is_started_twice_takes_the_exit_status_of_its_one_pod(cluster):
    """As if Airflow did not record how the first start ended."""
    done = Task(cluster, "starts-twice", "exit 0")
    failed = Task(cluster, "fails-twice", "echo no; exit 1")
    of_done, of_failed = done.context(), failed.context()
    for _ in range(2):
        done.run(of_done)
        with pytest.raises(AirflowException, match="exit status 1: no"):
            failed.run(of_failed)
    assert len(cluster.records_of(done.name)) == len(cluster.records_of(failed.name)) == 1


def test_a_retry_takes_the_exit_status_of_a_pod_that_succeeded_unless_the_task_was_cleared(cluster):
    task = Task(cluster, "succeeded-before", "exit 0")
    task.new_pod()
    cluster.wait_for(
        lambda: task.pods()[0]["status"].get("phase") == "Succeeded", "the pod of the first try succeeds"
    )
    task.run()
    assert task.extra == {"release_id": "r1"}
    assert len(cluster.records_of(task.name)) == 1
    task.max_tries = task.tries  # what Airflow does when a person clears the task
    task.run()
    assert len(cluster.records_of(task.name)) == 2


def test_of_two_pods_of_a_task_one_works_on(cluster):
    task = Task(cluster, "orphans", STOPS_WELL)
    first_pod = task.new_pod()
    cluster.wait_for(lambda: "ready" in task.log(), "the first pod works")
    task.stage["command"] = ["sh", "-c", "echo ready; sleep 1"]
    task.new_pod()
    task.run()
    records = {record.name: record for record in cluster.records_of(task.name)}
    assert len(records) == 2
    cluster.wait_for(lambda: records[first_pod].exit_code == 143, "the first pod has ended")


def test_the_end_of_a_run_ends_its_pods_beside_old_ones(cluster, monkeypatch):
    orphan = Task(cluster, "orphan-of-the-run", STOPS_WELL)
    done = Task(cluster, "done-in-the-run", "exit 0")
    done.run()
    failed = Task(cluster, "failed-of-the-run", "exit 1")
    deferral(orphan)
    with pytest.raises(AirflowException):
        failed.run()
    end_pods_of_run(settings(cluster), dag_id="annotate_corpus", run_id="another run")
    assert (len(orphan.pods()), len(done.pods())) == (1, 1)
    end_pods_of_run(settings(cluster), dag_id="annotate_corpus", run_id=RUN)
    cluster.wait_for(
        lambda: not orphan.pods() and not done.pods(), "the orphan and the pod that succeeded are gone"
    )
    assert len(failed.pods()) == 1  # for a look at it
    monkeypatch.setattr(pods, "KEEP_ENDED", timedelta(0))
    end_pods_of_run(settings(cluster), dag_id="annotate_corpus", run_id=RUN)
    cluster.wait_for(lambda: not failed.pods(), "the failed pod is gone")
    away = settings(cluster, kubernetes_config_file="/not/there")
    end_pods_of_run(away, dag_id="annotate_corpus", run_id=RUN)  # which does not keep the run from ending
