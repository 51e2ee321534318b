"""A function of a Python file that proposes calls for texts: in a process of its own, within limits."""

from pathlib import Path

import pytest

from tests.tool_files import PROMPT
from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.tools.base import ProposedCall, ProposedCalls
from toolformer_ops.tools.files.kinds import refresh_tool
from toolformer_ops.tools.functions.function_tool import FunctionTool

HEIGHTS = '''
import os, re, time

HEIGHTS = {"Eiger": "3967", "Etna": "3357"}

def height(mountain: str) -> str | None:
    """How high a mountain is."""
    return HEIGHTS.get(mountain)

def propose(text):
    for mountain, metres in HEIGHTS.items():
        for match in re.finditer(rf"{mountain}.*?\\b({metres})\\b", text):
            yield match.start(1), mountain

def hostile(text):
    if text == "raise":
        raise ValueError("no such peak")
    if text == "hang":
        time.sleep(600)
    if text == "die":
        os._exit(3)
    if text == "many":
        return ((0, str(number)) for number in range(100_000))
    if text == "never ends":
        return iter(lambda: (0, "Eiger"), None)
    return {"number": [7], "texts": ["ab"], "bool": [(True, "Eiger")], "none": None}[text]
'''


def tool_with(folder: Path, propose: str) -> FunctionTool:
    (folder / "heights.py").write_text(HEIGHTS)
    path = folder / "heights.toml"
    path.write_text(
        'name = "Height"\npurpose = "Heights."\nprompt = "heights.txt"\n'
        f'[function]\nfile = "heights.py"\nname = "height"\n{propose}\n[limits]\nseconds = 1.0\n'
    )
    path.with_suffix(".txt").write_text(PROMPT.format(name="Height"))
    refresh_tool(path)
    return FunctionTool(path)


def proposed(folder: Path, function: str, text: str) -> ProposedCalls:
    tool = tool_with(folder, f'propose = "{function}"')
    proposer = tool.open_proposer(Settings())
    try:
        return proposer.proposals(Document.of(text))
    finally:
        proposer.close()


def test_a_function_proposes_calls_at_places(tmp_path):
    text = "The Eiger is 3967 metres high, and Etna 3357."
    calls = [ProposedCall(text.index("3967"), "Eiger"), ProposedCall(text.index("3357"), "Etna")]
    assert proposed(tmp_path, "propose", text).calls == calls


def test_a_tool_file_without_propose_cannot_propose(tmp_path):
    assert not tool_with(tmp_path, "").can_propose


def test_a_tool_file_with_propose_can_propose(tmp_path):
    assert tool_with(tmp_path, 'propose = "propose"').can_propose


def test_another_content_of_the_file_is_another_version_of_the_proposer(tmp_path):
    tool = tool_with(tmp_path, 'propose = "propose"')
    before = tool.proposer_version(Settings())
    (tmp_path / "heights.py").write_text(HEIGHTS + "\n# changed\n")
    assert tool.proposer_version(Settings()) != before


FAILURES = {
    "raise": "proposal_function_failed",
    "hang": "proposal_timed_out",
    "never ends": "proposal_timed_out",
    "die": "proposal_function_ended_its_process",
    "number": "proposal_not_offset_and_input",
    "texts": "proposal_not_offset_and_input",
    "bool": "proposal_not_offset_and_input",
    "none": "proposal_function_failed",
}


@pytest.mark.parametrize("text", FAILURES)
def test_a_text_for_which_the_function_fails_is_counted(tmp_path, text):
    outcome = proposed(tmp_path, "hostile", text)
    assert (list(outcome.calls), dict(outcome.left_out)) == ([], {FAILURES[text]: 1})


def test_of_many_calls_the_first_cross_the_border(tmp_path):
    outcome = proposed(tmp_path, "hostile", "many")
    assert (len(outcome.calls), outcome.left_out["proposal_beyond_the_limit"]) == (200, 99_800)


def test_a_function_answers_again_after_its_process_was_ended(tmp_path):
    proposer = tool_with(tmp_path, 'propose = "hostile"').open_proposer(Settings())
    proposer.proposals(Document.of("hang"))
    assert len(proposer.proposals(Document.of("many")).calls) == 200
    proposer.close()
