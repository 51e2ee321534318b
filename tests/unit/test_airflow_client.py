"""The REST client against a scripted Airflow: what it asks, what it repeats, what it refuses."""

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from toolformer_ops.airflow_tasks import airflow_client
from toolformer_ops.airflow_tasks.airflow_client import AirflowClient, RunState, TaskState
from toolformer_ops.errors import AirflowError

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
            "http://airflow/",
            *login,
            patience_seconds=patience_seconds,
            wait_seconds=0.0,
            transport=transport,
        )

    def sent(self) -> list[httpx.Request]:
        return [request for request in self.requests if request.url.path != "/auth/token"]


def test_it_logs_in_once_for_a_token_that_each_request_carries():
    airflow = ScriptedAirflow(GET=(200, {"state": "running"}))
    client = airflow.client("admin", "secret")
    assert [client.run_state("d", "r"), client.run_state("d", "r")] == ["running", "running"]
    login, *requests = airflow.requests
    assert (login.method, json.loads(login.content)) == ("POST", {"username": "admin", "password": "secret"})
    assert [request.headers["Authorization"] for request in requests] == ["Bearer token 1"] * 2


def test_without_credentials_the_client_takes_the_token_of_all():
    airflow = ScriptedAirflow(GET=(200, {"state": "running"}))
    airflow.client().run_state("d", "r")
    assert airflow.requests[0].method == "GET"


def test_wrong_credentials_are_named():
    refusing = httpx.MockTransport(lambda _: httpx.Response(401, json={"detail": "Invalid credentials"}))
    with pytest.raises(AirflowError, match="401, Invalid credentials"):
        AirflowClient("http://airflow", "admin", "x", transport=refusing).run_state("d", "r")


SLOW = httpx.ReadTimeout("timed out")


def test_a_state_is_asked_for_again_while_it_may_come():
    for answers, outcome in (
        ([(401, {"detail": "expired"}), (200, {"state": "success"})], "success"),
        ([(503, {"detail": "starting"}), SLOW, (200, {"state": "queued"})], "queued"),
    ):
        airflow, asked = ScriptedAirflow(GET=answers), len(answers)
        assert airflow.client().run_state("d", "r") == outcome
        assert (len(airflow.sent()), len(airflow.requests) - asked) == (asked, 1 + (outcome == "success"))
    for answer, patience, said in (
        (SLOW, 0.0, "within 30 s, found none"),
        ((404, {"detail": "not found"}), 5.0, "expected a run r of d, found none"),
        (httpx.ConnectError("refused"), 0.05, r"found: refused.*toolformer-ops up"),
    ):
        with pytest.raises(AirflowError, match=said):
            ScriptedAirflow(GET=answer).client(patience_seconds=patience).run_state("d", "r")


def import_errors(*files: str) -> dict[str, Any]:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1\nImportError: no module named x\n'
    return {"import_errors": [{"filename": file, "stack_trace": trace} for file in files]}


def test_a_dag_is_opened_once_airflow_has_parsed_it_or_it_is_said_why_it_cannot(monkeypatch):
    not_yet = (404, {"detail": "not found"})
    airflow = ScriptedAirflow(
        PATCH=[not_yet] * 3 + [(200, {"dag_id": "d"})], GET=(200, import_errors("other.py"))
    )
    airflow.client(patience_seconds=0.0).open_dag(
        "annotate_corpus"
    )  # which is for a server that does not answer
    opened = [request for request in airflow.sent() if request.method == "PATCH"]
    assert [json.loads(request.content) for request in opened] == [{"is_paused": False}] * 4
    broken = ScriptedAirflow(PATCH=not_yet, GET=(200, import_errors("other.py", "dags/annotate_corpus.py")))
    with pytest.raises(
        AirflowError, match=r"import dags/annotate_corpus\.py, found: ImportError: no module named x"
    ):
        broken.client().open_dag("annotate_corpus")
    monkeypatch.setattr(airflow_client, "_SECONDS_TO_PARSE", 0.0)
    with pytest.raises(AirflowError, match="DAG processor's log"):
        ScriptedAirflow(PATCH=not_yet, GET=(200, import_errors())).client().open_dag("annotate_corpus")


def test_a_trigger_without_an_answer_is_repeated():
    airflow = ScriptedAirflow(POST=[SLOW, (409, {"detail": "already exists"})])
    airflow.client().trigger("annotate_corpus", "demo-1", {"corpus": "s3://b/c"})
    sent = {"logical_date": None, "dag_run_id": "demo-1", "conf": {"corpus": "s3://b/c"}}
    assert [json.loads(request.content) for request in airflow.sent()] == [sent] * 2


def test_a_refused_trigger_is_not_repeated():
    refusing = ScriptedAirflow(POST=(400, {"detail": "Invalid input for param finetune_steps"}))
    with pytest.raises(AirflowError, match="Invalid input for param finetune_steps"):
        refusing.client().trigger("annotate_corpus", "demo-1", {"finetune_steps": 0})
    assert len(refusing.sent()) == 1


def pages(name: str, items: list[Any]) -> list[Any]:
    """Answers with these items, a hundred a page."""
    return [(200, {name: part, "total_entries": len(items)}) for part in (items[:100], items[100:])]


