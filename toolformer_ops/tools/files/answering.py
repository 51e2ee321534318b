"""What a kind of tool gives to its process (`worker.py`): open, describe, answer, and limits.

A tool's process imports this and as little else as its kind needs, so that it starts in a tenth of a second.
"""

import resource
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST_PROPOSED_CALLS = 200
"""Most proposed calls that are taken for a text: as many as k 20 and m 10 sample."""


class WrongError(Exception):
    """What the tool file names cannot be used as it says: a later try cannot help."""


class AwayError(Exception):
    """What the tool file names does not answer now."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a process, set before it opens anything."""

    memory_bytes: int
    """Address space of the process, in which Python and a driver take a tenth."""
    file_bytes: int
    """Longest file that it may write."""
    out_of_memory: str
    """The reason for a question that needs more memory."""

    def set(self) -> None:
        """Limit this process."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_bytes, self.file_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sys.platform == "linux":  # macOS refuses a bound of the address space
            resource.setrlimit(resource.RLIMIT_AS, (self.memory_bytes, self.memory_bytes))


class Answering(ABC):
    """What answers for one kind of tool; it belongs to one process and one thread."""

    limits: ClassVar[Limits | None] = None
    """None for code that is trusted."""

    @classmethod
    @abstractmethod
    def open(cls, *args: Any, **arguments: Any) -> Self:
        """Open what the tool file names.

        Raises:
            WrongError: it cannot be used.
            AwayError: it does not answer now.
        """

    @abstractmethod
    def describe(self) -> "DataclassInstance":
        """What it says of itself; errors are those of `open`."""

    @abstractmethod
    def answer(self, *args: Any, **arguments: Any) -> Any:
        """The answer to a call's arguments, as JSON can write it.

        Raises:
            RejectedInputError: there is none.
            AwayError: nothing answers now.
        """
