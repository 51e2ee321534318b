"""A batch of a tool survives an input that raises, hangs, or is too long."""

import threading
from collections.abc import Sequence

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


def test_a_result_holds_nothing_that_the_database_cannot_store():
    assert ToolOutput.of("a\x00b \ud800c").results == ("a␀b ?c",)


TOO_LONG = "x" * (MAX_INPUT_CHARACTERS + 1)


def test_each_input_has_its_result_or_a_reason():
    for inputs, outcomes, first_asked in (
        (["b", "a", "b"], ["B", "A", "B"], ["b", "a"]),  # in order, and equal inputs once
        (["a", "bad", "c"], ["A", "tool_error", "C"], ["a", "bad", "c"]),
        (["a", "slow", "c"], ["A", "timed_out", "C"], ["a", "slow", "c"]),
        (["a", "short"], ["A", "tool_error"], ["a", "short"]),
        ([TOO_LONG, "a"], ["input_too_long", "A"], ["a"]),
        ([], [], None),
    ):
        tool = Scripted()
        outputs = run_tool(tool, inputs, 0.05 if "slow" in inputs else 10.0)
        tool.over.set()
        assert [output.results[0] if output.results else output.reason for output in outputs] == outcomes
        assert (tool.asked[0] if tool.asked else None) == first_asked
