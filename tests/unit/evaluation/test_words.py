"""What is a word, and when a right answer stands among the first of them; every case worked by hand."""
# ruff: noqa: RUF001 - characters that look alike are what is tested

from toolformer_ops.evaluation.words import first_words, stands_among_first_words


def test_the_first_words() -> None:
    for text, count, expected in (
        (" Paris, the capital of France.", 2, "Paris, the"),
        ("one two three four five six", 5, "one two three four five"),
        ("— “Paris” – is", 1, "— “Paris” –"),  # dashes and quotation marks alone are no words
        ("北京是中国的首都。", 4, "北京是中"),  # each Chinese character is a word
        ("हिन्दी भाषा में", 2, "हिन्दी भाषा"),  # a mark does not end a word
    ):
        assert first_words(text, count) == expected


def test_an_answer_is_right_if_it_stands_among_the_first_five_words() -> None:
    for text, answers, is_right in (
        ("It is 3.14.", ("3.14",), True),
        ("VIỆT Straße ﬁsh", ("Viet strasse fish",), True),
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
