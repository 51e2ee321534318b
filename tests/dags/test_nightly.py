"""The DAGs of schedule files, as Airflow parses them, and when they start."""

import contextlib
import datetime as dt
import functools
import json
import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pendulum
import pytest
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException
from airflow.serialization.encoders import coerce_to_core_timetable

from tests.dags.conftest import dags_of
from tests.dags.test_schedules import toml, written
from toolformer_ops.airflow_tasks import annotation_dag
from toolformer_ops.airflow_tasks.annotation_dag import skip_missed_night
from toolformer_ops.airflow_tasks.approval import APPROVALS
from toolformer_ops.airflow_tasks.bundles.dag_tools import registered_tools
from toolformer_ops.airflow_tasks.model_tasks import SUITES
from toolformer_ops.airflow_tasks.nights.nightly_dag import nightly_dag
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ConfigurationError, DatabaseError
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage.postgres import database
from toolformer_ops.tools.registry import BUILT_IN_TOOLS as TOOLS


@functools.cache
def made(sections: str = "", **values: str | None) -> DAG:
    """The DAG of a schedule file. No test changes what another reads of it, and making it takes a second."""
    return nightly_dag("/schedules/posts.toml", toml(sections, **values).encode(), registered_tools())


def test_a_bad_schedule_file_fails_alone_with_its_name(schedules, bundle):
    ours = bundle()

    def bag() -> BundleDagBag:  # as Airflow's DAG processor
        ours.refresh()
        return dags_of(ours)

    written(schedules, name="good")
    written(schedules, name="also_good", cron=None, after='["wiki_index"]')
    bad = written(schedules, "[run]\nsampling_treshold = 0.1\n", name="bad")
    (schedules / "broken.toml").write_text("corpus = ", encoding="utf-8")
    dags_in_bag = bag()
    assert set(dags_in_bag.dags) == {"nightly_good", "nightly_also_good"}
    assert set(dags_in_bag.import_errors) == {"bad.py", "broken.py"}
    mistake = f"{bad}: expected a schedule, found 1 mistake: run.sampling_treshold: unknown key"
    assert mistake in dags_in_bag.import_errors["bad.py"]


def test_a_changed_schedule_file_changes_its_dag_alone(schedules, bundle):
    ours = bundle()

    def bag() -> BundleDagBag:  # as Airflow's DAG processor
        ours.refresh()
        return dags_of(ours)

    written(schedules, name="good")
    bad = written(schedules, "[run]\nsampling_treshold = 0.1\n", name="bad")
    assert set(bag().dags) == {"nightly_good"}
    written(schedules, name="bad")  # corrected
    assert set(bag().dags) == {"nightly_good", "nightly_bad"}
    bad.unlink()
    assert set(bag().dags) == {"nightly_good"}


def test_a_run_keeps_the_file_that_it_started_with_on_every_machine(schedules, bundle):
    processor = bundle()
    seen = []
    for hours in ("1", "2", "1"):
        written(schedules, name="edited", hours=hours)
        processor.refresh()
        seen.append(processor.get_current_version().version)
    first, second, third = seen
    assert first == third != second
    (schedules / "edited.toml").unlink()
    processor.refresh()
    assert list(processor.path.glob("*.py")) == []
    for version, hours in ((first, 1), (second, 2), (second, 2)):
        worker = bundle(version, machine="worker")  # which never saw the folder
        worker.initialize()
        assert worker.get_current_version().version == version
        [dag] = dags_of(worker).dags.values()
        assert dag.dagrun_timeout == dt.timedelta(hours=hours)
    with pytest.raises(ConfigurationError, match="0000000000000000 in bundle_versions, found none"):
        bundle("0" * 16, machine="worker").initialize()
    schedules.rmdir()
    processor.refresh()
    assert list(processor.path.glob("*.py")) == [], "no folder is no schedule"


def test_a_schedule_file_that_may_not_be_read_fails_alone_in_no_version(schedules, bundle, postgres_dsn):
    written(schedules, name="good")
    (schedules / "led_astray.toml").symlink_to("/etc/hostname")
    processor = bundle()
    processor.refresh()
    found = dags_of(processor)
    assert set(found.dags) == {"nightly_good"}
    assert "led_astray.toml, which is in a folder of the system" in found.import_errors["led_astray.py"]
    with database.connect_dsn(postgres_dsn, database.DSN_SETTING).begin() as connection:
        names = connection.exec_driver_sql("select name from bundle_versions order by name").scalars().all()
    assert names == ["good", "tools.json"]


