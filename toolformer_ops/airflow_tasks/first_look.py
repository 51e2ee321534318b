"""What `toolformer-ops check` sees of a run's corpus, tools and model, said before the first stage.

Airflow's trigger form holds each field to its type, and has no place for what a program of ours sees. So
the first task looks, with the code of `check`: its lines are the run's note after some seconds, and in the
task's log. A run whose records have no text under the name that was chosen ends there, before a large
corpus is read. All else that is wrong is left to the stage that needs it, which may run elsewhere or later.
Without a model in memory, so without a time.
"""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow.sdk import Context

from toolformer_ops.airflow_tasks.run_notes import set_note
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.runs.choices import RunChoices

if TYPE_CHECKING:
    from toolformer_ops.on_a_file.look.checking import Observation

LOOK = "look"
"""Key of the XCom with what a person should mind."""
LONGEST_SECONDS = 20.0
"""After so long the stage starts, with what was seen by then: S3 or a proposer may take longer."""


def look_first(context: Context, settings: Settings, choices: RunChoices) -> None:
    """Set what is seen as the run's note, and hand what a person should mind to the task that starts the run.

    Raises:
        UsageError: no record has a text under the name that was chosen, though another field has.
    """
    # What reads a corpus is not imported where a DAG is only parsed.
    from toolformer_ops.on_a_file.look.checking import FORM, CorpusLook, observations

    look = CorpusLook(FORM)
    lines: list[Observation] = []

    def observe() -> None:
        here = settings.runner == "local"
        lines.extend(observations(settings, choices, look, is_here=here, looks_at_memory=False))

    # A thread that does not end keeps no process.
    looking = threading.Thread(target=observe, name="look", daemon=True)
    looking.start()
    looking.join(LONGEST_SECONDS)
    seen = list(lines)
    for line in seen:
        context["task"].log.info("%s", line)
    if look.lacks_text and not looking.is_alive():
        raise UsageError(f"corpus: {next(line.detail for line in seen if line.subject == 'corpus')}.")
    if seen:
        set_note(context, note_of(seen))
    context["ti"].xcom_push(key=LOOK, value=[str(line) for line in seen if line.state != "ok"])


def note_of(lines: "Sequence[Observation]") -> str:
    """The note of a run that has not started yet: a line each, what a person should mind first."""
    ordered = sorted(lines, key=lambda line: line.state == "ok")
    return "\n".join(["Before the run starts, a look at it shows:", *map(str, ordered)])
