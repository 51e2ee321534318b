"""The report at the end of a run: yield by tool and threshold, the best calls in their sentences, where the outputs lie, a query.

Everything is read from Postgres; the query at the end is run by the read-only role, as its reader would.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection, Row, text

from toolformer_ops.call_syntax import Call, call_with_result
from toolformer_ops.config import REPOSITORY
from toolformer_ops.storage import database

BEST_CALLS = 5
ANSWER_ROWS = 10
CELL_CHARACTERS = 60
EXAMPLES = REPOSITORY / "sql" / "examples"
NEXT_QUERY = "04_where_do_calls_get_lost.sql"
"""The example that the report ends with."""
FRESH_SUM = "The library owned 845 books and gave away 312 of them, so it has"
"""A prompt to try the new model with; no text of the demo corpus is like it."""


@dataclass(frozen=True)
class Address:
    """Where to look further."""

    airflow_url: str
    username: str
    password_hint: str
    """How to get at the password, or empty where there is none."""
    run_url: str


def print_report(console: Console, connection: Connection, run_id: str, address: Address) -> None:
    """The whole report but the query at the end."""
    print_new_work(console, database.fetch_all(connection, "demo_new_work", run_id=run_id))
    print_yields(
        console,
        database.fetch_all(connection, "demo_scored_by_tool", run_id=run_id),
        database.fetch_all(connection, "demo_threshold_counts", run_id=run_id),
    )
    print_best_calls(console, database.fetch_all(connection, "demo_best_calls", run_id=run_id, at_most=BEST_CALLS))
    print_outputs(console, database.fetch_all(connection, "demo_outputs", run_id=run_id), address)


def print_new_work(console: Console, rows: Sequence[Row[Any]]) -> None:
    """How much of the work this run did itself."""
    annotated, documents = sum(row.annotated_now for row in rows), sum(row.documents for row in rows)
    if documents and not annotated:
        say(
            console,
            f"Nothing to annotate: all {documents} pairs of a document and a tool were done before, under the same recipes.",
        )
    else:
        say(console, f"Annotated {annotated} of {documents} pairs of a document and a tool; the rest was done before.")


def print_yields(console: Console, scored: Sequence[Row[Any]], counts: Sequence[Row[Any]]) -> None:
    """The paper's Table 2: calls (texts) that save at least the threshold; the tool's own threshold is marked."""
    thresholds = sorted({row.threshold for row in counts})
    table = Table()
    for name in ("tool", "sampled", "scored", *(f">= {threshold:g}" for threshold in thresholds)):
        table.add_column(name, justify="left" if name == "tool" else "right")
    cells = {(row.tool, row.threshold): _cell(row) for row in counts}
    for row in scored:
        found = [cells.get((row.tool, threshold), "") for threshold in thresholds]
        table.add_row(row.tool, str(row.calls), str(row.scored), *found)
    console.print()
    say(console, "Calls (and texts) that save at least so many nats; * marks the tool's own threshold")
    console.print(table)


def _cell(row: Row[Any]) -> str:
    return f"{row.calls} ({row.texts}){'*' if row.is_keep_threshold else ' '}"


def print_best_calls(console: Console, rows: Sequence[Row[Any]]) -> None:
    """The best calls, each in its sentence with the nats it saves."""
    console.print()
    if not rows:
        say(console, "No call was kept, so there is none to show.")
        return
    say(console, "The best kept calls, one a text, and how many nats each saves")
    for row in rows:
        line = call_in_sentence(row)
        if console.is_terminal:
            console.print(Padding(line, (0, 0, 0, 2)))
        else:  # one line a call, however long
            say(console, f"  {line.plain}")


def call_in_sentence(row: Row[Any]) -> Text:
    """`2.02  ...so [Calculator(1050 - 462) -> 588] 588 survived.`, the call in bold; cut at the sentence's ends."""
    tool, _, rest = row.call_text.partition("(")
    call = call_with_result(Call(tool, rest.removesuffix(")")), row.result)
    before, after = last_sentence(row.text_before), first_sentence(row.text_after)
    line = Text(f"{row.loss_reduction:.2f}  {before.rstrip()} ".replace("\n", " "))
    line.append(call, style="bold green")
    line.append(f" {after.strip()}".replace("\n", " "))
    return line


def last_sentence(before: str) -> str:
    """What stands after the last end of a sentence; all of it, with an ellipsis if it was cut, where there is none."""
    ends = [before.rfind(end) for end in (". ", "! ", "? ", "\n")]
    end = max(ends)
    if end >= 0:
        return before[end + 1 :].lstrip()
    return before if len(before) < 120 else f"...{before}"


def first_sentence(after: str) -> str:
    """What stands up to the first end of a sentence; all of it, with an ellipsis if it was cut, where there is none."""
    ends = [place + 1 for end in (". ", "! ", "? ", "\n") if (place := after.find(end)) > 0]
    if ends:
        return after[: min(ends)]
    return after if len(after) < 120 else f"{after}..."


def print_outputs(console: Console, rows: Sequence[Row[Any]], address: Address) -> None:
    """Where the release, the model and the user interface are."""
    console.print()
    for row in rows:
        if row.release_uri:
            say(console, f"Release  {row.release_uri}  ({row.released_texts} texts, {row.released_calls} calls)")
            if row.lacking_tools:
                say(console, f"         it lacks {', '.join(row.lacking_tools)}")
        else:
            say(console, "Release  none: no call was kept, or a stage failed")
        if row.model_uri:
            loss = "" if row.training_loss is None else f"  (training loss {row.training_loss:.2f} nats a token)"
            say(console, f"Model    {row.model_uri}{loss}")
            say(console, f'         toolformer-ops generate --model {row.model_uri} "{FRESH_SUM}"')
        else:
            say(console, "Model    none: finetuning was off, or there was nothing to train on")
    say(console, f"Run      {address.run_url}")
    hint = f", password: {address.password_hint}" if address.password_hint else ""
    say(console, f"Airflow  {address.airflow_url}  (user {address.username}{hint})")


def print_next_query(console: Console, connection: Connection, example: str = NEXT_QUERY) -> None:
    """A query of `sql/examples` and its real answer, asked over `connection` (the reader's)."""
    path = EXAMPLES / example
    lines = path.read_text(encoding="utf-8").splitlines()
    statement = "\n".join(line for line in lines if line.strip() and not line.startswith("--"))
    result = connection.execute(text(statement))
    rows = result.fetchmany(ANSWER_ROWS + 1)
    console.print()
    say(console, f"Next, ask Postgres: {lines[0].removeprefix('--').strip()}\n")
    say(console, f'  make sql Q="$(cat {path.relative_to(REPOSITORY)})"\n')
    for line in statement.splitlines():
        say(console, f"  {line}")
    console.print()
    table = Table()
    for column in result.keys():  # noqa: SIM118 - not a mapping
        table.add_column(str(column), overflow="fold")
    for row in rows[:ANSWER_ROWS]:
        table.add_row(*(_short(value) for value in row))
    console.print(table)
    if len(rows) > ANSWER_ROWS:
        say(console, f"  (the first {ANSWER_ROWS} rows of its answer)")


def _short(value: object) -> str:
    shown = f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)
    return shown if len(shown) <= CELL_CHARACTERS else f"{shown[: CELL_CHARACTERS - 3]}..."


def say(console: Console, line: str) -> None:
    """Print a line as it is: no markup, no colours, no breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
