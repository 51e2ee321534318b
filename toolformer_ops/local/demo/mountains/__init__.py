"""The demo's database: heights and first ascents of mountains in SQLite, with its tool file and prompt.

`toolformer-ops new-tool --sql sqlite:///mountains.db --examples examples.txt` wrote file and prompt; the
address was made relative, so that the tool has one version on every machine; a pattern and the columns of its
own proposals were set.
"""

import importlib.resources
from pathlib import Path

MOUNTAINS = "Mountains"
"""The tool's name."""
DATABASE = "mountains.db"
FILES = (DATABASE, "mountains.txt", "mountains.toml")
"""The tool file last: with it the tool exists."""


def write_mountains(tools_folder: Path) -> None:
    """Write the database, the prompt and the tool file into the folder of the tool files, each unless it exists."""
    tools_folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        target = tools_folder / name
        if not target.exists():
            unfinished = target.with_name(f"{name}.part")
            unfinished.write_bytes(importlib.resources.files(__package__).joinpath(name).read_bytes())
            unfinished.replace(target)
