"""What holds for every DAG, and every task of every DAG."""

import ast
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from toolformer_ops.airflow_tasks.defaults import POOLS
from toolformer_ops.airflow_tasks.notifying import SEND
from toolformer_ops.airflow_tasks.retrying import INFRASTRUCTURE_RETRIES, OWN_RETRIES, StageRetries
from toolformer_ops.cli import stages
from toolformer_ops.config import REPOSITORY

DAG_FILES = sorted((REPOSITORY / "dags").glob("*.py"))
DAG_IDS = [path.stem for path in DAG_FILES]
OF_TOOLS_THAT_EXECUTE_APART = {"sample", "execute", "score"}
HEAVY = ("torch", "transformers", "jnius", "pyserini", "great_expectations", "pandas", "pyarrow", "kubernetes")
POOLS_FILE = REPOSITORY / "toolformer_ops" / "airflow_tasks" / "pools.json"


def arguments_of(task: Any) -> list[str]:
    """The argv behind `python -m toolformer_ops` that a task or a mapped task starts; empty for tasks that start none."""
    return list(task.partial_kwargs["arguments"] if task.is_mapped else getattr(task, "arguments", []))


def test_each_file_holds_the_dag_of_its_name(local_dags: dict[str, DAG]) -> None:
    assert sorted(local_dags) == DAG_IDS == [
        "annotate_corpus", "audit", "build_wiki_index", "finetune_release", "ingest_corpus", "send_notifications"
    ]  # fmt: skip


@pytest.mark.parametrize("dag_id", DAG_IDS)
def test_a_dag_says_how_to_trigger_it_what_it_costs_and_what_to_do_when_it_is_red(
    local_dags: dict[str, DAG], dag_id: str
) -> None:
    dag = local_dags[dag_id]
    for question in ("**How to trigger.**", "**What it costs.**", "**When it is red.**"):
        assert question in (dag.doc_md or "")
    assert dag.description
    assert "toolformer" in dag.tags
    assert dag.catchup is False


@pytest.mark.parametrize("dag_id", DAG_IDS)
def test_a_task_has_owner_retries_with_backoff_time_limit_and_a_pool_that_is_made(
    local_dags: dict[str, DAG], dag_id: str
) -> None:
    pools = json.loads(POOLS_FILE.read_text())
    assert sorted(pools) == sorted(POOLS)
    for task in local_dags[dag_id].tasks:
        assert task.owner == "toolformer"
        assert isinstance(task.retry_policy, StageRetries)
        assert task.retries == OWN_RETRIES + INFRASTRUCTURE_RETRIES
        assert task.retry_exponential_backoff == 2.0
        assert isinstance(task.execution_timeout, timedelta)
        assert task.pool in pools


@pytest.mark.parametrize("dag_id", DAG_IDS)
def test_a_field_of_the_form_has_a_title_a_description_and_bounds(local_dags: dict[str, DAG], dag_id: str) -> None:
    params = local_dags[dag_id].params
    assert len(params) > 0 or dag_id == SEND
    bounds = {"maxLength", "maximum", "minimum", "enum", "items", "additionalProperties"}
    for name in params:
        param = params.get_param(name)
        assert param.schema["title"]
        assert param.description is not None
        assert param.description.endswith(".")
        assert bounds & set(param.schema) or param.schema["type"] == "boolean", name


@pytest.mark.parametrize("path", DAG_FILES, ids=DAG_IDS)
def test_a_dag_file_defines_nothing_and_reads_no_environment(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    assert not [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    allowed = ("airflow.sdk", "toolformer_ops.airflow_tasks.", "toolformer_ops.tools.registry", "toolformer_ops.config")
    assert all(name.startswith(allowed) for name in imported), imported


@pytest.mark.parametrize("runner", ["local_dags", "kubernetes_dags"])
def test_dags_survive_serialisation(request: pytest.FixtureRequest, runner: str) -> None:
    dags: dict[str, DAG] = request.getfixturevalue(runner)
    for dag in dags.values():
        text = json.dumps(DagSerialization.to_dict(dag))
        again = DagSerialization.from_dict(json.loads(text))
        assert sorted(again.task_dict) == sorted(dag.task_dict)
        assert len(again.task_dict) == len(dag.tasks)


@pytest.mark.parametrize("runner", ["local_dags", "kubernetes_dags"])
def test_the_command_line_takes_the_arguments_of_every_task(request: pytest.FixtureRequest, runner: str) -> None:
    commands = typer.main.get_command(stages.app).commands  # type: ignore[attr-defined]
    seen = set()
    for dag in request.getfixturevalue(runner).values():
        for task in dag.tasks:
            if not (arguments := arguments_of(task)):
                continue
            program, name, *options = arguments
            assert program == "stage"
            options += ["--shard"] if task.is_mapped else ["--state"] if name == "finish-run" else []
            given = {option for option in options if option.startswith("--")}
            known = {option for parameter in commands[name].params for option in parameter.opts}
            required = {parameter.opts[0] for parameter in commands[name].params if parameter.required}
            assert required <= given <= known, (task.task_id, given, known)
            seen.add(name)
    assert seen == set(commands) - OF_TOOLS_THAT_EXECUTE_APART


def test_both_runners_start_the_same_commands(local_dags: dict[str, DAG], kubernetes_dags: dict[str, DAG]) -> None:
    for dag_id, dag in local_dags.items():
        other = kubernetes_dags[dag_id]
        assert {task.task_id: arguments_of(task) for task in dag.tasks} == {
            task.task_id: arguments_of(task) for task in other.tasks
        }
        assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == {
            task.task_id: task.downstream_task_ids for task in other.tasks
        }


def test_parsing_and_a_shard_without_work_load_no_model_no_java_no_data_frames_and_no_lineage() -> None:
    program = f"""
import sys
import toolformer_ops.stages.annotating
from airflow.dag_processing.dagbag import DagBag
bag = DagBag({str(REPOSITORY / "dags")!r})
assert len(bag.dags) == {len(DAG_IDS)}, bag.import_errors
loaded = [name for name in {HEAVY!r} if name in sys.modules]
of_lineage = ("openlineage", "airflow.providers.openlineage.")
print(loaded + [name for name in sys.modules if name.startswith(of_lineage) and not name.endswith("get_provider_info")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
