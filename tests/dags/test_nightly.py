"""The DAGs of schedule files, as Airflow parses them, and when they start."""

import datetime as dt
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pendulum
import pytest
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables import trigger
from airflow.timetables.base import TimeRestriction

from tests.dags.test_schedules import toml, written
from toolformer_ops.airflow_tasks import annotation_dag
from toolformer_ops.airflow_tasks.annotation_dag import skip_missed_night
from toolformer_ops.airflow_tasks.approval import APPROVALS
from toolformer_ops.airflow_tasks.model_tasks import SUITES
from toolformer_ops.airflow_tasks.nightly import nightly_dag
from toolformer_ops.airflow_tasks.schedule_bundle import ScheduleBundle
from toolformer_ops.config import load_settings
from toolformer_ops.errors import ConfigurationError, DatabaseError
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage import database
from toolformer_ops.tools.registry import PAPER_TOOLS as TOOLS

NOTIFY = '[notify]\nwebhooks = ["chat"]\nemails = ["a@example.org"]\n'


@pytest.fixture
def schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of schedule files of the settings."""
    monkeypatch.setenv("TOOLFORMER_SCHEDULES_DIR", str(tmp_path))
    load_settings.cache_clear()
    yield tmp_path
    load_settings.cache_clear()


@pytest.fixture
def bundle(
    schedules: Path, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., ScheduleBundle]:
    """Makes a bundle as a process of Airflow does: of the folder, or of a version; `machine` has files of its own."""
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", postgres_dsn)
    load_settings.cache_clear()
    folders: dict[str, Path] = {}

    def make(version: str | None = None, machine: str = "dag-processor") -> ScheduleBundle:
        folder = folders.setdefault(machine, tmp_path_factory.mktemp(machine))
        monkeypatch.setattr("airflow.dag_processing.bundles.base.get_bundle_storage_root_path", lambda: folder)
        return ScheduleBundle(name="schedules", version=version)

    return make


def dags_of(bundle: ScheduleBundle) -> BundleDagBag:
    """What Airflow reads from a bundle."""
    return BundleDagBag(bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)


@pytest.fixture
def bag(bundle: Callable[..., ScheduleBundle]) -> Callable[[], BundleDagBag]:
    """Reads the schedules as Airflow's DAG processor does."""
    ours = bundle()

    def read() -> BundleDagBag:
        ours.refresh()
        return dags_of(ours)

    return read


@functools.cache
def made(sections: str = "", **values: str | None) -> DAG:
    """The DAG of a schedule file. No test changes what another reads of it, and making it takes a second."""
    return nightly_dag("/schedules/posts.toml", toml(sections, **values).encode())


def test_each_file_is_a_dag_and_a_bad_one_fails_alone_with_its_name(
    schedules: Path, bag: Callable[[], BundleDagBag]
) -> None:
    written(schedules, name="good")
    written(schedules, name="also_good", cron=None, after='["wiki_index"]')
    bad = written(schedules, "[run]\nsampling_treshold = 0.1\n", name="bad")
    (schedules / "broken.toml").write_text("corpus = ", encoding="utf-8")
    found = bag()
    assert set(found.dags) == {"nightly_good", "nightly_also_good"}
    assert set(found.import_errors) == {"bad.py", "broken.py"}
    assert (
        f"{bad}: expected a schedule, found 1 mistake: run.sampling_treshold: unknown key"
        in found.import_errors["bad.py"]
    )


def test_a_file_that_is_corrected_or_removed_changes_its_dag_alone(
    schedules: Path, bag: Callable[[], BundleDagBag]
) -> None:
    written(schedules, name="good")
    bad = written(schedules, name="bad", hours="0")
    assert set(bag().dags) == {"nightly_good"}
    written(schedules, name="bad")
    assert set(bag().dags) == {"nightly_good", "nightly_bad"}
    bad.unlink()
    found = bag()
    assert (set(found.dags), found.import_errors) == ({"nightly_good"}, {})


def test_no_folder_is_no_schedule(monkeypatch: pytest.MonkeyPatch, bundle: Callable[..., ScheduleBundle]) -> None:
    monkeypatch.delenv("TOOLFORMER_SCHEDULES_DIR", raising=False)
    load_settings.cache_clear()
    ours = bundle()
    ours.refresh()
    assert list(ours.path.iterdir()) == []


