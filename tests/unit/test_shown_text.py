"""Texts are shown without what a terminal obeys."""

import json
import math

import pytest

from toolformer_ops.release.card import markdown
from toolformer_ops.run_page import pages
from toolformer_ops.runs.summary import BestCall
from toolformer_ops.shown_text import (
    at_most_gained,
    beside_threshold,
    count_of,
    gain_in_figures,
    gained,
    json_to_show,
    needed,
    visible,
)

HOSTILE = "a\x1b]0;title\x07\x1b[2J\b\x7f\x85\x9b31m\u2028\u202e"
OBEYED = set("\x1b\x07\b\x7f\x85\x9b\u2028\u2029")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[0m\nc\td\ud800", "\u27e8U+001B\u27e9[0m\nc\td\u27e8U+D800\u27e9"),
        ("one\n\ftwo", "one\n\u27e8U+000C\u27e9two"),
        ("a\rb", "a\u27e8U+000D\u27e9b"),
        ("\x9b2J", "\u27e8U+009B\u27e92J"),
        ("gr\u00fc\u00dfe \u65e5\u672c \U0001f600 \u240c", "gr\u00fc\u00dfe \u65e5\u672c \U0001f600 \u240c"),
    ],
)
def test_what_does_not_show_is_written_out(text, shown):
    assert visible(text) == shown


def test_json_that_is_shown_holds_nothing_that_a_terminal_obeys():
    assert not set(json_to_show({HOSTILE: [HOSTILE]}, indent=2)) & OBEYED


@pytest.mark.parametrize("text", [HOSTILE, 'gr\u00fc\u00dfe \\ " \u240c'])
def test_json_that_is_shown_reads_back_as_it_was(text):
    assert json.loads(json_to_show({text: [text]})) == {text: [text]}


def test_json_that_is_shown_keeps_letters_of_all_scripts():
    assert json_to_show("gr\u00fc\u00dfe \u65e5\u672c") == '"gr\u00fc\u00dfe \u65e5\u672c"'


def test_a_call_in_a_summary_shows_its_text_without_what_a_terminal_obeys():
    call = BestCall(
        tool="QA",
        call="[QA(a) -> b]",
        text_before=HOSTILE,
        text_after=HOSTILE,
        gain=1.0,
        probability_with=None,
    )
    assert not set(str(call)) & OBEYED


def test_a_page_in_markdown_shows_a_text_without_what_a_terminal_obeys(tmp_path):
    template = tmp_path / "page.md.jinja"
    template.write_text("{{ text | visible }}")
    assert not set(markdown(template, text=HOSTILE)) & OBEYED


@pytest.mark.parametrize(
    ("number", "threshold", "shown"),
    [
        (1.21, 1.0, "1.21"),
        (0.9996, 1.0, "0.9996"),
        (1.0004, 1.0, "1.00"),
        (0.4, 1.0, "0.40"),
        (-1.0, 0.5, "-1.00"),
    ],
)
def test_a_number_below_a_threshold_does_not_look_like_it(number, threshold, shown):
    assert beside_threshold(number, threshold, digits=2) == shown


@pytest.mark.parametrize(
    ("by_probability", "bound", "threshold"),
    [
        (False, "gains at most 0.05 nats", "0.22 are needed"),
        (True, "makes the next tokens at most 1.05 times as probable", "1.25 times is needed"),
    ],
)
def test_a_bound_has_the_unit_of_its_threshold(by_probability, bound, threshold):
    assert at_most_gained(0.05, by_probability, threshold=0.22) == bound
    assert needed(0.22, by_probability) == threshold


@pytest.mark.parametrize(
    ("keep_rule", "shown"), [("paper", "\u2264 0.01 nats"), ("probability", "\u2264 1.01 times")]
)
def test_a_page_shows_a_bound_in_the_unit_of_its_threshold(keep_rule, shown):
    row = {"gain": None, "gain_bound": 0.01, "keep_threshold": 0.22, "keep_rule": keep_rule}
    assert pages.gained(row) == shown


@pytest.mark.parametrize(
    ("probability_with", "words"),
    [(None, "saves 0.69 nats"), (0.5, "probability of the next tokens 0.25 -> 0.50")],
)
def test_a_gain_is_in_the_words_of_its_keep_rule(probability_with, words):
    assert gained(math.log(2), probability_with) == words


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (0.0412, 0.2401, "0.04 -> 0.24"),
        (0.0512, 0.0644, "0.051 -> 0.064"),
        (0.0012, 0.0031, "0.0012 -> 0.0031"),
        (0.4964, 0.6235, "0.496 -> 0.624"),
    ],
)
def test_probabilities_have_the_digits_that_tell_their_ratio(before, after, shown):
    assert gain_in_figures(math.log(after / before), after, threshold=math.log(1.25)) == shown


@pytest.mark.parametrize(("number", "words"), [(1, "1 text"), (0, "0 texts"), (1200, "1,200 texts")])
def test_one_thing_is_no_plural(number, words):
    assert count_of(number, "text") == words
