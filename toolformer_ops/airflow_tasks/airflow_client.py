"""Airflow's REST API (v2): health and pools for `toolformer-ops up`.

DAG runs, their tasks and logs for `make demo` and `make run`. Requests are repeated if the API server does
not answer or answers with 5xx; a trigger is safe to repeat, because we choose the run's id.
https://airflow.apache.org/docs/apache-airflow/stable/stable-rest-api-ref.html
"""

import datetime
import logging
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
import tenacity

from toolformer_ops.config import Settings
from toolformer_ops.errors import AirflowError, AirflowNotReadyError

logger = logging.getLogger(__name__)

ENDED_STATES = frozenset({"success", "failed"})
_PAGE = 100
_FOLDING = "::"
"""Marks of the UI around groups of log lines: `::group::Post Execute`."""
_SECONDS_PER_REQUEST = 30.0
_SECONDS_TO_PARSE = 600.0
"""How long a DAG may be unknown to Airflow without an import error of its file."""
_SECONDS_UNTOLD = 4.0
"""From this pause between two tries on, the log says that Airflow does not answer."""


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
        """The task's id, with its map index if it has one."""
        return self.task_id if self.map_index < 0 else f"{self.task_id} [{self.map_index}]"


@dataclass(frozen=True)
class RunState:
    """One DAG run."""

    dag_id: str
    run_id: str
    state: str
    run_after: datetime.datetime
    """When Airflow may start it."""
    looked_at: datetime.datetime | None = None
    """When Airflow's scheduler looked last whether tasks of it can start; None if it never did."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """Return the run of an entry of the API."""
        looked_at = entry["last_scheduling_decision"]
        return cls(
            dag_id=entry["dag_id"],
            run_id=entry["dag_run_id"],
            state=entry["state"],
            run_after=datetime.datetime.fromisoformat(entry["run_after"]),
            looked_at=datetime.datetime.fromisoformat(looked_at) if looked_at else None,
        )


@dataclass(frozen=True)
class DagState:
    """Whether Airflow continues the runs of a DAG."""

    is_paused: bool
    is_stale: bool
    """Whether its file is gone, or makes no such DAG any more."""
    tags: tuple[str, ...] = ()
    last_parsed_at: datetime.datetime | None = None
    """When its file made it last."""


class _Login(httpx.Auth):
    """Gets a token at the first request, and another when that one has run out."""

    requires_response_body = True

    def __init__(self, url: str, username: str, password: str) -> None:
        """Without a username it asks for the token of a server where every visitor is admin."""
        self._url = f"{url}/auth/token"
        self._login = {"username": username, "password": password} if username else None
        self._token = ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        for is_renewed in (False, True):
            if not self._token or is_renewed:
                answer = yield httpx.Request("POST" if self._login else "GET", self._url, json=self._login)
                self._token = _content(answer)["access_token"]
            request.headers["Authorization"] = f"Bearer {self._token}"
            answer = yield request
            if answer.status_code != httpx.codes.UNAUTHORIZED:
                return


class AirflowClient:
    """A client of one Airflow; use it as a context manager if it serves for long."""

    def __init__(
        self,
        url: str,
        username: str = "",
        password: str = "",
        *,
        patience_seconds: float = 90.0,
        wait_seconds: float = 0.5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """A client that asks nothing yet.

        Args:
            url: of the UI, which is also that of the API.
            username: empty if Airflow asks for no login.
            password: of that user.
            patience_seconds: how long a request is repeated.
            wait_seconds: before the first repetition; doubled each time, up to thirty seconds.
            transport: for tests.
        """
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, timeout=_SECONDS_PER_REQUEST, transport=transport)
        self._login = _Login(self.url, username, password)
        self._wait_seconds = wait_seconds
        self._patient = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(AirflowNotReadyError),
            stop=tenacity.stop_after_delay(patience_seconds),
            wait=tenacity.wait_exponential(multiplier=wait_seconds, max=30.0),
            before_sleep=_tell_of_retry,
            reraise=True,
        )

    @classmethod
    def of(cls, settings: Settings, *, patience_seconds: float = 90.0) -> Self:
        """The Airflow of these settings."""
        password = settings.airflow_password.get_secret_value()
        return cls(
            settings.airflow_url, settings.airflow_username, password, patience_seconds=patience_seconds
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    # What `toolformer-ops up` needs

    def health(self) -> dict[str, str]:
        """Return the state of each part of Airflow (`healthy`, `unhealthy`, ...), no login needed.

        It is empty while none answers.
        """
        try:
            answer = self._client.get("/api/v2/monitor/health", timeout=5.0)
            parts = answer.json() if answer.is_success else {}
        except (httpx.HTTPError, ValueError):
            return {}
        return {name: str((part or {}).get("status")) for name, part in parts.items()}

    def pool_slots(self, name: str) -> int | None:
        """Return the slots of a pool; None if there is no such pool."""
        pool = self._request("GET", f"/pools/{name}", empty_at=httpx.codes.NOT_FOUND)
        return int(pool["slots"]) if pool else None

    def set_pool(self, name: str, slots: int, description: str, include_deferred: bool) -> None:
        """Make a pool, or give it these slots if it exists."""
        body = {"slots": slots, "description": description, "include_deferred": include_deferred}
        if not self._request(
            "PATCH", f"/pools/{name}", json={"pool": name, **body}, empty_at=httpx.codes.NOT_FOUND
        ):
            self._request("POST", "/pools", json={"name": name, **body})

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the JSON of `GET /api/v2<path>`."""
        return self._request("GET", path, params=query)

    # What a run needs

    def open_dag(self, dag_id: str) -> None:
        """Unpause a DAG; waits until Airflow has parsed its file, which has the DAG's name.

        Raises:
            AirflowError: the file cannot be imported; the message says why. Or Airflow has not parsed it in
            ten minutes.
        """
        until = time.monotonic() + _SECONDS_TO_PARSE
        while not self._request(
            "PATCH", f"/dags/{dag_id}", json={"is_paused": False}, empty_at=httpx.codes.NOT_FOUND
        ):
            for error in self.get("/importErrors", limit=_PAGE)["import_errors"]:
                if Path(error["filename"]).stem == dag_id:
                    *_, why = str(error["stack_trace"]).strip().splitlines()
                    raise AirflowError(f"expected Airflow to import {error['filename']}, found: {why}")
            if time.monotonic() > until:
                raise AirflowError(
                    f"expected Airflow to parse the DAG {dag_id} within {_SECONDS_TO_PARSE / 60:.0f} min, "
                    "found neither the DAG nor an import error. Look at the DAG processor's log "
                    "(`toolformer-ops logs`), and whether Airflow reads the folder that `toolformer-ops "
                    "dags-folder` prints."
                )
            time.sleep(self._wait_seconds)

    def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any]) -> None:
        """Start a run of that id; if it exists already, it is the same run.

        Raises:
            AirflowError: the parameters in `conf` are refused; the message is Airflow's.
        """
        body = {"logical_date": None, "dag_run_id": run_id, "conf": dict(conf)}
        self._request("POST", f"/dags/{dag_id}/dagRuns", json=body, empty_at=httpx.codes.CONFLICT)

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return `queued`, `running`, `success` or `failed`.

        Raises:
            AirflowError: there is no such run.
        """
        dag_run = self._request("GET", _run_path(dag_id, run_id), empty_at=httpx.codes.NOT_FOUND)
        if not dag_run:
            raise AirflowError(
                f"expected a run {run_id} of {dag_id}, found none. `toolformer-ops runs` lists the runs."
            )
        return str(dag_run["state"])

    def ended_runs(self, dag_id_prefix: str, since: datetime.datetime) -> list[RunState]:
        """Return the runs that have ended since, of the DAGs whose ids begin so."""
        query = {
            "dag_id_prefix_pattern": dag_id_prefix,
            "state": sorted(ENDED_STATES),
            "end_date_gte": since.isoformat(),
        }
        return self._runs(**query)

    def open_runs(self) -> list[RunState]:
        """Return the runs of all DAGs that are queued or running."""
        return self._runs(state=["queued", "running"])

    def find_run(self, dag_id: str, run_id: str) -> RunState | None:
        """Return a run; None if there is none."""
        entry = self._request("GET", _run_path(dag_id, run_id), empty_at=httpx.codes.NOT_FOUND)
        return RunState.of(entry) if entry else None

    def end_run(self, dag_id: str, run_id: str, state: str, note: str) -> None:
        """End a run in a state; what runs of it is stopped. An empty note leaves the note that it has."""
        body = {"state": state, **({"note": note} if note else {})}
        self._request("PATCH", _run_path(dag_id, run_id), json=body)

    def dag(self, dag_id: str) -> DagState:
        """Return whether Airflow continues the runs of a DAG; an unknown DAG is stale."""
        entry = self._request("GET", f"/dags/{dag_id}", empty_at=httpx.codes.NOT_FOUND)
        last_parsed = entry.get("last_parsed_time")
        return DagState(
            is_paused=bool(entry.get("is_paused")),
            is_stale=bool(entry.get("is_stale", True)),
            tags=tuple(tag["name"] for tag in entry.get("tags", ())),
            last_parsed_at=datetime.datetime.fromisoformat(last_parsed) if last_parsed else None,
        )

    def note(self, dag_id: str, run_id: str) -> str:
        """Return the note of a run; empty if it has none."""
        return str(self.get(_run_path(dag_id, run_id))["note"] or "")

    def set_note(self, dag_id: str, run_id: str, note: str) -> None:
        """Set the note of a run, at most 1,000 characters; an earlier one is replaced."""
        self._request("PATCH", _run_path(dag_id, run_id), json={"note": note})

    def answer(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any] | None:
        """Return what a person answered a task that waits for input, as the task gets it.

        It is None without an answer.
        """
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{task_id}/-1/hitlDetails"
        details = self._request("GET", path, empty_at=httpx.codes.NOT_FOUND)
        if not details or not details["response_received"]:
            return None
        names = ("chosen_options", "params_input", "responded_by_user")
        at = datetime.datetime.fromisoformat(details["responded_at"])
        return {name: details[name] for name in names} | {"responded_at": at}

    def tasks(self, dag_id: str, run_id: str, state: str = "") -> list[TaskState]:
        """Return the task instances, in that state alone if one is named, those that ended first first."""
        query = {"state": state} if state else {}
        instances = [
            TaskState(
                task_id=entry["task_id"],
                map_index=entry["map_index"],
                state=entry["state"] or "",
                try_number=entry["try_number"],
                ended_at=entry["end_date"] or "",
            )
            for entry in self._all(f"{_run_path(dag_id, run_id)}/taskInstances", "task_instances", **query)
        ]
        return sorted(instances, key=lambda task: (task.ended_at, task.name))

    def log_tail(self, dag_id: str, run_id: str, task: TaskState, lines: int) -> list[str]:
        """Return the last lines of a task's newest try."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{task.task_id}/logs/{task.try_number}"
        answer = self.get(path, map_index=task.map_index, full_content="true")
        # An entry is structured (`event`), or a plain line.
        words = []
        for entry in answer.get("content") or ():
            text = entry.get("event", "") if isinstance(entry, Mapping) else entry
            line = str(text).strip()
            if line and not line.startswith(_FOLDING):
                words.append(line)
        return words[-lines:]

    def run_url(self, dag_id: str, run_id: str) -> str:
        """Return the address of the run in the UI."""
        return f"{self.url}/dags/{dag_id}/runs/{quote(run_id, safe='')}"

    def task_url(self, dag_id: str, run_id: str, task: TaskState) -> str:
        """Return the address of a task instance in the UI."""
        mapped = "" if task.map_index < 0 else f"/mapped/{task.map_index}"
        return f"{self.run_url(dag_id, run_id)}/tasks/{task.task_id}{mapped}"

    def _runs(self, **query: Any) -> list[RunState]:
        """The DAG runs of a query."""
        return [RunState.of(run) for run in self._all("/dags/~/dagRuns", "dag_runs", order_by="id", **query)]

    def _all(self, path: str, key: str, **query: Any) -> list[dict[str, Any]]:
        """The entries of all pages of an answer."""
        entries: list[dict[str, Any]] = []
        count = 1
        while len(entries) < count:
            answer = self.get(path, limit=_PAGE, offset=len(entries), **query)
            count = answer["total_entries"]
            entries += answer[key]
        return entries

    def _request(
        self, method: str, path: str, *, empty_at: int | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """The JSON of the answer; empty if its status is `empty_at`."""
        for attempt in self._patient:
            with attempt:
                try:
                    answer = self._client.request(method, f"/api/v2{path}", auth=self._login, **arguments)
                except (httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout) as error:
                    raise AirflowNotReadyError(
                        f"expected an answer of Airflow at {self.url} within {_SECONDS_PER_REQUEST:.0f} s, "
                        "found none: it runs, and is busy or stuck. `toolformer-ops logs` shows what it says."
                    ) from error
                except httpx.TransportError as error:
                    raise AirflowNotReadyError(
                        f"expected Airflow at {self.url}, found: {error or type(error).__name__}. Start it "
                        "by `toolformer-ops up`, or set TOOLFORMER_AIRFLOW_URL."
                    ) from error
                return {} if answer.status_code == empty_at else _content(answer)
        raise AssertionError("the last attempt returns or raises")


def _tell_of_retry(state: tenacity.RetryCallState) -> None:
    pause = state.next_action.sleep if state.next_action else 0.0
    if pause >= _SECONDS_UNTOLD and state.outcome is not None:
        logger.warning("%s Asking again in %.0f s.", state.outcome.exception(), pause)


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"


def _content(answer: httpx.Response) -> dict[str, Any]:
    """The JSON of an answer; raises if it is a refusal."""
    if answer.is_success:
        return dict(answer.json())
    kind = AirflowNotReadyError if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR else AirflowError
    try:
        said = answer.json().get("detail", answer.text)
    except (ValueError, AttributeError):
        said = answer.text
    request = answer.request
    hint = ""
    if request.url.path.endswith("/auth/token"):
        hint = " Set TOOLFORMER_AIRFLOW_USERNAME and TOOLFORMER_AIRFLOW_PASSWORD, or run `toolformer-ops up`."
    refusal = f"{answer.status_code}, {str(said)[:1000]}"
    raise kind(f"Airflow refused {request.method} {request.url.path}: {refusal}.{hint}")
