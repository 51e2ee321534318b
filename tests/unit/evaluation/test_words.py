"""What is a word, and when a right answer stands among the first of them; every case worked by hand."""
# ruff: noqa: RUF001 - characters that look alike are what is tested

import pytest

from toolformer_ops.evaluation.words import first_words, pieces, stands_among_first_words


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        (" Paris, the capital of France.", 2, "Paris, the"),
        ("one two three four five six", 5, "one two three four five"),
        ("one two", 5, "one two"),
        ("", 5, ""),
        ("— “Paris” – is", 1, "— “Paris” –"),  # dashes and quotation marks alone are no words
        ("don't U.S. twenty-one 1,461 -5 x", 5, "don't U.S. twenty-one 1,461 -5"),
        ("a\n\nb\tc", 2, "a\n\nb"),
        ("北京是中国的首都。", 4, "北京是中"),  # each Chinese character is a word
        ("Beijing 北京 is", 2, "Beijing 北"),
        ("東京タワー", 3, "東京タ"),
        ("हिन्दी भाषा में", 2, "हिन्दी भाषा"),  # a mark does not end a word
        ("السَّلام عليكم", 1, "السَّلام"),
        ("Hà Nội là", 2, "Hà Nội"),
    ],
)
def test_the_first_words(text: str, count: int, expected: str) -> None:
    assert first_words(text, count) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Beyoncé", ("beyonce",)),
        ("Việt Nam", ("viet", "nam")),
        ("STRASSE Straße", ("strasse", "strasse")),
        ("1,461 days, not 1461.", ("1461", "days", "not", "1461")),
        ("-5 degrees; 1914-1918; −3", ("-5", "degrees", "1914", "1918", "-3")),
        ("3.14.", ("3.14",)),
        ("1,2,3", ("1", "2", "3")),
        ("50% or 50 percent", ("50", "percent", "or", "50", "percent")),
        ("U.S. Navy's don’t", ("us", "navy", "s", "dont")),
        ("twenty-one", ("twenty", "one")),
        ("the 1920s, the 9th", ("the", "1920s", "the", "9th")),
        ("５０ ﬁsh", ("50", "fish")),
        ("北京2008", ("北", "京", "2008")),
        ("हिन्दी", ("हिन्दी",)),
        ("...!", ()),
    ],
)
def test_the_pieces_of_a_text(text: str, expected: tuple[str, ...]) -> None:
    assert pieces(text) == expected


@pytest.mark.parametrize(
    ("text", "answers", "count"),
    [
        (" Paris.", ("Paris",), 5),
        ("It is in PARIS now", ("paris",), 5),
        ("the city of New York City", ("New York",), 5),  # words 4 and 5
        ("The Beatles", ("Beatles",), 5),
        ("Beatles", ("The Beatles",), 5),  # the article of an answer need not be written
        ("It was Muhammad Ali", ("Cassius Clay", "Muhammad Ali"), 20),  # any alias
        ("There are 1,417 days", ("1417",), 5),
        ("minus: -5 degrees", ("-5",), 5),
        ("答案是北京", ("北京",), 5),
        ("Vitamin A", ("Vitamin A",), 5),
        ("about 50 % of it", ("50%",), 5),
    ],
)
def test_an_answer_among_the_first_words_is_right(text: str, answers: tuple[str, ...], count: int) -> None:
    assert stands_among_first_words(text, answers, count)


@pytest.mark.parametrize(
    ("text", "answers", "count"),
    [
        ("one two three four five Paris", ("Paris",), 5),  # the sixth word
        ("the big city of New York", ("New York",), 5),  # begins among the five and ends after them
        ("the party", ("art",), 5),  # part of a word
        ("the 1920s", ("1920",), 5),
        ("5 degrees", ("-5",), 5),
        ("-5 degrees", ("5",), 5),
        ("York New", ("New York",), 5),
        ("1914", ("191",), 5),
        ("", ("Paris",), 5),
        ("anything", ("",), 5),
        ("anything", ("...",), 5),
        ("中国的首都是北京", ("北京",), 5),  # characters 7 and 8
    ],
)
def test_another_answer_is_wrong(text: str, answers: tuple[str, ...], count: int) -> None:
    assert not stands_among_first_words(text, answers, count)
