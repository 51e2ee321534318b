"""Stages in pods whose last line on stdout the DAG needs: ids, counts, a report. The line is read from the pod's log.

Not by the provider's own way, `do_xcom_push`: a container beside the stage, and the right to run commands in pods.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.models.xcom import XCOM_RETURN_KEY
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowException
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException

from toolformer_ops.airflow_tasks.audit_task import set_report
from toolformer_ops.airflow_tasks.kubernetes.pods import StagePod, delete_pod
from toolformer_ops.airflow_tasks.kubernetes.templates import CONTAINER
from toolformer_ops.airflow_tasks.skipping import NotNeeded, skip_not_needed

if TYPE_CHECKING:
    from airflow.sdk import Context

LAST_LINES = 50
"""Of a pod's log, among which the stage's result is: what it prints last, and its error where it has one."""


class PodWithResult(StagePod):
    """A stage in a pod; the task returns what the stage prints last, parsed as JSON."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.printed: Any = None
        """What the stage has printed, also if it failed; None if that is not known."""

    def trigger_reentry(self, context: "Context", event: dict[str, Any]) -> Any:
        """As of `StagePod`; returns what the stage has printed.

        Raises:
            AirflowException: its result cannot be read any more; what else `StagePod` raises.
        """
        super().trigger_reentry(context, event)
        if self.printed is None:
            if self.pod:  # else the next try takes it for its own
                delete_pod(self.client, self.pod)
            raise AirflowException(
                f"{self._stage_name()}: expected its ids or counts in the log of its pod, found none. What it did is stored; the "
                "next try finds it done."
            )
        # The provider has Airflow push nothing by itself.
        context["ti"].xcom_push(key=XCOM_RETURN_KEY, value=self.printed)
        return self.printed

    def _succeeded(self, pod: k8s.V1Pod, event: Mapping[str, Any]) -> bool:
        self.printed = self._last_value(pod)  # now: a pod that succeeded may go, and its log with it
        return super()._succeeded(pod, event)

    def _last_value(self, pod: k8s.V1Pod) -> Any:
        try:
            log = self.client.read_namespaced_pod_log(
                pod.metadata.name,
                pod.metadata.namespace,
                container=CONTAINER,
                tail_lines=LAST_LINES,
                _preload_content=False,
            )
        except ApiException as error:
            self.log.warning("the log of the pod %s cannot be read: %s", pod.metadata.name, error.reason)
            return None
        # stdout and stderr are one there, and lines of the log begin with a time.
        for line in reversed(log.data.decode("utf-8", errors="replace").splitlines()):
            if line.startswith("{"):
                try:
                    return json.loads(line)
                except ValueError:
                    continue
        return None


class ChoosingPod(PodWithResult, SkipMixin):
    """As `skipping.ChoosingStage`, in a pod."""

    inherits_from_skipmixin = True

    def __init__(self, *, not_needed: NotNeeded, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.not_needed = not_needed

    def trigger_reentry(self, context: "Context", event: dict[str, Any]) -> Any:
        """As of `PodWithResult`, and skip what is not needed."""
        result = super().trigger_reentry(context, event)
        skip_not_needed(self, context, result)
        return result


class AuditPod(PodWithResult):
    """As `audit_task.AuditEverything`, in a pod."""

    def trigger_reentry(self, context: "Context", event: dict[str, Any]) -> Any:
        """As of `PodWithResult`; what was found becomes the run's note, also where the stage failed."""
        try:
            return super().trigger_reentry(context, event)
        finally:
            if self.printed is not None:
                set_report(context, self.printed)
