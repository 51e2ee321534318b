"""`python -m benchmarks.database`: CPU seconds of the database's work at a size, against the aims of docs/database.md.

Makes a Postgres in a folder, ingests a corpus of generated sentences, and writes the rows of a finished run
over it by SQL: the Calculator has four calls in every document, the other four tools in every twentieth.
Then it measures, in CPU seconds of this process and of all Postgres processes together. Sampling and scoring
are a model without weights, tools answer a fixed text, and releases go nowhere: what is measured is the
database's work and this project's code around it.

Everything is a step of `measure_size`. A call that was killed is continued behind the last step that ended.
"""

import contextlib
import functools
import importlib
import itertools
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import psutil
import typer
from pydantic import SecretStr
from sqlalchemy import Engine, text

from benchmarks.progress import Progress, Size
from benchmarks.report import heading, table
from benchmarks.weightless import CALLS_PER_DOCUMENT, FolderObjects, weightless
from toolformer_ops.audit import checking
from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolformerError, UsageError, exit_code
from toolformer_ops.local import postgres
from toolformer_ops.local.accounts import tied_command
from toolformer_ops.local.ports import choose_ports
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.run_tools import Shard, load_run_tool
from toolformer_ops.stages import (
    execution,
    filtering,
    ingestion,
    placebo,
    planning,
    release,
    run_setup,
    sampling,
    scoring,
)
from toolformer_ops.storage.history import history, history_queries
from toolformer_ops.storage.machine.shared_files import replace_file
from toolformer_ops.storage.postgres import database, partitions, schema
from toolformer_ops.tools.registry import BUILT_IN_TOOLS, get_tool

logger = logging.getLogger("benchmarks.database")

TOOL = "Calculator"
NEW_IN_A_NIGHT = 1000
AIMS = {
    "whole night": "60",
    "20 best calls": "0.3",
    "threshold_counts of a run": "0.1",
    "yield_by_stage of a run": "0.1",
    "annotation_progress of a run": "0.1",
    "release": "20",
    "ingestion, 1 % new": "30",
    **dict.fromkeys(("undone: filter", "undone: sample", "undone: execute", "undone: score"), "0.1"),
}
"""CPU seconds, by the name of a figure."""
LAST_STEP = "end"
HISTORY_VIEWS = ("scored_calls", "kept_calls", "candidates", "threshold_counts")
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_wal_size": "4GB",
}

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


# CPU seconds


def cpu_seconds(server: int) -> float:
    """CPU seconds used until now by this process, the process `server`, and the children of that, those that ended included."""
    parent = psutil.Process(server)
    while True:
        of_parent = parent.cpu_times()
        own = psutil.Process().cpu_times()
        total = own.user + own.system + of_parent.user + of_parent.system
        total += of_parent.children_user + of_parent.children_system
        for child in parent.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended just now
                of_child = child.cpu_times()
                total += of_child.user + of_child.system
        # A child that ended meanwhile is counted twice or not at all: a connection that is collected as
        # garbage ends at any time.
        now = parent.cpu_times()
        if (now.children_user, now.children_system) == (of_parent.children_user, of_parent.children_system):
            return float(total)


# The database


