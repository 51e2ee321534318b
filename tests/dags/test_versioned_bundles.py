"""What becomes of a run when a tool file is written or removed while it is under way, or before it is cleared."""

import os
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from tests.dags.conftest import dags_of
from tests.dags.test_schedules import written
from tests.tool_files import forget_tools, write_tool
from toolformer_ops.airflow_tasks.bundles import dag_tools, schedule_bundle
from toolformer_ops.airflow_tasks.bundles.dag_tools import look_for_tools
from toolformer_ops.airflow_tasks.bundles.dags_bundle import DagsBundle
from toolformer_ops.airflow_tasks.bundles.schedule_bundle import ScheduleBundle
from toolformer_ops.airflow_tasks.bundles.versioned_bundle import VersionedBundle
from toolformer_ops.airflow_tasks.local_process import StageProcess
from toolformer_ops.config import SHIPPED
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.runs import run_tools
from toolformer_ops.storage.postgres import database
from toolformer_ops.tools.registry import BUILT_IN_TOOLS

Bundles = Callable[..., VersionedBundle]


@pytest.fixture
def tools_dir(tmp_path_factory):
    """The folder of the tool files; empty."""
    folder = tmp_path_factory.mktemp("tools")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLFORMER_TOOLS_DIR", str(folder))
        forget_tools()
        yield folder
    forget_tools()


def version_of(processor: VersionedBundle) -> str:
    """The version that the DAG processor takes the bundle for now."""
    processor.refresh()
    return processor.get_current_version().version


def tools_in(bundle: VersionedBundle, dag_id: str) -> set[str]:
    """The tools that a DAG of a bundle has tasks for."""
    found = dags_of(bundle)
    assert found.import_errors == {}
    return {task.split(".")[0] for task in found.dags[dag_id].task_ids if task.endswith(".filter")}


def test_a_tool_file_that_is_written_is_another_version_of_the_dags(bundle, tools_dir):
    processor = bundle(kind=DagsBundle)
    before = version_of(processor)
    write_tool(tools_dir, "Echo", "echo")
    assert version_of(processor) != before
    assert tools_in(processor, "annotate_corpus") == {*BUILT_IN_TOOLS, "Echo"}


def test_a_run_keeps_its_tasks_when_a_tool_file_is_written(bundle, tools_dir):
    before = version_of(bundle(kind=DagsBundle))
    write_tool(tools_dir, "Echo", "echo")
    forget_tools()
    worker = bundle(before, machine="worker", kind=DagsBundle)
    worker.initialize()
    assert tools_in(worker, "annotate_corpus") == {*BUILT_IN_TOOLS}


@pytest.mark.parametrize("is_made_before", [False, True], ids=["a new machine", "a machine with old files"])
def test_a_run_of_an_earlier_package_has_the_dag_files_that_are_installed(
    bundle, tools_dir, tmp_path, monkeypatch, is_made_before
):
    earlier = shutil.copytree(SHIPPED / "dags", tmp_path / "earlier" / "dags")
    with (earlier / "annotate_corpus.py").open("a") as file:
        file.write("raise SystemExit('of an earlier package')\n")
    with monkeypatch.context() as patch:
        patch.setattr("toolformer_ops.airflow_tasks.bundles.dags_bundle.SHIPPED", tmp_path / "earlier")
        before = version_of(bundle(kind=DagsBundle))
        if is_made_before:
            bundle(before, machine="worker", kind=DagsBundle).initialize()
    worker = bundle(before, machine="worker", kind=DagsBundle)
    worker.initialize()
    installed = (SHIPPED / "dags" / "annotate_corpus.py").read_text()
    assert (worker.path / "annotate_corpus.py").read_text() == installed
    assert tools_in(worker, "annotate_corpus") == {*BUILT_IN_TOOLS}


@pytest.mark.parametrize("is_made_before", [False, True], ids=["a new machine", "a machine with old files"])
def test_a_night_of_an_earlier_package_has_a_dag_file_of_this_one(
    bundle, schedules, monkeypatch, is_made_before
):
    written(schedules)
    with monkeypatch.context() as patch:
        moved = "from toolformer_ops.airflow_tasks.a_module_that_moved import nightly_dag\n"
        patch.setattr(schedule_bundle, "DAG_FILE", moved + schedule_bundle.DAG_FILE)
        version = version_of(bundle(kind=ScheduleBundle))
        if is_made_before:
            bundle(version, machine="worker", kind=ScheduleBundle).initialize()
    worker = bundle(version, machine="worker", kind=ScheduleBundle)
    worker.initialize()
    assert dags_of(worker).import_errors == {}
    assert list(dags_of(worker).dags) == ["nightly_posts"]


