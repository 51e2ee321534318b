"""`toolformer-ops generate` prints the text with its calls, or everything as JSON."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolformer_ops.__main__ import app
from toolformer_ops.cli import decoding
from toolformer_ops.decoding.records import MadeCall, Prompt, WrittenText
from toolformer_ops.errors import EXIT_USAGE, ModelError, UsageError, exit_code


def run(*arguments: str, stdin: str | None = None) -> list[str]:
    result = CliRunner().invoke(app, ["generate", *arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_it_prints_prompts_with_their_continuations_and_as_json_their_calls_and_times(writing_model_dir: Path) -> None:
    options = "--max-tokens 12 --date 2022-11-20 --tools Calculator,Calendar --k 3"
    common = ("--model", str(writing_model_dir), *options.split())
    prompts = ["the shop had sold", "we meet today"]
    lines = [json.loads(line) for line in run(*common, "--json", stdin="\n\n".join(prompts))]
    assert [line["prompt"] for line in lines] == prompts
    calls = [call for line in lines for call in line["calls"]]
    assert calls
    assert all(call["seconds"] >= 0 and (call["result"] is None) != (call["reason"] is None) for call in calls)
    shown = run(prompts[0], *common)
    assert shown[0].startswith(prompts[0])
    assert "[Calculator(" in shown[0] or "[Calendar() -> Today is" in shown[0]
    with pytest.raises(UsageError, match="found none"):
        run(*common, stdin="\n")


def test_what_a_terminal_would_obey_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    call = MadeCall("QA", "Who?", "me", None, 3, 19, 0.0)
    written = "\x1b]  [QA(Who?) -> me] \x1b[2J\x9b0m\tend"
    decoding.print_text(WrittenText(Prompt("A \x1b[31mred\x07 one"), written, "", (call,), (), (), 1, "length"))
    shown = capsys.readouterr().out
    assert not set(shown) & {"\x1b", "\x07", "\x9b"}
    assert "[QA(Who?) -> me]" in shown
    assert "end" in shown


def test_an_empty_prompt_is_continued_from_the_start_token_and_refused_without_one(
    writing_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(writing_model_dir)
    [line] = run("", "--json", "--model", folder, "--max-tokens", "12", "--tools", "Calculator")
    assert json.loads(line)["tokens"] > 0
    monkeypatch.setattr("toolformer_ops.language_model.tokenization.start_token_ids", lambda _: ())
    with pytest.raises(ModelError, match="prompt 2 of 2: expected a text, found an empty one") as raised:
        run("the shop", "", "--model", folder, "--tools", "Calculator")
    assert exit_code(raised.value) == EXIT_USAGE