@contextlib.contextmanager
def running_postgres(folder: Path) -> Iterator[tuple[postgres.PostgresAddress, int]]:
    """A Postgres in a folder, with the id of its process; stopped at the end."""
    password = folder / "password"
    if not password.exists():
        replace_file(password, secrets.token_urlsafe(24), mode=0o600)
    address = postgres.PostgresAddress(
        choose_ports("postgres")["postgres"], password.read_text(encoding="utf-8")
    )
    cluster = postgres.prepare_cluster(folder, address.superuser_password)
    options = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    with (folder / "postgres.log").open("ab") as log:
        process = subprocess.Popen(
            tied_command([*cluster.command(address.port), *options], "INT", cluster.account),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cluster.data.parent,
        )
    try:
        while not postgres.is_ready(address):
            if process.poll() is not None:
                raise RuntimeError(f"Postgres ended: {(folder / 'postgres.log').read_text()[-1000:]}")
            time.sleep(0.2)
        yield address, process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def write_lines(path: Path, *numbers: range) -> None:
    """Write records of generated sentences, one for each number: all texts differ."""
    with path.open("w", encoding="utf-8") as file:
        for n in itertools.chain.from_iterable(numbers):
            some, more = n % 997 + 2, n % 89 + 3
            content = (
                f"The keeper of house {n} writes a diary. There were {some} cats and {more} dogs, a total of {some + more} "
                f"animals, in the second week of {1900 + n % 120}. Nobody fed them but him, he told the {n % 31 + 1} visitors, who "
                f"came from the village by the river to see {n * 7919 % 1000003} lamps being lit. It rained, and they left."
            )
            url = f"https://example.org/{2000 + n % 20}/{n % 12 + 1:02}/{n % 28 + 1:02}/{n}"
            file.write(json.dumps({"text": content, "url": url}) + "\n")


FINISHED_ROWS = """
create temporary table members on commit drop as
    select document_id, ordinal, length(text) as characters
    from run_documents join documents using (document_id)
    where run_id = :run_id and (:every = 1 or ordinal % :every = 0)
    order by document_id;
insert into filter_decisions (filter_recipe_id, document_id, paragraph, start_char, end_char, kept, reason)
    select :filter_recipe_id, document_id, 0, 0, length(text), ordinal % :every = 0, 'benchmark'
    from run_documents join documents using (document_id) where run_id = :run_id
    on conflict do nothing;
insert into stage_ledger (stage, recipe_id, document_id, rows_written, counts, seconds)
    select 'filter', :filter_recipe_id, document_id, 1,
           jsonb_build_object('benchmark', 1, 'paragraphs', 1, 'kept', (ordinal % :every = 0)::integer), 0.001
    from run_documents where run_id = :run_id order by document_id
    on conflict do nothing;
insert into stage_ledger (stage, recipe_id, document_id, rows_written, counts, seconds)
    select stage, recipe_id, document_id, rows_written, counts, 0.1
    from members
    cross join (
        values ('sample', :sampling_recipe_id, :calls,
                jsonb_build_object('paragraphs', 1, 'positions', :calls, 'samples', :calls, 'candidates', :calls)),
               ('execute', :execution_recipe_id, 0,
                jsonb_build_object('calls', :calls, 'inputs', :calls, 'executed', 0, 'from_cache', :calls, 'with_result', :calls)),
               ('score', :scoring_recipe_id, :calls, jsonb_build_object('calls', :calls, 'scored', :calls))
    ) as done (stage, recipe_id, rows_written, counts)
    order by recipe_id, document_id;
insert into micro_batches (run_id, tool, stage, recipe_id, documents, tokens, rows_written, counts, seconds)
    select :run_id, :tool, stage, recipe_id, count(*), about_tokens(sum(characters)), 0, '{}', 0.1 * count(*)
    from members
    cross join (
        values ('sample', :sampling_recipe_id), ('execute', :execution_recipe_id), ('score', :scoring_recipe_id)
    ) as done (stage, recipe_id)
    group by stage, recipe_id, ordinal / 500;
create temporary table calls on commit drop as
    select document_id, md5(document_id::text || n || :tool)::uuid as call_id, n, 20 + 12 * n as position_char,
           (ordinal % 9973) || ' + ' || n as input, ordinal
    from members cross join generate_series(1, :calls) n;
insert into candidate_calls
    (sampling_recipe_id, call_id, document_id, paragraph, position_token, position_char, position_probability, call_input,
     call_text, input_key, effective_input, sample_count, input_only_after)
    select :sampling_recipe_id, call_id, document_id, 0, n, position_char, 0.25, input,
           :tool || '(' || input || ')', md5(input)::uuid, input, 1, false
    from calls order by document_id, call_id;
insert into call_results (tool, tool_version, input_key, input, results)
    select distinct :tool, 'benchmark', md5(input)::uuid, input, array['5'] from calls
    on conflict do nothing;
insert into call_losses
    (scoring_recipe_id, call_id, document_id, result_rank, result, loss_without_call, loss_without_result, loss_with_result,
     number_format, token_log_probabilities)
    select :scoring_recipe_id, call_id, document_id, 0, '5', 3.0, 3.25,
           3.25 - 2.6 * power(((ordinal::bigint * 7919 + n * 104729) % 1000) / 1000.0, 3), 'float32',
           array[array[-9, -8, -7, -6, -5], array[-9.5, -8.5, -7.5, -6.5, -5.5], array[-1, -2, -3, -2, -1]]::real[]
    from calls order by document_id, call_id;
drop table members;
drop table calls
"""
"""The rows of one tool of a run, as its stages would leave them; of every `every`th document calls. A run of other
sampling shares the filter's rows."""


