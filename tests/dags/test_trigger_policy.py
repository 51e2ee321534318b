"""While Airflow makes a run: what is refused, what is left out, and when the policy keeps out of it."""

import functools
import threading
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow import settings as airflow_settings
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from tests.tool_files import write_tool
from toolformer_ops.config import REPOSITORY
from toolformer_ops.orchestration import trigger_policy
from toolformer_ops.orchestration.requests import check_before_first_task
from toolformer_ops.runs import requests
from toolformer_ops.storage.object_store import ObjectStore

RELEASE = "4f0c91b2d4a7e633"


@functools.cache
def stored(dag: DAG) -> Any:
    """The DAG as Airflow stores it, which takes a second, and as its API server reads it."""
    return DagSerialization.from_dict(DagSerialization.to_dict(dag))


class Run:
    """What the policy reads of a DAG run that is being made."""

    start_date: Any = None
    clear_number = 0

    def __init__(self, dag: DAG, conf: dict[str, Any], *, run_type: str = "manual", state: str = "queued") -> None:
        self.dag = stored(dag)
        self.conf, self.run_type, self.state = conf, run_type, state

    def get_dag(self) -> Any:
        return self.dag


def made(run: Run) -> dict[str, str | None]:
    """The states in which Airflow makes the tasks of a run, by id."""
    states = {}
    for task_id in run.dag.task_ids:
        task = SimpleNamespace(task_id=task_id, state=None)
        airflow_settings.task_instance_mutation_hook(task, dag_run=run)
        states[task_id] = task.state
    return states


def left_out(run: Run) -> set[str]:
    return {task_id for task_id, state in made(run).items() if state == "removed"}


@pytest.fixture(autouse=True)
def policy() -> None:
    """Airflow finds the policy by itself, also where the project was installed before it had one."""
    manager = airflow_settings.get_policy_plugin_manager()
    if not manager.is_registered(trigger_policy):
        manager.register(trigger_policy)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    (tmp_path / "posts.jsonl").write_text('{"text": "One."}\n')
    return str(tmp_path / "posts.jsonl")


