"""Airflow's REST API (v2), as far as a run needs it: token, unpause, trigger, state, failed tasks and their logs.

Requests are repeated where the API server does not answer or stumbles (5xx); a trigger is safe to repeat, because the run's id is
ours. https://airflow.apache.org/docs/apache-airflow/stable/stable-rest-api-ref.html
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
import tenacity

from toolformer_ops.errors import AirflowError, AirflowNotReadyError

ENDED_STATES = frozenset({"success", "failed"})
_PAGE = 100
_FOLDING = "::"
"""Marks of the UI around groups of log lines: `::group::Post Execute`."""
_SECONDS_PER_REQUEST = 30.0


@dataclass(frozen=True)
class Credentials:
    """A login of Airflow's UI."""

    username: str
    password: str


@dataclass(frozen=True)
class TaskState:
    """One task instance of a DAG run."""

    task_id: str
    map_index: int
    """-1 for a task that is not mapped."""
    state: str
    try_number: int
    ended_at: str
    """ISO 8601; empty while it runs."""

    @property
    def name(self) -> str:
        """The task's id, with its map index where it has one."""
        return self.task_id if self.map_index < 0 else f"{self.task_id} [{self.map_index}]"


class AirflowClient:
    """A client of one Airflow; use it as a context manager."""

    def __init__(
        self,
        url: str,
        credentials: Credentials | None = None,
        *,
        patience_seconds: float = 90.0,
        wait_seconds: float = 0.5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """A client that asks nothing yet.

        Args:
            url: of the UI, which is also that of the API.
            credentials: None asks for the token that Airflow gives where everybody is admin.
            patience_seconds: how long a request is repeated.
            wait_seconds: before the first repetition; doubled each time, up to five seconds.
            transport: for tests.
        """
        self.url = url.rstrip("/")
        self._credentials = credentials
        self._client = httpx.Client(base_url=self.url, timeout=_SECONDS_PER_REQUEST, transport=transport)
        self._token: str | None = None
        self._patient = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(AirflowNotReadyError),
            stop=tenacity.stop_after_delay(patience_seconds),
            wait=tenacity.wait_exponential(multiplier=wait_seconds, max=5.0),
            reraise=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    # What a run needs

    def open_dag(self, dag_id: str) -> None:
        """Unpause a DAG, waiting until Airflow has parsed it."""
        self._patient(self._call, "PATCH", f"/dags/{dag_id}", json={"is_paused": False}, not_found_is_early=True)

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any]) -> None:
        """Start a run of that id; one that is there already is the same run.

        Raises:
            AirflowError: the parameters in `conf` are refused; the message is Airflow's.
        """
        body = {"logical_date": None, "dag_run_id": run_id, "conf": dict(conf)}
        self._patient(self._call, "POST", f"/dags/{dag_id}/dagRuns", json=body, conflict_is_done=True)

    def run_state(self, dag_id: str, run_id: str) -> str:
        """`queued`, `running`, `success` or `failed`."""
        return str(self._patient(self._call, "GET", _run_path(dag_id, run_id))["state"])

    def tasks(self, dag_id: str, run_id: str, state: str) -> list[TaskState]:
        """The task instances in that state, those that ended first first."""
        found = [_task_state(entry) for entry in self._task_pages(dag_id, run_id, state)]
        return sorted(found, key=lambda task: (task.ended_at, task.name))

    def log_tail(self, dag_id: str, run_id: str, task: TaskState, lines: int) -> list[str]:
        """The last lines of a task's newest try."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{task.task_id}/logs/{task.try_number}"
        parameters = {"map_index": task.map_index, "full_content": "true"}
        answer = self._patient(self._call, "GET", path, params=parameters)
        content = answer.get("content") or []
        said = [_event(entry) for entry in content]
        return [line for line in said if line and not line.startswith(_FOLDING)][-lines:]

    def run_url(self, dag_id: str, run_id: str) -> str:
        """The address of the run in the UI."""
        return f"{self.url}/dags/{dag_id}/runs/{quote(run_id, safe='')}"

    def task_url(self, dag_id: str, run_id: str, task: TaskState) -> str:
        """The address of a task instance in the UI."""
        mapped = "" if task.map_index < 0 else f"/mapped/{task.map_index}"
        return f"{self.run_url(dag_id, run_id)}/tasks/{task.task_id}{mapped}"

    # Requests

    def _task_pages(self, dag_id: str, run_id: str, state: str) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            parameters = {"limit": _PAGE, "offset": offset, "state": state}
            answer = self._patient(self._call, "GET", f"{_run_path(dag_id, run_id)}/taskInstances", params=parameters)
            yield from answer["task_instances"]
            offset += _PAGE
            if offset >= answer["total_entries"]:
                return

    def _call(
        self,
        method: str,
        path: str,
        *,
        not_found_is_early: bool = False,
        conflict_is_done: bool = False,
        **arguments: Any,
    ) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token or self._new_token()}", "Accept": "application/json"}
        response = self._send(method, f"/api/v2{path}", headers=headers, **arguments)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._token = None
            raise AirflowNotReadyError(self._refusal(response))  # the token has run out: the next try gets a new one
        if response.status_code == httpx.codes.NOT_FOUND and not_found_is_early:
            raise AirflowNotReadyError(
                f"{self._refusal(response)} Airflow may not have parsed it: look at its import errors in the UI."
            )
        if response.status_code == httpx.codes.CONFLICT and conflict_is_done:
            return {}
        return self._content(response)

    def _new_token(self) -> str:
        if self._credentials is None:
            response = self._send("GET", "/auth/token")
        else:
            login = {"username": self._credentials.username, "password": self._credentials.password}
            response = self._send("POST", "/auth/token", json=login)
        self._token = str(self._content(response)["access_token"])
        return self._token

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise AirflowNotReadyError(
                f"expected Airflow at {self.url}, found: {error or type(error).__name__}. Start it by `make up`."
            ) from error
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise AirflowNotReadyError(self._refusal(response))
        return response

    def _content(self, response: httpx.Response) -> dict[str, Any]:
        if response.is_success:
            return dict(response.json())
        raise AirflowError(self._refusal(response))

    def _refusal(self, response: httpx.Response) -> str:
        request = response.request
        try:
            said = response.json().get("detail", response.text)
        except (ValueError, AttributeError):
            said = response.text
        return f"Airflow refused {request.method} {request.url.path}: {response.status_code}, {str(said)[:1000]}."


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"


def _task_state(entry: Mapping[str, Any]) -> TaskState:
    return TaskState(
        entry["task_id"], entry["map_index"], entry["state"] or "", entry["try_number"], entry["end_date"] or ""
    )


def _event(entry: object) -> str:
    """The words of one log entry: structured (`event`), or a plain line."""
    return str(entry.get("event", "")).strip() if isinstance(entry, Mapping) else str(entry).strip()
