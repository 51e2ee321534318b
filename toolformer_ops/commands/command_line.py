"""The whole command line: the commands of every room in one application."""

import typer

from toolformer_ops.commands import (
    decoding,
    doctor,
    evaluation,
    housekeeping,
    people,
    placebos,
    publishing,
    reporting,
    stages,
    tools,
)
from toolformer_ops.demo import commands as demo_commands
from toolformer_ops.local_services import commands as service_commands

app = typer.Typer(
    name="toolformer-ops",
    help="A dataset factory after Toolformer: a language model annotates text with tool calls.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(stages.app, name="stage")
for part in (
    people.app,
    placebos.app,
    tools.app,
    decoding.app,
    evaluation.app,
    publishing.app,
    doctor.app,
    reporting.app,
    housekeeping.app,
    service_commands.app,
    demo_commands.app,
):
    app.registered_commands.extend(part.registered_commands)
