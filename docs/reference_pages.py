"""The pages of reference that are made from the code: `make site` writes them into `docs/reference/` before it makes the site.

    cli.md           every command with its arguments and options, as `toolformer-ops --help` has them
    settings.md      every setting of a deployment
    parameters.md    every parameter of a run
    dags.md          every DAG: its text, its form and its tasks
    data_model.md    every table and view, from the comments that `sql/` puts on them
    reasons.md       what each count and each reason is called
    sql_examples.md  the queries of `sql/examples`

Reads no settings of this machine. For `data_model.md` it starts a Postgres of the tests, on a free port, and
ends it.
"""

import os
import sys
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from sqlalchemy import Connection

ASKED_BY = """the functions of `sql/examples`, each under its question. Ask one with `make sql`, psql or a
dashboard, by the same statement for all, such as `make sql Q="select * from how_many_calls_are_kept('night-1')"`.
Without a run they are about the newest one that ended well. How the tables work together is in
[The database](../database.md), every column in [The tables and views](data_model.md).
"""
FOLDER = Path(__file__).resolve().parent / "reference"
MADE = "Made from the code by `make site`, of which this page is a part.\n"


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
        "# The command line\n\n"
        f"For whoever types `toolformer-ops`: every command with its arguments and options. {MADE}{body.rstrip()}\n\n"
        "## Exit status\n\n"
        "0; 1 for an error that another try may mend; 2 for a request that is wrong; 3 if there is no result;\n"
        "75 if something that the work needs is not there now; 143 if SIGTERM ended it. Each error is one\n"
        "sentence on stderr.\n"
    )


def settings() -> str:
    """Every setting with its default; of defaults that are folders, what they are relative to."""
    from pydantic import SecretStr
    from pydantic_core import PydanticUndefined

    from toolformer_ops.config import ENV_PREFIX, SHIPPED, Settings

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
        rows.append((f"`{ENV_PREFIX}{name.upper()}`", shown, " ".join((field.description or "").split())))
    return (
        f"# Settings\n\nFor whoever runs a deployment: where and with what it runs. {MADE}\n"
        "Settings are read from the environment and from the file `environment` in the state folder, which `make up` writes for\n"
        "one machine; the environment wins. What decides the content of a data set is not here: that is in the\n"
        "[parameters of a run](parameters.md).\n\n" + _table(("setting", "default", "meaning"), rows)
    )


def reasons() -> str:
    """Every count and reason by its name in SQL, with the words that the run page, notes and mails have for it."""
    from toolformer_ops.runs.changes import REASONS
    from toolformer_ops.runs.reasons import TITLES

    changes = "\n".join(f"| `{name}` | {words} |" for name, words in REASONS.items())
    rows = "\n".join(f"| `{name}` | {words} |" for name, words in TITLES.items())
    return (
        "# Counts and reasons\n\n"
        "For whoever reads `yield_by_stage`, `candidates` or the run page: what each name means. Tools of others have reasons\n"
        f"of their own besides. {MADE}\n| in SQL and files | on the run page, in notes and mails |\n|---|---|\n{rows}\n\n"
        "## Why a call is in one release alone\n\nThe first that holds, in this order.\n\n"
        f"| reason | why |\n|---|---|\n{changes}\n"
    )


def sql_examples() -> str:
    """The example queries, each under its question."""
    from toolformer_ops.config import SHIPPED

    chapters = []
    for file in sorted((SHIPPED / "sql" / "examples").glob("*.sql")):
        lines = file.read_text(encoding="utf-8").splitlines()
        first = next(number for number, line in enumerate(lines) if not line.startswith("--"))
        question, *more = (line.removeprefix("-- ") for line in lines[:first])
        name = file.stem.partition("_")[2]
        statement = "\n".join(lines[first:]).strip()
        chapters.append(
            f"\n## {question}\n\n{' '.join(more)}\n\n```sql\nselect * from {name}('night-1');\n```\n\n"
            f"`sql/examples/{file.name}`:\n\n```sql\n{statement}\n```\n"
        )
    return f"# Example queries\n\nFor whoever asks the database: {ASKED_BY}{MADE}" + "".join(chapters)