HAS_CALLS = "select exists (select from candidate_calls where sampling_recipe_id = :sampling_recipe_id)"
OTHER_TABLES = ("documents", "corpus_documents", "release_calls", "history_documents")
SIZES = """
select name, sum(greatest(relation.reltuples, 0))::bigint as rows, sum(pg_total_relation_size(relation.oid))::bigint as bytes
from unnest(cast(:tables as text[])) with ordinality asked (name, place)
join pg_class relation
    on relation.relkind = 'r'
   and (relation.oid = cast(name as regclass) or relation.oid in (select relid from pg_partition_tree(cast(name as regclass))))
group by name, place
order by place
"""
"""Rows are those of the statistics, which were made just before."""


@dataclass
class Bench:
    """A database of a size, and what is measured in it."""

    settings: Settings
    engine: Engine
    server: int
    """Process id of its Postgres."""
    corpus: Path
    progress: Progress

    def measure(self, name: str, work: Callable[[], object]) -> None:
        """Do some work and add what it took to the figure of this name."""
        before, started = cpu_seconds(self.server), time.monotonic()
        work()
        spent = cpu_seconds(self.server) - before
        figures = self.progress.figures
        figures[name] = figures.get(name, 0.0) + spent
        logger.info("%s: %.2f CPU s, %.1f s", name, spent, time.monotonic() - started)

    def ask(self, name: str, question: str) -> None:
        """Measure a query and the reading of its rows."""

        def work() -> None:
            with self.engine.begin() as connection, database.raw_cursor(connection) as cursor:
                cursor.execute(question)
                cursor.fetchall()

        self.measure(name, work)

    def start(self, run_id: str, **choices: object) -> None:
        """Register a run over the corpus."""
        values = {
            "corpus": str(self.corpus),
            "model": "weightless",
            "tools": list(BUILT_IN_TOOLS),
            "prune_below": 0.0,
        }
        run_setup.start_run(self.settings, run_id, RunChoices.parse(values | choices))

    def finish_everything(self, run_id: str, tools: Sequence[str] = BUILT_IN_TOOLS) -> None:
        """Write the rows of the tools of a run over all documents, unless they are there."""
        for tool in tools:
            with database.transaction(self.engine) as connection:
                run = load_run_tool(connection, run_id, tool)
                sampled = {"sampling_recipe_id": run.sampling_recipe_id}
                if connection.execute(text(HAS_CALLS), sampled).scalar_one():
                    continue
                stages = ("filter", "sampling", "execution", "scoring")
                values = {f"{stage}_recipe_id": getattr(run, f"{stage}_recipe_id") for stage in stages}
                values |= {
                    "run_id": run_id,
                    "tool": tool,
                    "every": 1 if tool == TOOL else 20,
                    "calls": CALLS_PER_DOCUMENT,
                }
                for statement in FINISHED_ROWS.split(";\n"):
                    connection.execute(text(statement), values)
            logger.info("rows of %s are written", tool)
        self.vacuum()

    def vacuum(self) -> None:
        """Make what autovacuum makes in time: statistics, and maps of what all transactions see."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("vacuum analyze"))
            for parent in partitions.PARTITIONED_TABLES:
                connection.execute(text(f"analyze {parent}"))

    def measure_sizes(self) -> None:
        """Note rows and bytes of the large tables, with their partitions, indexes and long values."""
        self.vacuum()
        with self.engine.begin() as connection:
            for row in connection.execute(
                text(SIZES), {"tables": [*partitions.GROWING_TABLES, *OTHER_TABLES]}
            ):
                self.progress.sizes[row.name] = Size(rows=row.rows, bytes=row.bytes)

    def undone(self) -> None:
        """Ask each stage of a run over the same version what is undone: nothing."""
        tool = get_tool(TOOL)
        with database.transaction(self.engine) as connection:
            run = load_run_tool(connection, "same", TOOL)

        whole: dict[str, Any] = {"run": run, "shard": Shard()}
        with_model = whole | {"tool": tool, "load_model": mock.Mock()}
        stages: dict[str, Any] = {
            "filter": filtering.FilterWork(**whole, tool=tool),
            "sample": sampling.SampleWork(**with_model),
            "execute": execution.ExecuteWork(**whole, runner=mock.Mock(), time_limit_seconds=1.0),
            "score": scoring.ScoreWork(**with_model),
        }
        for stage, work in stages.items():
            with database.transaction(self.engine) as connection:
                self.measure(f"undone: {stage}", functools.partial(work.undone, connection))

    def examples(self) -> dict[str, str]:
        """By name, every example of sql/examples about the finished run."""
        questions = {}
        for path in sorted((database.SQL_DIR / "examples").glob("*.sql")):
            questions[f"example {path.stem}"] = f"select * from {schema.made_name(path.name)}('done')"  # noqa: S608
        return questions

    def views(self) -> dict[str, str]:
        """By name, every view for all of its rows."""
        questions = {}
        for path in sorted((database.SQL_DIR / "views").glob("*.sql")):
            view = path.stem.partition("_")[2]
            questions[f"view {view}"] = f"select count(shown) from (select * from {view} offset 0) as shown"  # noqa: S608
        return questions

    def view_in_history(self, view: str) -> None:
        """Ask the history for all rows of a view about the finished run, and Postgres for the same."""
        query = f"select count(shown) from (select * from {view} where run_id = 'done') as shown"  # noqa: S608
        history_queries.ask(self.settings, query)  # fetches the files
        self.measure(
            f"history: {view} of a run", functools.partial(history_queries.ask, self.settings, query)
        )
        whole = f"select count(shown) from (select * from {view} where run_id = 'done' offset 0) as shown"  # noqa: S608
        self.ask(f"{view} of a run, whole", whole)

    def example_in_history(self, example: str) -> None:
        """Ask the history an example about the finished run."""
        question = f"select * from {schema.made_name(f'{example}.sql')}('done')"  # noqa: S608
        self.measure(
            f"history: example {example}", functools.partial(history_queries.ask, self.settings, question)
        )

    def night(self, run_id: str, name: str) -> None:
        """A whole night, but for finetuning."""
        stages: dict[str, Callable[..., object]] = {
            "sample": sampling.sample_stage,
            "execute": execution.execute_stage,
            "score": scoring.score_stage,
            "placebo": placebo.placebo_stage,
        }
        self.measure(f"{name}: ingest", lambda: ingestion.ingest_corpus(self.settings, str(self.corpus)))
        self.measure(f"{name}: start", lambda: self.start(run_id))
        self.measure(f"{name}: plan", lambda: planning.tools_to_do(self.settings, run_id))
        for tool in planning.tools_to_do(self.settings, run_id).tools:
            self.measure(
                f"{name}: filter", functools.partial(filtering.filter_stage, self.settings, run_id, tool)
            )
            self.measure(
                f"{name}: plan", functools.partial(planning.plan_shards, self.settings, run_id, tool)
            )
            planned = planning.plan_shards(self.settings, run_id, tool)
            for stage, work in stages.items():
                for shard in planned:
                    self.measure(
                        f"{name}: {stage}", functools.partial(work, self.settings, run_id, tool, shard)
                    )
            self.measure(
                f"{name}: check", functools.partial(checking.check_tool, self.settings, run_id, tool)
            )
        self.measure(f"{name}: release", lambda: release.release_of_run(self.settings, run_id))
        self.measure(f"{name}: finish", lambda: run_setup.finish_run(self.settings, run_id, "success"))
        self.measure(f"{name}: history", lambda: history.write(self.settings))


def measure_size(size: int, folder: Path, progress: Progress) -> None:
    """Make a database of a size in a folder, and measure everything in it that `progress` lacks."""
    FolderObjects.folder = folder / "objects"
    with running_postgres(folder) as (address, server), weightless():
        postgres.ensure_database(address, "benchmark", postgres.SUPERUSER)
        settings = Settings(
            _env_file=None,  # type: ignore[call-arg]
            state_dir=folder / "state",
            corpus_roots=str(folder),
            database_dsn=SecretStr(address.dsn("benchmark")),
        )
        engine = database.connect(settings)
        schema.migrate(engine)
        corpus = folder / "corpus.jsonl"
        bench = Bench(settings=settings, engine=engine, server=server, corpus=corpus, progress=progress)
        # Importing Great Expectations is no work of the database.
        importlib.import_module("great_expectations")
        _finished_run(bench, size)
        _questions(bench)
        _what_is_new(bench, size)
        progress.step("rows and bytes", bench.measure_sizes)
        # Last, since they read the rows of all runs, and nothing that a stage or a page asks takes as long.
        for name, question in bench.views().items():
            progress.step(name, functools.partial(bench.ask, name, question))
        progress.step(LAST_STEP, lambda: None)
        engine.dispose()


def _finished_run(bench: Bench, size: int) -> None:
    """A corpus, and a finished run over it."""
    step, settings = bench.progress.step, bench.settings

    def ingest() -> None:
        write_lines(bench.corpus, range(size))
        bench.measure("ingestion, first", lambda: ingestion.ingest_corpus(settings, str(bench.corpus)))

    def place(tool: str) -> None:
        work = functools.partial(placebo.placebo_stage, settings, "done", tool, "0/1")
        bench.measure("placebos, first", work)

    def check(tool: str) -> None:
        bench.measure(f"check of {tool}", functools.partial(checking.check_tool, settings, "done", tool))

    def end() -> None:
        bench.measure("end of the run", lambda: run_setup.finish_run(settings, "done", "success"))

    step("corpus", ingest)
    step("run", lambda: bench.start("done"))
    step("rows of the run", lambda: bench.finish_everything("done"))
    for tool in BUILT_IN_TOOLS:
        step(f"placebos of {tool}", functools.partial(place, tool))
    for tool in BUILT_IN_TOOLS:
        step(f"check of {tool}", functools.partial(check, tool))
    step("end of the run", end)


def _questions(bench: Bench) -> None:
    """What is undone, the pages' questions, the release, every example, and the same from the history."""
    step, settings = bench.progress.step, bench.settings

    def run_page() -> None:
        bench.ask("20 best calls", f"select * from best_kept_calls('done', '{TOOL}', 20)")  # noqa: S608
        for view in ("threshold_counts", "yield_by_stage", "annotation_progress"):
            bench.ask(f"{view} of a run", f"select * from {view} where run_id = 'done'")  # noqa: S608

    def publish() -> None:
        bench.measure("release", lambda: release.release_of_run(settings, "done"))

    def write_history() -> None:
        bench.measure("history: first write", lambda: history.write(settings))

    step("second run", lambda: bench.start("same"))
    step("undone documents", bench.undone)
    step("run page", run_page)
    step("release", publish)
    for name, question in bench.examples().items():
        step(name, functools.partial(bench.ask, name, question))
    step("history", write_history)
    for view in HISTORY_VIEWS:
        step(f"history: {view}", functools.partial(bench.view_in_history, view))
    for example in history_queries.EXAMPLES:
        step(f"history: {example}", functools.partial(bench.example_in_history, example))


