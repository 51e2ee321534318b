"""What a Postgres proposes: cells of the tables that the tool file names, with names as a query has to write them."""

from contextlib import closing

import psycopg2
import pytest

from tests.hostile_queries import ask, database_tool, opened
from tests.tool_files import forget_tools
from toolformer_ops.config import Settings, load_settings
from toolformer_ops.on_a_file.new_tool.proposing_tool import write_proposing_tool
from toolformer_ops.records import Document
from toolformer_ops.tools.databases.database_tool import DatabaseTool
from toolformer_ops.tools.files.tool_file import read_table

TABLES = """
create schema stock;
create table stock.makers (id int primary key, name text, founded date);
create table stock."Goods" (
    id int primary key, "Label" varchar(40), price numeric(10, 2), weight double precision, note text,
    maker_id int references stock.makers);
insert into stock.makers values (1, 'O''Brien', '1969-07-20');
insert into stock."Goods" values (1, 'Kettle', 24.50, 1.75, repeat('x', 20000), 1), (2, 'Cup', 3, 0.2, '', null);
"""
CELLS = """[proposals.cells]
'stock.Goods.Label' = ["price", "weight", "maker_id.name", "maker_id.founded"]

[limits]"""


@pytest.fixture(scope="module")
def shop(postgres_server, tmp_path_factory):
    """The tool file of a database whose tables are in a schema, one with a name in quotes."""
    address = postgres_server.address
    with (
        closing(psycopg2.connect(postgres_server.dsn("postgres"))) as connection,
        pytest.MonkeyPatch.context() as patch,
    ):
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("create database goods")
            with closing(psycopg2.connect(postgres_server.dsn("goods"))) as inside:
                inside.cursor().execute(TABLES)
                inside.commit()
            patch.setenv("SHOP_PASSWORD", address.superuser_password)
            url = f"postgresql://postgres:{{SHOP_PASSWORD}}@127.0.0.1:{address.port}/goods"
            path = database_tool(tmp_path_factory.mktemp("goods"), url, secrets=("SHOP_PASSWORD",))
            path.write_text(path.read_text().replace("[limits]", CELLS))
            yield path
            cursor.execute("drop database goods with (force)")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The Kettle costs 24.5 euros.", "24.50"),
        ("The Kettle weighs 1.75 kilograms.", "1.75"),
        ("The Kettle is made by O'Brien.", "O'Brien"),
        ("The Kettle has been sold since 20 July 1969.", "1969-07-20"),
    ],
)
def test_a_query_of_a_cell_gives_what_the_text_says(shop, text, value):
    [call] = DatabaseTool(shop).open_proposer(Settings()).proposals(Document.of(text)).calls
    runner = opened(shop)
    assert ask(runner, call.input) == value
    runner.close()


def test_a_row_that_is_longer_than_an_answer_is_passed_over(shop):
    with_notes = shop.with_name("notes.toml")
    with_notes.write_text(shop.read_text().replace('["price",', '["note", "price",'))
    index = DatabaseTool(with_notes).open_proposer(Settings())
    assert index.tables[0].counts == {"rows": 1}


def test_a_tool_without_examples_names_short_columns_as_a_postgres_spells_them(shop, tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(tmp_path))
    forget_tools()
    database = DatabaseTool(shop).file.database
    new = write_proposing_tool(load_settings(), database, "Goods")
    assert read_table(new.path)["proposals"]["cells"] == {
        "stock.Goods.Label": ["price", "weight", "maker_id.name", "maker_id.founded"],
        "stock.makers.name": ["founded"],
    }
    monkeypatch.undo()
    forget_tools()
