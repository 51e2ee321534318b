"""What a run's first task says of a form that cannot become a run, before its stage starts."""

import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from toolformer_ops.airflow_tasks import requests as checks
from toolformer_ops.airflow_tasks.requests import check_before_first_task
from toolformer_ops.airflow_tasks.run_outcome import note_why_not_started
from toolformer_ops.runs import requests
from toolformer_ops.storage.publication import ObjectStore

RELEASE = "4f0c91b2d4a7e633"
FIRST_TASKS = {
    "annotate_corpus": "ingest",
    "build_wiki_index": "build_index",
    "finetune_release": "start_finetuning",
    "ingest_corpus": "ingest",
}
"""Of each DAG whose form a person fills in with more than numbers."""


def check(dag: DAG, sent: dict[str, Any]) -> None:
    """What the first task does before its stage starts: with the form's defaults, and fields that the form does not have."""
    params = {name: dag.params.get_param(name).value for name in dag.params}
    task = SimpleNamespace(log=logging.getLogger("of the task"))
    check_before_first_task({"dag": dag, "params": params | sent, "task": task})  # type: ignore[typeddict-item]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    (tmp_path / "posts.jsonl").write_text('{"text": "One."}\n')
    return str(tmp_path / "posts.jsonl")


def test_the_first_task_of_each_dag_checks_its_form_and_notes_why_it_failed(local_dags: dict[str, DAG]) -> None:
    for dag_id, first in FIRST_TASKS.items():
        dag = local_dags[dag_id]
        assert [task.task_id for task in dag.roots] == [first]
        assert dag.task_dict[first]._pre_execute_hook is checks.check_before_first_task, dag_id
        assert list(dag.task_dict[first].on_failure_callback) == [note_why_not_started], dag_id
    assert list(local_dags["annotate_corpus"].task_dict["start_run"].on_failure_callback) == [note_why_not_started]


ANNOTATE, FINETUNE, INGEST = "annotate_corpus", "finetune_release", "ingest_corpus"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (ANNOTATE, {"corpus": "/nowhere/a.jsonl"}, "corpus: expected files at /nowhere/a.jsonl, found nothing. Correct it"),
    (ANNOTATE, {"corpus": "/etc/passwd"}, "corpus: expected files that may be read, found .*, which is in a folder of the system"),
    (ANNOTATE, {"model": "/nowhere/model"}, "model: expected files at /nowhere/model, found nothing"),
    (ANNOTATE, {"proposer": "/nowhere/model"}, "proposer: expected files at /nowhere/model, found nothing"),
    (ANNOTATE, {"max_position": 3}, r"found max_position \(did you mean max_positions\?\)"),
    (ANNOTATE, {"keep_threshold_Abacus": 1.0}, "found keep_threshold_Abacus"),
    (ANNOTATE, {"keep_thresholds": {"Calculator": -0.1}}, "keep_thresholds.Calculator: .* greater than or equal to 0"),
    (ANNOTATE, {"keep_threshold_MT": 0.25},
     "at least prune_below, 0.5 nats, found 0.25 for MT .* Set prune_below to 0.25 or lower"),
    (ANNOTATE, {"prune_below": 0.75}, r"found 0.5 for Calculator \(the tool's own\)"),
    (ANNOTATE, {"sampling_threshold": 1.0}, "sampling_threshold"),
    # What no form has is checked all the same.
    (ANNOTATE, {"placebos": -1}, "placebos: Input should be greater than or equal to 0 .found -1."),
    (ANNOTATE, {"call_prefix": "none"}, "call_prefix: Input should be 'free' or 'tool_name' .found 'none'."),
    (ANNOTATE, {"max_call_tokens": "many"}, "max_call_tokens: Input should be a valid integer"),
    (FINETUNE, {"release": RELEASE, "finetune_warmup": 1.5}, "finetune_warmup: Input should be less than or equal to 1"),
    (FINETUNE, {"release": RELEASE, "finetune_warm": 0.5}, r"found finetune_warm \(did you mean finetune_warmup\?\)"),
    (ANNOTATE, {"tools": ["MT"], "keep_threshold_QA": 2.0}, "expected chosen tools, found QA"),
    (ANNOTATE, {"evaluation_suites": ["math"]}, "evaluation_data must name the folder of the data sets that math read"),
    (ANNOTATE, {"evaluation_suites": ["math"], "evaluation_data": "/nowhere"}, "evaluation_data: expected files at /nowhere"),
    (ANNOTATE, {"decontaminate": "report"}, "found none. Set TOOLFORMER_EVALUATION_DATA, give the run evaluation_data"),
    (ANNOTATE, {"decontaminate": "report", "evaluation_data": "/nowhere"}, "decontaminate: expected files at /nowhere"),
    (INGEST, {"corpus": "/nowhere"}, "corpus: expected files at /nowhere"),
    (INGEST, {"corpus": "/etc/passwd"}, "which is in a folder of the system"),
    (INGEST, {"corpus": ".", "shrink": True}, r"found shrink \(did you mean accept_shrink\?\)"),
    ("build_wiki_index", {"source": "/nowhere"}, "source: expected files at /nowhere"),
    ("build_wiki_index", {"source": "/etc/passwd"}, "which is in a folder of the system"),
    (FINETUNE, {"release": RELEASE, "evaluation_suites": ["qa"]}, "that qa read"),
    (FINETUNE, {"release": RELEASE, "evaluation_suites": ["qa"], "evaluation_data": "/etc"}, "which is in a folder of the system"),
    (FINETUNE, {"release": RELEASE, "corpus": "posts.jsonl"}, "found corpus"),
]  # fmt: skip


