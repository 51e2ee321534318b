"""KILT records become passages of about 100 words that keep to their section; bad lines get a reason."""

import json
from typing import Any

import pytest

from toolformer_ops.errors import RejectedRecordError
from toolformer_ops.retrieval.kilt_records import KiltRecord, parse_record, passages_of


def line(**fields: Any) -> bytes:
    record = {"_id": "7", "wikipedia_id": "7", "wikipedia_title": "Reel", "text": ["Reel\n", "A reel is a cylinder.\n"]}
    return json.dumps({**record, **fields}).encode()


def record_of(*paragraphs: str) -> KiltRecord:
    return KiltRecord(3, "7", "Reel", ("Reel", *paragraphs))


def sentence(words: int, name: str = "word") -> str:
    return " ".join(["A", *[name] * (words - 2), "end."])


def test_a_record_gives_its_title_id_and_paragraphs_on_one_line_each() -> None:
    record = parse_record(line(text=["Reel\n", "A reel\nis a  cylinder.\n"]), 5)
    assert record == KiltRecord(5, "7", "Reel", ("Reel", "A reel is a cylinder."))


@pytest.mark.parametrize(
    ("bad_line", "reason"),
    [
        (b'{"wikipedia_title": "Reel", "text": [', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"\xff\xfe{}", "invalid_utf8"),
        (b'["Reel"]', "not_an_object"),
        (line(wikipedia_title=""), "no_title"),
        (line(wikipedia_title=None), "no_title"),
        (line(text="Reel"), "no_text"),
        (line(text=["Reel", 5]), "no_text"),
        (line(text=None), "no_text"),
    ],
)
def test_a_line_without_an_article_is_rejected_with_a_reason(bad_line: bytes, reason: str) -> None:
    with pytest.raises(RejectedRecordError) as rejection:
        parse_record(bad_line, 1)
    assert rejection.value.reason == reason


def test_control_characters_and_lone_surrogates_do_not_reach_the_index() -> None:
    record = parse_record(b'{"wikipedia_title": "A\\u0000B", "text": ["x", "lone \\ud800 half"]}', 1)
    assert record.title == "A B"
    assert record.paragraphs[1] == "lone � half"
    record.paragraphs[1].encode("utf-8")


def test_the_title_paragraph_is_not_a_passage() -> None:
    passages = list(passages_of(record_of("A reel is a cylinder.")))
    assert [(passage.text, passage.heading) for passage in passages] == [("A reel is a cylinder.", "Reel")]


def test_a_first_paragraph_that_is_not_the_title_is_kept() -> None:
    passages = list(passages_of(KiltRecord(1, "7", "Reel", ("A reel is a cylinder.",))))
    assert [passage.text for passage in passages] == ["A reel is a cylinder."]


def test_headings_are_not_text_but_the_path_of_what_follows() -> None:
    passages = list(
        passages_of(
            record_of(
                "Intro.",
                "Section::::History.\n",
                "Old.",
                "Section::::History.:Origins in the U.S.\n",
                "Older.",
                "Section::::Notes.",
            )
        )
    )
    assert [(passage.section, passage.text) for passage in passages] == [
        ((), "Intro."),
        (("History",), "Old."),
        (("History", "Origins in the U.S"), "Older."),
    ]
    assert passages[2].heading == "Reel > History > Origins in the U.S"


def test_list_items_lose_their_marker_and_are_joined() -> None:
    passages = list(passages_of(record_of("Kinds are:", "BULLET::::- open faced", "BULLET::::2. receded")))
    assert [passage.text for passage in passages] == ["Kinds are: open faced receded"]


def test_short_paragraphs_of_one_section_share_a_passage_up_to_100_words() -> None:
    passages = list(passages_of(record_of(sentence(60), sentence(40), sentence(30))))
    assert [len(passage.text.split()) for passage in passages] == [100, 30]
    assert [passage.paragraphs for passage in passages] == [(1, 2), (3, 3)]


def test_a_passage_ends_at_a_sentence_end_before_100_words() -> None:
    passages = list(passages_of(record_of(f"{sentence(60)} {sentence(41)} {sentence(10)}")))
    assert [len(passage.text.split()) for passage in passages] == [60, 51]
    assert all(passage.text.endswith("end.") for passage in passages)


def test_a_sentence_longer_than_a_passage_is_cut_between_words() -> None:
    passages = list(passages_of(record_of(sentence(250))))
    assert [len(passage.text.split()) for passage in passages] == [100, 100, 50]


def test_no_word_is_lost_and_none_is_in_two_passages() -> None:
    paragraphs = [sentence(count, f"w{count}") for count in (5, 70, 130, 99, 100, 101, 3)]
    passages = list(passages_of(record_of(*paragraphs)))
    assert " ".join(passage.text for passage in passages).split() == " ".join(paragraphs).split()
    assert all(len(passage.text.split()) <= 100 for passage in passages)


def test_ids_number_the_record_and_the_passage() -> None:
    passages = list(passages_of(record_of(sentence(100), "Section::::Use.", sentence(20))))
    assert [passage.passage_id for passage in passages] == ["3-1", "3-2"]


def test_an_article_of_headings_has_no_passages() -> None:
    assert list(passages_of(record_of("Section::::History.", "Section::::Notes."))) == []
