"""A tool that pip installs from a package, tests/data/word_count_tool, works in every command, the form and a DAG run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.storage import database

PACKAGE = REPOSITORY / "tests" / "data" / "word_count_tool"
TEXTS = (
    "The motto of the club has three words, and the shop had sold shirts of them on a day.",
    "Nothing here is counted, and nobody asks for it.",
    "We meet today and the film has two words in its title, so people passed the test.",
)
NUMBERS = {
    "call_prefix": "tool_name",
    "sampling_threshold": 0.0,
    "max_positions": 4,
    "samples_per_position": 3,
    "max_call_tokens": 24,
    "prune_below": 0.0,
    "keep_thresholds": {"WordCount": 0.0},
}
"""Chosen so that a model that knows nothing of the tool writes calls of it, and some are kept."""

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the package, from its source and without a network."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    run = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(PACKAGE)]
    subprocess.run(run, check=True, timeout=600)
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is found by the processes that the test starts."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(REPOSITORY), str(site))))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def python(*arguments: str, timeout: float = 600, **environment: str) -> str:
    """What a Python process prints; its errors are the test's."""
    command = [sys.executable, *arguments]
    where = {"cwd": REPOSITORY, "env": os.environ | environment}
    done = subprocess.run(command, **where, capture_output=True, text=True, timeout=timeout, check=False)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return str(done.stdout)


def toolformer_ops(*arguments: str) -> str:
    return python("-m", "toolformer_ops", *arguments)


def printed(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def test_it_is_called_in_any_capitals(installed: None) -> None:
    assert toolformer_ops("call", "WordCount", "in varietate concordia") == "3\n"
    assert toolformer_ops("call", "wordcount", "one") == "1\n"


def test_its_filter_judges_a_file(installed: None, corpus: Path) -> None:
    decisions = printed(toolformer_ops("filter", "--tool", "WordCount", str(corpus)))
    assert [(line["kept"], line["reason"]) for line in decisions] == [
        (True, "speaks_of_words"), (False, "no_word_word"), (True, "speaks_of_words"),
    ]  # fmt: skip


def test_it_annotates_a_file_in_one_process(installed: None, corpus: Path, writing_model_dir: Path) -> None:
    asked = ("--tool", "wordcount", "--model", str(writing_model_dir), "--parameters", json.dumps(NUMBERS), "--all")
    lines = printed(toolformer_ops("annotate", str(corpus), *asked))
    assert lines
    for line in lines:
        phrase = line["call"].removeprefix("WordCount(").removesuffix(")")
        assert line["result"] == str(len(phrase.split()))


def test_the_trigger_form_offers_it(installed: None, tmp_path: Path) -> None:
    program = (
        "import json; from toolformer_ops.config import load_settings; "
        "from toolformer_ops.orchestration.forms import annotation_form; "
        "print(json.dumps(annotation_form(load_settings())['tools'].schema))"
    )
    form = json.loads(python("-c", program, AIRFLOW_HOME=str(tmp_path / "airflow")).splitlines()[-1])
    assert form["examples"][-1] == form["items"]["enum"][-1] == "WordCount"


def test_a_dag_run_ends_with_its_calls_in_a_release(
    installed: None, settings: Settings, corpus: Path, writing_model_dir: Path, tmp_path: Path
) -> None:
    # `airflow dags test` runs every task of the DAG in order, without a scheduler; each stage is a process.
    airflow = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path / 'airflow.db'}",
    }
    choices = {
        **NUMBERS,
        "corpus": str(corpus),
        "model": str(writing_model_dir),
        "tools": ["WordCount"],
        "finetune": False,
    }
    python("-m", "airflow", "db", "migrate", **airflow)
    log = python(
        "-m", "airflow", "dags", "test", "annotate_corpus", "--conf", json.dumps(choices), timeout=1800, **airflow
    )
    with database.transaction(database.connect(settings)) as connection:
        [(run_id, state)] = connection.exec_driver_sql("select run_id, state from annotation_runs").all()
        assert state == "success", log[-6000:]
        calls = connection.exec_driver_sql(
            "select call_text, result from kept_calls where run_id = %(run_id)s", {"run_id": run_id}
        ).all()
        [(released,)] = connection.exec_driver_sql("select calls from dataset_releases").all()
    assert calls
    assert all(result == str(len(text.removeprefix("WordCount(").removesuffix(")").split())) for text, result in calls)
    assert 0 < released <= len(calls)
