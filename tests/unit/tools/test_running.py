"""A batch goes on whatever one input does: raises, hangs, or is too long."""

import threading
from collections.abc import Sequence

from toolformer_ops.tools.base import ToolOutput
from toolformer_ops.tools.running import MAX_INPUT_CHARACTERS, run_tool


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
