"""`python -m benchmarks.growth`: how much more each example and each view reads when the corpus has four times the texts.

A query that takes a second on a thousand texts and sixteen on four thousand takes half an hour on a hundred
thousand, and no look at a small database shows it. So every file of `sql/examples`, about a finished run and
about one at work, and every view, whole and of these runs, is asked on two databases, and what
`explain (analyze, buffers)` counts is compared: rows that the nodes of the plan handle, and pages that they
look at. No clock is read. Counts of pages hold the statements inside of functions, too; counts of rows do
not. A plan changes with the size: what is straight up to 4,000 texts may be bent at 40,000, which
`--sizes=10000,40000` shows.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class
from pydantic import SecretStr
from sqlalchemy import Engine, inspect, text

from benchmarks.database import Bench, running_postgres, write_lines
from benchmarks.progress import Progress
from benchmarks.report import table
from benchmarks.weightless import weightless
from toolformer_ops.config import Settings
from toolformer_ops.errors import EXIT_NO_RESULT
from toolformer_ops.local import postgres
from toolformer_ops.stages import ingestion, release, run_setup
from toolformer_ops.storage.postgres import database, partitions, schema
from toolformer_ops.tools.registry import BUILT_IN_TOOLS

TOLERANCE = 1.5
"""A query may read this many times more than in proportion: plans change with the size, and trees get a level."""
FREE_ROWS = 2_000
"""So many rows or pages say nothing about growth."""
COMPUTED = ("result_follows",)
"""Columns that follow from others of their row and read nothing: they would take most of the time."""
FINISHED, AT_WORK, CHAINED = "done", "open", "chained"
"""The runs: the numbers of the first are stored, those of the others are counted by the views."""
CHAINED_TOOL = "Calendar"

MORE_ROWS = """
insert into recipes (recipe_id, stage, tool, parent_recipe_id, definition)
    select :placebo_recipe_id, 'placebo', :tool, :scoring_recipe_id, '{}';
insert into placebo_pools
    (placebo_recipe_id, scoring_recipe_id, corpus_id, placebos, placebo_sample, documents, calls, sample_share)
    select :placebo_recipe_id, :scoring_recipe_id, corpus_id, 2, 1000000, 1, 1, 1 from annotation_runs where run_id = :run_id;
insert into placebo_pool_results (placebo_recipe_id, source, call_id, document_id, result)
    select :placebo_recipe_id, row_number() over (order by call_id) - 1, call_id, document_id, '6'
    from call_losses where scoring_recipe_id = :scoring_recipe_id order by call_id limit 1000;
insert into placebo_losses
    (placebo_recipe_id, document_id, call_id, number, source, is_sampled, loss_with_result, reduction_bound,
     information, gain)
    select :placebo_recipe_id, document_id, call_id, number, 0, number = 1, 2.75, loss_without_call - 2.75,
           2.75 - loss_with_result, 0
    from call_losses cross join generate_series(1, 2) number where scoring_recipe_id = :scoring_recipe_id;
insert into call_information (placebo_recipe_id, document_id, call_id, placebo_reduction, information, placebos)
    select placebo_recipe_id, document_id, call_id, avg(reduction), avg(information), count(*)
    from placebo_losses where placebo_recipe_id = :placebo_recipe_id group by 1, 2, 3;
update run_tools set placebo_recipe_id = :placebo_recipe_id where scoring_recipe_id = :scoring_recipe_id;
insert into lost_samples (sampling_recipe_id, document_id, sample_key, paragraph, position_char, reason, sample_text, sample_count)
    select sampling_recipe_id, document_id, call_id, 0, position_char, 'sample_without_end', 'Calculator(', 1
    from candidate_calls where sampling_recipe_id = :sampling_recipe_id;
insert into failed_documents (recipe_id, document_id, stage, tool, reason, deaths, run_id)
    select recipe_id, document_id, 'score', :tool, 'process_killed', 3, :run_id
    from stage_ledger where recipe_id = :scoring_recipe_id and document_id::text < '2'
