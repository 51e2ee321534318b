"""`new-tool` for a database without examples: which columns it chooses, and the calls that it shows in one's own texts."""

import json
import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from tests.tool_files import forget_tools
from toolformer_ops.cli.tools import app
from toolformer_ops.config import load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.on_a_file.new_tool.first_version import database_part
from toolformer_ops.on_a_file.new_tool.proposing_tool import (
    NO_EXAMPLES,
    can_be_said,
    names_rows,
    write_proposing_tool,
)
from toolformer_ops.tools.files.tool_file import read_table
from toolformer_ops.tools.registry import get_tool

TABLES = """
create table suppliers (id integer primary key, email text, title text, city text);
create table products (
    id integer primary key, sku text, name text, stock integer, photo blob, owner_password text default 'x',
    supplier_id integer references suppliers (id));
create table orders (product_id integer references products (id), day text);
insert into suppliers values (1, 'ann@acme.org', 'Acme', 'Cork'), (2, 'bo@bolt.org', 'Bolt', 'Paris');
insert into products (sku, name, stock, photo, supplier_id)
    values ('k-1', 'kettle', 667, x'00', 1), ('c-1', 'cup', 12, x'01', 2), ('c-2', 'Set', 9, x'02', 2);
insert into orders values (1, '2024-03-05'), (1, '2024-03-06');
"""
TEXTS = ["The kettle (667 left) is sold in Cork.", "The cup is of Bolt.", "Nothing here."]


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """The settings of a folder of tools, and the database."""
    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(tmp_path / "tools"))
    forget_tools()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(TABLES)
    yield database_part(f"sqlite:///{tmp_path / 'shop.db'}", "", (), ())
    monkeypatch.undo()
    forget_tools()


def texts_file(folder, texts):
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def written(shop, texts=""):
    return write_proposing_tool(load_settings(), shop, "Shop", texts)


def cells(new):
    return read_table(new.path)["proposals"]["cells"]


def test_the_file_says_which_column_names_the_rows_of_each_table(shop):
    assert cells(written(shop)) == {
        "suppliers.title": ["email", "city"],
        "products.name": ["sku", "stock", "supplier_id.title", "supplier_id.email", "supplier_id.city"],
    }


def test_a_table_whose_rows_no_column_names_is_told(shop):
    assert any("no column names the rows of orders" in warning for warning in written(shop).warnings)


@pytest.mark.parametrize(
    ("texts", "is_told"), [((), True), (("Nothing here.",), True), (("The kettle (667 left).",), False)]
)
def test_a_prompt_without_calls_of_the_users_texts_is_told(shop, tmp_path, texts, is_told):
    address = texts_file(tmp_path, texts) if texts else ""
    assert (NO_EXAMPLES in written(shop, address).warnings) == is_told


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (["kettle", "cup", "jug"], True),
        (["kettle", "kettle", "cup"], False),
        (["kettle", None, None], False),
        (["101", "102", "103"], False),
        (["2024-03-05", "2024-03-06", "2024-03-07"], False),
        ([], False),
    ],
)
def test_names_are_distinct_texts_with_letters(column, names):
    assert names_rows(column) == names


@pytest.mark.parametrize(
    ("column", "can"),
    [(["667", "12"], True), (["red", "x" * 101], True), (["x" * 101, "y" * 101], False), ([None, ""], False)],
)
def test_a_text_can_say_short_cells(column, can):
    assert can_be_said(column) == can


def test_the_first_calls_are_shown_in_their_texts_with_their_results(shop, tmp_path):
    assert written(shop, texts_file(tmp_path, TEXTS)).first_calls == (
        "The kettle [Shop(SELECT stock FROM products WHERE name = 'kettle') -> 667] (667 left) is sold in Cork.",
        "The kettle (667 left) is sold in [Shop(SELECT suppliers.city FROM products JOIN suppliers "
        "ON suppliers.id = products.supplier_id WHERE products.name = 'kettle') -> Cork] Cork.",
        "The cup is of [Shop(SELECT suppliers.title FROM products JOIN suppliers "
        "ON suppliers.id = products.supplier_id WHERE products.name = 'cup') -> Bolt] Bolt.",
    )


def test_the_prompt_has_a_call_of_each_text(shop, tmp_path):
    prompt = written(shop, texts_file(tmp_path, TEXTS)).prompt_path.read_text()
    assert prompt.count("Output: ") == 2
    assert "[Shop(SELECT stock FROM products WHERE name = 'kettle')] (667 left)" in prompt


def test_without_texts_no_cell_is_in_the_prompt_file(shop):
    prompt = written(shop).prompt_path.read_text()
    assert "The stock of NAME is [Shop(SELECT stock FROM products WHERE name = 'NAME')] VALUE." in prompt
    assert "kettle" not in prompt


def test_the_written_tool_can_propose(shop):
    written(shop)
    assert get_tool("Shop").can_propose


def test_a_name_that_is_a_common_word_is_left_out(shop, tmp_path):
    texts = [f"Set the table for {number} people." for number in range(100, 160)]
    new = written(shop, texts_file(tmp_path, texts))
    assert read_table(new.path)["proposals"]["common"] == ["set"]
    assert "0 calls in 0 of 60 texts. Left out as common words: set." in new.warnings


def test_a_name_of_which_texts_say_cells_is_no_common_word(shop, tmp_path):
    texts = [f"The cup number {number}, 12 in all." for number in range(100, 160)]
    new = written(shop, texts_file(tmp_path, texts))
    assert "common" not in read_table(new.path)["proposals"]


def test_a_database_without_names_asks_for_examples(shop, tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript("drop table products; drop table suppliers;")
    with pytest.raises(
        UsageError, match=r"expected a table with a column of names.* none in orders.*--examples"
    ):
        written(shop)
    assert list((tmp_path / "tools").iterdir()) == []


def test_the_command_line_needs_no_examples_of_a_database(shop, tmp_path):
    words = ["new-tool", "--sql", shop.url, "--texts", texts_file(tmp_path, TEXTS)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "-> 667] (667 left)" in done.output
    assert "texts.jsonl --tools Shop --proposer tool" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--python", "height.py:height"],
            r"--examples: expected a text file with calls of the tool, found none",
        ),
        (["--python", "height.py:height", "--texts", "x"], r"--texts: expected a database"),
    ],
)
def test_other_tools_need_examples(shop, words, said):
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(app, ["new-tool", *words], catch_exceptions=False)
