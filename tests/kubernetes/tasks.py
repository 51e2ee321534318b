"""A stage task outside of Airflow, on the cluster of the tests or on a real one.

A cluster has `kubeconfig`, `image`, `namespace`, the `settings` that say how patient Airflow is, `client`,
`pods` and `wait_for`. In place of Airflow's scheduler and triggerer, `Task` does what these do: it runs the
trigger of a deferred task, which went through its serialised form, and hands the event to the task. The pods
run shell scripts.
"""

import asyncio
import copy
import importlib
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import TaskDeferred

from toolformer_ops.airflow_tasks.kubernetes.pods import StagePod, pod_arguments
from toolformer_ops.config import REPOSITORY, Settings

RUN = "manual__2026-11-22T10:00:00+00:00"
STOPS_WELL = "trap 'echo asked to end; exit 143' TERM; echo ready; sleep 3600 & wait"
RELEASE = Asset("release", uri="toolformer://release")


def settings(cluster: Any, **values: Any) -> Settings:
    """Of a deployment on the cluster."""
    common = {
        "kubernetes_config_file": cluster.kubeconfig,
        "kubernetes_image": cluster.image,
        "kubernetes_templates": REPOSITORY / "deploy" / "pod-templates" / "cpu-only",
        "kubernetes_namespace": cluster.namespace,
    }
    return Settings(_env_file=None, **(common | values))


class Task:
    """A task of a stage whose pod runs a shell script, tried as often as `run` is called."""

    def __init__(self, cluster: Any, name: str, script: str, **more: Any) -> None:
        self.cluster, self.name, self.more = cluster, name, more
        self.arguments = pod_arguments(settings(cluster), template="cpu")
        self.manifest = copy.deepcopy(self.arguments.pop("manifest"))
        self.stage = self.manifest["spec"]["containers"][0]
        self.stage["command"] = ["sh", "-c", script]
        self.tries = self.max_tries = 0
        self.deferrals = 0
        self.extra: dict[str, str] = {}
        self.operator: StagePod | None = None

    def new_operator(self) -> StagePod:
        """As each process of Airflow makes it from the DAG file."""
        return StagePod(
            task_id=self.name,
            arguments=["stage", "sample"],
            manifest=self.manifest,
            shard="1/3",
            outlets=[RELEASE],
            asset_extra={"release_id": "r1"},
            **(self.arguments | self.more),
        )

    def run(self, context: Any = None) -> None:
        """One try, to its end; with a context, that try once more."""
        context = context or self.context()
        self.operator = self.new_operator()
        step: Callable[[], Any] = lambda: self.operator.execute(context)  # noqa: E731
        while True:
            try:
                step()
            except TaskDeferred as deferred:
                self.deferrals += 1
                event = asyncio.run(first(restored(deferred.trigger))).payload
                self.operator = operator = self.new_operator()
                step = lambda: operator.trigger_reentry(context, event)  # noqa: B023, E731
            else:
                return

    def context(self) -> Any:
        """What Airflow gives the next try."""
        self.tries += 1
        instance = SimpleNamespace(
            id=uuid.uuid4(),
            max_tries=self.max_tries,
            dag_id="annotate_corpus",
            task_id=self.name,
            map_index=1,
            try_number=self.tries,
            start_date=datetime.now(UTC),
            xcom_push=lambda **_: None,
        )
        return {
            "ti": instance,
            "run_id": RUN,
            "dag": SimpleNamespace(dag_id="annotate_corpus"),
            "params": {},
            "outlet_events": {RELEASE: SimpleNamespace(extra=self.extra)},
        }

    def in_background(self, pool: ThreadPoolExecutor) -> "Future[None]":
        """A try whose pod runs when this returns."""
        future = pool.submit(self.run)
        self.cluster.wait_for(lambda: future.done() or "ready" in self.log(), f"{self.name} is ready")
        return future

    def pods(self) -> list[dict[str, Any]]:
        """Those of this task that the API shows."""
        return [pod for pod in self.cluster.pods() if pod["metadata"]["labels"].get("task_id") == self.name]

    def pod(self) -> str:
        (pod,) = self.pods()
        return str(pod["metadata"]["name"])

    def log(self) -> str:
        """What its only pod has written."""
        if not [pod for pod in self.pods() if pod["status"].get("phase") == "Running"]:
            return ""
        return str(self.cluster.client().read_namespaced_pod_log(self.pod(), self.cluster.namespace))

    def new_pod(self) -> str:
        """The name of a pod as a try makes it, without a try."""
        operator = self.new_operator()
        return str(
            operator.client.create_namespaced_pod(
                self.cluster.namespace, operator.build_pod_request_obj(self.context())
            ).metadata.name
        )


# What keeps a pod from starting


def lacks_its_secret(task: Task) -> None:
    for variable in task.stage["env"]:
        if "valueFrom" in variable:
            variable["valueFrom"]["secretKeyRef"]["name"] = "not-there"


def lacks_a_config_map(task: Task) -> None:
    task.manifest["spec"]["volumes"].append({"name": "more", "configMap": {"name": "not-there"}})


def has_no_image(task: Task) -> None:
    task.stage["image"] = f"{task.stage['image'].rpartition(':')[0]}:not-there"


def has_no_node(task: Task) -> None:
    task.manifest["spec"]["nodeSelector"] = {"toolformer": "not-there"}


SPOILED: dict[str, tuple[Callable[[Task], None], str]] = {
    "no-secret": (lacks_its_secret, 'secrets? "not-there" not found.*Make that Secret'),
    "no-config-map": (lacks_a_config_map, 'configmap "not-there" not found'),
    "no-image": (has_no_image, "cannot be pulled.*TOOLFORMER_KUBERNETES_IMAGE"),
    "no-node": (has_no_node, "no node takes the pod.*toolformer=not-there"),
}
"""What spoils a task, and how it then fails by its setup."""


def deferral(task: Task) -> Any:
    """The trigger to which a try defers."""
    with pytest.raises(TaskDeferred) as caught:
        task.new_operator().execute(task.context())
    return restored(caught.value.trigger)


def restored(trigger: Any) -> Any:
    """The trigger as the triggerer makes it from Airflow's database."""
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**arguments)


async def first(trigger: Any) -> Any:
    async for event in trigger.run():
        return event
    raise AssertionError("the trigger ended without an event")
