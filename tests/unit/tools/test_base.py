"""A batch of a tool survives an input that raises, hangs, or is too long."""

import threading
from collections.abc import Sequence

import pytest

from toolformer_ops.tools.base import MAX_INPUT_CHARACTERS, ToolOutput, run_tool


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


TOO_LONG = "x" * (MAX_INPUT_CHARACTERS + 1)


@pytest.mark.parametrize(
    ("inputs", "outcomes", "first_asked"),
    [
        pytest.param(["b", "a", "b"], ["B", "A", "B"], ["b", "a"], id="in order, and equal inputs once"),
        pytest.param(["a", "bad", "c"], ["A", "tool_error", "C"], ["a", "bad", "c"], id="one raises"),
        pytest.param(["a", "slow", "c"], ["A", "timed_out", "C"], ["a", "slow", "c"], id="one hangs"),
        pytest.param(["a", "short"], ["A", "tool_error"], ["a", "short"], id="too few outputs"),
        pytest.param([TOO_LONG, "a"], ["input_too_long", "A"], ["a"], id="one is too long"),
        pytest.param([], [], None, id="nothing"),
    ],
)
def test_each_input_has_its_result_or_a_reason(
    inputs: list[str], outcomes: list[str], first_asked: list[str] | None
) -> None:
    tool = Scripted()
    outputs = run_tool(tool, inputs, 0.05 if "slow" in inputs else 10.0)
    tool.over.set()
    assert [output.results[0] if output.results else output.reason for output in outputs] == outcomes
    assert (tool.asked[0] if tool.asked else None) == first_asked