"""
"""Of a tool of the finished run, what `benchmarks.database` does not write."""
RELEASED_ROWS = """
insert into run_overlaps (run_id, document_id, suite, data_set, question, words, shared_ngrams, is_left_out)
    select run_id, document_id, 'math', 'gsm8k', 1, 'cats dogs', 1, false from run_documents where run_id = :done;
insert into judgements
    (submission_id, release_id, seed, tool, document_id, call_id, scoring_recipe_id, is_placebo, reviewer, verdict)
    select call_id, release_id, 1, tool, document_id, call_id, scoring_recipe_id, false, 'ann', 'useful' from release_calls;
insert into corpus_spare_records (corpus_id, file_uri, line, document_id, why)
    select corpus_id, file_uri, line, document_id, 'same_id_later' from corpus_documents;
insert into rejected_documents (corpus_id, file_uri, line, reason)
    select corpus_id, file_uri, line, 'same_id_later' from corpus_documents;
update annotation_runs set chained_release_id = (select release_id from run_releases where run_id = :done)
    where run_id = :chained;
insert into chained_texts (release_id, document_id, source_document_id)
    select run.chained_release_id, member.document_id, member.document_id
    from annotation_runs run join run_documents member using (run_id) where run.run_id = :chained;
update candidate_calls set parent_call = 0
    where sampling_recipe_id in (select sampling_recipe_id from run_tools where run_id = :chained)
