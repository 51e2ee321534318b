"""The embedded services, a small corpus and a tiny model that writes calls, for tests of whole DAG runs."""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest
from sqlalchemy import text as sql

from tests.servers import directory_in_memory
from tests.system.writing_model import save_model_that_writes_calls
from toolformer_ops.config import STATE_DIR_VARIABLE, Settings, load_settings
from toolformer_ops.local_services.airflow_client import ENDED_STATES, AirflowClient
from toolformer_ops.local_services.lifecycle import delete_state, up
from toolformer_ops.local_services.state_folder import write_environment
from toolformer_ops.storage import database

RECORDS = (
    {
        "text": "The shop had 520 shirts and sold 187 of them, so it has 333 left.",
        "url": "https://shop.example/2023/01/30/x",
    },
    {
        "text": "We sold 31 tickets on Monday and 45 on Sunday, which is 76 in all.",
        "url": "https://x.example/2022/11/05/y",
    },
    {
        "text": "A box holds 12 eggs, so that 7 boxes hold 12 * 7 = 84 eggs.",
        "url": "https://farm.example/2021-06-14/eggs",
    },
    {"text": "Of 1400 people, 400 passed the test, and 1000 did not.", "url": "https://news.example/2020/02/29/test"},
    {"text": "This text has neither a sum nor a date in its address.", "url": "https://blog.example/about"},
)
"""Four texts for the Calculator and the Calendar, and one for neither."""
ANNOTATE = "annotate_corpus"
UNDISTURBED = "undisturbed"
SECONDS_FOR_A_RUN = 900
ROWS = {
    "candidate_calls": "select * from candidate_calls order by sampling_recipe_id, call_id",
    "call_losses": "select * from call_losses order by scoring_recipe_id, call_id",
    "stage_ledger": "select stage, recipe_id, document_id, case when stage <> 'execute' then rows_written end, "
    "counts - '{executed,from_cache}'::text[] from stage_ledger order by 1, 2, 3",
    "executed": "select recipe_id, sum(rows_written), sum((counts ->> 'executed')::integer), "
    "sum((counts ->> 'from_cache')::integer) from stage_ledger where stage = 'execute' group by 1 order by 1",
}
"""What a killed run and an undisturbed one have in common, the ledger without its times. Of documents that ask the same, the first
one executes it, and those at which a process died come last: what is executed is compared in sum."""


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The settings that lead to a Postgres, an S3 and an Airflow of the session's own, with no rows and no objects."""
    with directory_in_memory(tmp_path_factory.mktemp("services")) as folder:
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("TOOLFORMER_")]:
                patch.delenv(name)
            patch.setenv(STATE_DIR_VARIABLE, str(folder / "state"))
            load_settings.cache_clear()
            # One at a time: two that look for free ports at once find the same.
            with filelock.FileLock(Path(tempfile.gettempdir()) / "toolformer-tests-up.lock"):
                found = up(load_settings())
        try:
            yield found
        finally:
            delete_state(found)
            load_settings.cache_clear()


@pytest.fixture(scope="session")
def writing_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that writes calls of the Calculator and the Calendar."""
    return save_model_that_writes_calls(tmp_path_factory.mktemp("models") / "writing")


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`RECORDS` as JSON Lines."""
    path = tmp_path_factory.mktemp("corpus") / "small.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def airflow(services: Settings) -> Iterator[AirflowClient]:
    """Airflow's REST API, logged in."""
    with AirflowClient.of(services) as client:
        yield client


def wait_until_ended(airflow: AirflowClient, dag_id: str, run_id: str) -> str:
    """The state in which a run ended."""
    until = time.monotonic() + SECONDS_FOR_A_RUN
    while (state := airflow.run_state(dag_id, run_id)) not in ENDED_STATES:
        assert time.monotonic() < until, f"{run_id} is still {state}"
        time.sleep(1)
    return state


SUMS = 120
"""Enough texts that a kill meets a stage at work."""


