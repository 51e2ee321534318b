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
from toolformer_ops.airflow_tasks.bundles.dag_tools import DagTool, registered_tools
from toolformer_ops.airflow_tasks.defaults import RELEASES, WIKI_INDEX, release_asset
from toolformer_ops.airflow_tasks.forms import annotation_form
from toolformer_ops.airflow_tasks.model_tasks import SUITES
from toolformer_ops.config import MOST_SHARDS, load_settings
from toolformer_ops.stages import planning
from toolformer_ops.stages.planning import ToDo
from toolformer_ops.tools.registry import get_tool, tool_names

STEPS = ("filter", "plan", "annotate", "placebo")
TAIL = ("check", "release", "check_release", "finetune", "publish")


def test_every_tool_begins_behind_the_start_of_the_run(local_dags):
    dag = local_dags["annotate_corpus"]
    assert dag.task_dict["ingest"].downstream_task_ids == {"start_run"}
    assert dag.task_dict["start_run"].downstream_task_ids == {"tools_to_do"}
    assert dag.task_dict["tools_to_do"].downstream_task_ids == {f"{tool}.filter" for tool in tool_names()}


def test_a_tool_goes_from_filter_to_placebos_in_order_apart_from_the_others(local_dags):
    dag = local_dags["annotate_corpus"]
    for tool in tool_names():
        for step, following in pairwise(STEPS):
            assert f"{tool}.{following}" in dag.task_dict[f"{tool}.{step}"].downstream_task_ids
        last = dag.task_dict[f"{tool}.placebo"]
        assert last.downstream_task_ids == {"check"}
        before = last.get_flat_relative_ids(upstream=True)
        assert all(task.startswith(f"{tool}.") for task in before if "." in task)


@pytest.mark.parametrize(("with_work", "starts_no_process"), [([], True), (["QA"], False)])
def test_a_check_starts_a_process_only_if_a_tool_has_work(
    local_dags, monkeypatch, with_work, starts_no_process
):
    monkeypatch.setattr(planning, "tools_to_do", lambda settings, run_id: ToDo(with_work, []))
    check = local_dags["annotate_corpus"].task_dict["check"]
    assert check.has_nothing_to_do() == starts_no_process


def test_tools_that_take_longest_start_first(local_dags):
    tasks = local_dags["annotate_corpus"].task_dict

    def weight(tool: str) -> int:
        """Airflow adds the weights of all tasks behind one to its own."""
        first = tasks[f"{tool}.filter"]
        return sum(
            tasks[name].priority_weight
            for name in (first.task_id, *first.get_flat_relative_ids(upstream=False))
        )

    with_index, with_model, others = ("QA", "WikiSearch"), ("MT",), ("Calculator", "Calendar")
    assert min(map(weight, with_index)) > max(map(weight, with_model))
    assert min(map(weight, with_model)) > max(map(weight, others))


def test_a_tool_of_a_file_starts_before_those_of_the_paper():
    shop = replace(DagTool.of(get_tool("Calculator").spec), name="Shop")
    with DAG("d", schedule=None) as dag:
        annotation_tasks([shop, DagTool.of(get_tool("QA").spec)])
    weights = {tool: dag.task_dict[f"{tool}.annotate"].priority_weight for tool in ("Shop", "QA")}
    assert weights["Shop"] > weights["QA"]


def test_the_tail_follows_whatever_became_of_the_tools(local_dags):
    dag = local_dags["annotate_corpus"]
    for task, following in pairwise(TAIL):
        assert following in dag.task_dict[task].downstream_task_ids
    # Of the tasks behind the release some are skipped at once: the last task waits for each that may still
    # run.
    last = {"check_release", "publish", "publish_without_calls", "evaluation.report"}
    assert dag.task_dict["finish_run"].upstream_task_ids == last
    assert dag.task_dict["finish_run"].downstream_task_ids == set()
    rules = {task_id: task.trigger_rule for task_id, task in dag.task_dict.items() if "." not in task_id}
    passed = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS  # what is before may be skipped: a check, an approval
    assert {task_id: rule for task_id, rule in rules.items() if rule != TriggerRule.ALL_SUCCESS} == {
        "check": TriggerRule.ALL_DONE,
        **dict.fromkeys(("approve_finetuning", "finetune", "approve_publishing", "publish"), passed),
        "finish_run": TriggerRule.ALL_DONE,
    }
    assert [task.task_id for task in dag.leaves] == ["finish_run"], "which decides the colour of the run"
    # The baseline is trained behind the first model alone.
    assert dag.task_dict["finetune_without_calls"].upstream_task_ids == {"publish", "release"}


def test_only_what_is_done_in_shards_is_mapped(local_dags):
    dag = local_dags["annotate_corpus"]
    mapped = {task.task_id for task in dag.tasks if task.is_mapped}
    assert mapped == {f"{tool}.{step}" for tool in tool_names() for step in ("filter", "annotate", "placebo")}
    assert dag.max_active_tasks >= MOST_SHARDS
    assert dag.max_active_runs >= 2


def test_what_loads_a_model_is_behind_the_gpu_pool(local_dags):
    dag = local_dags["annotate_corpus"]
    mapped = {task.task_id for task in dag.tasks if task.is_mapped}
    gpu = {task.task_id for task in dag.tasks if task.pool == "gpu"}
    shards_with_a_model = {task_id for task_id in mapped if not task_id.endswith(".filter")}
    assert gpu == shards_with_a_model | {f"evaluation.{suite}" for suite in SUITES} | {
        "finetune",
        "finetune_without_calls",
    }


