"""The report at the end of a run: yield by tool and threshold, the best calls in their sentences, where the outputs are, a query.

Everything is read from Postgres; the query at the end is run by the read-only role, as its reader would.
"""

import os
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection, Row

from toolformer_ops.call_syntax import Call, call_with_result
from toolformer_ops.config import ENV_PREFIX, SHIPPED, Settings
from toolformer_ops.local.demo.mountains import MOUNTAINS
from toolformer_ops.runs.placebo_rates import kept_by_chance
from toolformer_ops.runs.summary import LowerThresholds
from toolformer_ops.shown_text import gained, visible
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.queries import Statement

BEST_CALLS = 5
ANSWER_ROWS = 10
CELL_CHARACTERS = 60
SENTENCE_ENDS = (". ", "! ", "? ", "\n")
WHOLE_CHARACTERS = 120
"""`kept_calls` cuts the text before and after a call at 120 characters; a shorter one is whole."""
EXAMPLES = SHIPPED / "sql" / "examples"
NEXT_QUERY = "04_where_do_calls_get_lost.sql"
"""The example that the report ends with."""
FRESH_SUM = "The library owned 845 books and gave away 312 of them, so it has"
"""A prompt to try a new model with; no text of the demo corpus is like it."""
FRESH_MOUNTAIN = "From our tent we saw Makalu, which is"
"""The prompt for a model that learned to ask the demo's database, which has this mountain; no text of the
corpus has it."""


def print_report(
    console: Console, connection: Connection, run_id: str, settings: Settings, run_url: str
) -> None:
    """Print the whole report but the query at the end. `run_url`: the run's page in Airflow's UI."""

    def rows(statement: Statement, **parameters: object) -> Sequence[Row[Any]]:
        return database.fetch_all(connection, statement, run_id=run_id, **parameters)

    # 1. how much of the work this run did
    new_work = rows(queries.demo.new_work)
    annotated, documents = sum(row.annotated_now for row in new_work), sum(row.documents for row in new_work)
    pairs = f"{documents} pairs of a document and a tool"
    if documents and not annotated:
        say(console, f"Nothing to annotate: all {pairs} were done before, under the same recipes.")
    else:
        say(console, f"Annotated {annotated} of {pairs}; the rest was done before.")

    # 2. the paper's Table 2: calls (texts) that save at least a threshold
    print_thresholds(console, rows(queries.page.thresholds), rows(queries.summary.scored_by_tool))

    # 3. the best calls, each in its sentence with the nats that it saves
    best = rows(queries.demo.best_calls, at_most=BEST_CALLS)
    shown = best or rows(queries.summary.nearest_calls, at_most=BEST_CALLS)
    if best:
        title = "The best kept calls, one a text, and what each does"
    elif shown:
        title = "No call was kept. Those that come nearest to the threshold of their tool, one a text, and what each saves"
    else:
        title = "No call was kept, and none was scored to the end: each saves less than what is pruned, or has no result."
    say(console, f"\n{title}")
    for row in shown:
        line = call_in_sentence(row)
        if console.is_terminal:
            console.print(Padding(line, (0, 0, 0, 2)))
        else:  # one line a call, however long
            say(console, f"  {line.plain}")

    if not best:
        print_lower_thresholds(console, rows(queries.summary.lower_thresholds))

    # 4. where the release, the model and the user interface are
    console.print()
    asks_mountains = any(row.tool == MOUNTAINS for row in new_work)
    print_outputs(console, rows(queries.demo.outputs), FRESH_MOUNTAIN if asks_mountains else FRESH_SUM)
    say(console, f"Run      {run_url}")
    variable = f"{ENV_PREFIX}AIRFLOW_PASSWORD"
    place = "the environment" if variable in os.environ else settings.state_dir / "environment"
    password = f"password: {variable} in {place}"
    say(console, f"Airflow  {settings.airflow_url}  (user {settings.airflow_username}, {password})")


def best_call(connection: Connection, run_id: str) -> Text | None:
    """The kept call that saves most so far, in its sentence; None as long as none is kept, or the run has not started."""
    if not database.fetch_all(connection, queries.runs.by_id, run_id=run_id):
        return None
    rows = database.fetch_all(connection, queries.demo.best_calls, run_id=run_id, at_most=1)
    return call_in_sentence(rows[0]) if rows else None


def print_thresholds(console: Console, counts: Sequence[Row[Any]], scored: Sequence[Row[Any]]) -> None:
    """Print how many calls each tool's keep rule keeps from each threshold on, of `scored` calls, and the share by chance."""
    thresholds = sorted({row.threshold for row in counts})
    table = Table("tool")
    for name in ("sampled", "scored", *(f">= {threshold:g}" for threshold in thresholds), "by chance*"):
        table.add_column(name, justify="right")
    cells = {
        (row.tool, row.threshold): f"{row.calls} ({row.texts}){'*' if row.is_keep_threshold else ' '}"
        for row in counts
    }
    by_chance = {row.tool: kept_by_chance(row) for row in counts if row.is_keep_threshold}
    for row in scored:
        kept_cells = [cells.get((row.tool, threshold), "") for threshold in thresholds]
        table.add_row(row.tool, str(row.calls), str(row.scored), *kept_cells, by_chance.get(row.tool, ""))
    say(
        console,
        "\nCalls (and texts) that the keep rule keeps from so much gain on; * marks the tool's own "
        "threshold. By chance: the",
    )
    say(console, "share of them that the rule would keep with another call's result (its 95 % interval)")
    console.print(table)


