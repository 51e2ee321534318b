"""Retention as a policy: the newest releases and models stay, and what is needed; the rest goes if told."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.annotated_runs import STAGES, AnnotatedRun, recipe_id, register_run, register_tool, release
from toolformer_ops.__main__ import app
from toolformer_ops.airflow_tasks.nights import retention as airflow_retention
from toolformer_ops.airflow_tasks.nights.retention import clean_airflow
from toolformer_ops.config import Settings
from toolformer_ops.storage.history.retention_policy import Policy, follow, outdated
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database

TEXTS = tuple(f"Out of 1400 people, 400 passed, that is 29 % of night {night}." for night in range(3))
OLD, NEW = "00000000000000aa", "00000000000000bb"
KEEPS_ONE = Policy(older_than_days=30, releases=1, models=1, in_history=False, schedules=None)


class Nights(AnnotatedRun):
    """Three nights over one corpus, a day apart, each with a release of its own, all a year ago."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, {"Calculator": 0.5}, "night-0")
        self.releases = [self.add_night(0)]
        for night in (1, 2):
            [[parameters]] = self.rows(
                "select parameters::text from annotation_runs where run_id = 'night-0'"
            )
            with database.transaction(self.engine) as connection:
                register_run(
                    connection, f"night-{night}", self.corpus_id, "file:///corpora/night-0", ["Calculator"],
                    parameters, model_identity="no-such-model@1", limit=None,
                )  # fmt: skip
                register_tool(
                    connection, f"night-{night}", "Calculator",
                    {stage: recipe_id(stage, "Calculator") for stage in STAGES},
                    keep_threshold=0.5, prune_below=0.0, reads_record=False,
                )  # fmt: skip
            self.releases.append(self.add_night(night))
        self.change("update annotation_runs set state = 'success'")
        for table, column in (("annotation_runs", "started_at"), ("run_releases", "released_at")):
            age = "interval '1 year' - interval '1 day' * right(run_id, 1)::int"
            self.change(f"update {table} set {column} = now() - ({age})")
        self.change("update annotation_runs set finished_at = started_at, numbers_stored_at = started_at")

    def add_night(self, night: int) -> str:
        document = self.add_text(TEXTS[night])
        self.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=1.25)
        self.complete("Calculator", documents=[document])
        return release(self.settings, f"night-{night}")

    def add_model(self, night: int, model_id: str, age_days: int = 300) -> None:
        """A finetuned model of a night."""
        self.change(
            "insert into finetuned_models (model_id, release_id, run_id, uri, manifest_sha256) "
            "values (:model, :release, :run, :uri, '')",
            model=model_id, release=self.releases[night], run=f"night-{night}",
            uri=f"s3://{self.settings.s3_bucket}/models/{model_id}",
        )  # fmt: skip
        self.change(
            "insert into run_models (run_id, model_id, published_at) "
            "values (:run, :model, now() - make_interval(days => :age))",
            run=f"night-{night}", model=model_id, age=age_days,
        )  # fmt: skip

    def outdated(self, policy: Policy = KEEPS_ONE) -> list[str]:
        with database.transaction(self.engine) as connection:
            return sorted(item.publication_id for item in outdated(connection, policy))


write = Nights


@pytest.fixture
def nights(settings, written):
    return written.value.in_copy(settings)


def test_all_but_the_newest_releases_are_outdated(nights):
    assert nights.outdated() == sorted(nights.releases[:2])


def test_without_a_number_all_releases_stay(nights):
    assert nights.outdated(Policy(30, 0, 0, in_history=False, schedules=None)) == []


NEEDED: dict[str, str] = {
    "made lately": "update run_releases set released_at = now() - interval '3 days' where run_id <> 'night-1'",
    "at work": "update annotation_runs set state = 'running', finished_at = null where run_id = 'night-0'",
    "chained": "update annotation_runs set chained_release_id = :release where run_id = 'night-2'",
    "of another schedule": "update annotation_runs set schedule = 'posts' where run_id = 'night-0'",
    "judged": "insert into judgements (submission_id, release_id, seed, tool, document_id, call_id, scoring_recipe_id, "
    "is_placebo, reviewer, verdict) select gen_random_uuid(), :release, 1, tool, document_id, call_id, scoring_recipe_id, "
    "false, 'ann', 'useful' from release_calls where release_id = :release limit 1",
}


@pytest.mark.parametrize("change", NEEDED.values(), ids=NEEDED)
def test_a_release_that_is_needed_stays(nights, change):
    parameters = {"release": nights.releases[0]} if ":release" in change else {}
    nights.change(change, **parameters)
    assert nights.outdated() == [nights.releases[1]]


def test_the_release_of_a_model_that_stays_stays(nights):
    nights.add_model(0, OLD)
    assert nights.outdated() == [nights.releases[1]]


def test_an_old_model_goes_with_its_release(nights):
    nights.add_model(0, OLD, age_days=301)
    nights.add_model(2, NEW)
    assert nights.outdated() == sorted([*nights.releases[:2], OLD])


