"""What is a word, and when a right answer stands among the first of them; every case worked by hand."""
# ruff: noqa: RUF001 - characters that look alike are what is tested

from toolformer_ops.evaluation.words import first_words, pieces, stands_among_first_words


def test_the_first_words() -> None:
    for text, count, expected in (
        (" Paris, the capital of France.", 2, "Paris, the"),
        ("one two three four five six", 5, "one two three four five"),
        ("— “Paris” – is", 1, "— “Paris” –"),  # dashes and quotation marks alone are no words
        ("北京是中国的首都。", 4, "北京是中"),  # each Chinese character is a word
        ("हिन्दी भाषा में", 2, "हिन्दी भाषा"),  # a mark does not end a word
    ):
        assert first_words(text, count) == expected


def test_the_pieces_of_a_text() -> None:
    for text, expected in (
        ("Beyoncé", ("beyonce",)),
        ("STRASSE Straße", ("strasse", "strasse")),
        ("3.14.", ("3.14",)),
        ("1,461 days, not 1461.", ("1461", "days", "not", "1461")),
        ("-5 degrees; 1914-1918; −3", ("-5", "degrees", "1914", "1918", "-3")),
        ("50% or 50 percent", ("50", "percent", "or", "50", "percent")),
        ("U.S. Navy's don’t", ("us", "navy", "s", "dont")),
        ("北京2008", ("北", "京", "2008")),
    ):
        assert pieces(text) == expected


def test_an_answer_is_right_if_it_stands_among_the_first_five_words() -> None:
    for text, answers, is_right in (
        ("the city of New York City", ("New York",), True),  # words 4 and 5
        ("Beatles", ("The Beatles",), True),  # the article of an answer need not be written
        ("It was Muhammad Ali", ("Cassius Clay", "Muhammad Ali"), True),  # any alias
        ("There are 1,417 days", ("1417",), True),
        ("答案是北京", ("北京",), True),
        ("one two three four five Paris", ("Paris",), False),  # the sixth word
        ("the big city of New York", ("New York",), False),  # begins among the five and ends after them
        ("the party", ("art",), False),  # part of a word
        ("anything", ("...",), False),
        ("中国的首都是北京", ("北京",), False),  # characters 7 and 8
    ):
        assert stands_among_first_words(text, answers, 5) is is_right