"""


@dataclass(frozen=True)
class Question:
    """A query that a person asks."""

    name: str
    statement: str


@dataclass(frozen=True)
class Reading:
    """What a query reads, as Postgres counts it."""

    rows: int
    """Rows that the nodes of its plan return or throw away, each as often as the node is run."""
    pages: int
    """Pages of 8 kB that are looked at, those of temporary files included."""
    returned: int
    """Rows of its answer."""


@dataclass(frozen=True)
class Growth:
    """A query on the small and on the large corpus."""

    name: str
    small: Reading
    large: Reading
    texts: float
    """How many times as many texts the large corpus has."""

    @property
    def is_steep(self) -> bool:
        """Whether rows or pages grow faster than the texts.

        A page a row is no growth: to look each row up in an index is a plan as straight as to read a table once.
        """
        most = self.texts * TOLERANCE
        return (
            self.large.rows > most * self.small.rows + FREE_ROWS
            or self.large.pages > most * max(self.small.pages, self.small.rows) + FREE_ROWS
        )

    def row(self) -> dict[str, object]:
        """The cells of a table."""
        return {
            "query": self.name,
            "rows": self.small.rows,
            "rows of the larger": self.large.rows,
            "pages": self.small.pages,
            "pages of the larger": self.large.pages,
            "": "too steep" if self.is_steep else "",
        }


def questions(engine: Engine) -> list[Question]:
    """Every example about two runs, and every view of the database whole and of each of them."""
    runs = (FINISHED, AT_WORK)
    asked = []
    for path in sorted((database.SQL_DIR / "examples").glob("*.sql")):
        name = schema.made_name(path.name)
        for run in runs:
            asked.append(Question(f"example {path.stem} {run}", f"select * from {name}('{run}')"))  # noqa: S608
    catalog = inspect(engine)
    for view in sorted(catalog.get_view_names()):
        columns = [column["name"] for column in catalog.get_columns(view)]
        shown = ", ".join(column for column in columns if column not in COMPUTED)
        asked.append(Question(f"view {view}", f"select {shown} from {view}"))  # noqa: S608
        if "run_id" in columns:
            for run in runs:
                statement = f"select {shown} from {view} where run_id = '{run}'"  # noqa: S608
                asked.append(Question(f"view {view} {run}", statement))
    return asked


def read(cursor: Cursor, statement: str) -> Reading:
    """Run a query and count what it reads."""
    cursor.execute("explain (analyze, buffers, timing off, format json) " + statement)
    [[[explained]]] = cursor.fetchall()
    plan = explained["Plan"]
    blocks = [
        number for name, number in plan.items() if name.endswith((" Hit Blocks", " Read Blocks"))
    ]  # of the node and all below it
    return Reading(
        rows=round(sum(_rows_of_nodes(plan))), pages=sum(blocks), returned=round(plan["Actual Rows"])
    )


def _rows_of_nodes(plan: Mapping[str, Any]) -> Iterator[float]:
    each_time = plan["Actual Rows"] + sum(
        number for name, number in plan.items() if name.startswith("Rows Removed by ")
    )
    yield each_time * plan["Actual Loops"]
    for child in plan.get("Plans", ()):
        yield from _rows_of_nodes(child)


def read_all(engine: Engine, questions: Sequence[Question]) -> dict[str, Reading]:
    """What each query reads, by its name; in one process, so that the counts are the same each time."""
    with engine.begin() as connection, database.raw_cursor(connection) as cursor:
        cursor.execute("set local max_parallel_workers_per_gather = 0; set local jit = off")
        return {question.name: read(cursor, question.statement) for question in questions}


def fill(settings: Settings, engine: Engine, corpus: Path, texts: int) -> None:
    """Write a corpus of so many texts and three runs over it, with rows in every view."""
    progress = Progress(corpus.with_suffix(".json"))
    bench = Bench(settings=settings, engine=engine, server=os.getpid(), corpus=corpus, progress=progress)
    write_lines(corpus, range(texts))
    with weightless():
        # 1. A run that has finished, with a release.
        ingestion.ingest_corpus(settings, str(corpus))
        bench.start(FINISHED)
        bench.finish_everything(FINISHED)
        release.release_of_run(settings, FINISHED)
        for tool in BUILT_IN_TOOLS:
            _write_more(engine, tool)
        run_setup.finish_run(settings, FINISHED, "success")
        # 2. One at work under the same recipes, and one with chains.
        bench.start(AT_WORK)
        bench.start(CHAINED, tools=[CHAINED_TOOL], temperature=0.5)
        bench.finish_everything(CHAINED, [CHAINED_TOOL])
    with database.transaction(engine) as connection:
        for statement in RELEASED_ROWS.split(";\n"):
            connection.execute(text(statement), {"done": FINISHED, "chained": CHAINED})
    bench.vacuum()


def _write_more(engine: Engine, tool: str) -> None:
    with database.transaction(engine) as connection:
        [recipes] = connection.execute(
            text("select * from run_tools where run_id = :run_id and tool = :tool"),
            {"run_id": FINISHED, "tool": tool},
        )
        placebo_recipe_id = recipes.scoring_recipe_id[::-1]
        partitions.ensure_partitions(connection, "placebo", placebo_recipe_id)
        values = recipes._asdict() | {"placebo_recipe_id": placebo_recipe_id}
        for statement in MORE_ROWS.split(";\n"):
            connection.execute(text(statement), values)


def grown(small: Engine, large: Engine, texts: float) -> list[Growth]:
    """Every question on two databases that `fill` filled; the second has `texts` times as many texts."""
    asked = questions(small)
    of_small, of_large = read_all(small, asked), read_all(large, asked)
    return [
        Growth(name=question.name, small=of_small[question.name], large=of_large[question.name], texts=texts)
        for question in asked
    ]


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def compare(
    sizes: Annotated[str, typer.Option(help="Two numbers of texts, with a comma between.")] = "1000,4000",
) -> None:
    """Print what each example and view reads at two sizes; exit 3 if one grows faster than the texts."""
    small, large = (int(size) for size in sizes.split(","))
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as directory:
        folder = Path(directory)
        folder.chmod(0o755)  # Postgres enters as another user where this runs as root
        with running_postgres(folder) as (address, _):

            def filled(texts: int) -> Engine:
                name = f"texts_{texts}"
                postgres.ensure_database(address, name, postgres.SUPERUSER)
                settings = Settings(
                    _env_file=None,  # type: ignore[call-arg]
                    state_dir=folder / "state",
                    database_dsn=SecretStr(address.dsn(name)),
                )
                engine = database.connect(settings)
                schema.migrate(engine)
                fill(settings, engine, folder / f"{name}.jsonl", texts)
                return engine

            found = grown(filled(small), filled(large), large / small)
    typer.echo(table([growth.row() for growth in found]))
    if any(growth.is_steep for growth in found):
        raise typer.Exit(EXIT_NO_RESULT)


if __name__ == "__main__":
    app()
