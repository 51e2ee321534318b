"""The pages that are made from the code: what each has to name, and that `make site` makes them first."""

import re

import typer

from docs import reference_pages
from toolformer_ops.cli.command_line import app
from toolformer_ops.config import REPOSITORY
from toolformer_ops.storage import database


def test_a_page_has_every_command_and_option() -> None:
    page = reference_pages.command_line()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shown = {name: command for name, command in commands.items() if not command.hidden}
    assert len(shown) > 20
    for name, command in shown.items():
        chapter = page.partition(f"## `toolformer-ops {name}`\n")[2].partition("\n## ")[0]
        options = [option.opts[0] for option in command.params if not getattr(option, "hidden", False)]
        assert [option for option in options if option not in chapter] == [], name


def test_a_page_has_every_table_and_view_with_a_meaning_for_each_column(postgres_dsn: str) -> None:
    with database.connect_dsn(postgres_dsn, database.DSN_SETTING).connect() as connection:
        page = reference_pages.data_model(connection)
    chapters = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    assert {"documents", "candidate_calls", "scored_calls", "threshold_counts"} <= chapters.keys()
    for name, chapter in chapters.items():
        rows = [line for line in chapter.splitlines() if line.startswith("| ")][1:]
        assert [row for row in rows if not re.fullmatch(r"\| \S+ \| \S.* \| \S.* \|", row)] == [], name


def test_the_site_is_made_of_these_pages() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {"cli.md", "settings.md", "parameters.md", "dags.md", "data_model.md", "sql_examples.md"}
    assert {*re.findall(r"- reference/(.*)", navigation)} == pages
    files = sorted((REPOSITORY / "sql" / "examples").glob("*.sql"))
    shown = re.findall(r"^`sql/examples/(.*)`$", reference_pages.sql_examples(), re.MULTILINE)
    assert shown == [file.name for file in files]
    recipe = (REPOSITORY / "Makefile").read_text(encoding="utf-8").partition("\nsite: ")[2].partition("\n\n")[0]
    assert recipe.index("-m docs.reference_pages") < recipe.index("mkdocs build")