def test_a_version_is_stored_before_airflow_knows_it(schedules, bundle, monkeypatch):
    (schedules / "bytes.toml").write_bytes(b'\xff\x00 = """\r\n')  # no TOML, and no text
    written(schedules, name="other")
    here = bundle()
    here.refresh()
    assert list(dags_of(here).import_errors) == ["bytes.py"]
    before = here.get_current_version()
    written(schedules, name="other", hours="3")
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", "postgresql://nobody@127.0.0.1:1/none")
    load_settings.cache_clear()
    with pytest.raises(DatabaseError):
        here.refresh()
    assert here.get_current_version() == before


def test_a_night_has_the_tasks_of_annotate_corpus(local_dags):
    dag, by_hand = made(), local_dags["annotate_corpus"]
    assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == {
        task.task_id: task.downstream_task_ids for task in by_hand.tasks
    }


def test_the_choices_of_a_night_are_those_of_its_file():
    sections = '[run]\ntools = ["MT"]\nevaluation_data = "s3://data"\nkeep_thresholds = {MT = 0.9}\n'
    sections += 'preset = "small_model"\nplacebos = 1\nfinetune_length = 256\n'  # which no form has
    dag = made(sections)
    params = dag.params.validate()
    assert (params["corpus"], params["model"]) == ("s3://corpora/posts", "models/m")
    assert (params["tools"], params["evaluation_data"], params["keep_threshold_MT"]) == (
        ["MT"],
        "s3://data",
        0.9,
    )
    choices = RunChoices.parse(params)
    assert (choices.placebos, choices.finetune_length, choices.call_prefix) == (1, 256, "tool_name")


def test_one_run_of_a_night_at_a_time_runs_as_its_file_says():
    dag = made(hours="2.5", owner='"data-team"', accept_shrink="true")
    assert (dag.max_active_runs, dag.catchup, dag.is_paused_upon_creation) == (1, False, False)
    assert dag.dagrun_timeout == dt.timedelta(hours=2.5)
    assert {task.owner for task in dag.tasks} == {"data-team"}
    assert "--accept-shrink" in dag.get_task("ingest").arguments
    assert "--accept-shrink" not in made().get_task("ingest").arguments


def test_a_night_leaves_nothing_to_the_dag_processor():
    dag = made('[notify]\nwebhooks = ["chat"]\n')
    assert (bool(dag.on_failure_callback), bool(dag.on_success_callback)) == (False, False)


def test_a_night_says_how_it_is_used():
    dag = made('[run]\ntools = ["MT"]\n')
    for words in ('tools = ["MT"]', "**How to trigger.**", "**What it costs.**", "**When it is red.**"):
        assert words in (dag.doc_md or "")


LATE = "the run for 2026-06-01 02:00:00+00:00 started when 2026-06-02 02:00:00+00:00 was due, too: its run does the work of both."


@pytest.mark.parametrize("after", ["[]", '["wiki_index"]'])
def test_the_note_of_a_run_that_is_skipped_since_the_next_is_due_says_so(monkeypatch, after):
    notes: list[str] = []
    monkeypatch.setattr(annotation_dag, "set_note", lambda context, text: notes.append(text))
    date = pendulum.datetime(2026, 6, 1, 2)
    for days_late, run, tries, is_skipped in (
        (0.99, {}, 1, False),
        (1.0, {}, 1, True),
        (7.2, {}, 1, True),
        # Somebody wants it, or this is a retry.
        (3.0, {"clear_number": 1}, 1, False),
        (3.0, {"run_type": "asset_triggered"}, 1, False),
        (3.0, {"run_type": "manual"}, 1, False),
        (3.0, {}, 2, False),
    ):
        notes.clear()
        late = date.add(hours=days_late * 24)
        found = {"run_type": "scheduled", "run_after": date, "start_date": late, "clear_number": 0}
        context: Any = {"dag": made(after=after), "dag_run": SimpleNamespace(**(found | run))}
        context["ti"] = SimpleNamespace(try_number=tries)
        with (
            pytest.raises(AirflowSkipException, match=re.escape(LATE))
            if is_skipped
            else contextlib.nullcontext()
        ):
            skip_missed_night(context)
        assert notes == ([f"Skipped: {LATE}"] if is_skipped else [])


def test_a_night_that_asks_for_a_yes_has_the_time_for_an_answer_besides():
    asking = made('[run]\napprove = "before_finetuning"\n', hours="2.5")
    assert asking.dagrun_timeout == dt.timedelta(hours=2.5 + load_settings().approval_hours)
    assert made(hours="2.5").dagrun_timeout == dt.timedelta(hours=2.5)


def test_a_clock_an_asset_or_both_start_it():
    clock: Any = made(time_zone='"Europe/Berlin"').timetable
    assert (clock.expression, str(clock.timezone)) == ("0 2 * * *", "Europe/Berlin")
    both: Any = made(after='["wiki_index", "s3://models/base"]')
    found = {getattr(ref, "name", None) or ref.uri for ref in both.timetable.asset_condition.objects}
    assert found == {"wiki_index", "s3://models/base"}
    alone: Any = coerce_to_core_timetable(made(cron=None, after='["wiki_index"]').timetable)
    assert alone.asset_condition.name == "wiki_index"


