"""The measurement of MT's filter counts marked phrases as a person does."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.foreign_passages import app, marked

ENGLISH = "The old man walked slowly along the river and looked at the boats that came down."
FRENCH = "Il faut que nous allions tout de suite chercher le docteur avant la nuit."


@pytest.mark.parametrize(
    ("text", "phrases", "words", "words_between"),
    [
        (f"{ENGLISH} {FRENCH} {ENGLISH}", [FRENCH], (14,), (14,)),
        (f"{ENGLISH} “{FRENCH[:-1]},” he said.", [FRENCH[:-1]], (14,), ()),  # two words behind it
        (f"{ENGLISH} eau sucrée, and eau sucrée {ENGLISH}", ["eau sucrée", "eau sucrée"], (2, 2), (2, 2)),
        (ENGLISH, [], (), ()),
    ],
)
def test_the_words_of_marked_phrases_are_counted(text, phrases, words, words_between):
    paragraph = marked(text, phrases)
    assert (paragraph.phrases, paragraph.phrases_between) == (words, words_between)


def test_both_rules_are_shown_with_their_counts(tmp_path):
    file = tmp_path / "marked.jsonl"
    kept = {"text": f"{ENGLISH} {FRENCH} {ENGLISH}", "foreign": [{"text": FRENCH}]}
    missed = {"text": f"{ENGLISH} eau sucrée {ENGLISH}", "foreign": [{"text": "eau sucrée"}]}
    file.write_text("\n".join(map(json.dumps, (kept, missed))), encoding="utf-8")
    output = CliRunner().invoke(app, [str(file)]).output
    assert "the paper's rule: 1 of 2 paragraphs kept" in output
    assert output.count("| 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 |") == 2