@pytest.mark.parametrize(("dag_id", "conf", "said"), REFUSED, ids=str)
def test_a_form_that_cannot_become_a_run_ends_it_with_the_reason(
    local_dags: dict[str, DAG], corpus: str, dag_id: str, conf: dict[str, Any], said: str
) -> None:
    good = {"corpus": corpus, "model": "hub/m@1"} if dag_id == ANNOTATE else {}
    with pytest.raises(AirflowFailException, match=said):  # which Airflow does not try again
        check(local_dags[dag_id], good | conf)


def test_the_reason_stands_outside_of_the_log_lines_that_airflows_ui_folds(
    local_dags: dict[str, DAG], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(AirflowFailException):
        check(local_dags["ingest_corpus"], {"corpus": "/nowhere"})
    end_of_folded_lines, reason = caplog.messages
    assert end_of_folded_lines == "::endgroup::"
    assert reason.startswith("corpus: expected files at /nowhere, found nothing.")


def test_what_s3_does_not_answer_is_left_to_the_stage(
    local_dags: dict[str, DAG], monkeypatch: pytest.MonkeyPatch
) -> None:
    dag, conf = local_dags["annotate_corpus"], {"corpus": "s3://corpora/posts", "model": "hub/m@1"}
    monkeypatch.setattr(ObjectStore, "is_there", lambda store, uri: uri == "s3://corpora/posts")
    check(dag, conf)
    with pytest.raises(AirflowFailException, match="expected files at s3://corpora/others"):
        check(dag, conf | {"corpus": "s3://corpora/others"})

    def fails(store: ObjectStore, uri: str) -> bool:
        raise OSError("no route to host")

    monkeypatch.setattr(ObjectStore, "is_there", fails)
    check(dag, conf | {"corpus": "s3://corpora/others"})


def test_a_path_is_looked_for_only_where_the_stages_run_on_this_machine(kubernetes_dags: dict[str, DAG]) -> None:
    check(kubernetes_dags["annotate_corpus"], {"corpus": "/on/a/volume", "model": "/on/another"})


def test_a_look_that_takes_too_long_refuses_nothing(
    local_dags: dict[str, DAG], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(requests, "SECONDS_FOR_A_LOOK", 0.0)
    monkeypatch.setattr(ObjectStore, "is_there", lambda store, uri: answered.wait() and False)
    check(local_dags["ingest_corpus"], {"corpus": "s3://corpora/none"})
    answered.set()
