"""Import a large library without those parts of it that nothing here uses.

Each part would take a second of every process's start.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def imported_when_used(*names: str) -> Iterator[None]:
    """What is imported inside gets stand-ins for these modules; outside, there is none.

    Args:
        names: `module`, which is imported when the stand-in is asked for an attribute; or
        `module:function`, for code that
            has `from module import function`: the module is imported when the function is called. A module
            that is imported already is taken as it is.
    """
    stand_ins: dict[str, _StandIn] = {}
    for module, _, function in (name.partition(":") for name in names):
        if module not in sys.modules:
            stand_ins[module] = _StandIn(module, function)
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for stand_in in stand_ins.values():
            stand_in.leave()


class _StandIn(ModuleType):
    def __init__(self, name: str, function: str) -> None:
        super().__init__(name)
        if function:

            def call(*values: Any, **options: Any) -> Any:
                return getattr(self._module(), function)(*values, **options)

            vars(self)[function] = call

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python's import asks every module for
            raise AttributeError(name)
        return getattr(self._module(), name)

    def leave(self) -> None:
        """Take it out of `sys.modules`."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]

    def _module(self) -> ModuleType:
        self.leave()
        return importlib.import_module(self.__name__)