def data_model(connection: "Connection") -> str:
    """Every table and view of a migrated database, with the types, keys and comments of its columns."""
    from toolformer_ops.storage.postgres import database, queries

    columns = {
        name: list(rows)
        for name, rows in groupby(
            database.fetch_all(connection, queries.schema.columns), key=lambda row: row.relation
        )
    }
    parts = [
        f"# The tables and views\n\nFor whoever writes a query: what each column means. {MADE}\n"
        "The texts are the comments in `sql/schema` and `sql/views`; psql shows them with `\\d+`. Bold columns are the primary\n"
        "key. How the tables work together is in [The database](../database.md).\n"
    ]
    kind = None
    for relation in database.fetch_all(connection, queries.schema.relations):
        if relation.is_view != kind:
            kind = relation.is_view
            parts.append("## Views\n" if kind else "## Tables\n")
        rows = [
            (
                f"**{column.name}**" if column.is_key else column.name,
                column.type + ("" if kind or column.is_required else ", or null"),
                column.description.replace("\n", " "),
            )
            for column in columns[relation.name]
        ]
        table = _table(("column", "type", "meaning"), rows)
        parts.append(f"### {relation.name}\n\n{relation.description}\n\n{table}")
    return "\n".join(parts)


def parameters() -> str:
    """Every parameter of a run with its default, what each preset sets, and its section of the form."""
    from toolformer_ops.airflow_tasks.forms import PROPERTIES, SECTION_OF, shown, usual_of
    from toolformer_ops.runs.choices import FINETUNING_FIELDS, RunChoices
    from toolformer_ops.runs.presets import PRESETS

    presets = [preset for preset, values in PRESETS.items() if values]
    rows = [
        (
            f"`{name}`",
            schema["description"],
            "required"
            if RunChoices.model_fields[name].is_required()
            else shown(schema.get("usual", usual_of(name))),
            *(shown(PRESETS[preset].get(name, "")) for preset in presets),
            (SECTION_OF[name] or "first section") if name in SECTION_OF else "",
        )
        for name, schema in PROPERTIES.items()
    ]
    return (
        f"# The parameters of a run\n\nFor whoever starts a run: what it can choose, and where. {MADE}\n"
        "A parameter that is not given holds what the preset sets, or else its default; the defaults are the paper's numbers.\n"
        "Every parameter can be set\n\n"
        '- in the form of `annotate_corpus`, if the table names its section there. For the others write `"NAME": VALUE` into\n'
        '  "Configuration JSON", which is under "Advanced Options" of the form;\n'
        "- in the `conf` of Airflow's API, for `make run` in `PARAMETERS='{...}'`, for commands in `--parameters '{...}'`;\n"
        "- in the section `[run]` of a schedule file ([Nightly runs](../nightly.md)), but for `corpus` and\n"
        "  `model`, which are keys of the file.\n\n"
        f"Those from `{FINETUNING_FIELDS[0]}` on are parameters of `finetune_release`, too. For `keep_thresholds` the form has\n"
        "a field a tool, `keep_threshold_TOOL`. `toolformer-ops parameters` prints the bounds.\n\n"
        + _table(
            ("parameter", "what it does", "default", *(f"`{preset}`" for preset in presets), "in the form"),
            rows,
        )
    )


