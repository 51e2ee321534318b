"""How far a long benchmark is, in a file: a call that was killed is continued behind the last step that ended."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from toolformer_ops.storage.machine.shared_files import replace_file


@dataclass(frozen=True)
class Size:
    """What a table takes."""

    rows: int
    bytes: int


@dataclass
class Progress:
    """The steps of a benchmark that ended, and what they measured."""

    file: Path
    figures: dict[str, float] = field(default_factory=dict)
    """CPU seconds by what was measured."""
    sizes: dict[str, Size] = field(default_factory=dict)
    """What each large table takes, once it was measured."""
    ended: list[str] = field(default_factory=list)
    """Names of steps, in order."""
    begun: str = ""
    """The step that was begun last, unless it ended."""
    repeated: list[str] = field(default_factory=list)
    """Steps that were killed once: their figures lack what they had done before."""

    @classmethod
    def read(cls, file: Path) -> "Progress":
        """The progress that a file holds; of nothing, if there is no file."""
        if not file.exists():
            return cls(file)
        values = json.loads(file.read_text(encoding="utf-8"))
        sizes = {name: Size(**size) for name, size in values.pop("sizes").items()}
        return cls(file, sizes=sizes, **values)

    def step(self, name: str, work: Callable[[], object]) -> None:
        """Do a step, unless it has ended; a step that was killed is done again, whole."""
        if name in self.ended:
            return
        if name == self.begun:
            self.repeated.append(name)
        self.begun = name
        self._write()
        work()
        self.begun = ""
        self.ended.append(name)
        self._write()

    def _write(self) -> None:
        values = asdict(self)
        del values["file"]
        replace_file(self.file, json.dumps(values, indent=2) + "\n")
