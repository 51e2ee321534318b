"""What a user types at a terminal: inputs that look like options, and requests that are wrong."""

import pytest
from typer.testing import CliRunner

from toolformer_ops.__main__ import app
from toolformer_ops.errors import EXIT_USAGE, ParameterError


@pytest.mark.parametrize(
    ("call_input", "result"), [("-3", "-3"), ("-3 + 5", "2"), ("--3", "3"), ("-(2 + 3)", "-5"), ("27 + 4 * 2", "35")]
)
def test_an_input_may_begin_with_a_minus_sign(call_input: str, result: str) -> None:
    done = CliRunner().invoke(app, ["call", "Calculator", call_input])
    assert (done.exit_code, done.stdout) == (0, f"{result}\n")


def test_options_of_call_are_read_before_and_after_its_input() -> None:
    for arguments in (["--date", "2023-01-30", "Calendar"], ["Calendar", "--date=2023-01-30"]):
        done = CliRunner().invoke(app, ["call", *arguments])
        assert done.stdout == "Today is Monday, January 30, 2023.\n"


def test_an_option_that_is_misspelt_is_no_input() -> None:
    done = CliRunner().invoke(app, ["call", "Calculator", "--modle=smol"])
    assert isinstance(done.exception, ParameterError)
    assert "found --modle=smol" in str(done.exception)


@pytest.mark.parametrize(
    "arguments",
    [["call", "Calculator", "1", "2"], ["call"], ["filter", "--tol", "MT", "x"], ["stage", "no-such-stage"]],
)
def test_a_request_that_cannot_be_read_ends_with_status_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == EXIT_USAGE
