"""Which translations MT proposes for a text, and where."""

import time

import pytest

from toolformer_ops.records import Document
from toolformer_ops.tools.machine_translation import TOOL

AFTER = ", as the old people in the village said to all of us."
PORTUGUESE = "O homem suprimido que voltou para casa"
FRENCH = "il faut que nous allions tout de suite chercher le docteur"
GERMAN = "Arbeit macht das Leben immer süß und schön"


def shown(text: str) -> list[tuple[str, str]]:
    """Each call with the text that follows it."""
    return [(call.input, text[call.char :]) for call in TOOL.proposals(Document.of(text)).calls]


TRANSLATED = {
    "in brackets": (
        f'He has published one book in all these years, and it is called: {PORTUGUESE} ("The man who came home"){AFTER}',
        PORTUGUESE,
        f'("The man who came home"){AFTER}',
    ),
    "behind words that say so": (
        f"The old man said to all of us in the room: {FRENCH}, which means we have to fetch the doctor{AFTER}",
        FRENCH,
        f"we have to fetch the doctor{AFTER}",
    ),
    "behind a dash": (
        f"The sign over the door of the house read: {GERMAN} — work makes life sweet{AFTER}",
        GERMAN,
        f"work makes life sweet{AFTER}",
    ),
    "behind or": (
        f"The sign over the door of the house read: {GERMAN}, or work makes life sweet{AFTER}",
        GERMAN,
        f"work makes life sweet{AFTER}",
    ),
}


@pytest.mark.parametrize("kind", TRANSLATED)
def test_a_foreign_phrase_is_proposed_where_its_translation_begins(kind):
    text, phrase, after = TRANSLATED[kind]
    assert shown(text) == [(phrase, after)]


def test_a_foreign_phrase_without_a_translation_has_no_proposal():
    text = f"The sign over the door of the house read: {GERMAN}. It was an old sign that nobody liked at all."
    assert shown(text) == []


def test_an_english_text_has_no_proposal():
    assert shown(f"The sign over the door of the house is gone (it was old){AFTER}") == []


def test_a_megabyte_takes_seconds():
    paragraph = "The old man walked slowly along the river and looked at the boats on the water. " * 13
    text = f"{TRANSLATED['in brackets'][0]}\n{paragraph}\n" * 800
    started = time.process_time()
    assert shown(text[:1_400])
    assert len(TOOL.proposals(Document.of(text)).calls) == 800
    assert time.process_time() - started < 12
