"""The tasks beside this file as an environment of TRL's `GRPOTrainer` (`environment_factory`).

The environment has the reward, too. tasks = load_dataset("json", data_files="train.jsonl", split="train")
GRPOTrainer("MODEL", args=GRPOConfig(), train_dataset=tasks,
environment_factory=environment_class(tasks[0]["tools"]))
"""

from collections.abc import Mapping, Sequence
from typing import Any

from call_tasks import result_of, reward, tool_functions  # type: ignore[import-not-found, unused-ignore]


class CallEnvironment:
    """One rollout: its methods are the tools, whose answers were recorded."""

    def __init__(self) -> None:
        self._task: Mapping[str, Any] = {}
        self._calls: list[tuple[str, dict[str, Any]]] = []

    def reset(self, **task: Any) -> None:
        """Begin a task."""
        self._task, self._calls = task, []

    def get_reward(self) -> float:
        """Reward in [0, 1]: nats saved by the first call, divided by those saved by the kept call."""
        return float(reward(self._task, self._calls))


def environment_class(tools: Sequence[Mapping[str, Any]]) -> type[CallEnvironment]:
    """The environment with a method for each tool; every task has the same tools."""
    methods = {tool["function"]["name"]: _method(tool) for tool in tools}
    return type("CallEnvironment", (CallEnvironment,), methods)


def _method(tool: Mapping[str, Any]) -> Any:
    """A tool as a method."""
    import functools
    import inspect

    name = tool["function"]["name"]
    [described] = tool_functions([tool], lambda *_: "")

    @functools.wraps(described)
    def method(self: CallEnvironment, **arguments: Any) -> str:
        self._calls.append((name, arguments))
        return str(result_of(self._task, name, arguments))

    signature = inspect.signature(described)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(parameters=[itself, *signature.parameters.values()])  # type: ignore[attr-defined]
    return method
