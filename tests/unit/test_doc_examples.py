"""The files of docs/examples, which README's commands read."""

import json
import re
import sqlite3

import pytest

from toolformer_ops.config import REPOSITORY
from toolformer_ops.tools.calculator import evaluate, write_number

EXAMPLES = REPOSITORY / "docs" / "examples"
SUMS = [json.loads(line) for line in (EXAMPLES / "sums.jsonl").read_text().splitlines()]
QUERIES = (EXAMPLES / "shop" / "examples.txt").read_text().splitlines()


def fits(text: str) -> bool:
    """Whether the text goes on with what its call of the Calculator gives."""
    [(expression, after)] = re.findall(r"\[Calculator\((.*?)\)\] (\S+)", text)
    return float(after) == float(write_number(evaluate(expression)))


@pytest.mark.parametrize("record", SUMS, ids=lambda record: record["id"])
def test_a_sum_fits_its_text_if_it_is_called_right(record):
    assert fits(record["text"]) == record["id"].startswith("right")


def test_there_are_twelve_sums_of_each_kind():
    assert [record["id"].split()[0] for record in SUMS] == ["right", "wrong"] * 12


@pytest.mark.parametrize("line", QUERIES)
def test_the_shop_answers_each_example_with_what_its_text_goes_on_with(line):
    [(query, after)] = re.findall(r"\[Shop\((.*)\)\] (\S+)", line)
    shop = sqlite3.connect(f"file:{EXAMPLES / 'shop' / 'shop.db'}?mode=ro", uri=True)
    assert shop.execute(query).fetchall() == [(pytest.approx(float(after)),)]
    shop.close()