def test_a_run_keeps_its_tasks_when_a_tool_file_is_removed(bundle, tools_dir):
    file = write_tool(tools_dir, "Echo", "echo")
    before = version_of(bundle(kind=DagsBundle))
    file.unlink()
    forget_tools()
    worker = bundle(before, machine="worker", kind=DagsBundle)
    worker.initialize()
    assert tools_in(worker, "annotate_corpus") == {*BUILT_IN_TOOLS, "Echo"}


def test_a_night_keeps_its_dag_when_the_file_of_its_tool_is_removed(bundle, schedules, tools_dir):
    file = write_tool(tools_dir, "Echo", "echo")
    written(schedules, '[run]\ntools = ["Echo"]\n', name="posts")
    before = version_of(bundle(kind=ScheduleBundle))
    file.unlink()
    forget_tools()
    worker = bundle(before, machine="worker", kind=ScheduleBundle)
    worker.initialize()
    assert tools_in(worker, "nightly_posts") == {*BUILT_IN_TOOLS, "Echo"}


def test_a_schedule_file_with_a_tool_that_is_gone_is_no_dag_any_more(bundle, schedules, tools_dir):
    file = write_tool(tools_dir, "Echo", "echo")
    written(schedules, '[run]\ntools = ["Echo"]\n', name="posts")
    processor = bundle(kind=ScheduleBundle)
    processor.refresh()
    file.unlink()
    forget_tools()
    processor.refresh()
    [message] = dags_of(processor).import_errors.values()
    assert f"found 'Echo'. If it was a tool of yours, put its file back into {tools_dir}" in message


def test_the_dag_files_are_newer_when_only_the_tools_changed(bundle, tools_dir):
    processor = bundle(kind=DagsBundle)
    processor.refresh()
    dag_file = processor.path / "annotate_corpus.py"
    os.utime(dag_file, (1.0, 1.0))
    processor.refresh()
    assert dag_file.stat().st_mtime == 1.0, "nothing changed"
    write_tool(tools_dir, "Echo", "echo")
    processor.refresh()
    assert dag_file.stat().st_mtime > 1.0


def test_a_dag_file_of_no_version_has_the_tools_that_are_registered(tools_dir, tmp_path):
    write_tool(tools_dir, "Echo", "echo")
    forget_tools()
    names = [tool.name for tool in dag_tools.tools_beside(str(tmp_path / "annotate_corpus.py"))]
    assert names == [*BUILT_IN_TOOLS, "Echo"]


def test_the_death_of_a_process_that_looks_for_tools_is_told_in_words(monkeypatch):
    monkeypatch.setattr(dag_tools, "registered_tools", lambda: os._exit(1))
    with pytest.raises(ConfigurationError, match="A package of a tool cannot be imported"):
        look_for_tools()


def test_a_process_that_looks_for_tools_without_an_answer_is_ended(monkeypatch):
    monkeypatch.setattr(dag_tools, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(dag_tools, "registered_tools", lambda: __import__("time").sleep(600))
    with pytest.raises(ConfigurationError, match="A package of a tool cannot be imported"):
        look_for_tools()


# A run that is cleared with the newest version of its DAG


def filter_of(
    tool: str, monkeypatch: pytest.MonkeyPatch, chosen: tuple[str, ...], **parameters: object
) -> StageProcess:
    """The filter task of a tool, in a run that chose these."""
    monkeypatch.setattr(database, "connect", lambda settings: None)
    run = SimpleNamespace(tools=chosen, parameters=parameters)
    monkeypatch.setattr(run_tools, "require_run", lambda connection, run_id: run)
    return StageProcess(
        task_id="filter",
        arguments=["stage", "filter", "--run", "night-1", "--tool", tool],
        command=["python3", "-c", "pass"],
    )


def test_the_filter_of_a_tool_that_the_run_did_not_choose_is_skipped(monkeypatch):
    task = filter_of("Echo", monkeypatch, chosen=("Calendar",))
    with pytest.raises(AirflowSkipException, match="night-1 was started with Calendar, not with Echo"):
        task.execute({})


def test_the_filter_of_a_tool_that_the_run_chose_is_started(monkeypatch):
    task: Any = filter_of("Calendar", monkeypatch, chosen=("Calendar",))
    started: list[list[str]] = []
    task.run_stage = started.append
    task.execute({})
    assert started == [["stage", "filter", "--run", "night-1", "--tool", "Calendar"]]


def test_a_run_that_ends_with_enough_kept_calls_filters_nothing_beforehand(monkeypatch):
    task: Any = filter_of("Calendar", monkeypatch, chosen=("Calendar",), until_kept=9)
    started: list[list[str]] = []
    task.run_stage = started.append
    task.execute({})
    assert started == []
