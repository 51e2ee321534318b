"""A tool of an installed package needs a spec, a prompt and `run` alone; one that cannot be used harms no other and says why."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.errors import ToolError
from toolformer_ops.records import Document
from toolformer_ops.tools.base import FilterDecision, run_tool
from toolformer_ops.tools.registry import BUILT_IN_TOOLS, forget_tools, get_tool, tool_names

MODULE = """
from toolformer_ops.tools import model_readers, translators
from toolformer_ops.tools.base import Tool, ToolOutput, ToolSpec

class Shout(Tool):
    spec = ToolSpec(name="{name}", purpose="Writes in capitals.", prompt_file="prompt.txt")

    def run(self, inputs):
        return [ToolOutput.of(text.upper()) for text in inputs]

class Idle(Tool):
    spec = Shout.spec

TOOL, IDLE = Shout(), Idle()
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a package with a tool and an entry point on the path, as pip would; returns its folder."""
    forget_tools()
    made: list[str] = []

    def package(name: str, *, entry: str = "", value: str = "TOOL", module: str = MODULE) -> Path:
        made.append(f"tool_package_{len(made)}")
        site = tmp_path / f"site-{made[-1]}"
        folder, info = site / made[-1], site / f"{made[-1]}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(module.replace("{name}", name))
        (folder / "prompt.txt").write_text(f"Output: It is [{name}(a)] A.\n\nInput: {{text}}\nOutput:")
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {made[-1]}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[toolformer_ops.tools]\n{entry or name} = {made[-1]}:{value}\n"
        )
        monkeypatch.syspath_prepend(str(site))
        return folder

    yield package
    for package_name in made:
        sys.modules.pop(package_name, None)
    forget_tools()


def test_a_tool_of_an_installed_package_needs_no_more_than_a_spec_with_run(install):
    prompt = (install("Shout") / "prompt.txt").read_text()
    assert tool_names() == (*BUILT_IN_TOOLS, "Shout")
    shout, document = get_tool("shout"), Document.of("He said hello to  the\nworld.")
    assert shout.prompt == prompt
    assert shout.filter(document) == [FilterDecision(True, "every_text", end_char=28)]
    assert shout.effective_input("  the\n world ", document) == "the world"
    assert not shout.input_only_after("hello", "He said", " hello")
    assert shout.version(Settings(), "any model") == "shout-1"
    assert run_tool(shout.open(Settings(), pytest.fail), ["hello"], 1.0)[0].results == ("HELLO",)


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ({"module": "1 / 0"}, "importing it failed with ZeroDivisionError.*uninstall tool_package_0"),
        ({"value": "Shout"}, "expected an instance of a class derived from .* as in `TOOL = MyTool"),
        ({"value": "IDLE"}, "expected a method `run` or `open`, found neither"),
        (
            {"entry": "Yell"},
            "expected an entry point named as the tool's spec, .* found the spec's name 'Shout'",
        ),
    ],
)
def test_a_broken_entry_point_says_what_to_do_while_the_others_work(install, caplog, package, message):
    install("Shout", **package)
    install("Whisper")
    assert tool_names() == (*BUILT_IN_TOOLS, "Whisper")
    assert "a tool is left out" in caplog.text
    with pytest.raises(ToolError, match=message):
        get_tool(package.get("entry", "Shout"))


def test_a_prompt_that_cannot_work_is_refused(install):
    path = install("Shout") / "prompt.txt"
    for prompt, message in (
        ("[Shout(a)] {text} {text}", "expected '{text}' once, found 2"),
        ("[shout(a)] {text}", r"expected examples with calls '\[Shout"),
        ("", "expected a prompt file in UTF-8, found none.*Ship the prompt file"),
    ):
        forget_tools()
        path.write_text(prompt) if prompt else path.unlink()
        with pytest.raises(ToolError, match=f"tool Shout .*{message}"):
            get_tool("Shout")


def test_a_name_of_the_paper_cannot_be_taken(install):
    install("calculator")
    assert tool_names() == BUILT_IN_TOOLS
    assert get_tool("calculator").run(["1 + 1"])[0].results == ("2",)


def test_two_packages_with_one_name_are_both_left_out(install):
    for name in ("Shout", "SHOUT", "Whisper"):
        install(name)
    assert tool_names() == (*BUILT_IN_TOOLS, "Whisper")
    with pytest.raises(
        ToolError, match=r"expected one entry point of that name, found .*tool_package_.*tool_package_"
    ):
        get_tool("Shout")


def test_the_page_about_tools_shows_the_files_of_the_example_package():
    package = REPOSITORY / "tests" / "data" / "word_count_tool"
    page = (REPOSITORY / "docs" / "own_tools.md").read_text(encoding="utf-8")
    for name in ("pyproject.toml", "word_count_tool/word_count.py"):
        assert (package / name).read_text(encoding="utf-8") in page, name


# The prompts of the paper

DEMONSTRATIONS = {"Calculator": 5, "Calendar": 5, "WikiSearch": 3, "QA": 2, "MT": 3}
CALL = re.compile(r" ?\[([^\[\]]*)\]")


@pytest.mark.parametrize("name", BUILT_IN_TOOLS)
def test_every_demonstration_is_its_input_with_calls_of_the_tool(name):
    pairs = re.findall(r"^Input: (.*)\nOutput: (.*)$", get_tool(name).prompt, flags=re.MULTILINE)
    assert len(pairs) == DEMONSTRATIONS[name]
    for text, output in pairs:
        assert {parse_call(written).tool for written in CALL.findall(output)} == {name}
        # Two demonstrations of the paper change their text: one sentence of the matches, and a Chinese name.
        if "252 qualifying matches" not in text and not text.startswith("南京"):
            assert CALL.sub("", output) == text
