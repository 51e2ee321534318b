"""Run a batch of inputs through an open tool, whatever the tool does: a time limit a call, and no exception gets out.

The batch is first given to the tool as a whole. Where that fails or takes longer than the limit of all its inputs together, each
input is tried alone, so that only the guilty ones end with a reason. A call that hangs keeps its thread until the process
ends; Python has no means to stop it.
"""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from toolformer_ops.tools.base import ToolOutput, ToolRunner

logger = logging.getLogger(__name__)

TIMED_OUT = "timed_out"
TOOL_ERROR = "tool_error"
MAX_INPUT_CHARACTERS = 4000
INPUT_TOO_LONG = "input_too_long"


def run_tool(runner: ToolRunner, inputs: Sequence[str], time_limit_seconds: float) -> list[ToolOutput]:
    """One output an input, in order; equal inputs are run once.

    An input that is too long, takes longer than `time_limit_seconds`, or makes the tool raise, has a reason instead of a result.
    """
    outputs: dict[str, ToolOutput] = {
        item: ToolOutput.none(INPUT_TOO_LONG) for item in inputs if len(item) > MAX_INPUT_CHARACTERS
    }
    wanted = [item for item in dict.fromkeys(inputs) if item not in outputs]
    outputs.update(zip(wanted, _run_batch(runner, wanted, time_limit_seconds), strict=True))
    return [outputs[item] for item in inputs]


def _run_batch(runner: ToolRunner, inputs: Sequence[str], time_limit_seconds: float) -> list[ToolOutput]:
    if not inputs:
        return []
    try:
        outputs = _within(runner, inputs, time_limit_seconds * len(inputs))
    except FutureTimeoutError:
        if len(inputs) == 1:
            logger.warning("no answer within %g s to %r", time_limit_seconds, inputs[0][:80])
            return [ToolOutput.none(TIMED_OUT)]
    except Exception as error:
        logger.warning("%d inputs failed: %s: %s", len(inputs), type(error).__name__, error, exc_info=len(inputs) == 1)
        if len(inputs) == 1:
            return [ToolOutput.none(TOOL_ERROR)]
    else:
        return outputs
    return [output for item in inputs for output in _run_batch(runner, [item], time_limit_seconds)]


def _within(runner: ToolRunner, inputs: Sequence[str], seconds: float) -> list[ToolOutput]:
    """The tool's own answer, from a thread that is left behind when the time is over."""
    future: Future[list[ToolOutput]] = Future()

    def work() -> None:
        try:
            outputs = runner.run(inputs)
            if len(outputs) != len(inputs):
                raise ValueError(f"expected {len(inputs)} outputs, found {len(outputs)}")  # noqa: TRY301
        except BaseException as error:  # handed to the waiting thread, which raises it
            future.set_exception(error)
        else:
            future.set_result(outputs)

    threading.Thread(target=work, daemon=True, name="tool").start()
    return future.result(timeout=seconds)
