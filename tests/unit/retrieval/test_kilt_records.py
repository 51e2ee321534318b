"""KILT records become passages of about 100 words that keep to their section; bad lines get a reason."""

import json
from typing import Any

import pytest

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.retrieval.kilt_records import KiltRecord, parse_record, passages_of


def line(**fields: Any) -> bytes:
    record = {
        "_id": "7",
        "wikipedia_id": "7",
        "wikipedia_title": "Reel",
        "text": ["Reel\n", "A reel is a cylinder.\n"],
    }
    return json.dumps({**record, **fields}).encode()


def record_of(*paragraphs: str) -> KiltRecord:
    return KiltRecord(3, "7", "Reel", ("Reel", *paragraphs))


def sentence(words: int, name: str = "word") -> str:
    return " ".join(["A", *[name] * (words - 2), "end."])


@pytest.mark.parametrize(
    ("bad_line", "reason"),
    [
        (b'{"wikipedia_title": "Reel", "text": [', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"\xff\xfe{}", "invalid_utf8"),
        (b'["Reel"]', "not_an_object"),
        (line(wikipedia_title=None), "no_title"),
        (line(text=["Reel", 5]), "no_text"),
    ],
)
def test_a_line_without_an_article_is_rejected_with_a_reason(bad_line, reason):
    with pytest.raises(RejectedInputError) as rejection:
        parse_record(bad_line, 1)
    assert rejection.value.reason == reason


def test_a_record_gives_its_paragraphs_on_one_line_each_without_what_an_index_cannot_hold():
    record = parse_record(
        b'{"_id": "7", "wikipedia_title": "A\\u0000B", "text": ["x\\n", "lone\\n \\ud800  half"]}', 5
    )
    assert record == KiltRecord(5, "7", "A B", ("x", "lone \ufffd half"))


def test_headings_are_not_text_but_the_path_of_what_follows():
    history, origins, notes = (
        "Section::::History.\n",
        "Section::::History.:Origins in the U.S.\n",
        "Section::::Notes.",
    )
    passages = list(passages_of(record_of("Intro.", history, "Old.", origins, "Older.", notes)))
    assert [(passage.section, passage.text) for passage in passages] == [
        ((), "Intro."),
        (("History",), "Old."),
        (("History", "Origins in the U.S"), "Older."),
    ]
    assert [passage.passage_id for passage in passages] == [
        "3-1",
        "3-2",
        "3-3",
    ]  # of the record and of the passage
    assert passages[2].heading == "Reel > History > Origins in the U.S"
    assert list(passages_of(record_of(history, notes))) == []


def test_passages_have_neither_the_title_paragraph_nor_list_markers():
    [passage] = passages_of(record_of("Kinds are:", "BULLET::::- open faced", "BULLET::::2. receded"))
    assert (passage.text, passage.heading) == ("Kinds are: open faced receded", "Reel")


def test_a_first_paragraph_other_than_the_title_is_a_passage():
    [passage] = passages_of(
        KiltRecord(1, "7", "Reel", ("A reel is a cylinder.",))
    )  # another first paragraph is
    assert passage.text == "A reel is a cylinder."


@pytest.mark.parametrize(
    ("paragraphs", "words", "numbers"),
    [
        ([sentence(60), sentence(40), sentence(30)], [100, 30], [(1, 2), (3, 3)]),
        ([f"{sentence(60)} {sentence(41)} {sentence(10)}"], [60, 51], [(1, 1), (1, 1)]),
        ([sentence(250)], [100, 100, 50], [(1, 1)] * 3),  # a sentence is cut
    ],
)
def test_a_passage_ends_with_a_sentence_before_100_words(paragraphs, words, numbers):
    passages = list(passages_of(record_of(*paragraphs)))
    assert [len(passage.text.split()) for passage in passages] == words
    assert [passage.paragraphs for passage in passages] == numbers


def test_every_word_is_in_exactly_one_passage():
    paragraphs = [sentence(count, f"w{count}") for count in (5, 70, 130, 99, 100, 101, 3)]
    passages = list(passages_of(record_of(*paragraphs)))
    assert " ".join(passage.text for passage in passages).split() == " ".join(paragraphs).split()


def test_a_passage_has_at_most_100_words():
    paragraphs = [sentence(count, f"w{count}") for count in (5, 70, 130, 99, 100, 101, 3)]
    passages = passages_of(record_of(*paragraphs))
    assert all(len(passage.text.split()) <= 100 for passage in passages)
