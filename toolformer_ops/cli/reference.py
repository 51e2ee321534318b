"""The pages of reference that are made from the code: `python -m toolformer_ops.cli.reference` writes them into `docs/`.

    cli.md           every command with its arguments and options
    settings.md      every setting of a deployment
    sql_examples.md  the example queries

A test fails when one of them is stale. The trigger forms are in dags.md (`airflow_tasks/dag_table.py`), tables and views in
data_model.md (`storage/data_model.py`). Runs nothing and reads no settings of this machine.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from toolformer_ops.config import ENV_PREFIX, REPOSITORY, SHIPPED, Settings

DOCS = REPOSITORY / "docs"
MADE_BY = "Made by `python -m toolformer_ops.cli.reference`; do not edit."
SWITCH = re.compile(r"\\if :\{\?run\}.*\n")
"""The line of an example that gives its psql variable a default."""


def command_line() -> str:
    """Every command that `toolformer-ops --help` shows, as Typer writes it."""
    import typer
    from typer.cli import get_docs_for_click

    from toolformer_ops.cli.command_line import app

    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="toolformer-ops")
    text = get_docs_for_click(obj=command, ctx=context, name="toolformer-ops")
    _, _, body = text.partition("\n")
    return (
        f"# The command line\n\n{MADE_BY}\n{body.rstrip()}\n\n"
        "## Exit status\n\n"
        "0; 1 for an error that another try may mend; 2 for a request that is wrong; 3 if there is no result;\n"
        "75 if something that the work needs is not there now; 143 where SIGTERM ended it. Each error is one\n"
        "sentence on stderr.\n"
    )


def settings() -> str:
    """Every setting with its default; of defaults that are folders, what they are relative to."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        if field.default_factory is not None or default is PydanticUndefined:
            shown = ""
        elif isinstance(default, Path):
            shown = f"`{default.relative_to(SHIPPED)}`" if default.is_relative_to(SHIPPED) else f"`{default}`"
        else:
            shown = "" if default in (None, "") else f"`{default}`"
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        rows.append(f"| `{ENV_PREFIX}{name.upper()}` | {shown} | {meaning} |\n")
    return (
        f"# Settings\n\n{MADE_BY}\n\n"
        "Where and with what a deployment runs. They are read from the environment and from the file `environment` in\n"
        "the state folder, which `make up` writes for one machine; the environment wins. What decides the content of a\n"
        "data set is not here: that is in the [forms](dags.md) and in `toolformer-ops parameters`.\n\n"
        "| setting | default | meaning |\n|---|---|---|\n" + "".join(rows)
    )


def sql_examples() -> str:
    """The example queries, each under its question."""
    chapters = []
    for file in sorted((SHIPPED / "sql" / "examples").glob("*.sql")):
        comments, statement = _parts(file.read_text(encoding="utf-8"))
        chapters.append(
            f"\n## {comments[0]}\n\n{' '.join(comments[1:])}\n\n`sql/examples/{file.name}`\n\n```sql\n{statement}\n```\n"
        )
    return (
        f"# Example queries\n\n{MADE_BY}\n\n"
        'Ask one with `make sql Q="$(cat sql/examples/02_how_many_calls_are_kept.sql)"`, or in psql with `\\i`.\n'
        "They are about the newest finished run if nothing else is said; `:'run'` is another one. How the tables\n"
        "work together is in [database.md](database.md), every column in [data_model.md](data_model.md).\n"
        + "".join(chapters)
    )


def _parts(text: str) -> tuple[list[str], str]:
    """The comment lines at the beginning of an example, and its statement."""
    lines = SWITCH.sub("", text).splitlines()
    comments = [
        line.removeprefix("-- ")
        for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))]
    ]
    return comments, "\n".join(lines[len(comments) :]).strip()


PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {"cli.md": command_line, "settings.md": settings, "sql_examples.md": sql_examples}
)
"""By file name, what writes the page."""


def main() -> None:
    """Write the pages."""
    for name, write in PAGES.items():
        (DOCS / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
