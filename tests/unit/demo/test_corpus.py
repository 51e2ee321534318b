"""The demo corpus: what its own texts claim is true, and any prefix of it holds every kind."""

import datetime
import importlib.resources
import json
import operator
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from toolformer_ops.errors import CorpusError
from toolformer_ops.local.demo import corpus
from toolformer_ops.records import Document
from toolformer_ops.tools.registry import get_tool

WEEKDAYS = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?\b")
WEEKDAY_WITH_DATE = re.compile(r"\b((?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day), (?:the )?([A-Z][a-z]+) (\d{1,2})\b")
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def records(kind: str) -> list[dict[str, Any]]:
    lines = importlib.resources.files(corpus.__package__).joinpath("texts", f"{kind}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in lines.splitlines()]


@pytest.fixture
def kilt_records(tmp_path: Path) -> Path:
    path = tmp_path / "wikipedia.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(60):
            text = f"Thing {number} is " + "a thing among things " * 6 + "."
            file.write(json.dumps({"wikipedia_title": f"Thing {number}", "text": [f"Thing {number}\n", text]}) + "\n")
        for title, paragraphs in {
            "Short": ["It is short."],
            "Two paragraphs": ["One. " * 30, "Two. " * 30],
            "Accented": ["Caf\u00e9 is a drink and a place, " * 6 + "and no more."],
            "Cut off": ["A text that was cut before its " * 6],
        }.items():
            file.write(json.dumps({"wikipedia_title": title, "text": [f"{title}\n", *paragraphs]}) + "\n")
    return path


def test_every_sum_is_right_after_its_numbers_passes_the_filter_and_is_what_the_calculator_says() -> None:
    tool = get_tool("Calculator")
    for record in records("sums_in_prose"):
        left, sign, right = record["sum"].split()
        result = OPERATIONS[sign](Fraction(left), Fraction(right))
        assert Fraction(record["result"]) == result, record
        found = re.findall(r"\d+(?:\.\d+)?", record["text"])
        place = len(found) - 1 - found[::-1].index(record["result"])
        assert {left, right} <= set(found[:place]), record
        assert tool.run([record["sum"]])[0].results == (record["result"],)
        assert [decision.kept for decision in tool.filter(Document.of(record["text"]))] == [True], record


def test_every_weekday_of_a_post_is_right_and_near_the_day_in_its_address_which_the_calendar_finds() -> None:
    tool = get_tool("Calendar")
    for record in records("dated_posts"):
        numbers = re.search(r"(\d{4})[/-](\d\d)[/-](\d\d)", record["url"])
        assert numbers is not None
        written = datetime.date(*map(int, numbers.groups()))
        days = {name: datetime.date.fromisoformat(day) for name, day in record["weekdays"].items()}
        assert set(WEEKDAYS.findall(record["text"])) == set(days), record
        for weekday, day in days.items():
            assert f"{day:%A}" == weekday.removesuffix("s"), record
            assert abs(day - written) <= datetime.timedelta(days=7), record
        for weekday, month, number in WEEKDAY_WITH_DATE.findall(record["text"]):
            assert (f"{days[weekday]:%B}", days[weekday].day) == (month, int(number)), record
        assert {int(year) for year in re.findall(r"\b20\d\d\b", record["text"])} <= {written.year}, record
        document = Document.of(record["text"], record["url"])
        assert [decision.kept for decision in tool.filter(document)] == [True]
        assert tool.effective_input("", document) == written.isoformat()


def test_every_foreign_phrase_passes_the_translation_filter() -> None:
    tool = get_tool("MT")
    for document in corpus.own_documents("foreign_phrases"):
        assert any(decision.kept for decision in tool.filter(Document.of(document.text))), document.text


def test_any_four_neighbours_of_the_first_sixty_hold_three_kinds(kilt_records: Path) -> None:
    kinds = [document.kind for document in corpus.demo_documents(kilt_records)]
    assert len(kinds) == corpus.demo_size() == 140
    assert set(kinds[:8]) == {*corpus.OWN_KINDS, corpus.WIKIPEDIA}
    for start in range(60):
        assert len(set(kinds[start : start + 4])) >= 3


def test_summaries_are_short_prose_of_one_paragraph_in_an_order_of_their_own(kilt_records: Path) -> None:
    documents = corpus.wikipedia_documents(kilt_records, 60)
    titles = [document.title for document in documents]
    assert titles == [document.title for document in corpus.wikipedia_documents(kilt_records, 60)]
    assert all(title is not None and title.startswith("Thing ") for title in titles)
    assert titles != sorted(titles, key=str)
    with pytest.raises(CorpusError, match="expected 61 short summaries, found 60"):
        corpus.wikipedia_documents(kilt_records, 61)
    assert documents[0].url == f"https://en.wikipedia.org/wiki/{str(documents[0].title).replace(' ', '_')}"


def test_the_corpus_file_is_named_by_its_content() -> None:
    one = corpus.json_lines([corpus.DemoDocument("sums_in_prose", "Caf\u00e9 1")])
    other = corpus.json_lines([corpus.DemoDocument("sums_in_prose", "Caf\u00e9 2", url="https://example.org/")])
    assert json.loads(one) == {"text": "Caf\u00e9 1", "kind": "sums_in_prose"}
    assert corpus.corpus_key(one) == corpus.corpus_key(one) != corpus.corpus_key(other)
    assert re.fullmatch(r"corpora/demo-[0-9a-f]{16}\.jsonl", corpus.corpus_key(one))
