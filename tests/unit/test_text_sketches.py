"""Sketches: two of them estimate what their texts share, and have a band in common if that is much."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from toolformer_ops.storage.corpora.text_sketches import (
    BANDS,
    NUMBERS_A_BAND,
    estimated_share,
    passages,
    sketch_of,
)

WORDS = [f"word{number}" for number in range(2000)]


def changed(words: Sequence[str], share: float, source: random.Random) -> list[str]:
    """The words with so many of them replaced, at places by chance."""
    replaced = {source.randrange(len(words)) for _ in range(round(share * len(words)))}
    return [source.choice(WORDS) if place in replaced else word for place, word in enumerate(words)]


def shared(text: str, other: str) -> float:
    return len(passages(text) & passages(other)) / len(passages(text) | passages(other))


@pytest.mark.parametrize("share_changed", [0.0, 0.01, 0.03, 0.1, 0.5])
def test_the_estimate_is_near_what_two_texts_share(share_changed):
    source = random.Random(share_changed)  # noqa: S311 - no secret
    words = source.choices(WORDS, k=300)
    text, other = " ".join(words), " ".join(changed(words, share_changed, source))
    numbers, others = (np.array(sketch_of(each).numbers, np.int32) for each in (text, other))
    assert estimated_share(numbers, others) == pytest.approx(shared(text, other), abs=0.16)  # four errors


def test_texts_that_share_nine_tenths_have_a_band_in_common():
    source = random.Random(1)  # noqa: S311 - no secret
    words = source.choices(WORDS, k=1000)
    text, other = " ".join(words), " ".join(changed(words, 0.01, source))
    assert shared(text, other) > 0.9
    assert {*sketch_of(text).bands} & {*sketch_of(other).bands}


def test_texts_that_share_nothing_have_no_band_in_common():
    assert not {*sketch_of("one two three four five six").bands} & {*sketch_of("a b c d e f g").bands}


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("One two, THREE!", {"one two three"}),
        ("a b c d e f", {"a b c d e", "b c d e f"}),
        ("今天星期五下雨", {"今 天 星 期 五", "天 星 期 五 下", "星 期 五 下 雨"}),
        ("पुस्तकालय में पुरानी किताबें थीं", {"पुस्तकालय में पुरानी किताबें थीं"}),
        ("Cafe\u0301 in Zu\u0308rich", {"caf\u00e9 in z\u00fcrich"}),
        ("...", {"..."}),
    ],
)
def test_passages_are_runs_of_five_words(text, runs):
    assert passages(text) == runs


def test_a_sketch_is_the_same_on_every_machine():
    sketch = sketch_of("The library owned 845 books and gave away 312 of them.")
    assert (len(sketch.numbers), len(sketch.bands)) == (BANDS * NUMBERS_A_BAND, BANDS)
    assert (sketch.numbers[:2], sketch.bands[0]) == ([616135354, 673283896], 6886381736200753797)
