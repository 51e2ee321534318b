"""A result that repeats the document is found out; one that only shares names or a short answer is not."""

import pytest

from toolformer_ops.retrieval.own_text import OwnText

DOCUMENT = (
    "The Flodden Window in Middleton is said to be the oldest war memorial in the United Kingdom. Sir Richard Assheton of "
    "Middleton, who built the church, was granted a knighthood for his part in the battle."
)


def repeats_text(result: str, document_text: str) -> bool:
    return OwnText(document_text).repeated_by(result)


def test_the_documents_own_sentence_is_found_out() -> None:
    assert repeats_text(
        "The Flodden Window in Middleton is said to be the oldest war memorial in the United Kingdom.", DOCUMENT
    )


def test_a_heading_in_front_and_other_case_and_punctuation_make_no_difference() -> None:
    result = "Flodden Window > the flodden window, in Middleton, is said to be the oldest WAR-MEMORIAL in the United Kingdom!"
    assert repeats_text(result, DOCUMENT)


def test_a_passage_of_which_one_sentence_in_three_is_the_documents_is_found_out() -> None:
    foreign = "Flodden was fought in Northumberland on a wet day in autumn between two armies of much the same size."
    own = "The Flodden Window in Middleton is said to be the oldest war memorial in the United Kingdom."
    assert repeats_text(f"{foreign} {own} {foreign}", DOCUMENT)


def test_another_text_about_the_same_thing_is_not() -> None:
    result = (
        "Battle of Flodden > Commemoration > The stained-glass Flodden Window in Middleton Parish Church was constructed by Sir "
        "Richard Assheton in memory of the Battle of Flodden and the archers from Middleton who fought in it."
    )
    assert not repeats_text(result, DOCUMENT)


def test_a_short_answer_that_the_text_is_about_to_give_is_not() -> None:
    assert not repeats_text("Sir Richard Assheton", DOCUMENT)
    assert not repeats_text("the oldest war memorial in the United", DOCUMENT)  # seven words


def test_a_short_sentence_of_the_document_is_found_out() -> None:
    document = f"{DOCUMENT} A ball is a round object. Its capital was Sardis. Yes, it was."
    assert repeats_text("A ball is a round object.", document)
    assert repeats_text("Its capital was Sardis!", document)
    assert not repeats_text("A ball is a round thing.", document)
    assert not repeats_text("A ball is a round object", document)  # no sentence: an answer may read so
    assert not repeats_text("Yes, it was.", document)  # three words


def test_eight_words_in_a_row_are_the_shortest_repetition() -> None:
    assert repeats_text("the oldest war memorial in the United Kingdom", DOCUMENT)


def test_the_share_is_that_of_the_results_runs_of_eight_words() -> None:
    # 12 words have 5 runs; a..h and b..i are in the document, the others hold x, y or z
    assert OwnText("a b c d e f g h i q").share_repeated("a b c d e f g h i x y z") == pytest.approx(2 / 5)


def test_exactly_the_threshold_is_a_repetition_and_less_is_not() -> None:
    own = OwnText("a b c d e f g h")
    assert own.repeated_by("a b c d e f g h u v w x")  # 1 run of 5
    assert not own.repeated_by("a b c d e f g h u v w x y")  # 1 run of 6


def test_empty_texts_repeat_nothing() -> None:
    assert not repeats_text("", DOCUMENT)
    assert not repeats_text("the oldest war memorial in the United Kingdom", "")
