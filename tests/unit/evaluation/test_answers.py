"""Which number and which words a text answers, and when they are right; every case worked by hand."""
# ruff: noqa: RUF001 - characters that look alike are what is tested

from fractions import Fraction

from toolformer_ops.evaluation.answers import (
    first_number,
    first_number_is_right,
    first_words,
    stands_among_first_words,
)


def test_the_number_that_a_text_predicts():
    for text, expected in (
        (" 9.", 9),
        ("−5 degrees", -5),
        ("$1,461.50", Fraction(292300, 200)),
        ("$-5", -5),
        ("1,2,3", 1),
        ("5.", 5),
        ("3/4 of it", Fraction(3, 4)),
        ("1 1/2 cups", Fraction(3, 2)),
        ("1½ cups", Fraction(3, 2)),
        ("10/3/2020", 10),  # a date is no fraction
        ("3/0", 3),
        ("B52 or 7", 7),
        ("１２", 12),
        ("5²", 5),
        ("nine", None),
        # After an equation the number behind its sign counts.
        ("The correct answer is 5+3=8", 8),  # the paper's own example
        ("x = -3", -3),
        (" 10 / 4 = 2.5", Fraction(5, 2)),
        ("5 + 3 = 8 = 9", 8),
        ("7, since a = b", 7),  # no number after the sign
        ("x <= 5 and 3 >= 2", 5),
        ("6 != 5", 6),
    ):
        assert first_number(text) == expected


def test_the_first_number_decides():
    for text, answers, is_right in (
        (" 43 seashells", ("43.0",), True),
        (" 0.33", ("0.3333333",), True),  # within half a hundredth: what the calculator rounds to
        (" 3/4", ("0.75",), True),
        (" 4", ("3", "4"), True),
        (" 8, no, 9.", ("9",), False),  # the first one counts
        (" 9.004", ("9",), False),  # a whole number is met exactly
        (" 0.34", ("0.3333333",), False),  # 0.0067 away
        (" 5", ("-5",), False),
        (" 9", ("nine",), False),
        (" 5 + 3 = 9", ("5",), False),
    ):
        assert first_number_is_right(text, answers) is is_right
    assert first_number("9" * 10_000) is not None


def test_the_first_words():
    for text, count, expected in (
        (" Paris, the capital of France.", 2, "Paris, the"),
        ("one two three four five six", 5, "one two three four five"),
        ("— “Paris” – is", 1, "— “Paris” –"),  # dashes and quotation marks alone are no words
        ("北京是中国的首都。", 4, "北京是中"),  # each Chinese character is a word
        ("हिन्दी भाषा में", 2, "हिन्दी भाषा"),  # a mark does not end a word
    ):
        assert first_words(text, count) == expected


def test_an_answer_is_right_if_it_stands_among_the_first_five_words():
    for text, answers, is_right in (
        ("minus: -5 degrees", ("-5",), True),
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
