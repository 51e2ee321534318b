"""What is and is not an index, and what makes two indices different."""

import dataclasses

import pytest

from toolformer_ops.errors import UsageError
from toolformer_ops.tools.retrieval.index_manifest import (
    IndexManifest,
    fingerprint_of,
    read_manifest,
    write_manifest,
)

MANIFEST = IndexManifest(
    "f" * 64, "wiki.jsonl", "0" * 64, {"passage_words": 100}, 3, 5, {"no_text": 1}, 0, "lucene-1"
)


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_manifest_of_another_format_is_refused(tmp_path):
    write_manifest(tmp_path, dataclasses.replace(MANIFEST, format=99))
    with pytest.raises(UsageError, match="99"):
        read_manifest(tmp_path)


def test_a_missing_or_damaged_manifest_is_no_index(tmp_path):
    with pytest.raises(UsageError, match="TOOLFORMER_WIKI_INDEX"):
        read_manifest(tmp_path / "nowhere")
    for content in ("{", "[]", '{"fingerprint": "f"}'):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(UsageError, match=r"manifest\.json"):
            read_manifest(tmp_path)


def test_another_content_or_parameter_is_another_fingerprint():
    first = fingerprint_of("a", {"passage_words": 100})
    assert first == fingerprint_of("a", {"passage_words": 100})
    assert first not in (
        fingerprint_of("b", {"passage_words": 100}),
        fingerprint_of("a", {"passage_words": 101}),
    )
