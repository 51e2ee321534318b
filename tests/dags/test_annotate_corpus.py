"""The graph of `annotate_corpus`: order, pools, what is skipped, and what a failing tool holds up."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, TriggerRule
from airflow.serialization.serialized_objects import DagSerialization

from toolformer_ops.airflow_tasks.annotation_dag import annotation_tasks
from toolformer_ops.airflow_tasks.approval import APPROVALS
from toolformer_ops.airflow_tasks.defaults import RELEASES, WIKI_INDEX, release_asset
from toolformer_ops.airflow_tasks.forms import annotation_form
from toolformer_ops.airflow_tasks.model_tasks import SUITES
from toolformer_ops.config import MAX_SHARDS, load_settings
from toolformer_ops.tools.registry import get_tool, tool_names

CALCULATOR = get_tool("Calculator")

STEPS = ("filter", "plan", "annotate", "placebo", "check")
TAIL = ("gather_tools", "release", "check_release", "finetune", "publish")


def test_a_tool_goes_from_filter_to_check_in_order(local_dags: dict[str, DAG]) -> None:
    dag = local_dags["annotate_corpus"]
    assert dag.task_dict["ingest"].downstream_task_ids == {"start_run"}
    assert dag.task_dict["start_run"].downstream_task_ids == {"tools_to_do"}
    assert dag.task_dict["tools_to_do"].downstream_task_ids == {f"{tool}.filter" for tool in tool_names()}
    assert dag.task_dict["tools_to_do"].first_tasks == {tool: f"{tool}.filter" for tool in tool_names()}
    for tool in tool_names():
        for step, following in pairwise(STEPS):
            assert f"{tool}.{following}" in dag.task_dict[f"{tool}.{step}"].downstream_task_ids
        assert dag.task_dict[f"{tool}.check"].downstream_task_ids == {"gather_tools"}


def test_tools_without_a_filter_start_before_the_others(local_dags: dict[str, DAG]) -> None:
    """Airflow adds the weights of all tasks behind one to its own."""
    dag = local_dags["annotate_corpus"]
    weights = {
        tool: sum(
            dag.task_dict[task_id].priority_weight
            for task_id in (f"{tool}.filter", *dag.task_dict[f"{tool}.filter"].get_flat_relative_ids(upstream=False))
        )
        for tool in tool_names()
    }
    unfiltered = [weights.pop(tool) for tool in ("QA", "WikiSearch")]
    assert min(unfiltered) > max(weights.values())


def test_tools_meet_nowhere_before_the_release(local_dags: dict[str, DAG]) -> None:
    dag = local_dags["annotate_corpus"]
    for tool in tool_names():
        before = dag.task_dict[f"{tool}.check"].get_flat_relative_ids(upstream=True)
        others = {task for task in before if "." in task and not task.startswith(f"{tool}.")}
        assert others == set()


def test_the_tail_follows_whatever_became_of_the_tools(local_dags: dict[str, DAG]) -> None:
    dag = local_dags["annotate_corpus"]
    for task, following in pairwise(TAIL):
        assert following in dag.task_dict[task].downstream_task_ids
    # Of the tasks behind the release some are skipped at once: the last task waits for each that may still run.
    last = {"check_release", "publish", "publish_without_calls", "evaluation.report"}
    assert dag.task_dict["finish_run"].upstream_task_ids == last
    assert dag.task_dict["finish_run"].downstream_task_ids == set()
    rules = {
        task.task_id: task.trigger_rule
        for task in dag.tasks
        if task.trigger_rule != TriggerRule.ALL_SUCCESS and not task.task_id.startswith("evaluation.")
    }
    assert rules == {
        "gather_tools": TriggerRule.ALL_DONE,
        # The check is skipped if the release was checked before, and approvals if nobody asks for them.
        **dict.fromkeys(
            ("approve_finetuning", "finetune", "approve_publishing", "publish"), TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
        ),
        "finish_run": TriggerRule.ALL_DONE,
    }


def test_the_baseline_is_trained_only_behind_a_model_and_where_it_is_asked_for(local_dags: dict[str, DAG]) -> None:
    tasks = local_dags["annotate_corpus"].task_dict
    assert tasks["finetune"].upstream_task_ids == {"check_release", "release", "approve_finetuning"}
    assert tasks["finetune_without_calls"].upstream_task_ids == {"publish", "release"}
    assert tasks["finetune_without_calls"].trigger_rule == TriggerRule.ALL_SUCCESS


def test_the_last_task_is_the_only_leaf_so_that_it_decides_the_colour_of_the_run(local_dags: dict[str, DAG]) -> None:
    assert [task.task_id for task in local_dags["annotate_corpus"].leaves] == ["finish_run"]


def test_only_what_is_done_in_shards_is_mapped_and_what_loads_a_model_is_behind_the_gpu_pool(
    local_dags: dict[str, DAG],
) -> None:
    dag = local_dags["annotate_corpus"]
    mapped = {task.task_id for task in dag.tasks if task.is_mapped}
    assert mapped == {f"{tool}.{step}" for tool in tool_names() for step in ("filter", "annotate", "placebo")}
    assert dag.max_active_tasks >= MAX_SHARDS
    assert dag.max_active_runs >= 2
    gpu = {task.task_id for task in dag.tasks if task.pool == "gpu"}
    of_tools = {task_id for task_id in mapped if not task_id.endswith(".filter")}
    assert gpu == of_tools | {f"evaluation.{suite}" for suite in SUITES} | {"finetune", "finetune_without_calls"}


@pytest.mark.parametrize(("needs_device", "pool"), [(False, "cpu"), (True, "gpu")])
def test_a_tool_that_needs_another_machine_has_a_task_for_each_stage(
    monkeypatch: pytest.MonkeyPatch, needs_device: bool, pool: str
) -> None:
    apart = replace(CALCULATOR.spec, executes_apart=True, needs_device=needs_device)
    monkeypatch.setattr(type(CALCULATOR), "spec", apart)
    with DAG("own_tool", schedule=None, params=annotation_form(load_settings())) as dag:
        annotation_tasks()
    tasks = [dag.task_dict[f"Calculator.{step}"] for step in ("plan", "sample", "execute", "score", "placebo", "check")]
    assert "Calculator.annotate" not in dag.task_dict
    assert "QA.annotate" in dag.task_dict
    for task, following in pairwise(tasks):
        assert following.task_id in task.downstream_task_ids
    stages = tasks[1:5]
    assert [(task.is_mapped, task.pool) for task in stages] == [
        (True, "gpu"),
        (True, pool),
        (True, "gpu"),
        (True, "gpu"),
    ]
    assert [task.partial_kwargs["arguments"][:2] for task in stages] == [
        ["stage", "sample"], ["stage", "execute"], ["stage", "score"], ["stage", "placebo"],
    ]  # fmt: skip


def test_stages_that_write_a_few_rows_run_on_the_worker_and_all_others_in_pods(kubernetes_dags: dict[str, DAG]) -> None:
    dag = kubernetes_dags["annotate_corpus"]
    kinds = {task.task_id: task.task_type for task in dag.tasks}
    on_the_worker = {name: kind for name, kind in kinds.items() if kind != "StagePod"}
    assert on_the_worker == {
        "start_run": "StageProcess", "tools_to_do": "ToolsToDo", "gather_tools": "GatherTools", "finish_run": "FinishRun",
        "evaluation.report": "ReportEvaluation",
        **dict.fromkeys(APPROVALS.values(), "AskForApproval"), **{f"{tool}.plan": "StageProcess" for tool in tool_names()},
    }  # fmt: skip
    assert [task.task_type for task in kubernetes_dags["audit"].tasks] == ["StagePod"]
    tasks = [task["__var"] for task in DagSerialization.to_dict(dag)["dag"]["tasks"]]
    skipping = {task["task_id"] for task in tasks if task.get("_can_skip_downstream")}
    assert skipping == {"tools_to_do", "release", *APPROVALS.values()}, (
        "behind these Airflow's scheduler looks for tasks to skip"
    )
    for task in (dag.get_task("release"), *kubernetes_dags["audit"].tasks):
        assert task.manifest["metadata"]["labels"]["toolformer/template"] == "cpu"


def test_a_new_index_and_a_checked_release_are_assets(local_dags: dict[str, DAG]) -> None:
    made = {(task.task_id, asset.name) for dag in local_dags.values() for task in dag.tasks for asset in task.outlets}
    assert made == {("check_release", "releases"), ("build_index", "wiki_index")}


def test_a_release_of_a_run_by_hand_is_an_event_of_its_corpus(local_dags: dict[str, DAG]) -> None:
    task: Any = local_dags["annotate_corpus"].get_task("check_release")
    task.asset_extra = {"release_id": "4f0c"}
    added: list[Any] = []
    event = SimpleNamespace(add=lambda asset, extra: added.append((asset, extra)))
    task.finish(
        {"outlet_events": {RELEASES: event}, "params": {"corpus": "s3://bucket/corpora/gr\u00fc\u00dfe posts/"}}
    )
    [(asset, extra)] = added
    assert asset == release_asset(corpus="s3://bucket/corpora/gr\u00fc\u00dfe posts")
    assert (asset.name, extra) == ("release of s3://bucket/corpora/gr%C3%BC%C3%9Fe%20posts", {"release_id": "4f0c"})
    assert asset != release_asset(corpus="s3://bucket/corpora/others")


def test_event_of_a_new_index_names_its_address(monkeypatch: pytest.MonkeyPatch, local_dags: dict[str, DAG]) -> None:
    monkeypatch.setattr("toolformer_ops.storage.artifacts.newest", lambda settings, kind: f"s3://bucket/{kind}/newest")
    [task] = local_dags["build_wiki_index"].tasks
    event = SimpleNamespace(extra={})
    task.asset_extra = {"dag_run": "r"}
    task.finish({"outlet_events": {WIKI_INDEX: event}})
    assert event.extra == {"dag_run": "r", "address": "s3://bucket/index/newest"}
    assert task.arguments[-1] == "--publish"