def test_a_run_keeps_the_file_that_it_started_with_on_every_machine(
    schedules: Path, bundle: Callable[..., ScheduleBundle]
) -> None:
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
    assert list(processor.path.iterdir()) == []
    for version, hours in ((first, 1), (second, 2), (second, 2)):
        worker = bundle(version, machine="worker")  # which never saw the folder
        worker.initialize()
        assert worker.get_current_version().version == version
        [dag] = dags_of(worker).dags.values()
        assert dag.dagrun_timeout == dt.timedelta(hours=hours)
    with pytest.raises(ConfigurationError, match="0000000000000000 in schedule_versions, found none"):
        bundle("0" * 16, machine="worker").initialize()


def test_a_schedule_file_that_may_not_be_read_fails_alone_and_is_in_no_version(
    schedules: Path, bundle: Callable[..., ScheduleBundle], postgres_dsn: str
) -> None:
    written(schedules, name="good")
    (schedules / "led_astray.toml").symlink_to("/etc/hostname")
    processor = bundle()
    processor.refresh()
    found = dags_of(processor)
    assert set(found.dags) == {"nightly_good"}
    assert "led_astray.toml, which is in a folder of the system" in found.import_errors["led_astray.py"]
    with database.connect_dsn(postgres_dsn, database.DSN_SETTING).begin() as connection:
        assert connection.exec_driver_sql("select name from schedule_versions").scalars().all() == ["good"]


