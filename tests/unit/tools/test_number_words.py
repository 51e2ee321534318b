"""Numbers that a text says in words."""

import pytest

from toolformer_ops.tools.written_numbers import said_numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("forty-two boxes", {"42"}),
        ("Forty two boxes", {"42"}),
        ("two hundred and five", {"205"}),
        ("two thousand five hundred", {"2500"}),
        ("five thousand and twelve", {"5012"}),
        ("one million two hundred thousand", {"1200000"}),
        ("a dozen eggs", {"12"}),
        ("two dozen eggs", {"24"}),
        ("a hundred", {"100"}),
        ("3 million people", {"3000000"}),
        ("1.5k readers", {"1500"}),
        ("it paid 2m", {"2000000"}),
        ("half of them", {"0.5", "2", "50"}),
        ("½ cup", {"0.5", "2", "50"}),
        ("twice as many", {"2"}),
        ("a third of it", {"3"}),
        ("two cats and three dogs", {"2", "3"}),
        ("five, six and seven", {"5", "6", "7"}),
        ("nineteen eighty", {"19", "80"}),
        ("48 of them", set()),
        ("no number", set()),
        ("the phone tent", set()),
        ("5 km and 3 meters", set()),
        ("someone and nobody", set()),
        (f"{'1' * 40} two", {"2"}),
        (f"{'1' * 40} million", {"1000000"}),
    ],
)
def test_words_say_their_numbers(text, numbers):
    assert said_numbers(text) == numbers


@pytest.mark.parametrize("word", ["hundred", "score", "million", "trillion"])
def test_a_scale_that_is_repeated_says_no_endless_number(word):
    numbers = said_numbers(f"{word} " * 100 + "two")
    assert 1 <= len(numbers) <= 100
    assert max(map(len, numbers)) <= 25
