"""Where a sentence ends, and how a text is cut to a budget."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
def test_a_sentence_ends_before_something_that_can_open_one(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(st.text(alphabet="ab. !?A1\n\"'()", max_size=80))
@settings(derandomize=True)
def test_splitting_loses_and_adds_no_word(text: str) -> None:
    assert " ".join(split_sentences(text)).split() == text.split()


def test_tokens_are_words_and_punctuation_marks() -> None:
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
def test_whole_sentences_are_kept_while_they_fit(budget: int, kept: str) -> None:
    assert cut_at_sentence_end("One two three. Four five six. Seven.", budget) == kept


@given(st.text(max_size=200), st.integers(0, 40))
@settings(derandomize=True)
def test_a_cut_text_is_never_above_its_budget(text: str, budget: int) -> None:
    assert count_tokens(cut_at_sentence_end(text, budget)) <= budget