def test_a_model_that_a_run_names_stays(nights):
    nights.add_model(0, OLD, age_days=301)
    nights.add_model(2, NEW)
    nights.change(
        "update annotation_runs set parameters = parameters || cast(:parameters as jsonb) where run_id = 'night-1'",
        parameters=json.dumps({"model": f"s3://b/models/{OLD}"}),
    )
    assert OLD not in nights.outdated()


def test_nothing_goes_unless_told(nights):
    lines = list(follow(nights.settings, KEEPS_ONE, drops=False))
    assert "0 models and 2 releases would be dropped (--yes does it)" in lines
    assert nights.rows("select count(*) from dataset_releases where withdrawn_at is null") == [(3,)]


def test_old_releases_are_withdrawn_from_s3(nights):
    lines = list(follow(nights.settings, KEEPS_ONE, drops=True))
    assert "0 models and 2 releases dropped" in lines
    store = ObjectStore(nights.settings)
    assert {key.split("/")[1] for key in store.list("releases/")} == {nights.releases[2]}


def test_a_second_time_nothing_is_left_to_do(nights):
    list(follow(nights.settings, KEEPS_ONE, drops=True))
    assert nights.outdated() == []


def test_the_command_takes_the_number_of_releases(nights):
    done = CliRunner().invoke(app, ["retention", "--releases", "2"])
    assert f"release {nights.releases[0]}: s3://" in done.stdout
    assert nights.releases[1] not in done.stdout


def test_the_stage_prints_its_report(nights):
    done = CliRunner().invoke(app, ["stage", "retention"])
    report = json.loads(done.stdout.splitlines()[-1])["report"]
    assert "recipes would be dropped (--yes does it)" in report


# Airflow's own


@pytest.fixture
def airflow(monkeypatch, tmp_path):
    """An Airflow whose logs are in the folder `logs`; what it was asked."""
    asked: list[list[str]] = []
    values = {"sql_alchemy_conn": "postgresql+psycopg2://airflow@127.0.0.1/airflow"}
    values["base_log_folder"] = str(tmp_path / "logs")

    def answer(_: object, words: list[str]) -> str:
        asked.append(words)
        return values.get(words[-1], "") + "\n"

    monkeypatch.setattr(airflow_retention, "_airflow", answer)
    return asked


def write_logs(tmp_path: Path, old: Callable[[Path], None]) -> tuple[Path, Path]:
    """An old log, and a new one of another run."""
    paths = [tmp_path / "logs" / "dag_id=a" / f"run_id={name}" / "attempt=1.log" for name in ("old", "new")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("a line")
    old(paths[0])
    old(paths[0].parent)
    return paths[0], paths[1]


def a_year_ago(path: Path) -> None:
    then = path.stat().st_mtime - 365 * 86400
    os.utime(path, (then, then))


def test_old_logs_of_airflow_go(settings, airflow, tmp_path):
    old, new = write_logs(tmp_path, a_year_ago)
    lines = list(clean_airflow(settings, 90, drops=True))
    assert (old.exists(), new.exists()) == (False, True)
    assert ": 1 files from before " in lines[-1]


def test_rows_of_airflow_go_without_an_archive(settings, airflow):
    list(clean_airflow(settings, 90, drops=True))
    [words] = [words for words in airflow if words[0] == "db"]
    assert words[:2] == ["db", "clean"]
    assert {"--yes", "--skip-archive"} < set(words)


def test_nothing_of_airflow_goes_unless_told(settings, airflow, tmp_path):
    old, _ = write_logs(tmp_path, a_year_ago)
    list(clean_airflow(settings, 90, drops=False))
    assert old.exists()
    assert [words for words in airflow if "--yes" in words] == []


@pytest.mark.parametrize("section", ["CORE", "DATABASE"])
def test_the_program_airflow_gets_no_address_that_hides_its_database(settings, monkeypatch, section):
    """Airflow sets both for a task, and takes either."""
    hidden = f"AIRFLOW__{section}__SQL_ALCHEMY_CONN"
    environments: list[Mapping[str, str]] = []

    def answer(variables: Mapping[str, str], _: list[str]) -> str:
        environments.append(variables)
        return "sqlite:////tmp/airflow.db\n"

    monkeypatch.setenv(hidden, "airflow-db-not-allowed:///")
    monkeypatch.setattr(airflow_retention, "_airflow", answer)
    list(clean_airflow(settings, 90, drops=True))
    assert [hidden in variables for variables in environments] == [False]


def test_where_airflows_database_is_hidden_the_command_is_named(settings, monkeypatch):
    monkeypatch.setattr(airflow_retention, "_airflow", lambda *_: "sqlite:////tmp/airflow.db\n")
    [line] = clean_airflow(settings, 90, drops=True)
    assert "Run `toolformer-ops retention --airflow 90 --yes` where the scheduler runs." in line
