"""The annotation prompts say what the paper's appendix A.2 says, and fit the tools that they teach."""

import re

import pytest

from toolformer_ops.call_syntax import parse_call
from toolformer_ops.tools import model_readers, translators
from toolformer_ops.tools.registry import PAPER_TOOLS, get_tool

DEMONSTRATIONS = {"Calculator": 5, "Calendar": 5, "WikiSearch": 3, "QA": 2, "MT": 3}
CALL = re.compile(r" ?\[([^\[\]]*)\]")


def demonstrations(name: str) -> list[tuple[str, str]]:
    """Pairs of input and output, without the slot."""
    return re.findall(r"^Input: (.*)\nOutput: (.*)$", get_tool(name).prompt, flags=re.MULTILINE)


@pytest.mark.parametrize("name", PAPER_TOOLS)
def test_a_prompt_shows_its_tool_and_asks_for_one_more_output(name: str) -> None:
    prompt = get_tool(name).prompt
    assert f"[{name}(" in prompt.partition("Input:")[0]
    assert prompt.endswith("\n\nInput: {text}\nOutput:")
    assert not re.search("[\u2018-\u201f]", prompt)  # quotation marks are straight


@pytest.mark.parametrize("name", PAPER_TOOLS)
def test_every_demonstration_is_its_input_with_calls_of_the_tool(name: str) -> None:
    pairs = demonstrations(name)
    assert len(pairs) == DEMONSTRATIONS[name]
    for text, output in pairs:
        assert {parse_call(written).tool for written in CALL.findall(output)} == {name}
        # Two demonstrations of the paper change their text: one sentence of the matches, and a Chinese name.
        if "252 qualifying matches" not in text and not text.startswith("南京"):
            assert CALL.sub("", output) == text


def test_every_prompt_file_belongs_to_a_tool_or_a_model() -> None:
    folder = translators.PROMPT.parent
    used = {folder.parent / get_tool(name).spec.prompt_file for name in PAPER_TOOLS}
    assert set(folder.iterdir()) == used | {translators.PROMPT, model_readers.PROMPT}
