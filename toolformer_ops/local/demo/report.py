"""The report at the end of a run, on one screen: kept calls by tool, the best in their sentences, where the outputs are.

What a run made is read from Postgres. Thresholds, and what chance keeps, are on the run's page.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from sqlalchemy import Connection, Row

from toolformer_ops.call_syntax import Call, call_with_result
from toolformer_ops.config import ENV_PREFIX, Settings
from toolformer_ops.local.demo.fresh_mountains import (
    CHANGED_MOUNTAINS,
    FRESH_MOUNTAINS,
    FreshMountains,
    prompt_about,
)
from toolformer_ops.local.demo.mountains import MOUNTAINS
from toolformer_ops.runs.summary import LowerThresholds
from toolformer_ops.shown_text import gain_in_figures, gained, visible
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.queries import Statement

BEST_CALLS = 5
INDENT = 2
LEAST_SENTENCE = 30
"""Characters of its sentence beside a call that is shown in one line."""
LONG_WORD = 16
"""What a line may lack at its end, where the next word begins a new one."""
MOST_RESULT = 60
"""Characters of a result that a line shows."""
SENTENCE_ENDS = (". ", "! ", "? ", "\n")
WHOLE_CHARACTERS = 120
"""`kept_calls` cuts the text before and after a call at 120 characters; a shorter one is whole."""
FRESH_SUM = "The library owned 845 books and gave away 312 of them, so it has"
"""A prompt to try a new model with; no text of the demo corpus is like it."""
FRESH_MOUNTAIN = prompt_about(FRESH_MOUNTAINS[0])
"""The prompt for a model that learned to ask the demo's database."""


def print_report(console: Console, connection: Connection, run_id: str, run_url: str) -> None:
    """Print what a run kept and made. `run_url`: the run's page in Airflow's UI."""

    def rows(statement: Statement, **parameters: object) -> Sequence[Row[Any]]:
        return database.fetch_all(connection, statement, run_id=run_id, **parameters)

    # 1. how much of the work this run did
    new_work = rows(queries.demo.new_work)
    annotated, documents = sum(row.annotated_now for row in new_work), sum(row.documents for row in new_work)
    if annotated < documents:
        say(
            console,
            f"Annotated {annotated} of {documents} pairs of a document and a tool; the rest was done before.",
        )

    # 2. how many calls each tool keeps, and the best ones, each in its sentence with what it gains
    best = rows(queries.demo.best_calls, at_most=BEST_CALLS)
    shown = best or rows(queries.summary.nearest_calls, at_most=BEST_CALLS)
    if not shown:
        heading = "None was scored to the end: each saves less than what is pruned, or has no result."
    elif shown[0].probability_with is not None:
        heading = "Probability of the next tokens, without -> with:"
    else:
        heading = "What each saves:"
    if shown and not best:
        heading = f"Nearest to their thresholds are these. {heading}"
    kept = kept_in_words(rows(queries.summary.rates), rows(queries.summary.scored_by_tool))
    say(console, f"{kept} {heading}")
    for row in shown:
        figures = f"{gain_in_figures(row.gain, row.probability_with)}  "
        if console.is_terminal:  # a line, or two for a long call
            room = console.width - INDENT - len(figures)
            if len(call_of(row)) + LEAST_SENTENCE > room:
                room += console.width - INDENT - LONG_WORD
            line = Text.assemble(figures, call_in_sentence(row, room))
            console.print(Padding(line, (0, 0, 0, INDENT)))
        else:  # one line a call, however long
            say(console, f"  {figures}{call_in_sentence(row).plain}")
    if not best:
        print_lower_thresholds(console, rows(queries.summary.lower_thresholds))

    # 3. where the release, the model and the user interface are
    print_outputs(console, rows(queries.demo.outputs))
    say(console, f"Run      {run_url}")


def sign_in(settings: Settings) -> str:
    """As whom a person signs in to Airflow, and where the password is."""
    variable = f"{ENV_PREFIX}AIRFLOW_PASSWORD"
    place = "the environment" if variable in os.environ else settings.state_dir / "environment"
    return f"user {settings.airflow_username}, password: {variable} in {place}"


