"""The whole command line: the commands of every room in one application, `--help` in panels by purpose."""

import itertools
from importlib.metadata import version
from types import MappingProxyType
from typing import Annotated

import typer

from toolformer_ops.cli import (
    decoding,
    demo,
    evaluation,
    history,
    housekeeping,
    on_a_file,
    people,
    publishing,
    services,
    stages,
    thresholds,
    tools,
)

PANELS = MappingProxyType(
    {
        "From texts and a database to kept calls": (
            "new-tool",
            "check",
            "preview",
            "judge",
            "annotate",
            "load",
            "run",
        ),
        "Look closer": ("runs", "changes", "explain", "thresholds", "sql", "call"),
        "Models: write and evaluate": ("generate", "serve", "evaluate"),
        "Releases and models: hand on": ("export", "publish-model", "push", "download"),
        "Keep in order": (
            "doctor",
            "retry-failed",
            "refresh-tool",
            "audit",
            "forget",
            "retention",
            "migrate",
            "history",
        ),
        "This machine": ("demo", "up", "down", "status", "logs", "clean"),
    }
)
"""The commands in the order in which `--help` shows them, by purpose."""

HIDDEN = ("parameters", "dags-folder")
"""Commands that programs type, as Airflow's tasks type `stage`: `--help` does not show them."""

app = typer.Typer(
    name="toolformer-ops",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked_for: bool) -> None:
    if asked_for:
        typer.echo(version("toolformer-ops"))
        raise typer.Exit


@app.callback()
def toolformer_ops(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A dataset factory after Toolformer: a language model annotates text with tool calls."""


_PANEL_OF: dict[str, str] = {}
for _panel, _names in PANELS.items():
    _PANEL_OF |= dict.fromkeys(_names, _panel)
app.add_typer(stages.app, name="stage", hidden=True)
app.add_typer(history.app, name="history", rich_help_panel=_PANEL_OF["history"])
_PARTS = (
    on_a_file,
    people,
    thresholds,
    tools,
    decoding,
    evaluation,
    publishing,
    housekeeping,
    services,
    demo,
)
app.registered_commands = sorted(
    itertools.chain.from_iterable(part.app.registered_commands for part in _PARTS),
    key=lambda command: [*_PANEL_OF, *HIDDEN].index(str(command.name)),
)
for _command in app.registered_commands:
    _command.hidden = _command.name in HIDDEN
    _command.rich_help_panel = _PANEL_OF.get(str(_command.name), "")
