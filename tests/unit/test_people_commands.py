"""What a user types at a terminal: inputs that look like options, and requests that are wrong."""

from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from toolformer_ops.__main__ import app
from toolformer_ops.commands.command_line import PANELS
from toolformer_ops.errors import EXIT_USAGE, ParameterError


@pytest.mark.parametrize(
    ("call_input", "result"), [("-3", "-3"), ("-3 + 5", "2"), ("--3", "3"), ("-(2 + 3)", "-5"), ("27 + 4 * 2", "35")]
)
def test_an_input_may_begin_with_a_minus_sign(call_input: str, result: str) -> None:
    done = CliRunner().invoke(app, ["call", "Calculator", call_input])
    assert (done.exit_code, done.stdout) == (0, f"{result}\n")


def test_an_input_may_begin_with_what_asks_other_commands_for_help() -> None:
    done = CliRunner().invoke(app, ["call", "Calculator", "-half"])
    assert (done.exit_code, done.stdout) == (3, "")
    assert "Usage" in CliRunner().invoke(app, ["call", "--help"]).stdout


def test_help_shows_every_command_once_in_panels_by_purpose() -> None:
    lines = CliRunner().invoke(app, ["-h"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"}).stdout.splitlines()
    shown: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("╭─"):
            shown[panel := line.strip("╭╮─ ")] = []
        elif line.startswith("│ "):
            shown[panel].append(line.split()[1])
    assert list(shown) == ["Options", *PANELS]
    assert {panel: tuple(names) for panel, names in shown.items() if panel != "Options"} == dict(PANELS)
    assert "--version" in shown["Options"]


@pytest.mark.parametrize("command", [[], ["run"], ["stage"], ["stage", "sample"]], ids=str)
def test_h_asks_for_help_too(command: list[str]) -> None:
    asked, briefly = (CliRunner().invoke(app, [*command, option]) for option in ("--help", "-h"))
    assert (briefly.exit_code, briefly.stdout) == (0, asked.stdout)
    assert "Usage" in briefly.stdout


def test_it_says_its_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"{version('toolformer-ops')}\n")


@pytest.mark.parametrize(
    ("typed", "offered"), [("ru", {"run", "runs"}), ("run --at", {"--attach"}), ("stage sc", {"score"})]
)
def test_a_shell_completes_commands_and_options(typed: str, offered: set[str]) -> None:
    line = f"toolformer-ops {typed}"
    asked = {
        "_TOOLFORMER_OPS_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    done = CliRunner().invoke(app, env=asked, prog_name="toolformer-ops")
    assert set(done.stdout.split()) == offered
    installing = CliRunner().invoke(app, ["--help"]).stdout
    assert "--install-completion" in installing


def test_watching_a_run_again_takes_nothing_of_a_new_one() -> None:
    done = CliRunner().invoke(app, ["run", "posts.jsonl", "--attach", "run-1"])
    assert isinstance(done.exception, ParameterError)


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
