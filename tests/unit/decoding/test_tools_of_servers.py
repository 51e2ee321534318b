"""A text that is being written calls tools of servers like any other; a server that does not answer costs a call, not the text."""

import dataclasses
from pathlib import Path

import pytest

from tests.tool_files import write_tool
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import load_settings
from toolformer_ops.decoding.records import Prompt
from toolformer_ops.decoding.together import ToolRuns


@dataclasses.dataclass
class WaitingWriter:
    """What `ToolRuns` asks of a `decoding.writer.Writer`."""

    waiting_call: Call
    prompt: Prompt = dataclasses.field(default_factory=lambda: Prompt(""))
    text_before_call: str = ""
    got: tuple[str | None, str | None] = (None, None)

    def take_result(self, result: str | None, reason: str | None, seconds: float) -> None:
        self.got = (result, reason)


def test_calls_of_a_server_get_their_results_and_others_their_reasons(tools_folder: Path) -> None:
    write_tool(tools_folder, "Echo", "echo", tables="[limits]\ntries = 1\nfailures = 1")
    write_tool(tools_folder, "Weather", "weather", ask=True)
    write_tool(tools_folder, "Gone", "echo", server={"command": ["/no/such/server"]})
    runs = ToolRuns(load_settings(), ["Echo", "Weather", "Gone", "Calculator"], pytest.fail)

    def ask(*calls: Call) -> list[tuple[str | None, str | None]]:
        writers = [WaitingWriter(call) for call in calls]
        runs.answer(writers)  # type: ignore[arg-type]
        return [writer.got for writer in writers]

    asked = {
        Call("Echo", "a text"): ("a text", None),
        Call("Weather", 'date: "2023-01-01", city: "Paris"'): ("Paris 2023-01-01", None),
        Call("Weather", "Paris"): (None, "arguments_do_not_parse"),
        Call("Gone", "a"): (None, "tool_not_available"),
        Call("Calculator", "1 + 1"): ("2", None),
    }
    assert ask(*asked) == list(asked.values())
    # It ends at one call, and is there for the next text.
    assert ask(Call("Echo", "die:1"), Call("Calculator", "1 + 1")) == [(None, "tool_not_available"), ("2", None)]
    assert ask(Call("Echo", "again")) == [("again", None)]
