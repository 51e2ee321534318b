"""The pages that are made from the code: what each has to name, where its links lead, and that `make site` makes them first."""

import os
import re
from pathlib import Path

import pytest
import typer

from docs import reference_pages
from toolformer_ops.cli.command_line import app
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.storage import database

NAMES = ("cli.md", "settings.md", "parameters.md", "dags.md", "data_model.md", "sql_examples.md")


def test_a_page_has_every_command_and_option() -> None:
    page = reference_pages.command_line()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shown = {name: command for name, command in commands.items() if not command.hidden}
    assert len(shown) > 20
    for name, command in shown.items():
        chapter = page.partition(f"## `toolformer-ops {name}`\n")[2].partition("\n## ")[0]
        options = [option.opts[0] for option in command.params if not getattr(option, "hidden", False)]
        assert [option for option in options if option not in chapter] == [], name


def test_a_page_has_every_setting_with_its_meaning() -> None:
    page = reference_pages.settings()
    rows = re.findall(r"^\| `(TOOLFORMER_\w+)` \| .* \| (.+) \|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == [f"TOOLFORMER_{name.upper()}" for name in Settings.model_fields]


def test_a_page_has_every_example_query_as_it_is_asked() -> None:
    page = reference_pages.sql_examples()
    files = sorted((REPOSITORY / "sql" / "examples").glob("*.sql"))
    assert re.findall(r"^`sql/examples/(.*)`$", page, re.MULTILINE) == [file.name for file in files]
    statements = re.findall(r"```sql\n(.*?)\n```", page, re.DOTALL)
    for file, statement in zip(files, statements, strict=True):
        assert file.read_text(encoding="utf-8").rstrip().endswith(statement)


def test_a_page_has_every_table_and_view_with_a_meaning_for_each_column(postgres_dsn: str) -> None:
    with database.connect_dsn(postgres_dsn, database.DSN_SETTING).connect() as connection:
        page = reference_pages.data_model(connection)
    chapters = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    assert {"documents", "candidate_calls", "scored_calls", "threshold_counts"} <= chapters.keys()
    views = {path.stem.split("_", 1)[1] for path in (REPOSITORY / "sql" / "views").glob("*.sql")}
    assert len(views & chapters.keys()) > 10
    for name, chapter in chapters.items():
        rows = [line for line in chapter.splitlines() if line.startswith("| ")][1:]
        assert [row for row in rows if not re.fullmatch(r"\| \S+ \| \S.* \| \S.* \|", row)] == [], name


@pytest.mark.parametrize("name", ["cli.md", "settings.md", "sql_examples.md"])
def test_the_links_of_a_made_page_lead_to_pages(name: str) -> None:
    make = {"cli.md": "command_line"}.get(name, name.removesuffix(".md"))
    page: str = getattr(reference_pages, make)()
    for target in re.findall(r"\]\(([^)#]+\.md)", page):
        assert target in NAMES or Path(os.path.normpath(reference_pages.FOLDER / target)).exists(), target


def test_the_site_is_made_of_these_pages() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(re.findall(r"- reference/(.*)", navigation)) == sorted(NAMES)
    assert "docs/reference/" in (REPOSITORY / ".gitignore").read_text().splitlines()
    recipe = (REPOSITORY / "Makefile").read_text(encoding="utf-8").partition("\nsite: ")[2].partition("\n\n")[0]
    assert recipe.index("-m docs.reference_pages") < recipe.index("mkdocs build")