def test_a_version_follows_from_the_contents_alone_and_is_stored_before_airflow_knows_it(
    schedules: Path, bundle: Callable[..., ScheduleBundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    (schedules / "bytes.toml").write_bytes(b'\xff\x00 = """\r\n')  # no TOML, and no text
    written(schedules, name="other")
    here, there = bundle(), bundle(machine="another")
    for ours in (here, there):
        ours.refresh()
    assert here.get_current_version() == there.get_current_version()
    assert list(dags_of(here).import_errors) == ["bytes.py"]
    before = here.get_current_version()
    written(schedules, name="other", hours="3")
    monkeypatch.setenv("TOOLFORMER_DATABASE_DSN", "postgresql://nobody@127.0.0.1:1/none")
    load_settings.cache_clear()
    with pytest.raises(DatabaseError):
        here.refresh()
    assert here.get_current_version() == before
    assert dags_of(here).dags["nightly_other"].dagrun_timeout == dt.timedelta(hours=24)


def test_a_night_has_the_tasks_of_annotate_corpus(local_dags: dict[str, DAG]) -> None:
    dag, by_hand = made(), local_dags["annotate_corpus"]
    assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == {
        task.task_id: task.downstream_task_ids for task in by_hand.tasks
    }


@pytest.mark.parametrize("preset", ["paper", "small_model"])
def test_what_a_file_sets_beside_the_form_is_in_its_form_and_in_its_run(preset: str) -> None:
    sections = f'[run]\npreset = "{preset}"\nplacebos = 1\ncall_prefix = "free"\nfinetune_length = 256\n'
    params = made(sections).params.validate()
    beside = {"placebos": 1} | ({"finetune_length": 256} if preset == "paper" else {"call_prefix": "free"})
    assert set(params) - set(made().params) == set(beside)
    assert beside.items() <= params.items()
    choices = RunChoices.parse(params)
    assert (choices.placebos, choices.call_prefix, choices.finetune_length) == (1, "free", 256)
    assert choices.finetune_device_batch == 4


def test_a_night_is_what_its_file_says_and_asks_for_nothing() -> None:
    sections = '[run]\ntools = ["MT"]\nevaluation_data = "s3://data"\nkeep_thresholds = {MT = 0.9}\n'
    sections += f"{NOTIFY}every_morning = true\n"
    dag = made(sections, hours="2.5", owner='"data-team"', accept_shrink="true")
    params = dag.params.validate()
    assert (params["corpus"], params["model"]) == ("s3://corpora/posts", "models/m")
    assert (params["tools"], params["evaluation_data"], params["keep_threshold_MT"]) == (["MT"], "s3://data", 0.9)
    assert params["seed"] == 0
    assert (dag.max_active_runs, dag.catchup, dag.is_paused_upon_creation) == (1, False, False)
    assert dag.dagrun_timeout == dt.timedelta(hours=2.5)
    assert {task.owner for task in dag.tasks} == {"data-team"}
    assert "--accept-shrink" in dag.get_task("ingest").arguments
    assert "--accept-shrink" not in made().get_task("ingest").arguments
    # Nothing is left to the DAG processor.
    assert (bool(dag.on_failure_callback), bool(dag.on_success_callback)) == (False, False)
    for words in ('tools = ["MT"]', "**How to trigger.**", "**What it costs.**", "**When it is red.**"):
        assert words in (dag.doc_md or "")


def test_runs_of_two_schedules_at_the_same_minute_have_different_ids() -> None:
    from airflow.sdk.definitions._internal.templater import SandboxedEnvironment

    start = made().get_task("start_run")
    template = SandboxedEnvironment().from_string(start.arguments[3])
    run_id = "scheduled__2026-11-22T02:00:00+00:00"
    rendered = [
        template.render(dag=SimpleNamespace(dag_id=dag_id), run_id=run_id) for dag_id in ("nightly_a", "nightly_b")
    ]
    assert rendered == [f"nightly_a.{run_id}", f"nightly_b.{run_id}"]
    assert template.render(dag=SimpleNamespace(dag_id="annotate_corpus"), run_id=run_id) == run_id


# When it starts


def dates(dag: DAG, monkeypatch: pytest.MonkeyPatch, start: pendulum.DateTime, minutes: range) -> list[str]:
    """The local times of the runs that a scheduler makes, which looks at these minutes after `start`, and parses each time."""
    clock, runs, last = coerce_to_core_timetable(dag.timetable), [], None
    for minute in minutes:
        now = start.add(minutes=minute)
        monkeypatch.setattr(trigger, "utcnow", lambda now=now: now)
        coming = clock.next_dagrun_info(
            last_automated_data_interval=last, restriction=TimeRestriction(earliest=None, latest=None, catchup=False)
        )
        if coming.run_after <= now:
            runs.append(coming.run_after.in_timezone("Europe/Berlin").format("YYYY-MM-DD HH:mm"))
            last = coming.data_interval
    return runs


@pytest.mark.parametrize("hour", [1, 2, 3])
@pytest.mark.parametrize(("month", "day"), [(10, 25), (3, 29)])
def test_a_night_on_which_clocks_change_has_one_run(
    monkeypatch: pytest.MonkeyPatch, hour: int, month: int, day: int
) -> None:
    dag = made(cron=f'"30 {hour} * * *"', time_zone='"Europe/Berlin"')
    start = pendulum.datetime(2026, month, day, tz="Europe/Berlin").subtract(days=1)
    runs = dates(dag, monkeypatch, start, range(0, 3 * 24 * 60, 15))
    assert len({run[:10] for run in runs}) == len(runs) == 3
    assert [run[8:10] for run in runs] == [f"{day + offset:02}" for offset in (-1, 0, 1)]


def test_after_a_week_without_a_scheduler_the_last_missed_date_is_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dag = made(time_zone='"Europe/Berlin"')
    start = pendulum.datetime(2026, 6, 1, 1, 59, tz="Europe/Berlin")
    before, off = range(0, 10), 7 * 24 * 60 + 60
    runs = dates(dag, monkeypatch, start, [*before, *range(off, off + 20)])
    assert runs == ["2026-06-01 02:00", "2026-06-08 02:00"]


LATE = "the run for 2026-06-01 02:00:00+00:00 started when 2026-06-02 02:00:00+00:00 was due, too: its run does the work of both."


@pytest.mark.parametrize("after", ["[]", '["wiki_index"]'])
@pytest.mark.parametrize(
    ("days_late", "run", "tries", "is_skipped"),
    [
        (0.0, {}, 1, False),
        (0.99, {}, 1, False),
        (1.0, {}, 1, True),
        (7.2, {}, 1, True),
        # Somebody wants it.
        (3.0, {"clear_number": 1}, 1, False),
        (3.0, {"run_type": "asset_triggered"}, 1, False),
        (3.0, {"run_type": "manual"}, 1, False),
        (3.0, {}, 2, False),  # a retry
    ],
)
def test_a_scheduled_run_is_skipped_if_the_next_is_due_and_its_note_says_why(
    monkeypatch: pytest.MonkeyPatch,
    days_late: float,
    run: Any,
    tries: int,
    is_skipped: bool,
    after: str,
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(annotation_dag, "set_note", lambda context, text: notes.append(text))
    date = pendulum.datetime(2026, 6, 1, 2)
    start = date.add(hours=days_late * 24)
    found = {"run_type": "scheduled", "run_after": date, "start_date": start, "clear_number": 0} | run
    context: Any = {"dag": made(after=after), "dag_run": SimpleNamespace(**found)}
    context["ti"] = SimpleNamespace(try_number=tries)
    if is_skipped:
        with pytest.raises(AirflowSkipException, match=re.escape(LATE)):
            skip_missed_night(context)
    else:
        skip_missed_night(context)
    assert notes == ([f"Skipped: {LATE}"] if is_skipped else [])


def test_an_asset_starts_it_alone_or_beside_the_clock() -> None:
    dag = made(after='["wiki_index", "s3://models/base"]')
    both: Any = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag)))).timetable
    assert [(type(ref).__name__, getattr(ref, "name", None) or ref.uri) for ref in both.asset_condition.objects] == [
        ("SerializedAssetNameRef", "wiki_index"),
        ("SerializedAssetUriRef", "s3://models/base"),
    ]
    assert type(both.asset_condition).__name__ == "SerializedAssetAny"
    alone = coerce_to_core_timetable(made(cron=None, after='["wiki_index"]').timetable)
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