def best_call(connection: Connection, run_id: str) -> Text | None:
    """The kept call that saves most so far, in its sentence; None as long as none is kept, or the run has not started."""
    if not database.fetch_all(connection, queries.runs.by_id, run_id=run_id):
        return None
    rows = database.fetch_all(connection, queries.demo.best_calls, run_id=run_id, at_most=1)
    if not rows:
        return None
    [row] = rows
    return Text.assemble(f"{gained(row.gain, row.probability_with)}: ", call_in_sentence(row))


def kept_in_words(rates: Sequence[Row[Any]], scored: Sequence[Row[Any]]) -> str:
    """How many of the calls of each tool are kept at its threshold, of all that were proposed."""
    kept = {rate.tool: rate.calls for rate in rates}
    calls = sum(row.calls for row in scored)
    tools = [f"{row.tool} {kept.get(row.tool, 0)}/{row.calls}" for row in scored]
    return f"Kept {sum(kept.values())} of {calls} calls: {', '.join(tools)}."


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


def print_outputs(console: Console, rows: Sequence[Row[Any]]) -> None:
    """Print where the release is, or why there is none, or no model; `print_next` has the model."""
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
        if not row.model_uri:
            say(console, "Model    none: finetuning was off, or there was nothing to train on")


def call_of(row: Row[Any]) -> str:
    """`[Calculator(1050 - 462) -> 588]`, with a long result cut."""
    tool, _, rest = row.call_text.partition("(")
    result = row.result if len(row.result) <= MOST_RESULT else f"{row.result[:MOST_RESULT]}..."
    return call_with_result(Call(tool, rest.removesuffix(")")), result)


def call_in_sentence(row: Row[Any], room: int | None = None) -> Text:
    """`so [Calculator(1050 - 462) -> 588] 588 survived.`, the call in bold, cut at the sentence's ends.

    room: characters that it may have; what is farthest from the call is left out.
    """
    call = call_of(row)
    before = visible(last_sentence(row.text_before)).rstrip().replace("\n", " ")
    after = visible(first_sentence(row.text_after)).strip().replace("\n", " ")
    if room is not None:
        beside = max(room - len(call) - len("  "), 0)
        before = cut(before[::-1], max(beside // 2, beside - len(after)))[::-1]
        after = cut(after, beside - len(before))
    line = Text(f"{before} ")
    line.append(call, style="bold green")
    line.append(f" {after}")
    return line


def cut(text: str, most: int) -> str:
    """The text's first characters, at most so many with the ellipsis that follows them."""
    return text if len(text) <= most else f"{text[: max(most - 3, 0)]}..."


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


def print_fresh_mountains(console: Console, written: FreshMountains) -> None:
    """Print what the models wrote of ten mountains that no text has."""
    before = f"Before   {visible(written.sentence_before)}"
    after = f"After    {visible(written.sentence_after)}"
    if console.is_terminal:  # the model's call is longer than a line
        before = cut(before, console.width)
        after = cut(after, 2 * console.width)
    say(console, before)
    say(console, after)
    mountains, changed = len(FRESH_MOUNTAINS), len(CHANGED_MOUNTAINS)
    say(
        console,
        f"Heights of {mountains} mountains that no text has: {written.right_before} right before the training, "
        f"{written.right_after} after it. Of {changed} changed in a copy of the database it wrote "
        f"{written.followed}.",
    )


def print_next(console: Console, model_uri: str | None, tools: Collection[str]) -> None:
    """Print commands that continue from here."""
    prompt = FRESH_MOUNTAIN if MOUNTAINS in tools else FRESH_SUM
    if model_uri:
        say(console, f'Next     toolformer-ops generate --model {model_uri} "{prompt}"')
    else:
        say(console, 'Next     toolformer-ops sql "select * from threshold_counts"')
    say(console, '         toolformer-ops sql "select * from where_do_calls_get_lost()"')
    say(console, "         toolformer-ops new-tool --sql sqlite:///YOURS.db --texts YOURS.jsonl")


def seconds_in_words(all_seconds: float, by_phase: Mapping[str, float]) -> str:
    """How long it took, and which phase how many seconds of it."""
    minutes, seconds = divmod(round(all_seconds), 60)
    phases = ", ".join(f"{phase} {taken:.0f}" for phase, taken in by_phase.items())
    return f"Done in {minutes} min {seconds} s: {phases} s."


def say(console: Console, line: str) -> None:
    """Print a line as it is: no markup, no colours, no breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
