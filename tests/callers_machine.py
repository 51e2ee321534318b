"""The caller's variables, state folder and home, hidden from all tests before a test file is imported.

A test file may ask for tools or settings while it is imported, and the registry keeps the answer for the
whole process: so hiding them in a fixture is too late. `opened` lists what was opened of them all the same.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from toolformer_ops.config import ENV_PREFIX, REPOSITORY, STATE_DIR_VARIABLE, load_settings, state_dir

_HIDDEN_FOLDERS = "HIDDEN_FROM_TESTS"
"""The variable by which workers know the caller's folders: they inherit the environment of their controller, who hid them."""
_WATCHED = ("open", "os.listdir", "os.scandir")
"""Events of Python's audit hooks whose first argument is a path; they come before the file system is asked."""
_SHARED_BETWEEN_CHECKOUTS = (".cache", ".config/pip", ".pyenv")
"""Folders of a home that hold the interpreter and what installs it: no test depends on what else is in them."""


class CallersMachine:
    """Hides the caller's machine from this process and its children until `show`.

    Attributes:
        opened: paths below the hidden folders that this process opened or listed, in order.
    """

    def __init__(self) -> None:
        self.opened: list[str] = []
        self._environment = dict(os.environ)
        self._home = tempfile.TemporaryDirectory(prefix="toolformer-tests-home-")
        inherited = os.environ.get(_HIDDEN_FOLDERS)
        self.folders = inherited.split(os.pathsep) if inherited else self._folders_of_the_caller()
        for name in list(os.environ):
            if name.startswith((ENV_PREFIX, "AIRFLOW", "HF_", "XDG_")):
                del os.environ[name]
        os.environ[_HIDDEN_FOLDERS] = os.pathsep.join(self.folders)
        os.environ["HOME"] = self._home.name
        os.environ[STATE_DIR_VARIABLE] = str(Path(self._home.name) / "state")
        load_settings.cache_clear()
        sys.addaudithook(self._watch)

    def show(self) -> None:
        """Undo it at the end of the process's tests; the hook stays, since Python removes none."""
        self._home.cleanup()
        os.environ.clear()
        os.environ.update(self._environment)

    @staticmethod
    def _folders_of_the_caller() -> list[str]:
        return [str(state_dir()), str(REPOSITORY / ".toolformer"), str(Path.home())]

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _WATCHED or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path = str(Path(os.fsdecode(arguments[0])).absolute())
        if self._is_hidden(path):
            self.opened.append(path)

    def _is_hidden(self, path: str) -> bool:
        *state_folders, home = self.folders
        if any(path == folder or path.startswith(folder + os.sep) for folder in state_folders):
            return True
        allowed = [str(REPOSITORY), sys.prefix, sys.base_prefix]
        allowed += [str(Path(home) / folder) for folder in _SHARED_BETWEEN_CHECKOUTS]
        is_in_home = path.startswith(home + os.sep)
        return is_in_home and not any(path.startswith(folder) for folder in allowed)
