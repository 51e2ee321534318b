"""`new-tool --texts`: what a model, here a scripted one, does with a new tool."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fake_language_model import FakeLanguageModel
from tests.tool_files import SERVERS
from toolformer_ops.cli.tools import app


def test_a_new_tool_is_tried_on_ten_texts(
    tools_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeLanguageModel(("Echo(5)",))
    monkeypatch.setattr("toolformer_ops.on_a_file.annotator.load_scoring_model", lambda *_: fake)
    folder = tmp_path_factory.mktemp("texts")
    (folder / "examples.txt").write_text("It is [Echo(a: b)] a.\n")
    texts = [{"text": f"There were 2 cats and 3 dogs, a total of 5 animals in {year}."} for year in range(2000, 2011)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    server = shlex.join([sys.executable, str(SERVERS / "faulty.py")])
    asked = ["new-tool", "--mcp", server, "--tool", "echo", "--examples", str(folder / "examples.txt")]
    done = CliRunner().invoke(app, [*asked, "--texts", str(folder / "texts.jsonl"), "--model", "fake"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[3] == "10 texts, 10 asked"
    assert lines[5].startswith("answers: with_result ")
    found = [json.loads(line) for line in lines[7:]]
    assert {(call["call"], call["result"]) for call in found} == {("Echo(5)", "5")}
    assert found[0]["loss_reduction"] == max(call["loss_reduction"] for call in found) > 0
