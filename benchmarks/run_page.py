"""`python -m benchmarks.run_page`: server time of the first page of each view of a run with so many calls, against its aims.

The database is that of `benchmarks.database`, with the Calculator alone: four calls in each document. Asked through the
application itself, by one visitor, without the cache: the time from the question to the whole page, and the CPU time of this
process and Postgres in it. Two runs are asked about: one that ended, and one with another threshold that works on the same rows
and whose numbers are not stored. For that one the first answer comes before anything is counted, and the others while it is
counted or after; the counts are timed apart.
"""

import functools
import logging
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any
from unittest import mock

import typer
from airflow.api_fastapi.core_api import security
from fastapi.testclient import TestClient
from pydantic import SecretStr

import benchmarks.database
from benchmarks.database import CALLS_PER_DOCUMENT, TOOL, Bench, cpu_seconds, running_postgres, weightless, write_lines
from benchmarks.report import machine, table
from toolformer_ops.config import Settings
from toolformer_ops.local_services import postgres
from toolformer_ops.run_page import overview, reading, rights, thresholds
from toolformer_ops.run_page.app import create_app
from toolformer_ops.run_page.shown_runs import load_run
from toolformer_ops.runs.numbers import store_numbers
from toolformer_ops.stages import ingestion, release, run_setup
from toolformer_ops.storage import database, schema

logger = logging.getLogger("benchmarks.run_page")

DONE, WORKING = "done", "working"
TIMES = 11
"""How often each page is asked for; the first time counts too."""
DAG = "annotate_corpus"

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


class Allowed:
    """An auth manager that lets its only user read the DAG."""

    def is_authorized_dag(self, **_: Any) -> bool:
        """Every DAG."""
        return True

    def get_authorized_dag_ids(self, **_: Any) -> set[str]:
        """The one DAG."""
        return {DAG}


def make_runs(bench: Bench) -> None:
    """A finished run over all documents with a release, and one that works on the same rows with another threshold."""
    ingestion.ingest_corpus(bench.settings, str(bench.corpus))
    bench.start(DONE)
    bench.finish_everything(DONE)
    run_setup.finish_run(bench.settings, DONE, "success")
    logger.info("the run is finished")
    release.release(bench.settings, DONE)
    with database.transaction(bench.engine) as connection:
        store_numbers(connection, DONE)  # with what was released
    bench.start(WORKING, keep_thresholds={"Calculator": 0.75})
    release.release(bench.settings, WORKING)


def views(bench: Bench) -> dict[str, str]:
    """An address for each page that is measured."""
    [middle] = bench.sql(
        "select document_id, call_id, loss_reduction from call_losses where reason is null "
        "and scoring_recipe_id = (select scoring_recipe_id from run_tools where run_id = 'done' and tool = 'Calculator') "
        "order by loss_reduction desc offset :many limit 1",
        many=min(50 * 999, bench.size),
    )
    done, working = (f"dag_id={DAG}&run_id={run_id}" for run_id in (DONE, WORKING))
    [release] = bench.sql("select release_id from run_releases where run_id = 'done'")
    return {
        "Run": f"run?{done}",
        "Run, while it works": f"run?{working}",
        "Calls": f"calls?{done}",
        "Calls, page 1,000": f"calls?{done}&after={middle.loss_reduction}~{middle.call_id}",
        "Calls, one tool, kept": f"calls?{done}&tool=Calculator&status=kept",
        "Calls near the threshold, least saved first": f"calls?{done}&status=near&sort=least_saved",
        "Calls, kept and not released": f"calls?{done}&status=not_released",
        "Calls as in the corpus": f"calls?{done}&status=every&sort=text_order",
        "Calls that contain a word of every text": f"calls?{done}&contains=of",
        "Calls that contain a word of no text": f"calls?{done}&contains=zebra",
        "Call": f"call?{done}&tool=Calculator&document_id={middle.document_id}&call_id={middle.call_id}",
        "Thresholds": f"thresholds?{done}",
        "Thresholds, a slider moved up": f"thresholds?{done}&threshold.Calculator=1.5",
        "Thresholds, a slider moved down": f"thresholds?{done}&threshold.Calculator=0.25",
        "Thresholds, while it works": f"thresholds?{working}&threshold.Calculator=1.5",
        "Changes": f"changes?dag_id={DAG}&run_id={WORKING}&before={DONE}",
        "Corpora and releases": "corpora",
        "Review": f"review?release={release.release_id}",
        "Review, a call": f"judge?release={release.release_id}&seed=7",
    }


