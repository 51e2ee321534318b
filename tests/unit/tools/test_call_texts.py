"""Arguments in a call are read as they are written, checked against the schema, and have one spelling."""

from typing import Any

import pytest

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.servers.call_texts import check_arguments, read_arguments, write_arguments

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "date": {"type": "string"},
        "where": {"$ref": "https://example.org/place.json"},
    },
    "required": ["city"],
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (' date:"2023-01-01" ,city :  "Par, \\"is\\": é" ', {"date": "2023-01-01", "city": 'Par, "is": é'}),
        ("days: 3, share: -0.5e1, wet: true, wind: null", {"days": 3, "share": -5.0, "wet": True, "wind": None}),
        ('at: {"x": 1, "y": {"z": "w"}}', {"at": {"x": 1, "y": {"z": "w"}}}),
        ("", {}),
    ],
)
def test_arguments_are_read_as_json_values(text: str, found: dict[str, Any]) -> None:
    assert read_arguments(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "Paris",
        'city = "Paris"',
        'city: "Paris" date: "2023"',
        'city: "Paris",',
        'city: "Paris", city: "Rome"',
        'city: "Par',
        "days: NaN",
        'city: "\\ud800"',
        "at: " + '{"x": ' * 3000,
    ],
)
def test_what_is_no_list_of_arguments_has_a_reason(text: str) -> None:
    with pytest.raises(RejectedInputError, match="arguments_do_not_parse"):
        read_arguments(text)


def test_two_spellings_are_one_question() -> None:
    one = write_arguments(read_arguments('date: "2023-01-01",   city: "Par\\u0069s"'), SCHEMA)
    assert one == 'city: "Paris", date: "2023-01-01"' == write_arguments(read_arguments(one), SCHEMA)


def test_what_a_schema_refers_to_elsewhere_is_never_fetched() -> None:
    check_arguments({"city": "Paris", "date": "2023-01-01"}, SCHEMA)
    with pytest.raises(RejectedInputError, match="argument_not_of_the_schema"):
        check_arguments({"city": "Paris", "where": {}}, SCHEMA)
