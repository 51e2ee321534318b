"""Where a sentence ends, how a text is cut to a budget, and whether a result repeats the document."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolformer_ops.tools.retrieval.own_text import OwnText
from toolformer_ops.tools.retrieval.sentences import count_tokens, cut_at_sentence_end, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rained. We left.", ["It rained.", "We left."]),
        ("Did it rain? Yes! We left.", ["Did it rain?", "Yes!", "We left."]),
        ('He said "It rained." Then he left.', ['He said "It rained."', "Then he left."]),
        ("Sie ging. Übrigens regnete es.", ["Sie ging.", "Übrigens regnete es."]),
        ("It rained . We left .", ["It rained .", "We left ."]),
        ("", []),
        ("  \n ", []),
        # A full stop inside a name or a number ends nothing.
        *(
            (text, [text])
            for text in (
                "Dr. Smith met Mr. Jones.",
                "J. R. R. Tolkien wrote it.",
                "The U.S. Senate met.",
                "Birds, e.g. Sparrows, fly.",
                "The firm (est. Jan. 5) closed.",
            )
        ),
    ],
)
def test_a_sentence_ends_before_something_that_can_open_one(text, sentences):
    assert split_sentences(text) == sentences


@given(st.text(alphabet="ab. !?A1\n\"'()", max_size=80))
@settings(derandomize=True)
def test_splitting_keeps_exactly_the_words(text):
    assert " ".join(split_sentences(text)).split() == text.split()


def test_tokens_are_words_or_punctuation_marks():
    assert count_tokens("It rained, twice.") == 5  # It, rained, comma, twice, full stop


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        (10, "One two three. Four five six. Seven."),  # 4, 4 and 2 tokens
        (9, "One two three. Four five six."),
        (2, "One two"),  # between words
        (0, ""),
    ],
)
def test_whole_sentences_are_kept_while_they_fit(budget, kept):
    assert cut_at_sentence_end("One two three. Four five six. Seven.", budget) == kept


@given(st.text(max_size=200), st.integers(0, 40))
@settings(derandomize=True)
def test_a_cut_text_is_never_above_its_budget(text, budget):
    assert count_tokens(cut_at_sentence_end(text, budget)) <= budget


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
        (
            f"Flodden Window > {OWN.lower().replace('window', 'window,').replace('war m', 'WAR-M')}",
            DOCUMENT,
            True,
        ),
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
def test_a_result_that_repeats_the_document_is_found_out(result, document, is_repeated):
    assert OwnText(document).repeated_by(result) is is_repeated


def test_a_fifth_of_the_results_runs_of_eight_words_is_a_repetition():
    own = OwnText("a b c d e f g h")
    assert own.repeated_by("a b c d e f g h u v w x")  # 1 run of 5


def test_less_than_a_fifth_of_the_results_runs_is_no_repetition():
    own = OwnText("a b c d e f g h")
    assert not own.repeated_by("a b c d e f g h u v w x y")  # 1 run of 6
