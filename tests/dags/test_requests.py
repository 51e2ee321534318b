"""What a run's first task says of a form that cannot become a run, before its stage starts."""

import json
import logging
import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from toolformer_ops.airflow_tasks import first_look
from toolformer_ops.airflow_tasks import requests as checks
from toolformer_ops.airflow_tasks.requests import check_before_first_task
from toolformer_ops.airflow_tasks.run_ends.run_outcome import note_why_not_started
from toolformer_ops.on_a_file.look import checking
from toolformer_ops.runs import requests
from toolformer_ops.storage.objects.publication import ObjectStore

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
    instance = SimpleNamespace(xcom_push=lambda key, value: PUSHED.update({key: value}))
    PUSHED.clear()
    check_before_first_task({"dag": dag, "params": params | sent, "task": task, "ti": instance})  # type: ignore[typeddict-item]


PUSHED: dict[str, Any] = {}
"""What the first task handed on, by key."""


@pytest.fixture(autouse=True)
def notes(monkeypatch):
    """The notes of the runs."""
    notes: list[str] = []
    monkeypatch.setattr(first_look, "set_note", lambda context, note: notes.append(note))
    return notes


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "posts.jsonl").write_text('{"text": "One."}\n')
    return str(tmp_path / "posts.jsonl")


def test_the_first_task_of_each_dag_checks_its_form_or_notes_why_it_failed(local_dags):
    for dag_id, first in FIRST_TASKS.items():
        dag = local_dags[dag_id]
        assert [task.task_id for task in dag.roots] == [first]
        assert dag.task_dict[first]._pre_execute_hook is checks.check_before_first_task, dag_id
        assert list(dag.task_dict[first].on_failure_callback) == [note_why_not_started], dag_id
    assert list(local_dags["annotate_corpus"].task_dict["start_run"].on_failure_callback) == [
        note_why_not_started
    ]


ANNOTATE, INDEX, FINETUNE, INGEST = FIRST_TASKS.keys()
NOWHERE, OF_THE_SYSTEM = (
    "expected files at /nowhere, found nothing. Correct it",
    "which is in a folder of the system",
)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (ANNOTATE, {"corpus": "/nowhere"}, f"corpus: {NOWHERE}"),
    (ANNOTATE, {"corpus": "/etc/passwd"}, OF_THE_SYSTEM),
    (ANNOTATE, {"model": "/nowhere"}, f"model: {NOWHERE}"),
    (ANNOTATE, {"proposer": "endpoint:/nowhere"}, r"proposer: expected a file /nowhere\.proposer\.toml"),
    (
        ANNOTATE,
        {"proposer": "endpoint:nobody"},
        r"proposer: expected a file nobody\.proposer\.toml in .* Write it",
    ),
    (ANNOTATE, {"max_position": 3}, r"found max_position \(did you mean max_positions\?\)"),
    (
        ANNOTATE,
        {"tools": ["Abacus"], "keep_threshold_Abacus": 1.0},
        "found 'Abacus'. If it was a tool of yours, put its file back",
    ),
    (ANNOTATE, {"keep_threshold_Abacus": 1.0}, "keep_thresholds: expected chosen tools, found Abacus"),
    (ANNOTATE, {"keep_threshold_MT": 0.25}, "found 0.25 for MT .* Set prune_below to 0.25 or lower"),
    (
        ANNOTATE,
        {"placebos": -1},
        "placebos: expected 0 or more .found -1.",
    ),  # in no form
    (
        ANNOTATE,
        {"evaluation_suites": ["math"]},
        "evaluation_data must name the folder of the data sets that math read",
    ),
    (ANNOTATE, {"evaluation_suites": ["math"], "evaluation_data": "/nowhere"}, f"evaluation_data: {NOWHERE}"),
    (ANNOTATE, {"decontaminate": "report"}, "found none. Give the run evaluation_data"),
    (ANNOTATE, {"decontaminate": "report", "evaluation_data": "/nowhere"}, f"decontaminate: {NOWHERE}"),
    (INGEST, {"corpus": "/nowhere"}, f"corpus: {NOWHERE}"),
    (INGEST, {"corpus": ".", "shrink": True}, r"found shrink \(did you mean accept_shrink\?\)"),
    (ANNOTATE, {"fields": ["txt=body"]}, "--field: expected FIELD=NAME .* found 'txt=body'"),
    (INGEST, {"corpus": ".", "fields": ["txt=body"]}, "--field: expected FIELD=NAME .* found 'txt=body'"),
    (INDEX, {"source": "/etc/passwd"}, OF_THE_SYSTEM),
    (FINETUNE, {"finetune_step": 5}, r"found finetune_step \(did you mean finetune_steps\?\)"),
    (FINETUNE, {"evaluation_suites": ["qa"], "evaluation_data": "/etc"}, OF_THE_SYSTEM),
]


