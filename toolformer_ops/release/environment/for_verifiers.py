"""The tasks beside this file as a taskset of verifiers (`import verifiers.v1 as vf`): text, tools and reward.

Put the folder on the module path; `--taskset.id for_verifiers` finds it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf  # type: ignore[import-not-found, unused-ignore]
from call_tasks import (  # type: ignore[import-not-found, unused-ignore]
    read_tasks,
    result_of,
    reward,
    tool_functions,
)

__all__ = ["CallTaskset"]


class CallTaskData(vf.TaskData):  # type: ignore[misc, unused-ignore]
    """A task as the file has it."""

    task: dict[str, Any]


class CallTaskConfig(vf.TaskConfig):  # type: ignore[misc, unused-ignore]
    """How the tools are served."""

    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class RecordedTools(vf.Toolset[vf.ToolsetConfig, vf.State]):  # type: ignore[misc, unused-ignore]
    """The tools of a task, whose answers were recorded."""

    TOOL_PREFIX = None

    async def setup_task(self, task: CallTaskData) -> None:
        """Take in the task of a rollout."""
        self._task = task.task

    def register(self, mcp: Any) -> None:
        """A tool each, with the name that the task gives it."""

        def answer(tool: str, arguments: dict[str, Any]) -> str:
            return str(result_of(self._task, tool, arguments))

        for function in tool_functions(self._task["tools"], answer):
            mcp.add_tool(function, name=function.__name__, description=function.__doc__)


class CallTask(vf.Task[CallTaskData, vf.State, CallTaskConfig]):  # type: ignore[misc, unused-ignore]
    """Continue a text, and call a tool where its result helps."""

    @vf.reward(weight=1.0)  # type: ignore[untyped-decorator, unused-ignore]
    async def saved_share(self, trace: Any) -> float:
        """Reward in [0, 1]: nats saved by the first call, divided by those saved by the kept call."""
        calls = []
        for message in trace.assistant_messages:
            for call in message.tool_calls or ():
                calls.append((call.name, json.loads(call.arguments or "{}")))
        return float(reward(self.data.task, calls))

    @classmethod
    def toolsets(cls, config: CallTaskConfig) -> list[Any]:
        """The recorded tools."""
        return [RecordedTools(config.tools)]


class CallTasksetConfig(vf.TasksetConfig):  # type: ignore[misc, unused-ignore]
    """Where the tasks are."""

    file: Path = Path(__file__).with_name("train.jsonl")
    task: CallTaskConfig = CallTaskConfig()


class CallTaskset(vf.Taskset[CallTask, CallTasksetConfig]):  # type: ignore[misc, unused-ignore]
    """The tasks of the file, in its order."""

    def load(self) -> Iterator[CallTask]:
        """One after the other."""
        for task in read_tasks(self.config.file):
            data = CallTaskData(id=task["call_id"], prompt=task["prompt"], task=task)
            yield CallTask(data, self.config.task)


if __name__ == "__main__":  # verifiers starts a server of tools so
    RecordedTools.run()
