"""`toolformer-ops generate` prints the text with its calls, or everything as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.tool_files import SERVERS, write_tool
from toolformer_ops.__main__ import app
from toolformer_ops.cli import decoding
from toolformer_ops.decoding.records import MadeCall, Prompt, WrittenText
from toolformer_ops.errors import EXIT_USAGE, ModelError, UsageError, exit_code


@pytest.fixture
def folder(writing_model_dir: Path) -> str:
    return str(writing_model_dir)


def run(*arguments: str, stdin: str | None = None) -> list[str]:
    result = CliRunner().invoke(app, ["generate", *arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def run_json(folder: str, *arguments: str, stdin: str | None = None) -> list[dict[str, Any]]:
    """The printed lines of at most twelve tokens each."""
    return [
        json.loads(line) for line in run(*arguments, "--model", folder, "--json", "--max-tokens", "12", stdin=stdin)
    ]


def test_it_prints_prompt_and_continuation_with_its_call(folder: str) -> None:
    prompt, tools = "the shop had sold", "Calculator,Calendar"
    [first, *_] = run(prompt, "--model", folder, "--k", "3", "--max-tokens", "12", "--tools", tools)
    assert first.startswith(prompt)
    assert "[Calculator(" in first or "[Calendar() -> Today is" in first


def test_a_text_calls_the_tool_of_a_server(folder: str, tools_folder: Path) -> None:
    facts = {"command": [sys.executable, str(SERVERS / "facts.py")]}
    write_tool(tools_folder, "Length", "length", server=facts, ask=True)
    [line] = run_json(folder, "a film is a film", "--tools", "Calculator,Length")
    [call] = line["calls"]
    assert (call["tool"], call["input"], call["result"]) == ("Length", "a film", "2")
    assert "[Length(a film) -> 2]" in line["text"]


def test_json_lines_hold_text_calls_and_times_and_k_zero_makes_no_call(folder: str) -> None:
    common = ("--date", "2022-11-20", "--tools", "Calculator,Calendar")
    prompts = "the shop had sold\n\nwe meet today\n"
    with_calls = run_json(folder, *common, "--k", "3", stdin=prompts)
    assert [line["prompt"] for line in with_calls] == ["the shop had sold", "we meet today"]
    calls = [call for line in with_calls for call in line["calls"]]
    assert calls
    assert all(call["seconds"] >= 0 and (call["result"] is None) != (call["reason"] is None) for call in calls)
    with pytest.raises(UsageError, match="found none"):
        run("--model", folder, stdin="\n")
    plain = run_json(folder, *common, "--k", "0", stdin=prompts)
    assert [line["calls"] for line in plain] == [[], []]
    assert all("[" not in line["text"] for line in plain)


def test_what_a_terminal_would_obey_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    call = MadeCall("QA", "Who?", "me", None, 3, 19, 0.0)
    written = "\x1b]  [QA(Who?) -> me] \x1b[2J\x9b0m\tend"
    decoding.print_text(WrittenText(Prompt("A \x1b[31mred\x07 one"), written, "", (call,), (), (), 1, "length"))
    shown = capsys.readouterr().out
    assert not set(shown) & {"\x1b", "\x07", "\x9b"}
    assert "[QA(Who?) -> me]" in shown
    assert "end" in shown


def test_an_empty_prompt_is_continued_from_the_start_token_and_refused_without_one(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [line] = run_json(folder, "", "--tools", "Calculator")
    assert line["tokens"] > 0
    monkeypatch.setattr("toolformer_ops.language_model.tokenization.start_token_ids", lambda _: ())
    with pytest.raises(ModelError, match="prompt 2 of 2: expected a text, found an empty one") as raised:
        run("the shop", "", "--model", folder, "--tools", "Calculator")
    assert exit_code(raised.value) == EXIT_USAGE