def _what_is_new(bench: Bench, size: int) -> None:
    """A night with new documents, one without, and 1 % new lines."""
    step, settings = bench.progress.step, bench.settings
    in_the_night = range(size, size + NEW_IN_A_NIGHT)

    def night() -> None:
        write_lines(bench.corpus, range(size), in_the_night)
        bench.night("night", "night")

    def ingest() -> None:
        write_lines(bench.corpus, range(size), in_the_night, range(2 * size, 2 * size + size // 100))
        bench.measure("ingestion, 1 % new", lambda: ingestion.ingest_corpus(settings, str(bench.corpus)))

    step("night", night)
    step("night without news", lambda: bench.night("no-news", "night without news"))
    step("1 % new", ingest)


def report(measured: Mapping[int, Progress]) -> str:
    """The figures by size as Markdown, with the aims for 1,000,000 documents, and what the tables take."""
    figures = {size: dict(progress.figures) for size, progress in measured.items()}
    for seconds in figures.values():
        seconds["whole night"] = sum(value for name, value in seconds.items() if name.startswith("night: "))
    rows = []
    for name in dict.fromkeys(itertools.chain.from_iterable(figures.values())):
        row = {"what": name, "aim": AIMS.get(name, "")}
        for size, seconds in figures.items():
            row[f"{size:,} documents"] = f"{seconds.get(name, 0.0):,.2f}"
        rows.append(row)
    tables = []
    for name in next(iter(measured.values())).sizes:
        row = {"table": name}
        for size, progress in measured.items():
            row[f"{size:,} documents: rows"] = f"{progress.sizes[name].rows:,}"
            row["MB" if len(measured) == 1 else f"{size:,}: MB"] = f"{progress.sizes[name].bytes / 1e6:,.1f}"
        tables.append(row)
    parts = [
        f"CPU seconds of client and Postgres, measured on {heading()}\n\n{table(rows)}",
        f"Rows and bytes behind it, with indexes\n\n{table(tables)}",
    ]
    for size, progress in measured.items():
        if progress.repeated:
            steps = ", ".join(progress.repeated)
            parts.append(
                f"{size:,} documents: killed and continued, so that what was done before lacks in: {steps}."
            )
    return "\n\n".join(parts)


@app.command()
def bench_database(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Where to make the databases; 15 GB for 1,000,000 documents, removed at the end."
        ),
    ],
    size: Annotated[
        str, typer.Option(help="Numbers of documents, with commas between them.")
    ] = "5000,100000,1000000",
) -> None:
    """Measure the database and print the table.

    The folder keeps SIZE.json with what was measured: the same command continues what was killed, and prints
    what was measured to its end. Remove the file to measure anew.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logger.setLevel(logging.INFO)
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    measured = {}
    for documents in [int(number) for number in size.split(",")]:
        place = folder / str(documents)
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o755)  # Postgres enters as another user where this runs as root
        progress = Progress.read(folder / f"{documents}.json")
        data = postgres.cluster_of(place).data
        is_whole = LAST_STEP in progress.ended
        if progress.ended and not is_whole and not data.exists():
            raise UsageError(
                f"{progress.file}: expected the database of these figures in {data}, found none. "
                "Remove the file to measure anew."
            )
        if not is_whole:
            with contextlib.redirect_stdout(sys.stderr):  # Great Expectations prints
                measure_size(documents, place, progress)
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(data.parent, ignore_errors=True)  # elsewhere, where Postgres cannot enter the first
        measured[documents] = progress
    typer.echo(report(measured))


if __name__ == "__main__":
    try:
        app()
    except ToolformerError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message is the remedy
        sys.exit(exit_code(error))
