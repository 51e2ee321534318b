"""The demo's facts about mountains: each text says a fact that the table has, and each example's query finds what its text says."""

import csv
import json
import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files

import pytest

FOLDER = files("toolformer_ops.local.demo") / "mountains"
ROWS = list(csv.DictReader((FOLDER / "mountains.csv").read_text(encoding="utf-8").splitlines()))
TEXTS = [
    json.loads(line)["text"] for line in (FOLDER / "texts.jsonl").read_text(encoding="utf-8").splitlines()
]
EXAMPLES = (FOLDER / "examples.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def mountains() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "create table mountains (name text primary key, height integer, first_climbed integer)"
    )
    for row in ROWS:
        connection.execute(
            "insert into mountains values (?, ?, ?)",
            (row["name"], row["height"], row["first_climbed"] or None),
        )
    yield connection
    connection.close()


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_says_a_fact_of_the_table(text: str) -> None:
    [row] = [row for row in ROWS if row["name"] in text]
    [number] = re.findall(r"\b\d{4}\b", text)
    assert number in {row["height"], row["first_climbed"]}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_query_of_an_example_finds_what_its_text_goes_on_with(
    mountains: sqlite3.Connection, example: str
) -> None:
    found = re.search(r"\[Mountains\((.*)\)\] (\d+)", example)
    assert found is not None
    assert mountains.execute(found[1]).fetchall() == [(int(found[2]),)]


def test_no_example_is_about_a_mountain_of_the_texts() -> None:
    named = {row["name"] for row in ROWS if any(row["name"] in text for text in TEXTS)}
    assert [example for example in EXAMPLES if any(name in example for name in named)] == []
