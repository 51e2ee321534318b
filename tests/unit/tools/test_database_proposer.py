"""Which rows of a database are read for its proposals: those of the columns that the tool file names."""

import sqlite3
from contextlib import closing

import pytest

from tests.hostile_queries import ask, database_tool, opened
from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolError
from toolformer_ops.records import Document
from toolformer_ops.tools.databases import table_rows
from toolformer_ops.tools.databases.database_tool import DatabaseTool
from toolformer_ops.tools.files.kinds import refresh_tool

TABLES = """
create table suppliers (id integer primary key, name text, city text);
create table products (
    name text primary key, "order" integer, price real, password text, photo blob,
    supplier_id integer references suppliers, maker_id integer references suppliers (id));
insert into suppliers values (1, 'O''Brien', 'Cork'), (2, 'Acme', 'Paris');
insert into products values ('kettle', 1200, 8.25, 'hunter2', x'ff', 1, 2), ('cup', 12, 3, 'sesame', null, null, 1);
"""
CELLS = '"products.name" = ["order", "price", "photo", "supplier_id.city", "maker_id.city"]'


@pytest.fixture
def shop(tmp_path):
    """The tool file of a database whose products have two references to suppliers."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(TABLES)
    return database_tool(tmp_path, "sqlite:///shop.db")


def with_cells(path, cells=CELLS):
    path.write_text(path.read_text().replace("[limits]", f"[proposals.cells]\n{cells}\n\n[limits]"))
    return DatabaseTool(path)


def inputs(tool, text):
    return [call.input for call in tool.open_proposer(Settings()).proposals(Document.of(text)).calls]


def test_a_file_without_cells_cannot_propose(shop):
    assert not DatabaseTool(shop).can_propose


def test_a_file_with_cells_can_propose(shop):
    assert with_cells(shop).can_propose


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The kettle costs 8.25.", "8.25"),
        ("The kettle, order 1,200.", "1200"),
        ("The kettle is sold in Cork.", "Cork"),
        ("The kettle is made in Paris.", "Paris"),
        ("The cup is made in Cork.", "Cork"),
    ],
)
def test_a_proposed_query_gives_the_cell_that_the_text_says(shop, text, value):
    [query] = inputs(with_cells(shop), text)
    runner = opened(shop)
    assert ask(runner, query) == value
    runner.close()


def test_a_join_follows_the_reference_of_its_column(shop):
    assert inputs(with_cells(shop), "The kettle is made in Paris.") == [
        "SELECT suppliers.city FROM products JOIN suppliers ON suppliers.id = products.maker_id "
        "WHERE products.name = 'kettle'"
    ]


def test_a_column_that_the_file_does_not_name_is_not_read(shop):
    assert inputs(with_cells(shop), "The password of the kettle is hunter2.") == []


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            '"products.nam" = ["price"]',
            r"expected in \[proposals\] a column such as suppliers\.id, .* found products\.nam",
        ),
        (
            '"products.name" = ["prise"]',
            r"expected in \[proposals\] columns of products \(name, order, .* found prise",
        ),
        ('"products.name" = ["price.city"]', r"such as supplier_id\.city, found price\.city"),
        ('"products.name" = ["maker_id.town"]', r"found maker_id\.town"),
    ],
)
def test_a_column_that_is_not_there_is_named(shop, cells, said):
    with pytest.raises(ToolError, match=said):
        with_cells(shop, cells).open_proposer(Settings())


def test_more_rows_than_the_limit_are_refused(shop, monkeypatch):
    monkeypatch.setattr(table_rows, "MOST_ROWS", 1)
    with pytest.raises(
        ToolError, match=r"at most 1 rows in the tables of \[proposals\], found more when products"
    ):
        with_cells(shop).open_proposer(Settings())


def test_all_pages_of_a_table_are_read(shop, monkeypatch):
    monkeypatch.setattr("toolformer_ops.tools.databases.database_tool.ROWS_A_PAGE", 1)
    tool = with_cells(shop)
    assert len(inputs(tool, "The kettle costs 8.25.") + inputs(tool, "The cup is made in Cork.")) == 2


def test_another_cell_of_the_database_is_another_version_of_its_proposals(shop):
    tool = with_cells(shop)
    first = tool.proposer_version(Settings())
    with closing(sqlite3.connect(shop.with_name("shop.db"))) as connection, connection:
        connection.execute("update products set price = 9")
    assert tool.proposer_version(Settings()) != first


def test_other_columns_are_another_version_of_the_proposals(shop):
    first = with_cells(shop).proposer_version(Settings())
    shop.write_text(shop.read_text().replace('"price", ', ""))
    assert DatabaseTool(shop).proposer_version(Settings()) != first


def test_the_columns_of_proposals_are_no_other_version_of_the_answers(shop):
    first = DatabaseTool(shop).version(Settings(), "model")
    assert with_cells(shop).version(Settings(), "model") == first


def test_a_text_that_is_no_utf_8_is_no_cell(shop):
    with closing(sqlite3.connect(shop.with_name("shop.db"))) as connection, connection:
        connection.execute("update products set name = cast(x'6b6574ff' as text) where name = 'cup'")
    assert len(inputs(with_cells(shop), "The kettle costs 8.25.")) == 1


def test_rows_of_a_view_are_proposed(shop):
    with closing(sqlite3.connect(shop.with_name("shop.db"))) as connection, connection:
        connection.execute("create view cheap as select name, price from products where price < 5")
    shop.write_text(shop.read_text().replace("[database]", '[database]\ntables = ["cheap"]'))
    refresh_tool(shop)
    assert inputs(with_cells(shop, '"cheap.name" = ["price"]'), "The cup costs 3.") == [
        "SELECT price FROM cheap WHERE name = 'cup'"
    ]
