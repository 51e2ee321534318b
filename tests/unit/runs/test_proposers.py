"""Who is asked for the calls of a tool that can propose them, and of one that cannot."""

import pytest

from toolformer_ops.config import Settings
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.recipes import (
    model_proposes,
    proposer_identity,
    require_proposing_tools,
    tool_proposes,
)
from toolformer_ops.tools.registry import get_tool


def choices(proposer: str) -> RunChoices:
    return RunChoices.parse({"corpus": "c", "model": "m", "proposer": proposer})


@pytest.mark.parametrize(
    ("proposer", "tool", "tool_is_asked", "model_is_asked"),
    [
        ("model", "Calculator", False, True),
        ("model", "QA", False, True),
        ("tool", "Calculator", True, False),
        ("tool-or-model", "Calculator", True, False),
        ("tool-or-model", "QA", False, True),
        ("tool+model", "Calculator", True, True),
        ("tool+model", "QA", False, True),
        ("endpoint:x", "Calculator", False, True),
    ],
)
def test_the_choice_says_who_is_asked(proposer, tool, tool_is_asked, model_is_asked) -> None:
    asked = (
        tool_proposes(choices(proposer), get_tool(tool)),
        model_proposes(choices(proposer), get_tool(tool)),
    )
    assert asked == (tool_is_asked, model_is_asked)


def test_tools_that_cannot_propose_are_taken_where_the_model_proposes_for_them() -> None:
    require_proposing_tools(choices("tool-or-model"))


def test_a_tool_proposes_under_one_identity_whether_or_not_others_can() -> None:
    identities = {
        proposer_identity(Settings(_env_file=None), choices(proposer), get_tool("Calculator"))
        for proposer in ("tool", "tool-or-model")
    }
    assert identities == {"tool:calculator-1"}
