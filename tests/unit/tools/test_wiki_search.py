"""What WikiSearch makes of the passages that its index finds."""

from pathlib import Path

import pytest

from tests.unit.tools.fake_passages import FakeIndex
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.retrieval.index_manifest import IndexManifest, write_manifest
from toolformer_ops.tools.retrieval.own_text import OwnText
from toolformer_ops.tools.retrieval.sentences import count_tokens
from toolformer_ops.tools.wiki_search import RESULT_TOKENS, TOOL, WikiSearchRunner

SENTENCE = "Spin fishing uses a reel with a fixed spool, and a rod of glass or of wood."  # 17 words and 2 marks


def settings_with_index(folder: Path, fingerprint: str = "f" * 64) -> Settings:
    folder.mkdir(exist_ok=True)
    write_manifest(folder, IndexManifest(fingerprint, "wiki.jsonl", "0" * 64, {}, 1, 1, {}, 0, "lucene-1"))
    return Settings(wiki_index=str(folder))


def test_a_result_is_cut_at_the_last_sentence_end_within_the_budget() -> None:
    runner = WikiSearchRunner(FakeIndex(("Fishing", " ".join([SENTENCE] * 5))))
    (result,) = runner.run(["reel"])[0].results
    assert count_tokens(SENTENCE) == 19
    assert result == "Fishing > " + " ".join([SENTENCE] * 3)  # 57 tokens; a fourth would make 76
    assert count_tokens(result.removeprefix("Fishing > ")) <= RESULT_TOKENS


def test_each_input_has_its_different_results_or_a_reason() -> None:
    passages = [
        ("Fishing > Reel types", "Spin uses a reel."),
        ("Reel", "A reel."),
        ("Reel", "A reel."),
        ("Golf", "A ball."),
    ]
    outputs = WikiSearchRunner(FakeIndex(*passages)).run(["the of", "reel", "tennis", "golf"])
    assert outputs == [
        ToolOutput.none("empty_query"),
        ToolOutput(("Fishing > Reel types > Spin uses a reel.", "Reel > A reel.")),
        ToolOutput.none("no_match"),
        ToolOutput(("Golf > A ball.",)),
    ]


def test_a_document_from_the_index_gets_the_first_result_that_is_not_its_own() -> None:
    own, other = SENTENCE, "A reel holds the line that is used in angling for fish of all kinds."
    results = WikiSearchRunner(FakeIndex(("Fishing", own), ("Reel", other))).run(["reel rod fishing"])[0].results
    assert TOOL.spec.pass_over_own_text
    document = OwnText(f"Some words before. {own} Some words after.")
    assert [document.repeated_by(result) for result in results] == [True, False]


def test_a_new_index_is_a_new_version_and_another_model_is_not(tmp_path: Path) -> None:
    first = TOOL.version(settings_with_index(tmp_path / "one", "1" * 64), "model")
    assert "1" * 16 in first
    assert first == TOOL.version(settings_with_index(tmp_path / "one", "1" * 64), "another")
    assert first != TOOL.version(settings_with_index(tmp_path / "two", "2" * 64), "model")


def test_without_an_index_neither_version_nor_open_goes_on(tmp_path: Path) -> None:
    settings = Settings(wiki_index=str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="TOOLFORMER_WIKI_INDEX"):
        TOOL.version(settings, "model")
    with pytest.raises(UsageError, match="build-index"):
        TOOL.open(settings, pytest.fail)
