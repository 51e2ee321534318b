"""Files of installed packages that are never imported, since their code needs what is not here."""

import importlib.util
from pathlib import Path


def installed_file(package: str, path: str) -> Path | None:
    """A file of a package by its path in it; None if there is none."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        file = Path(folder, path)
        if file.is_file():
            return file
    return None
