"""What holds for every DAG, and every task of every DAG."""

import ast
import json
import re
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
import typer
from airflow.sdk import DAG

from toolformer_ops.airflow_tasks.defaults import DEFAULT_HOURS, POOLS, time_limits
from toolformer_ops.airflow_tasks.nights.notifying import SEND
from toolformer_ops.airflow_tasks.retrying import INFRASTRUCTURE_RETRIES, OWN_RETRIES, StageRetries
from toolformer_ops.cli import stages
from toolformer_ops.config import REPOSITORY
from toolformer_ops.errors import UsageError

DAG_FILES = sorted((REPOSITORY / "dags").glob("*.py"))
DAG_IDS = [path.stem for path in DAG_FILES]
OF_TOOLS_THAT_EXECUTE_APART = {"sample", "execute", "score"}
HEAVY = (
    "torch",
    "transformers",
    "jnius",
    "pyserini",
    "great_expectations",
    "pandas",
    "pyarrow",
    "kubernetes",
    "toolformer_ops.on_a_file.look.checking",
)
POOLS_FILE = REPOSITORY / "toolformer_ops" / "airflow_tasks" / "pools.json"


def arguments_of(task: Any) -> list[str]:
    """The argv behind `python -m toolformer_ops` that a task or a mapped task starts; empty for tasks that start none."""
    return list(task.partial_kwargs["arguments"] if task.is_mapped else getattr(task, "arguments", []))


def test_each_file_holds_the_dag_of_its_name(local_dags):
    assert sorted(local_dags) == DAG_IDS == [
        "annotate_corpus", "audit", "build_wiki_index", "finetune_release", "ingest_corpus", "retention", "send_notifications"
    ]  # fmt: skip


def test_every_dag_says_how_it_is_used(local_dags):
    for dag in local_dags.values():
        for question in ("**How to trigger.**", "**What it costs.**", "**When it is red.**"):
            assert question in (dag.doc_md or "")
        assert (bool(dag.description), "toolformer" in dag.tags, dag.catchup) == (True, True, False)


def test_every_field_of_a_form_has_a_title_with_a_description_within_bounds(local_dags):
    bounds = {"maxLength", "maximum", "minimum", "enum", "items", "additionalProperties"}
    for dag_id, dag in local_dags.items():
        assert len(dag.params) > 0 or dag_id == SEND
        for name in dag.params:
            param = dag.params.get_param(name)
            assert param.schema["title"]
            assert str(param.description).endswith(".")
            assert bounds & set(param.schema) or param.schema["type"] == "boolean", name


def test_every_task_has_an_owner_with_retries_within_a_time_limit_in_a_pool(local_dags):
    pools = json.loads(POOLS_FILE.read_text())
    assert sorted(pools) == sorted(POOLS)
    for task in [task for dag in local_dags.values() for task in dag.tasks]:
        assert task.owner == "toolformer"
        assert isinstance(task.retry_policy, StageRetries)
        assert task.retries == OWN_RETRIES + INFRASTRUCTURE_RETRIES
        assert isinstance(task.execution_timeout, timedelta)
        assert task.pool in pools


def test_no_dag_is_paused_when_airflow_meets_it(local_dags):
    assert {dag.is_paused_upon_creation for dag in local_dags.values()} == {False}


def test_the_audit_runs_weekly_unless_it_is_switched_off(parse):
    weekly: Any = parse()["audit"]
    assert (weekly.timetable.expression, weekly.is_paused_upon_creation) == ("0 6 * * 0", False)
    assert parse(audit_schedule="off")["audit"].schedule is None


def test_retention_runs_weekly_unless_it_is_switched_off(parse):
    weekly: Any = parse()["retention"]
    assert weekly.timetable.expression == "0 5 * * 0"
    assert parse(retention_schedule="off")["retention"].schedule is None


def test_retention_drops_nothing_by_itself(parse):
    assert parse()["retention"].params["drop"] is False
    assert parse(retention_drops="true")["retention"].params["drop"] is True


def test_no_dag_file_defines_anything_or_reads_the_environment():
    nodes = [node for path in DAG_FILES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    assert not [
        node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    ]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    allowed = (
        "airflow.sdk",
        "toolformer_ops.airflow_tasks.",
        "toolformer_ops.tools.registry",
        "toolformer_ops.config",
    )
    assert all(name.startswith(allowed) for name in imported), imported


def test_the_command_line_takes_the_arguments_of_every_task(local_dags):
    commands = typer.main.get_command(stages.app).commands  # type: ignore[attr-defined]
    seen = set()
    for task in [task for dag in local_dags.values() for task in dag.tasks]:
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


def test_both_runners_start_the_same_commands_in_the_same_order(local_dags, kubernetes_dags):
    def commands(dags: dict[str, DAG]) -> dict[str, Any]:
        tasks = [task for dag in dags.values() for task in dag.tasks]
        return {
            f"{task.dag_id}.{task.task_id}": (arguments_of(task), task.downstream_task_ids) for task in tasks
        }

    assert commands(local_dags) == commands(kubernetes_dags)


def test_parsing_or_a_shard_without_work_loads_no_heavy_library():
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
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_setting_gives_a_stage_more_hours():
    assert time_limits({"finish-run": 12})["finish-run"] == timedelta(hours=12)


def test_hours_of_an_unknown_stage_are_refused_with_the_stages_that_exist():
    with pytest.raises(UsageError, match=r"expected stages \(ingest, .*found finish_run"):
        time_limits({"finish_run": 12})


def test_the_page_of_operators_has_the_hours_of_each_stage():
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([a-z, -]+) \|$", page, re.MULTILINE)
    documented = {stage: int(hours) for hours, stages_of_row in rows for stage in stages_of_row.split(", ")}
    assert documented == dict(DEFAULT_HOURS)