def dags(made: Iterable["DAG"]) -> str:
    """A table of the DAGs, and of each DAG its text, its form and its tasks."""
    overview, chapters = [], []
    for dag in sorted(made, key=lambda dag: dag.dag_id):
        assets = sorted({f"`{asset.name}`" for task in dag.tasks for asset in task.outlets})
        overview.append(
            [f"[{dag.dag_id}](#{dag.dag_id})", dag.description, ", ".join(assets), len(dag.tasks)]
        )
        params = {name: dag.params.get_param(name) for name in dag.params}
        form = _table(
            ("Field", "Name in the API", "Default", "Meaning"),
            [
                (param.schema["title"], f"`{name}`", _default(name, param), param.description)
                for name, param in params.items()
            ],
        )
        tasks = _table(
            ("Task", "Mapped over shards", "Pool", "Longest try"),
            [
                (f"`{task.task_id}`", "yes" if task.is_mapped else "", task.pool, task.execution_timeout)
                for task in dag.tasks
            ],
        )
        text = (dag.doc_md or "").strip()
        chapters.append(
            f"\n## {dag.dag_id}\n\n{text}\n\n### Form of {dag.dag_id}\n\n{form}\n### Tasks of {dag.dag_id}\n\n{tasks}"
        )
    return (
        f"# The DAGs\n\nFor whoever triggers a run or mends a red one: what each DAG does, its form, its tasks. {MADE}\n"
        "Every task starts one command, `python -m toolformer_ops stage ...`, on the Airflow worker, or with\n"
        "`TOOLFORMER_RUNNER=kubernetes` in a pod ([On Kubernetes](../kubernetes.md)). The slots of a task's pool limit how many\n"
        "run at once. Which failures are tried again, and how often, is in [Operations](../operations.md#what-a-red-task-says).\n\n"
        + "\n".join([_table(("DAG", "What it does", "Makes", "Tasks"), overview), *chapters])
    )


def _default(name: str, param: Any) -> str:
    from toolformer_ops.runs.choices import RunChoices

    field = RunChoices.model_fields.get(name)
    if field is None and isinstance(param.value, int):
        return f"`{param.value}`"
    if field is None or field.is_required():
        return "required"  # a deployment's settings may hold a default
    if param.value is None or param.value == []:
        return ""
    return f"`{', '.join(param.value)}`" if isinstance(param.value, list) else f"`{param.value}`"


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main() -> None:
    """Write the pages."""
    with tempfile.TemporaryDirectory(prefix="toolformer-reference-") as name:
        # 1. Settings and Airflow's home of a machine without a deployment: both are read at import.
        folder = Path(name)
        folder.chmod(0o755)  # Postgres enters as another user where root makes the pages
        for variable in [
            variable for variable in os.environ if variable.startswith(("TOOLFORMER_", "AIRFLOW_"))
        ]:
            del os.environ[variable]
        os.environ |= {"TOOLFORMER_STATE_DIR": str(folder / "state"), "AIRFLOW_HOME": str(folder / "airflow")}
        # 2. The tables, from a new database.
        from tests.servers import PASSWORDS, start_postgres
        from toolformer_ops.local import postgres
        from toolformer_ops.storage.postgres import database, schema

        (folder / "postgres").mkdir()
        with start_postgres(folder / "postgres") as server:
            postgres.ensure_roles(server.address, PASSWORDS)
            postgres.ensure_databases(server.address)
            engine = database.connect_dsn(server.dsn(postgres.OWNER, postgres.OWNER), database.DSN_SETTING)
            schema.migrate(engine)
            with engine.connect() as connection:
                tables = data_model(connection)
            engine.dispose()
        # 3. The DAGs, as Airflow reads them.
        from airflow.dag_processing.dagbag import DagBag

        from toolformer_ops.config import REPOSITORY

        bag = DagBag(REPOSITORY / "dags")
        if bag.import_errors:
            raise SystemExit("\n".join(bag.import_errors.values()))
        pages = {
            "cli.md": command_line(),
            "settings.md": settings(),
            "reasons.md": reasons(),
            "sql_examples.md": sql_examples(),
            "data_model.md": tables,
            "parameters.md": parameters(),
            "dags.md": dags(bag.dags.values()),
        }
    from docs import file_keys

    file_keys.PAGE.write_text(file_keys.page(), encoding="utf-8")
    FOLDER.mkdir(exist_ok=True)
    for page, text in pages.items():
        (FOLDER / page).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{FOLDER}: {', '.join(pages)}\n")


if __name__ == "__main__":
    main()
