"""The annotation prompts say what the paper's appendix A.2 says, and fit the tools that they teach."""

import re

import pytest

from toolformer_ops.call_syntax import parse_call
from toolformer_ops.tools import model_readers, translators
from toolformer_ops.tools.base import load_prompt
from toolformer_ops.tools.calculator import TOOL as CALCULATOR
from toolformer_ops.tools.registry import PAPER_TOOLS, get_tool

DEMONSTRATIONS = {"Calculator": 5, "Calendar": 5, "WikiSearch": 3, "QA": 2, "MT": 3}
CALL = re.compile(r" ?\[([^\[\]]*)\]")


def demonstrations(name: str) -> list[tuple[str, str]]:
    """Pairs of input and output, without the slot."""
    return re.findall(r"^Input: (.*)\nOutput: (.*)$", get_tool(name).prompt, flags=re.MULTILINE)


@pytest.mark.parametrize("name", PAPER_TOOLS)
def test_the_slot_is_after_the_last_input_and_the_end_asks_for_the_output(name: str) -> None:
    assert get_tool(name).prompt.endswith("\n\nInput: {text}\nOutput:")


@pytest.mark.parametrize("name", PAPER_TOOLS)
def test_every_demonstration_calls_the_tool_by_the_name_it_is_registered_under(name: str) -> None:
    pairs = demonstrations(name)
    assert len(pairs) == DEMONSTRATIONS[name]
    for _, output in pairs:
        calls = [parse_call(written) for written in CALL.findall(output)]
        assert calls
        assert {call.tool for call in calls} == {name}
    assert f"[{name}(" in get_tool(name).prompt.partition("Input:")[0]


@pytest.mark.parametrize("name", PAPER_TOOLS)
def test_taking_the_calls_out_of_an_output_gives_its_input(name: str) -> None:
    # Two demonstrations of the paper change their text: one sentence of the matches, and a Chinese name.
    for text, output in demonstrations(name):
        if "252 qualifying matches" not in text and not text.startswith("南京"):
            assert CALL.sub("", output) == text


@pytest.mark.parametrize("name", PAPER_TOOLS)
def test_quotation_marks_are_straight(name: str) -> None:
    assert not re.search("[\u2018-\u201f]", get_tool(name).prompt)


def test_the_calculator_computes_every_expression_of_its_prompt() -> None:
    results = [
        CALCULATOR.run([parse_call(written).input])[0].results
        for _, output in demonstrations("Calculator")
        for written in CALL.findall(output)
    ]
    assert results == [("54",), ("5779763.16",), ("2.87",), ("703",), ("17",), ("120",)]


def test_the_translation_prompt_shows_pairs_and_asks_for_one_more() -> None:
    prompt = load_prompt(translators.PROMPT)
    assert prompt.endswith("\n\nText: {text}\nEnglish:")
    assert prompt.count("\nEnglish: ") == 4


def test_every_prompt_file_belongs_to_a_tool_or_a_model() -> None:
    folder = translators.PROMPT.parent
    used = {folder.parent / get_tool(name).spec.prompt_file for name in PAPER_TOOLS}
    assert set(folder.iterdir()) == used | {translators.PROMPT, model_readers.PROMPT}
