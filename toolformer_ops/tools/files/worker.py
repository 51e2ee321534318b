"""The process that answers for a tool: `python -I -B -m toolformer_ops.tools.files.worker MODULE CLASS`.

Its first question has the arguments of the class's `open`, each later one those of its `answer`. Questions
and answers are JSON lines with equal numbers (`tool_process.py` is the side that asks). What comes back:

| key | means |
|---|---|
| `answer` | what `describe` returns, then what `answer` returns |
| `reason`, `message` | a RejectedInputError: this question has no answer |
| `away` | an AwayError: nothing answers now |
| `wrong` | a WrongError: the tool file has to be changed |

Whatever else a question raises ends the process.
"""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from toolformer_ops.errors import RejectedInputError, lacking_package
from toolformer_ops.tools.files.answering import Answering, AwayError, Limits, WrongError

ALARM_SECONDS = 60.0
"""Given to a question beyond its limit; the side that asks ends the process long before."""


class Worker:
    """Opens what a class opens, and answers by it."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name
        self._limits: Limits | None = None
        self._opened: Answering | None = None

    def reply(self, question: dict[str, Any]) -> dict[str, Any]:
        """What is written for a question, without its number."""
        try:
            answer = self._open(question) if self._opened is None else self._opened.answer(**question)
        except RejectedInputError as error:
            return {"reason": error.reason, "message": error.message}
        except WrongError as error:
            return {"wrong": str(error)}
        except AwayError as error:
            return {"away": str(error)}
        except MemoryError:
            if self._limits is None:
                raise
            return {"reason": self._limits.out_of_memory, "message": ""}
        except Exception as error:
            if self._opened is not None:
                raise
            return {"wrong": str(lacking_package(error) or f"{type(error).__name__}: {error}")}
        return {"answer": answer}

    def _open(self, arguments: dict[str, Any]) -> dict[str, Any]:
        kind: type[Answering] = getattr(importlib.import_module(self._module), self._name)
        self._limits = kind.limits
        if kind.limits is not None:
            kind.limits.set()
        opened = kind.open(**arguments)
        described = asdict(opened.describe())
        self._opened = opened
        return described


def answer_lines(reply: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the questions on stdin until it ends; what `reply` raises ends the process.

    For all other code of the process stdin is empty, and stdout goes nowhere. An alarm ends it within a
    question that it works on for too long though its parent was killed.
    """
    process_id = os.getpid()
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for line in questions:
        message = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, message["seconds"] + ALARM_SECONDS)
        answer = {"number": message["number"], **reply(message["question"])}
        signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() != process_id:  # a copy that the tool's code has made of this process
            os._exit(0)
        # What was written into the pipe before ends with a line break of its own.
        answers.write(f"\n{json.dumps(answer)}\n")
        answers.flush()
    if os.getpgrp() == process_id:
        os.killpg(process_id, signal.SIGKILL)


if __name__ == "__main__":
    answer_lines(Worker(*sys.argv[1:]).reply)
