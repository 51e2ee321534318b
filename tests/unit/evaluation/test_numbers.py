"""Which number a text predicts, and when it is right; every case worked by hand."""
# ruff: noqa: RUF001 - characters that look alike are what is tested

from fractions import Fraction

from toolformer_ops.evaluation.numbers import first_number, first_number_is_right


def test_the_number_that_a_text_predicts() -> None:
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


def test_the_first_number_decides() -> None:
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


def test_a_number_of_thousands_of_digits_is_read_without_failing() -> None:
    assert first_number("9" * 10_000) is not None
