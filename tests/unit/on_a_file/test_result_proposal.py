"""What of an answer a text needs, found from examples: a field, a part of one, or a place in a text that is no JSON."""

import json

import pytest

from toolformer_ops.on_a_file.new_tool.examples import ExampleCall
from toolformer_ops.on_a_file.new_tool.result_proposal import proposed_result
from toolformer_ops.tools.servers.call_texts import picked_text

TIME = '{{"target": {{"zone": "Asia/Tokyo", "datetime": "2026-11-22T{}:00+09:00"}}, "difference": "+9.0h"}}'


def calls(*following: str) -> list[ExampleCall]:
    return [ExampleCall(1, str(number), "", text) for number, text in enumerate(following)]


@pytest.mark.parametrize(
    ("following", "answers", "proposal"),
    [
        (
            ("667 kettles left.", "12 cups."),
            ('{"item": "kettle", "stock": 667}', '{"item": "cup", "stock": 12}'),
            ("{stock}", 2),
        ),
        (
            ("18:00 in Tokyo.", "20:30 there."),
            (TIME.format("18:00"), TIME.format("20:30")),
            ("{target.datetime[11:16]}", 2),
        ),
        # One of three answers is another one today.
        (
            ("18:00 in Tokyo.", "20:30 there.", "07:15."),
            (TIME.format("18:00"), TIME.format("20:30"), TIME.format("08:15")),
            ("{target.datetime[11:16]}", 2),
        ),
        (("667 kettles.", "two."), ('{"stock": 667}', '{"stock": 2}'), ("{stock}", 1)),
    ],
)
def test_a_field_that_the_texts_go_on_with_is_proposed(following, answers, proposal):
    assert proposed_result(calls(*following), answers) == proposal


@pytest.mark.parametrize(
    ("following", "answers"),
    [
        (
            ("667 kettles left.", "12 cups."),
            ("[{'item': 'kettle', 'stock': 667}]", "[{'item': 'cup', 'stock': 12}]"),
        ),
        (
            ("Paris, its capital.", "Rome."),
            ("The capital is **Paris** (2 M).", "The capital is **Rome** (3 M)."),
        ),
        (("24.5 euros.", "3.2 euros."), ("Price: 24.5\nStock: 7", "Price: 3.2\nStock: 24")),
    ],
    ids=["repr of Python", "Markdown", "prose"],
)
def test_a_place_in_a_text_is_proposed_as_a_regular_expression(following, answers):
    examples = calls(*following)
    proposal = proposed_result(examples, answers)
    assert proposal is not None
    assert proposal[0].startswith("/")
    assert proposal[1] == 2
    results = [picked_text(answer, proposal[0]) for answer in answers]
    assert all(call.agrees(result) for call, result in zip(examples, results, strict=True))


def test_a_result_that_the_user_wrote_counts_more_than_the_text():
    call = ExampleCall(1, "a", "grey", "mild in Paris.")
    assert proposed_result([call], [json.dumps({"sky": "grey", "air": "mild"})]) == ("{sky}", 1)


@pytest.mark.parametrize(
    ("following", "answers"),
    [
        (("mild in Paris.", "warm."), ("no such city", "no such city")),
        (("667 kettles.", "12 cups."), ("667", "12")),  # the whole answer is the result already
        (("667 kettles.",), ("",)),
    ],
    ids=["nothing fits", "the answer itself", "no answer"],
)
def test_nothing_is_proposed_where_nothing_would_be_better(following, answers):
    assert proposed_result(calls(*following), answers) is None