def test_a_form_that_cannot_become_a_run_ends_it_with_the_reason(local_dags, corpus, caplog):
    caplog.set_level(logging.INFO)
    for dag_id, conf, said in REFUSED:
        good = {ANNOTATE: {"corpus": corpus, "model": "hub/m@1"}, FINETUNE: {"release": "4f0c91b2d4a7e633"}}
        with pytest.raises(AirflowFailException, match=said):  # which Airflow does not try again
            check(local_dags[dag_id], good.get(dag_id, {}) | conf)
        end_of_folded_lines, reason = caplog.messages[-2:]
        assert end_of_folded_lines == "::endgroup::"
        assert re.search(said, reason)


def test_what_s3_does_not_answer_or_not_in_time_is_left_to_the_stage(local_dags, monkeypatch):
    dag, conf = local_dags["annotate_corpus"], {"corpus": "s3://corpora/posts", "model": "hub/m@1"}
    monkeypatch.setattr(ObjectStore, "is_there", lambda store, uri: uri == "s3://corpora/posts")
    check(dag, conf)
    with pytest.raises(AirflowFailException, match="expected files at s3://corpora/others"):
        check(dag, conf | {"corpus": "s3://corpora/others"})

    def fails(store: ObjectStore, uri: str) -> bool:
        raise OSError("no route to host")

    monkeypatch.setattr(ObjectStore, "is_there", fails)
    check(dag, conf | {"corpus": "s3://corpora/others"})
    answered = threading.Event()
    monkeypatch.setattr(requests, "SECONDS_FOR_A_LOOK", 0.0)
    monkeypatch.setattr(ObjectStore, "is_there", lambda store, uri: answered.wait() and False)
    check(local_dags["ingest_corpus"], {"corpus": "s3://corpora/none"})
    answered.set()


def test_a_path_is_looked_for_only_where_the_stages_run_on_this_machine(kubernetes_dags):
    check(kubernetes_dags["annotate_corpus"], {"corpus": "/on/a/volume", "model": "/on/another"})


SUM = "There were 2 cats and 3 dogs, a total of 5 animals."


@pytest.fixture
def posts(tmp_path):
    """Records whose text is called content, one of them behind a line that is none."""
    path = tmp_path / "posts.jsonl"
    path.write_text('no record\n{"content": "Two dogs."}\n' + json.dumps({"content": SUM}) + "\n")
    return str(path)


def test_a_corpus_whose_text_has_another_name_ends_the_run_with_the_name(local_dags, posts):
    said = "corpus: no usable record: .*content, not text: text=content in Fields"
    with pytest.raises(AirflowFailException, match=said):
        check(local_dags[ANNOTATE], {"corpus": posts, "model": "hub/m@1"})


def test_a_corpus_without_any_usable_record_is_left_to_the_stage(local_dags, tmp_path, notes):
    (tmp_path / "none.jsonl").write_text("no record\n")
    check(local_dags[ANNOTATE], {"corpus": str(tmp_path / "none.jsonl"), "model": "hub/m@1"})
    assert "wrong corpus: no usable record: 1 line is no JSON" in notes[0]


def test_what_the_look_shows_is_the_note_with_what_to_mind_first(local_dags, posts, notes, tiny_model_dir):
    sent = {
        "corpus": posts,
        "model": str(tiny_model_dir),
        "fields": ["text=content"],
        "tools": ["Calculator"],
    }
    check(local_dags[ANNOTATE], sent)
    [note] = notes
    [intro, records, model, *others] = note.splitlines()
    assert intro == "Before the run starts, a look at it shows:"
    assert records.startswith("mind  records: 1 of 3 are refused: 1 line is no JSON.")
    assert model.endswith("the numbers of the preset paper are for other sizes: small_model as Preset")
    assert [line.split(":")[0].split()[-1] for line in others] == ["corpus", "fields", "Calculator"]


def test_what_a_person_should_mind_is_handed_to_the_task_that_starts_the_run(local_dags, posts):
    sent = {"corpus": posts, "model": "hub/m@1", "fields": ["text=content"], "tools": ["Calculator"]}
    check(local_dags[ANNOTATE], sent)
    subjects = [line.split(":")[0] for line in PUSHED[first_look.LOOK]]
    assert subjects == ["mind  records", "wrong model"]


def test_a_look_that_takes_too_long_lets_the_stage_start(local_dags, posts, monkeypatch, notes):
    answered = threading.Event()
    monkeypatch.setattr(first_look, "LONGEST_SECONDS", 0.0)
    monkeypatch.setattr(checking, "observations", lambda *_, **__: iter([answered.wait()]))
    check(local_dags[ANNOTATE], {"corpus": posts, "model": "hub/m@1"})
    answered.set()
    assert notes == []


@pytest.mark.parametrize(("dag_id", "looks"), [(ANNOTATE, True), (INGEST, False)])
def test_only_a_run_that_annotates_is_looked_at(local_dags, corpus, notes, dag_id, looks):
    check(local_dags[dag_id], {"corpus": corpus} | ({"model": "hub/m@1"} if dag_id == ANNOTATE else {}))
    assert bool(notes) is looks