def measure(bench: Bench) -> list[dict[str, str]]:
    """The median and the largest time of each page, in milliseconds."""

    async def user() -> Any:
        return SimpleNamespace(get_name=lambda: "benchmark")

    rows = []

    def ask(name: str, question: Callable[[], object], times: int = TIMES) -> None:
        milliseconds, cpu = [], []
        for _ in range(times):
            spent, started = cpu_seconds(bench.server), time.monotonic()
            question()
            milliseconds.append(1000 * (time.monotonic() - started))
            cpu.append(1000 * (cpu_seconds(bench.server) - spent))
        figures = {
            "median, ms": statistics.median(milliseconds),
            "maximum, ms": max(milliseconds),
            "CPU, median, ms": statistics.median(cpu),
        }
        rows.append({"page": name} | {figure: f"{value:,.0f}" for figure, value in figures.items()})
        logger.info("%s", rows[-1])

    with (
        mock.patch.object(security, "get_auth_manager", Allowed),
        mock.patch.object(rights, "get_auth_manager", Allowed),
        mock.patch("airflow.models.dag.DagModel.get_team_name", return_value=None),
        mock.patch.object(reading.Reader, "_keep"),
    ):
        application = create_app(bench.settings)
        application.dependency_overrides[security.get_user] = user
        with TestClient(application) as client:

            def get(address: str) -> None:
                answer = client.get(f"/{address}")
                if answer.status_code != 200:
                    raise RuntimeError(f"{address}: expected a page, found {answer.status_code}: {answer.text[:500]}")

            for name, address in views(bench).items():
                ask(name, functools.partial(get, address))
        # What is counted beside the pages.
        with application.state.reader.engine().connect() as connection:
            database.execute(connection, "page_time_limit", milliseconds=f"{1000 * reading.SECONDS_TO_COUNT:.0f}ms")
            working = load_run(connection, rights.AskedRun(DAG, WORKING, "benchmark"))
            asked = {"run_id": WORKING, "before_run_id": DONE, "reason": None, "change": None}
            first = {"after_document_id": str(uuid.UUID(int=0)), "after_position": -1, "at_most": 101}
            ask("counting the run that works", lambda: overview.count_numbers(connection, working), 3)
            ask("counting for its sliders", lambda: thresholds.load_counts(connection, working), 3)
            ask("comparing two releases", lambda: database.fetch_all(connection, "page_changes", **asked, **first), 3)
    return rows


@app.command()
def bench_run_page(
    calls: Annotated[int, typer.Option(help="Calls of the Calculator.")] = 1_000_000,
    folder: Annotated[Path | None, typer.Option(help="Where to make the database; 3 GB for 1,000,000 calls.")] = None,
) -> None:
    """Measure the pages and print the table."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logger.setLevel(logging.INFO)
    logging.getLogger("benchmarks.database").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory(prefix="bench-run-page-", dir=folder) as directory:
        place = Path(directory)
        place.chmod(0o755)  # Postgres enters as another user where this runs as root
        alone = mock.patch.object(benchmarks.database, "PAPER_TOOLS", (TOOL,))
        with running_postgres(place) as (address, server), weightless(), alone:
            passwords = dict.fromkeys(
                (postgres.OWNER, postgres.READER, postgres.PAGE, postgres.AIRFLOW), "of-benchmark"
            )
            postgres.ensure_roles(address, passwords)
            postgres.ensure_database(address, "benchmark", postgres.OWNER)
            postgres.allow_reader(address, "benchmark")
            settings = Settings(
                _env_file=None,  # type: ignore[call-arg]
                state_dir=place / "state",
                database_dsn=SecretStr(address.dsn("benchmark", postgres.OWNER, passwords[postgres.OWNER])),
                reader_dsn=SecretStr(address.dsn("benchmark", postgres.PAGE, passwords[postgres.PAGE])),
            )
            engine = database.connect(settings)
            schema.migrate(engine)
            documents = calls // CALLS_PER_DOCUMENT
            bench = Bench(
                settings=settings, engine=engine, server=server, size=documents, corpus=place / "corpus.jsonl"
            )
            write_lines(bench.corpus, range(documents))
            make_runs(bench)
            rows = measure(bench)
            engine.dispose()
    about = machine()
    what = f"{calls:,} calls; {TIMES} times each"
    load = f"{about['processor']}, {about['cores']} cores, load {about['load_a_minute']}"
    typer.echo(f"Measured on {about['date']}, {load}; {what}.\n\n{table(rows)}")


if __name__ == "__main__":
    app()