def test_airflow_asks_the_policy_for_new_tasks() -> None:
    assert airflow_settings.task_instance_mutation_hook.is_noop is False
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["airflow.policy"] == {"toolformer": trigger_policy.__name__}


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        (
            {"corpus": "/nowhere/posts.jsonl"},
            "corpus: expected files at /nowhere/posts.jsonl, found nothing. Correct it",
        ),
        ({"model": "/nowhere/model"}, "model: expected files at /nowhere/model, found nothing"),
        ({"max_position": 3}, r"found max_position \(did you mean max_positions\?\)"),
        ({"keep_threshold_Abacus": 1.0}, "found keep_threshold_Abacus"),
        ({"keep_thresholds": {"Calculator": -0.1}}, "keep_thresholds.Calculator: .* greater than or equal to 0"),
        (
            {"keep_threshold_MT": 0.25},
            "at least prune_below, 0.5 nats, found 0.25 for MT .* Set prune_below to 0.25 or lower",
        ),
        ({"prune_below": 0.75}, r"found 0.5 for Calculator \(the tool's own\)"),
        ({"tools": ["MT"], "keep_threshold_QA": 2.0}, "expected chosen tools, found QA"),
        ({"evaluation_suites": ["math"]}, "evaluation_data must name the folder of the data sets that math read"),
        ({"evaluation_suites": ["math"], "evaluation_data": "/nowhere"}, "evaluation_data: expected files at /nowhere"),
    ],
    ids=str,
)
def test_a_run_that_cannot_start_is_refused_before_it_exists(
    local_dags: dict[str, DAG], corpus: str, conf: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        made(Run(local_dags["annotate_corpus"], {"corpus": corpus, "model": "hub/m@1", **conf}))


def test_a_tool_file_that_was_written_since_is_known(
    local_dags: dict[str, DAG], corpus: str, tools_folder: Path
) -> None:
    asked = {"corpus": corpus, "model": "hub/m@1"}
    made(Run(local_dags["annotate_corpus"], asked))  # this process, as Airflow's API server, has read the folder
    write_tool(tools_folder, "Echo", "echo")
    in_its_form = {"keep_threshold_Echo": None}
    assert made(Run(local_dags["annotate_corpus"], asked | in_its_form))["Calculator.filter"] is None


@pytest.mark.parametrize(
    ("dag_id", "conf", "said"),
    [
        ("ingest_corpus", {"corpus": "/nowhere"}, "corpus: expected files at /nowhere"),
        ("ingest_corpus", {"corpus": ".", "shrink": True}, r"found shrink \(did you mean accept_shrink\?\)"),
        ("build_wiki_index", {"source": "/nowhere"}, "source: expected files at /nowhere"),
        ("finetune_release", {"release": RELEASE, "evaluation_suites": ["qa"]}, "that qa read"),
        ("finetune_release", {"release": RELEASE, "corpus": "posts.jsonl"}, "found corpus"),
    ],
    ids=str,
)
def test_so_is_one_of_every_other_dag_with_a_form(
    local_dags: dict[str, DAG], dag_id: str, conf: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        made(Run(local_dags[dag_id], conf))


def test_a_run_that_nobody_reads_the_answer_of_is_made_and_its_first_task_is_red(local_dags: dict[str, DAG]) -> None:
    dag, conf = local_dags["annotate_corpus"], {"corpus": "/nowhere", "model": "hub/m@1"}
    assert left_out(Run(dag, conf, run_type="operator_triggered")) == set()
    with pytest.raises(AirflowFailException, match="expected files at /nowhere"):
        check_before_first_task({"dag": dag, "params": conf})  # type: ignore[typeddict-item]


def test_what_s3_does_not_answer_is_not_refused(
    local_dags: dict[str, DAG], corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag, conf = local_dags["annotate_corpus"], {"corpus": "s3://corpora/posts", "model": "hub/m@1"}
    monkeypatch.setattr(ObjectStore, "is_there", lambda store, uri: uri == "s3://corpora/posts")
    assert made(Run(dag, conf))
    with pytest.raises(ValueError, match="expected files at s3://corpora/others"):
        made(Run(dag, conf | {"corpus": "s3://corpora/others"}))

    def fails(store: ObjectStore, uri: str) -> bool:
        raise OSError("no route to host")

    monkeypatch.setattr(ObjectStore, "is_there", fails)
    assert made(Run(dag, conf))


def test_a_path_is_looked_for_only_where_the_stages_run_on_this_machine(kubernetes_dags: dict[str, DAG]) -> None:
    assert made(Run(kubernetes_dags["annotate_corpus"], {"corpus": "/on/a/volume", "model": "/on/another"}))


MODELS = {"finetune", "publish"}
BASELINE = {"finetune_without_calls", "publish_without_calls"}


def evaluation(*suites: str) -> set[str]:
    return {f"evaluation.{suite}" for suite in suites}


ALL_OF_EVALUATION = evaluation("lama", "math", "qa", "mlqa", "temporal", "perplexity", "report")


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, BASELINE | ALL_OF_EVALUATION),
        (
            {"finetune_baseline": True, "evaluation_suites": ["temporal"]},
            ALL_OF_EVALUATION - evaluation("temporal", "report"),
        ),
        ({"finetune": False, "evaluation_suites": ["temporal"]}, MODELS | BASELINE | ALL_OF_EVALUATION),
        ({"preset": "only_look"}, MODELS | BASELINE | ALL_OF_EVALUATION),
    ],
    ids=["as it is", "a baseline", "no model", "only look"],
)
def test_what_nobody_asked_for_is_left_out_of_the_run(
    local_dags: dict[str, DAG], corpus: str, conf: dict[str, Any], expected: set[str]
) -> None:
    run = {"corpus": corpus, "model": "hub/m@1", "tools": ["Calculator", "Calendar", "WikiSearch", "MT"]}
    others = {f"QA.{stage}" for stage in ("filter", "plan", "annotate", "placebo", "check")}
    assert left_out(Run(local_dags["annotate_corpus"], run | conf)) == expected | others
    assert left_out(Run(local_dags["annotate_corpus"], run | conf, run_type="scheduled")) == expected | others


def test_a_run_on_a_release_leaves_out_what_its_form_does_not_name(local_dags: dict[str, DAG]) -> None:
    conf = {"release": RELEASE, "finetune_baseline": True}
    assert left_out(Run(local_dags["finetune_release"], conf)) == ALL_OF_EVALUATION


def test_a_run_that_is_there_already_is_left_alone(local_dags: dict[str, DAG]) -> None:
    dag = local_dags["annotate_corpus"]
    conf = {"corpus": "/gone/meanwhile", "model": "hub/m@1", "tools": ["MT"]}
    cleared, started = Run(dag, conf), Run(dag, conf)
    cleared.clear_number, started.start_date = 1, "2026-11-22"
    for run in (cleared, started, Run(dag, conf, state="running")):
        assert left_out(run) == set()
    task = SimpleNamespace(task_id="MT.check", state=None)
    airflow_settings.task_instance_mutation_hook(task, dag_run=None)
    assert task.state is None
    assert left_out(Run(local_dags["audit"], {"sample": 3})) == set()


def test_a_look_that_takes_too_long_refuses_nothing(
    local_dags: dict[str, DAG], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(requests, "SECONDS_FOR_A_LOOK", 0.0)
    monkeypatch.setattr(ObjectStore, "is_there", lambda store, uri: answered.wait() and False)
    assert made(Run(local_dags["ingest_corpus"], {"corpus": "s3://corpora/none"}))
    answered.set()