# What a night does not do


def ran(
    dag: DAG, task_id: str, printed: object, run_type: str = "scheduled", **params: Any
) -> tuple[Any, dict[str, Any]]:
    """What a task returns whose stage prints this, and what it pushes."""
    pushed: dict[str, Any] = {}
    instance = SimpleNamespace(map_index=-1, xcom_push=lambda key, value: pushed.update({key: value}))
    task = dag.get_task(task_id)
    task.command = ["python3", "-c", f"print({json.dumps(json.dumps(printed))})"]
    asked_for = {
        "corpus": "s3://corpora/posts", "model": "m", "tools": list(TOOLS), "finetune": True, "finetune_baseline": True,
        "evaluation_suites": list(SUITES), "evaluation_data": "s3://data",
    }  # fmt: skip
    run = SimpleNamespace(run_type=run_type)
    context = {"ti": instance, "dag": dag, "dag_run": run, "outlet_events": {}}
    with patch.object(annotation_dag, "choices_of", lambda _: RunChoices.parse(asked_for | params)):
        return task.execute(context), pushed


def test_tools_without_work_are_skipped_before_their_tasks_start():
    dag = made()
    shards = ["0/2", "1/2"]
    printed = {"tools": ["Calendar"], "filter_shards": shards}
    returned, pushed = ran(dag, "tools_to_do", printed, tools=["Calendar", "QA"])
    assert returned == shards  # what the filters are mapped over
    unasked = {
        f"{tool}.filter": f"not asked for: tools does not name {tool}"
        for tool in ("Calculator", "WikiSearch", "MT")
    }
    assert pushed["skipped"] == {"QA.filter": "everything is done and checked", **unasked}
    assert sorted(pushed["skipmixin_key"]["skipped"]) == sorted(
        pushed["skipped"]
    )  # what Airflow's scheduler reads
    _, pushed = ran(dag, "tools_to_do", {"tools": list(TOOLS), "filter_shards": shards})
    assert (pushed["skipped"], "skipmixin_key" in pushed) == ({}, False)


APPROVED = dict.fromkeys(APPROVALS.values(), "not asked for: approve is none")
MODELS = {
    "finetune",
    "finetune_without_calls",
    "evaluation.report",
    *(f"evaluation.{suite}" for suite in SUITES),
}
MODELS |= {*APPROVALS.values()}
CHECK = "check_release"
TOO_FEW = "{} examples differ from the release that was finetuned on last; the schedule asks for 500"
NO_RELEASE = "no call was kept, so there is no release to check, and nothing to finetune on"
CHECKED = "nothing changed since run nightly_posts.before: its release 4f0c was checked then"
AFTER_A_RELEASE: list[tuple[Any, int, str, dict[str, bool], dict[str, str]]] = [
    ("4f0c", 500, "scheduled", {}, APPROVED),
    ("4f0c", 499, "scheduled", {}, dict.fromkeys(MODELS, TOO_FEW.format(499))),
    ("4f0c", 0, "manual", {"approve": "before_finetuning"}, {"approve_publishing": "not asked for: approve is before_finetuning"}),
    ("4f0c", 500, "scheduled", {"finetune": False}, dict.fromkeys(MODELS, "not asked for: finetune is false")),
    ("4f0c", 500, "manual", {"finetune_baseline": False},
     {"finetune_without_calls": "not asked for: finetune_baseline is false", **APPROVED}),
    (None, 0, "manual", {}, dict.fromkeys({CHECK, *MODELS}, NO_RELEASE)),
    # Released and checked by an earlier run, whose finetuning may have failed.
    ("checked", 0, "scheduled", {}, {CHECK: CHECKED} | dict.fromkeys(MODELS, TOO_FEW.format(0))),
    ("checked", 500, "scheduled", {}, {CHECK: CHECKED, **APPROVED}),
]  # fmt: skip
"""The release, how many of its examples are new, who started the run, its choices, and what is skipped for
which reason."""


@pytest.mark.parametrize(("release_id", "changed", "run_type", "choices", "skipped"), AFTER_A_RELEASE)
def test_a_night_starts_no_task_of_what_it_need_not_do_after_its_release(
    release_id, changed, run_type, choices, skipped
):
    dag = made("[finetune]\nmin_changed_examples = 500\n")
    release = {"release_id": release_id and "4f0c", "changed_examples": changed, "unchanged_since": None}
    if release_id == "checked":
        release["unchanged_since"] = "nightly_posts.before"
    returned, pushed = ran(dag, "release", release, run_type, **choices)
    assert returned == release
    assert pushed["skipped"] == skipped
    assert set(skipped) <= dag.get_task("release").downstream_task_ids  # the scheduler skips no others
