"""`toolformer-ops generate` prints the text with its calls, or everything as JSON."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.system.writing_model import save_model_that_writes_calls
from tests.tool_files import SERVERS, write_tool
from toolformer_ops.__main__ import app
from toolformer_ops.commands import decoding
from toolformer_ops.decoding.records import MadeCall, Prompt, WrittenText
from toolformer_ops.errors import EXIT_USAGE, ModelError, ParameterError, ToolError, exit_code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    sentence = "a film is a film [Length(a film) -> 7] test."
    return str(
        save_model_that_writes_calls(tmp_path_factory.mktemp("generate") / "model", results=True, sentence=sentence)
    )


def run(*arguments: str, stdin: str | None = None) -> list[str]:
    result = CliRunner().invoke(app, ["generate", *arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_it_prints_prompt_and_continuation_with_its_call(folder: str) -> None:
    lines = run(
        "the shop had sold", "--model", folder, "--k", "3", "--max-tokens", "12", "--tools", "Calculator,Calendar"
    )
    assert lines[0].startswith("the shop had sold")
    assert "[Calculator(" in lines[0] or "[Calendar() -> Today is" in lines[0]


def test_a_text_calls_the_tool_of_a_server(folder: str, tools_folder: Path) -> None:
    facts = {"command": [sys.executable, str(SERVERS / "facts.py")]}
    write_tool(tools_folder, "Length", "length", server=facts, ask=True)
    [line] = run("a film is a film", "--model", folder, "--json", "--max-tokens", "12", "--tools", "Calculator,Length")
    [call] = json.loads(line)["calls"]
    assert (call["tool"], call["input"], call["result"]) == ("Length", "a film", "2")
    assert "[Length(a film) -> 2]" in json.loads(line)["text"]


def test_json_lines_hold_text_calls_and_times_and_k_zero_makes_no_call(folder: str) -> None:
    common = (
        "--model",
        folder,
        "--json",
        "--max-tokens",
        "12",
        "--date",
        "2022-11-20",
        "--tools",
        "Calculator,Calendar",
    )
    prompts = "the shop had sold\n\nwe meet today\n"
    with_calls = [json.loads(line) for line in run(*common, "--k", "3", stdin=prompts)]
    assert [line["prompt"] for line in with_calls] == ["the shop had sold", "we meet today"]
    calls = [call for line in with_calls for call in line["calls"]]
    assert calls
    assert all(call["seconds"] >= 0 and (call["result"] is None) != (call["reason"] is None) for call in calls)
    plain = [json.loads(line) for line in run(*common, "--k", "0", stdin=prompts)]
    assert [line["calls"] for line in plain] == [[], []]
    assert all("[" not in line["text"] for line in plain)


def test_wrong_requests_say_what_was_expected(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="--date: expected a date"):
        run("text", "--model", folder, "--date", "yesterday")
    with pytest.raises(ParameterError, match="found none"):
        run("--model", folder, stdin="\n")
    with pytest.raises(ParameterError, match="--file"):
        run("--model", folder, "--file", str(tmp_path / "nothing.txt"))
    with pytest.raises(ToolError, match="Abacus"):
        run("text", "--model", folder, "--tools", "Abacus")


def test_what_a_terminal_would_obey_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    call = MadeCall("QA", "Who?", "me", None, 3, 19, 0.0)
    written = "\x1b]  [QA(Who?) -> me] \x1b[2J\x9b0m\tend"
    decoding.print_text(WrittenText(Prompt("A \x1b[31mred\x07 one"), written, "", (call,), (), (), 1, "length"))
    shown = capsys.readouterr().out
    assert not set(shown) & {"\x1b", "\x07", "\x9b"}
    assert "[QA(Who?) -> me]" in shown
    assert "end" in shown


def test_an_empty_prompt_is_continued_from_the_start_token_and_changes_no_other(folder: str) -> None:
    common = ("--model", folder, "--json", "--k", "3", "--max-tokens", "12", "--tools", "Calculator")
    alone, both = run("the shop had sold", *common), run("", "the shop had sold", *common)
    first, second = (json.loads(line) for line in both)
    assert first["prompt"] == ""
    assert first["tokens"] > 0
    for line in (second, expected := json.loads(alone[0])):
        for call in line["calls"]:
            del call["seconds"]
    assert second == expected


def test_an_empty_prompt_of_a_model_without_start_token_is_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolformer_ops.language_model.tokenization.start_token_ids", lambda _: ())
    with pytest.raises(ModelError, match="prompt 2 of 2: expected a text, found an empty one") as raised:
        run("the shop", "", "--model", folder, "--tools", "Calculator")
    assert exit_code(raised.value) == EXIT_USAGE
