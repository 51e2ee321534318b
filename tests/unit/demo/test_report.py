"""The end of the demo: what two models wrote, what is next, and where the time went."""

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console

from toolformer_ops.local.demo.fresh_mountains import FreshMountains
from toolformer_ops.local.demo.report import print_fresh_mountains, print_next, seconds_in_words

WRITTEN = FreshMountains(
    right_before=1,
    right_after=9,
    followed=2,
    sentence_before="We saw it.",
    sentence_after="It is [call] high.",
)


def printed(write: Callable[..., None], *arguments: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    write(console, *arguments)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_sentence_before_the_training_comes_before_that_after_it():
    assert printed(print_fresh_mountains, WRITTEN)[:2] == [
        "Before   We saw it.",
        "After    It is [call] high.",
    ]


def test_the_heights_of_ten_mountains_are_counted():
    [line] = printed(print_fresh_mountains, WRITTEN)[2:]
    assert line == (
        "Heights of 10 mountains that no text has: 1 right before the training, 9 after it. Of 2 changed in a copy "
        "of the database it wrote 2."
    )


def test_a_model_that_can_ask_the_mountains_is_tried_with_one():
    [line, *_] = printed(print_next, "s3://m", ["Mountains"])
    assert line == ('Next     toolformer-ops generate --model s3://m "From our tent we saw Makalu, which is"')


def test_a_model_without_the_mountains_is_tried_with_a_sum():
    [line, *_] = printed(print_next, "s3://m", ["Calculator"])
    assert "The library owned 845 books" in line


def test_without_a_model_the_thresholds_are_next():
    [line, *_] = printed(print_next, None, ["Calculator"])
    assert line == 'Next     toolformer-ops sql "select * from threshold_counts"'


def test_the_phases_are_named_with_their_seconds():
    seconds = {"services": 33.4, "annotation": 95.0}
    assert seconds_in_words(130.0, seconds) == "Done in 2 min 10 s: services 33, annotation 95 s."