@pytest.fixture(scope="session")
def sums(services: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts for the Calculator; all in one shard, of which a stage commits every second text."""
    write_environment(
        services.state_dir / "environment", {"micro_batch_documents": "2", "seconds_per_document": "0.01"}
    )
    path = tmp_path_factory.mktemp("sums") / "sums.jsonl"
    texts = [
        f"The shop had {n} shirts and sold {n // 2} of them on day {n}, so it has {n - n // 2} left."
        for n in range(100, 100 + SUMS)
    ]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


OF_CALLS = (
    "candidate_calls",
    "pruned_positions",
    "call_losses",
    "call_results",
    "stage_ledger",
    "filter_decisions",
    "quality_results",
    "finished_work",
    "placebo_losses",
    "placebo_counts",
    "placebo_rates",
    "placebo_pool_results",
    "placebo_pools",
)
"""What a run leaves of a text, and from which the next one knows that a tool has nothing to do."""


def annotate_anew(settings: Settings, airflow: AirflowClient, run_id: str, corpus: Path, model: Path) -> None:
    """Forget all calls, and that they passed their checks, and start a run with the Calculator.

    It has no placebos: a second process that loads the model, for rows that no test of these runs looks at.
    """
    with database.transaction(database.connect(settings)) as connection:
        connection.execute(sql(f"truncate {', '.join(OF_CALLS)}"))
    conf = {
        "corpus": str(corpus),
        "model": str(model),
        "tools": ["Calculator"],
        "sampling_threshold": 0.0,
        "max_positions": 4,
        "samples_per_position": 3,
        "max_call_tokens": 16,
        "keep_thresholds": {"Calculator": 0.0},
        "prune_below": 0.0,
        "placebos": 0,
        "placebo_sample": 0,
        "finetune": False,
    }
    airflow.open_dag(ANNOTATE)
    airflow.trigger(ANNOTATE, run_id, conf)


def rows_of_calls(settings: Settings) -> dict[str, list[list[Any]]]:
    """All rows by table, as JSON has them."""
    with database.transaction(database.connect(settings)) as connection:
        rows = {table: [list(row) for row in connection.execute(sql(query))] for table, query in ROWS.items()}
    found: dict[str, list[list[Any]]] = json.loads(json.dumps(rows, default=str))
    return found


@pytest.fixture(scope="session")
def shared_rows(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Where the workers of a session find the rows of the undisturbed run; they depend on no Airflow."""
    own = tmp_path_factory.getbasetemp()
    return (own if worker_id == "master" else own.parent) / "undisturbed.json"


@pytest.fixture(scope="session")
def undisturbed_run(
    services: Settings, airflow: AirflowClient, sums: Path, writing_model_dir: Path, shared_rows: Path
) -> dict[str, list[list[Any]]]:
    """The rows of a run of this Airflow, `UNDISTURBED`, that annotates `sums` and releases its calls."""
    annotate_anew(services, airflow, UNDISTURBED, sums, writing_model_dir)
    assert wait_until_ended(airflow, ANNOTATE, UNDISTURBED) == "success"
    rows = rows_of_calls(services)
    shared_rows.with_suffix(".part").write_text(json.dumps(rows), encoding="utf-8")
    shared_rows.with_suffix(".part").rename(shared_rows)
    return rows


@pytest.fixture(scope="session")
def undisturbed(request: pytest.FixtureRequest, shared_rows: Path) -> dict[str, list[list[Any]]]:
    """The rows of the undisturbed run, which another worker may have had."""
    if not shared_rows.exists():
        request.getfixturevalue("undisturbed_run")
    rows: dict[str, list[list[Any]]] = json.loads(shared_rows.read_text(encoding="utf-8"))
    assert rows["candidate_calls"]
    assert rows["call_losses"]
    return rows


FINETUNE = "finetune_release"
TUNING = "tuning"
PROBLEMS = 3


@pytest.fixture(scope="session")
def evaluation_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three problems of SVAMP, in its published format, and nothing else."""
    folder = tmp_path_factory.mktemp("data")
    problems = [
        {
            "Body": f"The shop had {n} shirts and sold {n // 2}.",
            "Question": "How many are left?",
            "Answer": float(n - n // 2),
        }
        for n in range(10, 10 * PROBLEMS + 1, 10)
    ]
    (folder / "svamp").mkdir()
    (folder / "svamp" / "SVAMP.json").write_text(json.dumps(problems), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tuning(services: Settings, airflow: AirflowClient, undisturbed_run: object, evaluation_data: Path) -> str:
    """The id of a run that finetunes twice and evaluates on two suites, one without data; it has just been triggered."""
    with database.transaction(database.connect(services)) as connection:
        release_id = connection.execute(
            sql("select release_id from run_releases where run_id = :run"), {"run": UNDISTURBED}
        ).scalar_one()
    conf = {
        "release": release_id, "finetune_steps": 2, "finetune_batch": 2, "finetune_device_batch": 2, "finetune_length": 64,
        "finetune_baseline": True, "evaluation_suites": ["math", "lama"], "evaluation_data": str(evaluation_data),
    }  # fmt: skip
    airflow.open_dag(FINETUNE)
    airflow.trigger(FINETUNE, TUNING, conf)
    return TUNING