def test_a_tool_that_needs_another_machine_has_a_task_for_each_stage(monkeypatch):
    calculator = get_tool("Calculator")
    monkeypatch.setattr(type(calculator), "spec", replace(calculator.spec, executes_apart=True))
    with DAG("own_tool", schedule=None, params=annotation_form(load_settings(), registered_tools())) as dag:
        annotation_tasks(registered_tools())
    tasks = [
        dag.task_dict[f"Calculator.{step}"] for step in ("plan", "sample", "execute", "score", "placebo")
    ]
    assert "Calculator.annotate" not in dag.task_dict
    assert "QA.annotate" in dag.task_dict
    for task, following in pairwise(tasks):
        assert following.task_id in task.downstream_task_ids
    stages = [(task.partial_kwargs["arguments"][1], task.pool) for task in tasks[1:]]
    assert stages == [("sample", "gpu"), ("execute", "cpu"), ("score", "gpu"), ("placebo", "gpu")]


def test_only_stages_that_write_a_few_rows_run_on_the_worker(kubernetes_dags):
    dag = kubernetes_dags["annotate_corpus"]
    kinds = {task.task_id: task.task_type for task in dag.tasks}
    on_the_worker = {name: kind for name, kind in kinds.items() if kind != "StagePod"}
    assert on_the_worker == {
        "start_run": "StageProcess", "tools_to_do": "ToolsToDo", "finish_run": "FinishRun",
        "evaluation.report": "ReportEvaluation",
        **dict.fromkeys(APPROVALS.values(), "AskForApproval"), **{f"{tool}.plan": "StageProcess" for tool in tool_names()},
    }  # fmt: skip


def test_airflows_scheduler_skips_tasks_only_behind_questions_or_decisions(kubernetes_dags):
    dag = kubernetes_dags["annotate_corpus"]
    tasks = [task["__var"] for task in DagSerialization.to_dict(dag)["dag"]["tasks"]]
    skipping = {task["task_id"] for task in tasks if task.get("_can_skip_downstream")}
    assert skipping == {"tools_to_do", "release", *APPROVALS.values()}, (
        "behind these Airflow's scheduler skips tasks"
    )


def test_a_release_of_a_corpus_with_a_mapping_is_an_asset_of_its_own(local_dags):
    check: Any = local_dags["annotate_corpus"].get_task("check_release")
    added: list[Any] = []
    alias = SimpleNamespace(add=lambda asset, extra: added.append(asset))
    for items in ([], ["ccnet"]):
        check.finish(
            {"outlet_events": {RELEASES: alias}, "params": {"corpus": "s3://bucket/a", "fields": items}}
        )
    assert [asset.name for asset in added] == [
        "release of s3://bucket/a",
        "release of s3://bucket/a%20--field%20text%3Draw_content%20--field%20crawled%3Ddate_download",
    ]
    assert len({asset.uri for asset in added}) == 2


@pytest.mark.parametrize(
    ("items", "rendered"),
    [(None, ""), ([], ""), (["text=a b"], "text=a b"), (["text=a", "url=b"], "text=a\nurl=b")],
)
def test_the_fields_of_the_form_reach_the_ingestion(local_dags, items, rendered):
    for name in ("annotate_corpus", "ingest_corpus"):
        dag = local_dags[name]
        arguments = dag.get_task("ingest").arguments
        place = arguments.index("--field") + 1
        values = {"corpus": "s3://bucket/a", "fields": items}
        assert dag.get_template_env().from_string(arguments[place]).render(params=values) == rendered


def test_only_a_checked_release_or_a_new_index_is_an_asset(local_dags):
    assets = {
        (task.task_id, asset.name)
        for dag in local_dags.values()
        for task in dag.tasks
        for asset in task.outlets
    }
    assert assets == {("check_release", "releases"), ("build_index", "wiki_index")}


def test_a_checked_release_is_an_event_of_its_corpus(local_dags):
    check: Any = local_dags["annotate_corpus"].get_task("check_release")
    check.asset_extra = {"release_id": "4f0c"}
    added: list[Any] = []
    alias = SimpleNamespace(add=lambda asset, extra: added.append((asset, extra)))
    check.finish(
        {
            "outlet_events": {RELEASES: alias},
            "params": {"corpus": "s3://bucket/corpora/gr\u00fc\u00dfe posts/"},
        }
    )
    [(asset, extra)] = added
    assert asset == release_asset(corpus="s3://bucket/corpora/gr\u00fc\u00dfe posts")
    assert (asset.name, extra) == (
        "release of s3://bucket/corpora/gr%C3%BC%C3%9Fe%20posts",
        {"release_id": "4f0c"},
    )


def test_a_new_index_names_its_address(local_dags, monkeypatch):
    monkeypatch.setattr(
        "toolformer_ops.storage.objects.artifacts.newest", lambda settings, kind: f"s3://bucket/{kind}/newest"
    )
    [build] = local_dags["build_wiki_index"].tasks
    event = SimpleNamespace(extra={})
    build.asset_extra = {"dag_run": "r"}
    build.finish({"outlet_events": {WIKI_INDEX: event}})
    assert event.extra == {"dag_run": "r", "address": "s3://bucket/index/newest"}
    assert build.arguments[-1] == "--publish"
