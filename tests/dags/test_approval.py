"""Who is asked for a yes, what they see, and what becomes of each answer, and of none."""

import contextlib
import datetime
import re
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators import hitl
from airflow.sdk.exceptions import TaskAwaitingInput

from tests.annotated_runs import AnnotatedRun, register_run, release
from toolformer_ops.airflow_tasks import approval
from toolformer_ops.airflow_tasks.approval import AskForApproval
from toolformer_ops.runs.summary import summarise
from toolformer_ops.storage.postgres import database, queries

RUN = "manual__1"
HOSTILE = "The shop had 520 `shirts` | <img src=x> {{ var.value.password }} and sold 187 of them, so it has 333 left."
AT = datetime.datetime(2026, 11, 24, 5, 10, tzinfo=datetime.UTC)


@pytest.fixture
def run(settings):
    """A run that has released one call."""
    found = AnnotatedRun(settings, {"Calculator": 0.25}, run_id=RUN, prune_below=0.0)
    document = found.add_text(HOSTILE, "https://shop.example/2023/01/30/x")
    found.add_call("Calculator", document, "333 left", "520 - 187", "333", saves=2.0)
    found.complete("Calculator")
    release(settings, found.run_id)
    return found


@pytest.fixture
def said(monkeypatch):
    """What Airflow is asked to store of a question, and the run's note."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **asked: found.update(asked))
    monkeypatch.setattr(approval, "set_note", lambda context, note: found.update(note=note))
    return found


def asking() -> AskForApproval:
    task = AskForApproval(step="before_finetuning")
    task.downstream_task_ids.add("finetune")
    return task


def context(task: AskForApproval, try_number: int = 1, max_tries: int = 22) -> Any:
    named = {"id": "ti", "dag_id": "annotate_corpus", "run_id": RUN, "map_index": -1, "task_id": task.task_id}
    tries = {"try_number": try_number, "max_tries": max_tries}
    instance = SimpleNamespace(**named, **tries, xcom_push=lambda **_: None)
    dag, dag_run = SimpleNamespace(dagrun_timeout=None), SimpleNamespace(start_date=None)
    return {"ti": instance, "task_instance": instance, "task": task, "dag": dag, "dag_run": dag_run}


def test_who_is_asked_sees_counts_beside_calls_without_markup(settings, run, said, monkeypatch):
    monkeypatch.setenv("TOOLFORMER_APPROVERS", "anna, omar")
    monkeypatch.setenv("TOOLFORMER_APPROVAL_HOURS", "2")
    approval.load_settings.cache_clear()
    task = asking()
    with pytest.raises(TaskAwaitingInput) as waits:
        task.execute(context(task))
    assert waits.value.timeout == datetime.timedelta(hours=2)
    assert [person["name"] for person in said["assigned_users"]] == ["anna", "omar"]
    assert (said["options"], said["defaults"]) == (["Approve", "Reject"], ["Reject"])
    assert "| Calculator | 0.25 | 1 | 1 | no placebos |" in said["body"]
    [call, *_] = [line for line in said["body"].splitlines() if "[Calculator(520 - 187)" in line]
    assert "saves 2.00 nats" in call
    assert (call[:3], call.count("`"), "<" in call) == ("- `", 2, False)  # one line of Markdown
    assert f"/dags/annotate_corpus/runs/{RUN})" in said["body"]
    assert "/required_actions" in said["note"]
    assert "body" not in task.template_fields  # or a text of the corpus would be rendered as a template


def question(said: dict[str, Any]) -> str:
    """What a person reads before a yes."""
    task = asking()
    with pytest.raises(TaskAwaitingInput):
        task.execute(context(task))
    return str(said["body"])


@pytest.fixture
def many_calls(settings):
    """A run that has released 25 calls, which save 0.1 to 2.5 nats."""
    found = AnnotatedRun(settings, {"Calculator": 0.05}, run_id=RUN, prune_below=0.0)
    for number in range(1, 26):
        document = found.add_text(f"Box {number} has 520 pens, sold 187, so 333 left.")
        found.add_call("Calculator", document, " 333", "520 - 187", "333", saves=number / 10)
    found.complete("Calculator")
    release(settings, found.run_id)
    return found


@pytest.mark.usefixtures("many_calls")
def test_the_question_shows_the_ten_calls_that_save_most(said):
    best, _ = question(said).split("The kept calls that save least:")
    saved = "2.50 2.40 2.30 2.20 2.10 2.00 1.90 1.80 1.70 1.60"
    assert re.findall(r"saves (\d\.\d+) nats", best) == saved.split()


@pytest.mark.usefixtures("many_calls")
def test_the_question_shows_the_ten_calls_that_save_least(said):
    _, worst = question(said).split("The kept calls that save least:")
    saved = "0.10 0.20 0.30 0.40 0.50 0.60 0.70 0.80 0.90 1.00"
    assert re.findall(r"saves (\d\.\d+) nats", worst) == saved.split()


def test_the_question_of_a_run_that_only_finetunes_shows_the_calls_of_its_release(many_calls, settings):
    release_id = release(settings, RUN)
    with database.transaction(many_calls.engine) as connection:
        register_run(
            connection,
            "finetunes",
            many_calls.corpus_id,
            "file:///c",
            [],
            "{}",
            model_identity="m@1",
            limit=None,
        )
        database.execute(
            connection, queries.releases.set_of_run, run_id="finetunes", release_id=release_id, left_out="{}"
        )
        assert approval.what_was_found(connection, "finetunes") == approval.what_was_found(connection, RUN)


@pytest.mark.usefixtures("run")
def test_the_question_shows_no_call_twice(said):
    assert "The kept calls that save least" not in question(said)


def test_the_question_is_silent_about_tools_that_were_not_chosen(settings, run, said):
    other = AnnotatedRun(settings, {"QA": 0.25}, run_id="earlier", prune_below=0.0)
    other.add_call("QA", other.add_text(HOSTILE), "333 left", "How many?", "333", saves=2.0)
    other.complete("QA")
    release(settings, "earlier")
    end = "state = 'success', finished_at = now(), started_at = now() - interval '1 day'"
    other.change(f"update annotation_runs set {end} where run_id = 'earlier'")
    same = "corpus_id = (select corpus_id from annotation_runs where run_id = :run)"
    other.change(f"update annotation_runs set {same} where run_id = 'earlier'", run=run.run_id)
    asked = question(said)
    assert "compared with earlier" in asked
    assert "QA" not in asked


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("options", "note"),
    [
        (
            ["Approve"],
            "Before finetuning: approved by anna, 2026-11-24 05:10 UTC. The model is being finetuned.",
        ),
        (
            ["Reject"],
            "Before finetuning: rejected by anna, 2026-11-24 05:10 UTC. Nothing follows: the run ends.",
        ),
    ],
)
def test_an_answer_replaces_the_note_that_waits_for_it(said, options, note):
    task = asking()
    task.skip = lambda ti, tasks: None
    anna = {"id": "1", "name": "anna"}
    event = {"chosen_options": options, "params_input": {}, "responded_at": AT, "responded_by_user": anna}
    task.execute_complete(context(task), event)
    assert said["note"] == note


@pytest.mark.parametrize(
    ("limit_hours", "hours_since_start", "approval_hours", "waits_minutes"),
    [
        (None, 0, 24, 24 * 60),
        (24, 2, 24, 22 * 60 - 15),  # the run ends by itself before its limit
        (48, 2, 24, 24 * 60),
        (24, 23.9, 24, 1),
    ],
)
def test_an_answer_is_waited_for_until_the_run_can_still_end_well(
    limit_hours, hours_since_start, approval_hours, waits_minutes
):
    started = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=hours_since_start)
    limit = None if limit_hours is None else datetime.timedelta(hours=limit_hours)
    run: Any = {
        "dag": SimpleNamespace(dagrun_timeout=limit),
        "dag_run": SimpleNamespace(start_date=started),
    }
    waits = approval.time_to_answer(run, approval_hours)
    assert round(waits.total_seconds() / 60) == waits_minutes


@pytest.mark.usefixtures("said")
def test_each_answer_is_in_the_summary_while_only_a_no_skips_what_follows(run):
    anna = {"id": "1", "name": "anna"}
    for options, person, line in (
        (["Approve"], anna, "Before finetuning: approved by anna, 2026-11-24 05:10 UTC"),
        (
            ["Reject"],
            None,
            "Before finetuning: no answer by 2026-11-24 05:10 UTC; this counts as no",
        ),
        (["Reject"], anna, "Before finetuning: rejected by anna, 2026-11-24 05:10 UTC"),
    ):
        task = asking()
        skipped: list[Any] = []
        task.skip = lambda ti, tasks, skipped=skipped: skipped.append(tasks)
        event = {
            "chosen_options": options,
            "params_input": {},
            "responded_at": AT,
            "responded_by_user": person,
        }
        task.execute_complete(context(task), event)
        assert bool(skipped) == (options == ["Reject"])
        with database.transaction(run.engine) as connection:
            assert summarise(connection, run.run_id).approvals[-1] == line


def test_a_task_that_is_tried_again_takes_the_answer_until_it_is_cleared(settings, run, said, monkeypatch):
    given = {"chosen_options": ["Approve"], "params_input": {}, "responded_at": AT, "responded_by_user": None}
    answers = iter([None, given, given])  # what Airflow has
    client = SimpleNamespace(answer=lambda *_: next(answers))
    monkeypatch.setattr(approval, "airflow_client", lambda settings: contextlib.nullcontext(client))
    task = asking()
    with pytest.raises(TaskAwaitingInput):  # no answer yet
        task.execute(context(task, try_number=2))
    assert task.execute(context(task, try_number=3))["chosen_options"] == ["Approve"]
    # Stored, and the task failed behind it: Airflow is not asked, and has forgotten it.
    found = task.execute(context(task, try_number=4))
    assert (found["chosen_options"], found["responded_at"], found["responded_by_user"]) == (
        ["Approve"],
        AT,
        None,
    )
    with pytest.raises(TaskAwaitingInput):  # somebody has cleared the task
        task.execute(context(task, try_number=5, max_tries=26))
    assert next(answers, None) is None