def print_lower_thresholds(console: Console, rows: Sequence[Row[Any]]) -> None:
    """Print which threshold would keep how many calls of each tool, and the words that start such a run."""
    words = ""
    for row in rows:
        lower = LowerThresholds.of(row)
        if not lower.keeps:
            continue
        if not words:
            say(console, "\nWhich threshold would keep how many calls")
        say(console, f"  {lower}")
        words = words or f"--thresholds={row.tool}={lower.keeps[1]:g}"
        if lower.keeps[1] < row.prune_below and "--parameters" not in words:
            words += f" --parameters='{{\"prune_below\": {lower.keeps[1]:g}}}'"
    if words:
        say(console, f"Try one: toolformer-ops run CORPUS {words}")


def print_outputs(console: Console, rows: Sequence[Row[Any]], prompt: str) -> None:
    """Print where the release and the model are, with a prompt to try it, or why there is none."""
    for row in rows:
        if row.release_uri:
            say(
                console,
                f"Release  {row.release_uri}  ({row.released_texts} texts, {row.released_calls} calls)",
            )
            if row.lacking_tools:
                say(console, f"         it lacks {', '.join(row.lacking_tools)}")
        else:
            say(console, "Release  none: no call was kept, or a stage failed")
        if row.model_uri:
            loss = (
                "" if row.training_loss is None else f"  (training loss {row.training_loss:.2f} nats a token)"
            )
            say(console, f"Model    {row.model_uri}{loss}")
            say(console, f'         toolformer-ops generate --model {row.model_uri} "{prompt}"')
        else:
            say(console, "Model    none: finetuning was off, or there was nothing to train on")


def call_in_sentence(row: Row[Any]) -> Text:
    """`saves 2.02 nats: ...so [Calculator(1050 - 462) -> 588] 588 survived.`, the call in bold.

    It is cut at the sentence's ends.
    """
    tool, _, rest = row.call_text.partition("(")
    call = call_with_result(Call(tool, rest.removesuffix(")")), row.result)
    before, after = visible(last_sentence(row.text_before)), visible(first_sentence(row.text_after))
    line = Text(f"{gained(row.gain, row.probability_with)}: {before.rstrip()} ".replace("\n", " "))
    line.append(call, style="bold green")
    line.append(f" {after.strip()}".replace("\n", " "))
    return line


def last_sentence(before: str) -> str:
    """Return the text after the last end of a sentence.

    It is all of it, with an ellipsis if it was cut, if there is none.
    """
    end = max(before.rfind(end) for end in SENTENCE_ENDS)
    if end >= 0:
        return before[end + 1 :].lstrip()
    return before if len(before) < WHOLE_CHARACTERS else f"...{before}"


def first_sentence(after: str) -> str:
    """Return the text up to the first end of a sentence.

    It is all of it, with an ellipsis if it was cut, if there is none.
    """
    ends = [after.find(end) for end in SENTENCE_ENDS]
    inside = [place for place in ends if place > 0]
    if inside:
        return after[: min(inside) + 1]
    return after if len(after) < WHOLE_CHARACTERS else f"{after}..."


def _cell(value: object) -> str:
    """A value of an answer as a cell of a table, cut if it is long."""
    if value is None:
        return ""
    text = f"{value:.3f}" if isinstance(value, float) else visible(str(value))
    return text if len(text) <= CELL_CHARACTERS else f"{text[: CELL_CHARACTERS - 3]}..."


def print_next_query(console: Console, connection: Connection, run_id: str) -> None:
    """A question of `sql/examples` about a run and its real answer, asked as the reader."""
    question = (EXAMPLES / NEXT_QUERY).read_text(encoding="utf-8").splitlines()[0]
    result = connection.execute(queries.demo.next_query.clause, {"run_id": run_id})
    rows = result.fetchmany(ANSWER_ROWS + 1)
    console.print()
    say(console, f"Next, ask Postgres: {question.removeprefix('--').strip()}\n")
    say(console, '  toolformer-ops sql "select * from where_do_calls_get_lost()"\n')
    table = Table()
    for column in result.keys():  # noqa: SIM118 - not a mapping
        table.add_column(str(column), overflow="fold")
    for row in rows[:ANSWER_ROWS]:
        table.add_row(*map(_cell, row))
    console.print(table)
    if len(rows) > ANSWER_ROWS:
        say(
            console,
            f"  (the first {ANSWER_ROWS} rows of its answer; {NEXT_QUERY} in sql/examples is the question "
            "in SQL)",
        )


def say(console: Console, line: str) -> None:
    """Print a line as it is: no markup, no colours, no breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
