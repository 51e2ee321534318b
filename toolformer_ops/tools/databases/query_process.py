"""The process that runs a tool's queries (`worker.py`), from the side that asks.

A database's own time limit ends nearly every query that takes too long. What goes on within one step, such as
a search for half a megabyte in a whole one, ends with its process, and the next query starts another.
"""

from dataclasses import asdict
from typing import Any

from toolformer_ops.errors import RejectedInputError
from toolformer_ops.tools.databases import reasons
from toolformer_ops.tools.databases.requests import AwayError, Opened, Opening, WrongDatabaseError
from toolformer_ops.tools.files.line_process import EndedError, LateError, LineProcess

MODULE = "toolformer_ops.tools.databases.worker"
START_SECONDS = 30.0
"""Longest start, with the look at the tables."""
GRACE_SECONDS = 2.0
"""Given to a query beyond its limit, so that its database says so itself."""


class QueryProcess:
    """A database that another process has open."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self.process = LineProcess(MODULE)

    def open(self) -> Opened:
        """Start the process, and return what the database says of itself.

        Raises:
            WrongDatabaseError: the database cannot be used.
            AwayError: it does not answer now.
        """
        self.process.start()
        try:
            answer = self._ask(asdict(self._opening), START_SECONDS + 3 * self._opening.seconds)
        except RejectedInputError as error:
            self.process.close()
            raise AwayError(f"expected its tables, found {error.message or error.reason}") from error
        return Opened.of(answer["opened"])

    def answer(self, query: str) -> list[list[str | None]]:
        """The rows of a query as texts, None for NULL.

        Raises:
            RejectedInputError: the query is refused, breaks a limit, or ended the process.
            WrongDatabaseError, AwayError: the process was started anew, and the database cannot be used.
        """
        if not self.process.is_running:
            self.open()
        rows: list[list[str | None]] = self._ask(query, self._opening.seconds + GRACE_SECONDS)["rows"]
        return rows

    def close(self) -> None:
        """End the process."""
        self.process.close()

    def _ask(self, question: Any, seconds: float) -> dict[str, Any]:
        """The answer to one line."""
        try:
            answer = self.process.ask(question, seconds)
        except LateError as error:
            raise RejectedInputError(reasons.TIMED_OUT) from error
        except EndedError as error:
            raise RejectedInputError(reasons.PROCESS_ENDED) from error
        if "reason" in answer:
            raise RejectedInputError(answer["reason"], answer.get("message", ""))
        if "wrong" in answer or "away" in answer:
            self.process.close()
            raise WrongDatabaseError(answer["wrong"]) if "wrong" in answer else AwayError(answer["away"])
        return answer
