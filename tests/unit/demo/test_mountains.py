"""The demo's database of mountains: each text says a fact that it has, each example's query finds what its text says."""

import json
import re
import sqlite3
from importlib.resources import as_file, files

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.local.demo.fresh_mountains import FRESH_MOUNTAINS
from toolformer_ops.local.demo.mountains import FILES, write_mountains
from toolformer_ops.records import Document
from toolformer_ops.tools.files.kinds import tool_of_file

DEMO = files("toolformer_ops.local.demo")
TEXTS = [
    json.loads(line)["text"]
    for line in (DEMO / "texts" / "mountains.jsonl").read_text(encoding="utf-8").splitlines()
]
EXAMPLES = (DEMO / "mountains" / "examples.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def mountains():
    with as_file(DEMO / "mountains" / "mountains.db") as path:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        yield connection
        connection.close()


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_says_a_fact_of_the_table(mountains, text):
    rows = mountains.execute(
        "select height, first_climbed from mountains where ? like '%'||name||'%'", [text]
    )
    [facts] = rows.fetchall()
    [number] = re.findall(r"\b\d{4}\b", text)
    assert int(number) in facts


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_query_of_an_example_finds_what_its_text_goes_on_with(mountains, example):
    [(query, number)] = re.findall(r"\[Mountains\((.*)\)\] (\d+)", example)
    assert mountains.execute(query).fetchall() == [(int(number),)]


def test_no_example_is_about_a_mountain_of_the_texts(mountains):
    names = [name for (name,) in mountains.execute("select name from mountains")]
    named = [name for name in names if any(name in text for text in TEXTS)]
    assert [example for example in EXAMPLES if any(name in example for name in named)] == []


def test_the_tool_has_one_version_in_every_folder(tmp_path):
    versions = set()
    for name in ("one", "other"):
        write_mountains(tmp_path / name)
        versions.add(tool_of_file(tmp_path / name / "mountains.toml").version(Settings(), ""))
    assert len(versions) == 1


@pytest.mark.parametrize("text", TEXTS)
def test_the_tool_proposes_one_call_for_a_text(tmp_path, text):
    write_mountains(tmp_path)
    proposer = tool_of_file(tmp_path / "mountains.toml").open_proposer(Settings())
    assert len(proposer.proposals(Document.of(text)).calls) == 1


@pytest.mark.parametrize("text", TEXTS)
def test_the_tool_is_asked_about_a_text(tmp_path, text):
    write_mountains(tmp_path)
    [decision] = tool_of_file(tmp_path / "mountains.toml").filter(Document.of(text))
    assert decision.kept


def test_a_file_that_is_there_stays(tmp_path):
    (tmp_path / FILES[-1]).write_text("a person's own")
    write_mountains(tmp_path)
    assert (tmp_path / FILES[-1]).read_text() == "a person's own"


@pytest.mark.parametrize("mountain", FRESH_MOUNTAINS)
def test_the_models_are_asked_about_a_mountain_that_no_text_has(mountain):
    assert [text for text in (*TEXTS, *EXAMPLES) if mountain in text] == []


@pytest.mark.parametrize("mountain", FRESH_MOUNTAINS)
def test_the_database_has_a_mountain_that_the_models_are_asked_about(mountains, mountain):
    assert len(mountains.execute("select height from mountains where name = ?", [mountain]).fetchall()) == 1