def test_tools_without_work_are_skipped_before_their_tasks_start() -> None:
    dag = made()
    shards = ["0/2", "1/2"]
    returned, pushed = ran(
        dag, "tools_to_do", {"tools": ["Calendar"], "filter_shards": shards}, tools=["Calendar", "QA"]
    )
    assert returned == shards  # what the filters are mapped over
    assert pushed["to_do"] == ["Calendar"]
    assert pushed["skipped"] == {
        "QA.filter": "everything is done and checked",
        **{
            f"{tool}.filter": f"not asked for: tools does not name {tool}"
            for tool in ("Calculator", "WikiSearch", "MT")
        },
    }
    assert sorted(pushed["skipmixin_key"]["skipped"]) == sorted(pushed["skipped"])  # what Airflow's scheduler reads
    _, pushed = ran(dag, "tools_to_do", {"tools": list(TOOLS), "filter_shards": shards})
    assert (pushed["skipped"], "skipmixin_key" in pushed) == ({}, False)


APPROVED = dict.fromkeys(APPROVALS.values(), "not asked for: approve is none")
MODELS = {
    *APPROVALS.values(),
    "finetune",
    "finetune_without_calls",
    "evaluation.report",
    *(f"evaluation.{suite}" for suite in SUITES),
}
CHECK = "check_release"
TOO_FEW = "{} examples differ from the release that was finetuned on last; the schedule asks for 500"
NO_RELEASE = "no call was kept, so there is no release to check, and nothing to finetune on"
CHECKED = "nothing changed since run nightly_posts.before: its release 4f0c was checked then"
AFTER_A_RELEASE: list[tuple[Any, int, str, dict[str, bool], dict[str, str]]] = [
    ("4f0c", 500, "scheduled", {}, APPROVED),
    ("4f0c", 499, "scheduled", {}, dict.fromkeys(MODELS, TOO_FEW.format(499))),
    ("4f0c", 0, "manual", {}, APPROVED),
    ("4f0c", 0, "manual", {"approve": "before_finetuning"}, {"approve_publishing": "not asked for: approve is before_finetuning"}),
    ("4f0c", 500, "scheduled", {"finetune": False}, dict.fromkeys(MODELS, "not asked for: finetune is false")),
    ("4f0c", 500, "manual", {"finetune_baseline": False},
     {"finetune_without_calls": "not asked for: finetune_baseline is false", **APPROVED}),
    (None, 0, "manual", {}, dict.fromkeys({CHECK, *MODELS}, NO_RELEASE)),
    # Released and checked by an earlier run, whose finetuning may have failed.
    ("checked", 0, "scheduled", {}, {CHECK: CHECKED} | dict.fromkeys(MODELS, TOO_FEW.format(0))),
    ("checked", 500, "scheduled", {}, {CHECK: CHECKED, **APPROVED}),
]  # fmt: skip
"""The release, how many of its examples are new, who started the run, its choices, and what is skipped for which reason."""


@pytest.mark.parametrize(("release_id", "changed", "run_type", "choices", "skipped"), AFTER_A_RELEASE)
def test_a_night_starts_no_task_of_what_it_need_not_do_after_its_release(
    release_id: str | None, changed: int, run_type: str, choices: Any, skipped: dict[str, str]
) -> None:
    dag = made("[finetune]\nmin_changed_examples = 500\n")
    release = {"release_id": release_id and "4f0c", "changed_examples": changed, "unchanged_since": None}
    if release_id == "checked":
        release["unchanged_since"] = "nightly_posts.before"
    returned, pushed = ran(dag, "release", release, run_type, **choices)
    assert returned == release
    assert pushed["skipped"] == skipped
    assert set(skipped) <= dag.get_task("release").downstream_task_ids  # the scheduler skips no others
