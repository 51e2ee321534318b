"""A result that repeats the document is found out; one that only shares names or a short answer is not."""

import pytest

from toolformer_ops.tools.retrieval.own_text import OwnText

DOCUMENT = (
    "The Flodden Window in Middleton is said to be the oldest war memorial in the United Kingdom. Sir Richard Assheton of "
    "Middleton, who built the church, was granted a knighthood for his part in the battle."
)
OWN = "The Flodden Window in Middleton is said to be the oldest war memorial in the United Kingdom."
EIGHT_WORDS = "the oldest war memorial in the United Kingdom"
SHORT = f"{DOCUMENT} A ball is a round object. Yes, it was."


@pytest.mark.parametrize(
    ("result", "document", "is_repeated"),
    [
        # A heading in front, other case and other punctuation make no difference.
        (f"Flodden Window > {OWN.lower().replace('window', 'window,').replace('war m', 'WAR-M')}", DOCUMENT, True),
        (
            "Battle of Flodden > Commemoration > The stained-glass Flodden Window in Middleton Parish Church was constructed by "
            "Sir Richard Assheton in memory of the Battle of Flodden and the archers from Middleton who fought in it.",
            DOCUMENT,
            False,  # about the same thing
        ),
        ("Sir Richard Assheton", DOCUMENT, False),  # a short answer that the text is about to give
        (EIGHT_WORDS, DOCUMENT, True),  # the shortest repetition
        (EIGHT_WORDS.removesuffix(" Kingdom"), DOCUMENT, False),
        ("A ball is a round object.", SHORT, True),  # a short sentence
        ("A ball is a round object", SHORT, False),  # no sentence: an answer may read so
        ("Yes, it was.", SHORT, False),  # three words
        (EIGHT_WORDS, "", False),
    ],
)
def test_a_result_that_repeats_the_document_is_found_out(result: str, document: str, is_repeated: bool) -> None:
    assert OwnText(document).repeated_by(result) is is_repeated


def test_a_fifth_of_the_results_runs_of_eight_words_is_a_repetition_and_less_is_not() -> None:
    # 12 words have 5 runs; a..h and b..i are in the document, the others hold x, y or z
    assert OwnText("a b c d e f g h i q").share_repeated("a b c d e f g h i x y z") == pytest.approx(2 / 5)
    own = OwnText("a b c d e f g h")
    assert own.repeated_by("a b c d e f g h u v w x")  # 1 run of 5
    assert not own.repeated_by("a b c d e f g h u v w x y")  # 1 run of 6
