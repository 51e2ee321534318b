"""The REST client against a scripted Airflow: what it asks, what it repeats, what it refuses."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from toolformer_ops.errors import AirflowError
from toolformer_ops.local_services import airflow_client
from toolformer_ops.local_services.airflow_client import AirflowClient, TaskState

Answer = Callable[[httpx.Request], httpx.Response]
TASK = TaskState("Calculator.annotate", 2, "failed", 3, "2026-11-21T10:00:00Z")


class ScriptedAirflow:
    """Answers by method and path; an answer may be a list that is used up."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.path == "/auth/token":
            return httpx.Response(201, json={"access_token": f"token {len(self.requests)}"})
        answers = self.answers[request.method]
        answer = answers.pop(0) if isinstance(answers, list) else answers
        if isinstance(answer, Exception):
            raise answer
        status, content = answer
        return httpx.Response(status, json=content)

    def client(self, *login: str, patience_seconds: float = 5.0) -> AirflowClient:
        transport = httpx.MockTransport(self)
        return AirflowClient(
            "http://airflow/", *login, patience_seconds=patience_seconds, wait_seconds=0.0, transport=transport
        )

    def sent(self) -> list[httpx.Request]:
        return [request for request in self.requests if request.url.path != "/auth/token"]


def test_it_logs_in_once_with_the_credentials_and_carries_the_token() -> None:
    airflow = ScriptedAirflow(GET=(200, {"state": "running"}))
    client = airflow.client("admin", "secret")
    assert [client.run_state("d", "r"), client.run_state("d", "r")] == ["running", "running"]
    login, *asked = airflow.requests
    assert (login.method, json.loads(login.content)) == ("POST", {"username": "admin", "password": "secret"})
    assert [request.headers["Authorization"] for request in asked] == ["Bearer token 1"] * 2


def test_without_credentials_it_asks_for_the_token_that_all_are_given() -> None:
    airflow = ScriptedAirflow(GET=(200, {"state": "success"}))
    airflow.client().run_state("d", "r")
    assert airflow.requests[0].method == "GET"


def test_a_wrong_password_is_refused_at_once() -> None:
    def refuse(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"detail": "Invalid credentials"})

    client = AirflowClient("http://airflow", "admin", "x", transport=httpx.MockTransport(refuse))
    with pytest.raises(AirflowError, match="401, Invalid credentials"):
        client.run_state("d", "r")


def test_a_token_that_ran_out_is_renewed() -> None:
    airflow = ScriptedAirflow(
        GET=[(200, {"state": "running"}), (401, {"detail": "expired"}), (200, {"state": "success"})]
    )
    client = airflow.client()
    assert client.run_state("d", "r") == "running"
    assert client.run_state("d", "r") == "success"
    assert airflow.requests[-1].headers["Authorization"] == "Bearer token 4"


def test_a_dag_is_opened_as_soon_as_airflow_has_parsed_it() -> None:
    not_yet = (404, {"detail": "not found"})
    airflow = ScriptedAirflow(PATCH=[not_yet] * 3 + [(200, {"dag_id": "d"})], GET=(200, import_errors("other.py")))
    airflow.client(patience_seconds=0.0).open_dag("annotate_corpus")  # which is for a server that does not answer
    opened = [request for request in airflow.sent() if request.method == "PATCH"]
    assert [json.loads(request.content) for request in opened] == [{"is_paused": False}] * 4
    assert opened[0].url.path == "/api/v2/dags/annotate_corpus"


def import_errors(*files: str) -> dict[str, Any]:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1\nImportError: no module named x\n'
    return {"import_errors": [{"filename": file, "stack_trace": trace} for file in files]}


def test_a_dag_that_cannot_be_imported_is_an_error_at_once_that_says_why() -> None:
    airflow = ScriptedAirflow(
        PATCH=(404, {"detail": "not found"}), GET=(200, import_errors("other.py", "dags/annotate_corpus.py"))
    )
    with pytest.raises(AirflowError, match=r"import dags/annotate_corpus\.py, found: ImportError: no module named x"):
        airflow.client().open_dag("annotate_corpus")


def test_a_dag_that_is_never_parsed_is_an_error_that_points_to_the_dag_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(airflow_client, "_SECONDS_TO_PARSE", 0.0)
    airflow = ScriptedAirflow(PATCH=(404, {"detail": "not found"}), GET=(200, import_errors()))
    with pytest.raises(AirflowError, match=r"neither the DAG nor an import error\. Look at the DAG processor's log"):
        airflow.client().open_dag("annotate_corpus")