def test_tasks_of_all_pages_come_in_the_order_of_their_ends():
    task = {
        "task_id": "late",
        "map_index": -1,
        "state": "failed",
        "try_number": 1,
        "end_date": "2026-11-21T12:00:00Z",
    }
    early = task | {"task_id": "early", "end_date": "2026-11-21T11:00:00Z"}
    found = (
        ScriptedAirflow(GET=pages("task_instances", [task] * 100 + [early]))
        .client()
        .tasks("d", "r", "failed")
    )
    assert (len(found), found[0].name, found[1].name) == (101, "early", "late")


def test_ended_runs_of_all_pages_come_as_they_are():
    at_two = {"run_after": "2026-11-26T02:00:00Z", "last_scheduling_decision": None}
    runs = [
        {"dag_id": f"nightly_{number}", "dag_run_id": "r", "state": "failed", **at_two}
        for number in range(130)
    ]
    airflow = ScriptedAirflow(GET=pages("dag_runs", runs))
    ended = airflow.client().ended_runs("nightly_", dt.datetime(2026, 11, 20, tzinfo=dt.UTC))
    run_after = dt.datetime(2026, 11, 26, 2, tzinfo=dt.UTC)
    assert ended == [RunState(f"nightly_{number}", "r", "failed", run_after) for number in range(130)]
    [_, second] = [request.url.params for request in airflow.sent()]
    assert (second["offset"], second["end_date_gte"]) == ("100", "2026-11-20T00:00:00+00:00")


LOOKED_AT = dt.datetime(2026, 11, 26, 2, 0, 1, 500000, tzinfo=dt.UTC)
OPEN = {
    "dag_id": "d",
    "dag_run_id": "r",
    "state": "running",
    "run_after": "2026-11-26T02:00:00Z",
    "last_scheduling_decision": "2026-11-26T02:00:01.500000Z",
}


def test_open_runs_are_the_queued_with_the_running_of_all_dags():
    airflow = ScriptedAirflow(GET=(200, {"dag_runs": [OPEN], "total_entries": 1}))
    [run] = airflow.client().open_runs()
    assert (run.dag_id, run.run_id, run.state, run.looked_at) == ("d", "r", "running", LOOKED_AT)
    [request] = airflow.sent()
    assert request.url.path == "/api/v2/dags/~/dagRuns"
    assert request.url.params.get_list("state") == ["queued", "running"]


def test_a_run_that_was_deleted_is_not_found():
    assert ScriptedAirflow(GET=(404, {"detail": "no run"})).client().find_run("d", "r") is None


@pytest.mark.parametrize(
    ("answer", "is_paused", "is_stale"),
    [
        ((200, {"is_paused": False, "is_stale": False}), False, False),
        ((200, {"is_paused": True, "is_stale": False, "tags": [{"name": "toolformer"}]}), True, False),
        ((200, {"is_paused": False, "is_stale": True}), False, True),
        ((404, {"detail": "no DAG"}), False, True),
    ],
)
def test_a_dag_is_paused_or_gone_as_airflow_says(answer, is_paused, is_stale):
    dag = ScriptedAirflow(GET=answer).client().dag("d")
    assert dag.tags == (("toolformer",) if "tags" in answer[1] else ())
    assert (dag.is_paused, dag.is_stale) == (is_paused, is_stale)


@pytest.mark.parametrize(("note", "body"), [("", {}), ("Its DAG is gone.", {"note": "Its DAG is gone."})])
def test_a_run_is_ended_in_a_state_with_a_note_if_there_is_one(note, body):
    airflow = ScriptedAirflow(PATCH=(200, {}))
    airflow.client().end_run("d", "r", "failed", note)
    [request] = airflow.sent()
    assert json.loads(request.content) == {"state": "failed", **body}


def test_the_end_of_a_log_is_read_from_structured_lines_among_plain_ones():
    content = [
        {"event": "one"},
        {"event": ""},
        "two",
        {"event": "three", "level": "error"},
        {"event": "::endgroup::"},
    ]
    airflow = ScriptedAirflow(GET=(200, {"content": content}))
    assert airflow.client().log_tail("d", "r", TASK, 2) == ["two", "three"]
    [request] = airflow.sent()
    assert request.url.path == "/api/v2/dags/d/dagRuns/r/taskInstances/Calculator.annotate/logs/3"
    assert request.url.params["map_index"] == "2"


def test_a_note_is_set_on_the_run_that_is_named():
    airflow = ScriptedAirflow(PATCH=(200, {}))
    client = airflow.client()
    client.set_note("nightly_posts", "scheduled__2026-11-22T02:00:00+00:00", "3 documents are new.")
    request = airflow.requests[-1]
    assert (
        request.url.raw_path
        == b"/api/v2/dags/nightly_posts/dagRuns/scheduled__2026-11-22T02%3A00%3A00%2B00%3A00"
    )
    assert json.loads(request.content) == {"note": "3 documents are new."}


def test_addresses_lead_to_the_run_or_task_that_is_named():
    client = ScriptedAirflow().client()
    assert client.run_url("d", "manual__1+00:00") == "http://airflow/dags/d/runs/manual__1%2B00%3A00"
    assert (
        client.task_url("d", "r", TASK) == "http://airflow/dags/d/runs/r/tasks/Calculator.annotate/mapped/2"
    )


def test_it_is_known_when_a_file_made_its_dag_last():
    parsed = {"is_paused": False, "is_stale": True, "last_parsed_time": "2026-11-26T02:00:01.500000Z"}
    assert ScriptedAirflow(GET=(200, parsed)).client().dag("d").last_parsed_at == LOOKED_AT
