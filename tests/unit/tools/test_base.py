"""A tool that has only a spec and `run` works by defaults; a batch survives an input that raises, hangs, or is too long."""

import importlib.util
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.errors import PromptError
from toolformer_ops.records import Document
from toolformer_ops.tools.base import MAX_INPUT_CHARACTERS, Tool, ToolOutput, run_tool


class Scripted:
    """Upper-cases its inputs; `bad` raises, `slow` waits until the test is over, `short` gives too few outputs."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.over = threading.Event()

    def run(self, inputs: Sequence[str]) -> list[ToolOutput]:
        self.asked.append(list(inputs))
        if "bad" in inputs:
            raise ValueError("bad input")
        if "slow" in inputs:
            self.over.wait(30)
        outputs = [ToolOutput.of(item.upper()) for item in inputs]
        return outputs[1:] if "short" in inputs else outputs


def reasons(outputs: list[ToolOutput]) -> list[str | None]:
    return [output.reason for output in outputs]


def test_outputs_come_in_order_and_equal_inputs_are_run_once() -> None:
    tool = Scripted()
    outputs = run_tool(tool, ["b", "a", "b"], 10.0)
    assert [output.results for output in outputs] == [("B",), ("A",), ("B",)]
    assert tool.asked == [["b", "a"]]


def test_an_input_that_raises_has_a_reason_and_the_others_their_results() -> None:
    outputs = run_tool(Scripted(), ["a", "bad", "c"], 10.0)
    assert reasons(outputs) == [None, "tool_error", None]
    assert outputs[2].results == ("C",)


def test_an_input_that_hangs_times_out_and_the_others_have_their_results() -> None:
    tool = Scripted()
    outputs = run_tool(tool, ["a", "slow", "c"], 0.05)
    tool.over.set()
    assert reasons(outputs) == [None, "timed_out", None]


def test_a_tool_that_gives_too_few_outputs_is_in_error() -> None:
    assert reasons(run_tool(Scripted(), ["a", "short"], 10.0)) == [None, "tool_error"]


def test_an_input_that_is_too_long_is_not_run() -> None:
    tool = Scripted()
    outputs = run_tool(tool, ["x" * (MAX_INPUT_CHARACTERS + 1), "a"], 10.0)
    assert reasons(outputs) == ["input_too_long", None]
    assert tool.asked == [["a"]]


def test_nothing_to_run_is_nothing() -> None:
    assert run_tool(Scripted(), [], 1.0) == []


SHOUT = """
from toolformer_ops.tools.base import Tool, ToolOutput, ToolSpec

class Shout(Tool):
    spec = ToolSpec(name="Shout", purpose="Writes in capitals.", prompt_file="shout.txt")

    def run(self, inputs):
        return [ToolOutput.of(text.upper()) for text in inputs]
"""
PROMPT = "Input: He said hello.\nOutput: He said [Shout(hello)] HELLO.\n\nInput: {text}\nOutput:\n"


@pytest.fixture
def shout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """A tool of somebody else's, in a module with its prompt in the same folder."""
    (tmp_path / "shout.py").write_text(SHOUT)
    (tmp_path / "shout.txt").write_text(PROMPT)
    spec = importlib.util.spec_from_file_location("shout", tmp_path / "shout.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "shout", module)
    spec.loader.exec_module(module)
    made: Tool = module.Shout()
    return made


def test_a_tool_with_a_spec_and_run_has_all_the_rest(shout: Tool) -> None:
    document = Document.of("He said hello to  the\nworld.")
    assert [(item.kept, item.reason, item.end_char) for item in shout.filter(document)] == [(True, "every_text", 28)]
    assert shout.effective_input("  the\n world ", document) == "the world"
    assert not shout.input_only_after("hello", "He said", " hello")
    assert shout.version(Settings(), "any model") == "shout-1"
    assert run_tool(shout.open(Settings(), pytest.fail), ["hello"], 1.0)[0].results == ("HELLO",)


def test_the_prompt_is_the_file_beside_the_tools_module(shout: Tool) -> None:
    assert shout.prompt == PROMPT.rstrip("\n")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "expected a prompt file in UTF-8, found none"),
        (b"\xff {text}", "expected a prompt file in UTF-8, found none"),
        (b"[Shout(a)] no slot", "expected '{text}' once, found 0"),
        (b"[Shout(a)] {text} {text}", "expected '{text}' once, found 2"),
        (b"[shout(a)] {text}", r"expected examples with calls '\[Shout"),
    ],
)
def test_a_prompt_that_cannot_work_is_refused(shout: Tool, tmp_path: Path, prompt: bytes | None, message: str) -> None:
    (tmp_path / "shout.txt").unlink()
    if prompt is not None:
        (tmp_path / "shout.txt").write_bytes(prompt)
    with pytest.raises(PromptError, match=message):
        shout.prompt  # noqa: B018


def test_the_page_about_tools_shows_the_files_of_the_example_package() -> None:
    package = REPOSITORY / "tests" / "data" / "word_count_tool"
    page = (REPOSITORY / "docs" / "tools.md").read_text(encoding="utf-8")
    for name in ("pyproject.toml", "word_count_tool/word_count.py", "word_count_tool/word_count.txt"):
        assert (package / name).read_text(encoding="utf-8") in page, name