def test_a_run_that_there_is_not_is_named() -> None:
    airflow = ScriptedAirflow(GET=(404, {"detail": "not found"}))
    with pytest.raises(AirflowError, match="expected a run run-1 of annotate_corpus, found none"):
        airflow.client().run_state("annotate_corpus", "run-1")


def test_a_server_that_is_slow_is_asked_again_and_not_called_stopped() -> None:
    slow = httpx.ReadTimeout("timed out")
    airflow = ScriptedAirflow(GET=[slow, slow, (200, {"state": "running"})])
    assert airflow.client().run_state("d", "r") == "running"
    with pytest.raises(AirflowError, match="within 30 s, found none: it runs, and is busy or stuck"):
        ScriptedAirflow(GET=slow).client(patience_seconds=0.0).run_state("d", "r")


def test_a_trigger_without_an_answer_is_repeated_and_is_one_run() -> None:
    lost = httpx.ReadTimeout("no answer")
    airflow = ScriptedAirflow(POST=[lost, (409, {"detail": "already exists"})])
    airflow.client().trigger("annotate_corpus", "demo-1", {"corpus": "s3://b/c"})
    assert [json.loads(request.content) for request in airflow.sent()] == [
        {"logical_date": None, "dag_run_id": "demo-1", "conf": {"corpus": "s3://b/c"}}
    ] * 2


def test_parameters_that_airflow_refuses_are_not_sent_again() -> None:
    airflow = ScriptedAirflow(POST=(400, {"detail": "Invalid input for param finetune_steps"}))
    with pytest.raises(AirflowError, match="Invalid input for param finetune_steps"):
        airflow.client().trigger("annotate_corpus", "demo-1", {"finetune_steps": 0})
    assert len(airflow.sent()) == 1


def test_a_server_error_is_repeated() -> None:
    airflow = ScriptedAirflow(GET=[(503, {"detail": "starting"}), (200, {"state": "queued"})])
    assert airflow.client().run_state("d", "r") == "queued"


def test_an_airflow_that_is_not_there_is_an_error_with_the_remedy() -> None:
    airflow = ScriptedAirflow(GET=httpx.ConnectError("refused"))
    with pytest.raises(AirflowError, match=r"expected Airflow at http://airflow, found: refused.*toolformer-ops up"):
        airflow.client(patience_seconds=0.05).run_state("d", "r")


def test_tasks_of_all_pages_come_in_the_order_of_their_ends() -> None:
    def task(name: str, ended: str | None) -> dict[str, Any]:
        return {"task_id": name, "map_index": -1, "state": "failed", "try_number": 1, "end_date": ended}

    pages = [
        (200, {"task_instances": [task("late", "2026-11-21T12:00:00Z")] * 100, "total_entries": 101}),
        (200, {"task_instances": [task("early", "2026-11-21T11:00:00Z")], "total_entries": 101}),
    ]
    airflow = ScriptedAirflow(GET=pages)
    found = airflow.client().tasks("d", "r", "failed")
    assert (len(found), found[0].name, found[1].name) == (101, "early", "late")
    assert [request.url.params["offset"] for request in airflow.sent()] == ["0", "100"]


def test_the_end_of_a_log_is_read_from_structured_and_plain_lines() -> None:
    content = [{"event": "one"}, {"event": ""}, "two", {"event": "three", "level": "error"}, {"event": "::endgroup::"}]
    airflow = ScriptedAirflow(GET=(200, {"content": content}))
    assert airflow.client().log_tail("d", "r", TASK, 2) == ["two", "three"]
    [request] = airflow.sent()
    assert request.url.path == "/api/v2/dags/d/dagRuns/r/taskInstances/Calculator.annotate/logs/3"
    assert request.url.params["map_index"] == "2"


def test_addresses_lead_to_the_run_and_to_a_mapped_task() -> None:
    client = ScriptedAirflow().client()
    assert client.run_url("d", "manual__1+00:00") == "http://airflow/dags/d/runs/manual__1%2B00%3A00"
    assert client.task_url("d", "r", TASK) == "http://airflow/dags/d/runs/r/tasks/Calculator.annotate/mapped/2"


def test_a_note_is_set_on_the_run_that_is_named() -> None:
    airflow = ScriptedAirflow(PATCH=(200, {}))
    airflow.client().set_note("nightly_posts", "scheduled__2026-11-22T02:00:00+00:00", "3 documents are new.")
    request = airflow.requests[-1]
    assert request.url.raw_path == b"/api/v2/dags/nightly_posts/dagRuns/scheduled__2026-11-22T02%3A00%3A00%2B00%3A00"
    assert json.loads(request.content) == {"note": "3 documents are new."}
