"""Set apart a text that kills its process, without a database, by the rule of `runs/claims.py`.

Before some texts are computed a file says so, which goes when they are done, or when the process ends in
order. A file whose process is gone is a death. Of a process on another machine nothing is known: it counts as
alive, so that no text is given up that is only slow. No clock is read.
"""

import contextlib
import json
import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from toolformer_ops.runs.claims import Try
from toolformer_ops.storage.objects.parts import Parts


@dataclass(frozen=True)
class FileTries:
    """The tries at the texts of one tool."""

    parts: Parts
    tool: str
    left: Sequence[Try] = ()
    """Those whose process died, oldest first."""

    @classmethod
    def of(cls, parts: Parts, tool: str) -> "FileTries":
        """The tries, with those that were left behind until now."""
        left = []
        for number, name in enumerate(parts.names(f"tries/{tool}/")):
            begun = json.loads(parts.get(name) or b"{}")
            if begun.get("host") == socket.gethostname() and not psutil.pid_exists(begun["pid"]):
                left.append(Try(number, [uuid.UUID(text) for text in begun["texts"]]))
        return cls(parts, tool, left)

    @contextlib.contextmanager
    def begun(self, texts: Sequence[uuid.UUID]) -> Iterator[None]:
        """Say before the block that its texts are computed, and after it, or if it raises, that they are not."""
        # Names are in the order of the tries: those that were left before have smaller numbers.
        name = f"tries/{self.tool}/{len(self.left):06d}-{uuid.uuid4().hex}.json"
        begun = {"host": socket.gethostname(), "pid": os.getpid(), "texts": list(map(str, texts))}
        self.parts.put(name, json.dumps(begun).encode("ascii"))
        try:
            yield
        finally:
            self.parts.delete(name)
