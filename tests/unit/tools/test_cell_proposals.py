"""Which cells of a database become calls in a text: a key, and behind it a cell of its row."""

import pytest

from toolformer_ops.call_syntax import parse_call
from toolformer_ops.records import Document
from toolformer_ops.tools.databases.cell_proposals import (
    REACH_WORDS,
    CellColumn,
    CellIndex,
    quoted_text,
)
from toolformer_ops.tools.databases.query_text import Names, check_postgres_query

COLUMNS = ("stock", "price", "colour", "opened")
ROWS = {
    "kettle": ("1200", "8.25", "red", "2024-03-05"),
    "O'Brien & Sons": ("12", "12.0", "green", None),
    "Apple": ("-5", "700", "silver grey", "1969-07-20 00:00:00"),
    "tea pot": ("77", "88", "", "1969-07-20 10:30:00"),
    "tea": ("66", None, None, None),
}


def index_of(rows=ROWS, common=()):
    index = CellIndex(common)
    table = index.add_table(
        [CellColumn(name, f"SELECT {name} FROM products WHERE name = ") for name in COLUMNS]
    )
    for key, cells in rows.items():
        index.add(table, key, cells)
    return index


def proposals(text, **keys):
    return index_of(**keys).proposals(Document.of(text))


def calls(text, **keys):
    """The column and key of each call, with the word that it comes before."""
    shown = []
    for call in proposals(text, **keys).calls:
        _, column, *_, key = call.input.split(" ", 7)
        shown.append((column, key, text[call.char :].split()[0]))
    return shown


@pytest.mark.parametrize(
    ("text", "column", "word"),
    [
        ("The kettle costs 8.25 euros.", "price", "8.25"),
        ("The kettle costs $8.25 today.", "price", "$8.25"),
        ("The kettle kostet 8,25 Euro.", "price", "8,25"),
        ("Kettle: 1,200 are left.", "stock", "1,200"),
        ("A kettle, of which 1200 are left.", "stock", "1200"),
        ("A kettle (red) is hot.", "colour", "(red)"),
        ("The kettle came on March 5, 2024.", "opened", "March"),
        ("The kettle came on 5 March 2024.", "opened", "5"),
        ("The kettle came on 3/5/2024.", "opened", "3/5/2024."),
        ("The kettle came on 5/3/2024.", "opened", "5/3/2024."),
        ("The kettle came on 2024-03-05.", "opened", "2024-03-05."),
    ],
)
def test_a_cell_behind_its_key_is_proposed_before_its_place(text, column, word):
    assert calls(text) == [(column, "'kettle'", word)]


@pytest.mark.parametrize(
    "text",
    [
        "It costs 8.25, the kettle.",  # before its key
        "The kettles cost 8.25.",  # another word
        "The kettledrum costs 8.25.",
        "An apple a day for 700 people.",  # Apple has a capital
        "The kettle costs 18.25.",
        "The kettle costs 8.251.",
        "The kettle is Reddish.",
        "On March 12, 2024 O'Brien & Sons closed.",
        "The tea pot came on 20 July 1969.",  # a time of this day
        "",
    ],
)
def test_what_is_no_cell_behind_its_key_is_not_proposed(text):
    assert calls(text) == []


def test_the_key_may_have_a_capital_at_the_beginning_of_a_sentence():
    assert calls("Kettle sold for 8.25.") == [("price", "'kettle'", "8.25.")]


def test_a_key_of_capitals_is_found_in_small_letters():
    rows = {"KETTLE": ("1200", None, None, None)}
    assert calls("A kettle, 1,200 of them.", rows=rows) == [("stock", "'KETTLE'", "1,200")]


def test_a_minus_belongs_to_its_number():
    assert calls("Apple fell by -5 points.") == [("stock", "'Apple'", "-5")]


def test_a_number_without_the_minus_is_another_one():
    assert calls("Apple fell by 5 points.") == []


def test_the_longest_key_counts():
    assert calls("The tea pot, 66 or 77 of them.") == [("stock", "'tea pot'", "77")]


def test_words_of_a_cell_are_one_place():
    assert calls("Apple likes silver grey.") == [("colour", "'Apple'", "silver")]


def test_a_quotation_mark_in_a_key_is_doubled():
    [call] = proposals("O’Brien & Sons paint it green.").calls  # noqa: RUF001
    assert call.input == "SELECT colour FROM products WHERE name = 'O''Brien & Sons'"


def test_the_query_is_one_that_a_model_could_have_written():
    [call] = proposals("O'Brien & Sons paint it green.").calls
    assert parse_call(f"Shop({call.input})").input == call.input


@pytest.mark.parametrize(
    "key", ["O'Brien", "'; drop table products; --", "E'\\'", "$$now()$$", "Today /* x", "a\\'b c"]
)
def test_a_key_stays_a_text_of_the_query(key):
    tokens = check_postgres_query(
        f"SELECT a FROM b WHERE c = {quoted_text(key)}", Names(functions=frozenset())
    )
    assert (tokens[-1].text, tokens[-1].is_text) == (key, True)


@pytest.mark.parametrize(
    "key",
    [
        "a[0] list",
        "Paris -> Rome",
        "two\nlines",
        "bell\x07bell",
        "AB",
        "747",
        "x" * 101,
        "one two three four five six seven eight nine",
    ],
)
def test_a_key_that_no_call_or_text_can_hold_is_counted(key):
    index = index_of({key: ("1200", None, None, None)})
    assert index.tables[0].counts["without_key"] == 1


def test_a_key_of_several_rows_is_left_out():
    index = index_of()
    index.add(index.tables[0], "Kettle", ("9", "9", "9", None))
    proposed = index.proposals(Document.of("The kettle costs 8.25, the kettle."))
    assert (list(proposed.calls), proposed.left_out) == ([], {"proposal_of_key_of_several_rows": 1})
    assert index.tables[0].counts["of_several"] == 2


def test_a_common_key_is_left_out():
    proposed = proposals("The kettle costs 8.25.", common=["kettle"])
    assert (list(proposed.calls), proposed.left_out) == ([], {"proposal_of_common_key": 1})


def test_a_value_of_two_columns_belongs_to_the_one_that_the_text_names():
    assert calls("The price of O'Brien & Sons is 12.") == [("price", "'O''Brien & Sons'", "12.")]


def test_a_value_of_two_columns_that_the_text_does_not_name_is_left_out():
    proposed = proposals("O'Brien & Sons have 12.")
    assert (list(proposed.calls), proposed.left_out) == ([], {"proposal_of_several_columns": 1})


def test_a_place_belongs_to_the_nearest_key():
    rows = {"kettle": ("1200", None, None, None), "Apple": ("1200", None, None, None)}
    assert calls("Beside the kettle Apple has 1,200.", rows=rows) == [("stock", "'Apple'", "1,200.")]


def test_a_cell_far_behind_its_key_is_not_proposed():
    near, far = "word " * (REACH_WORDS - 2), "word " * REACH_WORDS
    assert len(calls(f"The kettle {near}8.25.")) == 1
    assert calls(f"The kettle {far}8.25.") == []


def test_a_short_cell_has_to_be_near_its_key():
    assert calls(f"The tea pot {'word ' * 20}77.") == []


def test_a_text_of_a_megabyte_is_read_in_a_time_that_is_linear():
    text = "The kettle costs 8.25 and O'Brien & Sons paint it green. " * 17_600
    assert len(proposals(text).calls) == 2 * 17_600


def test_the_same_text_has_the_same_calls():
    text = "The kettle costs 8.25, is red and came on 5 March 2024."
    assert proposals(text) == proposals(text)
