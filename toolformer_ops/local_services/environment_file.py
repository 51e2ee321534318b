"""Write `$TOOLFORMER_STATE_DIR/environment`: where the embedded services are, in the words of `toolformer_ops.config`.

Lines that a user has added for other settings stay as they are; only our own are replaced.
"""

from collections.abc import Mapping
from pathlib import Path

from toolformer_ops.local_services.private_files import write_private

HEADER = (
    "# Settings of this machine, read by toolformer_ops.config; mode 600, for it holds passwords.\n"
    "# `make up` rewrites the lines of its own services. Lines for other settings may be added and are kept.\n"
)


def write_environment(path: Path, values: Mapping[str, str]) -> None:
    """Set `TOOLFORMER_<NAME>='value'` for each value, and keep the other lines of the file."""
    ours = {f"TOOLFORMER_{name.upper()}": value for name, value in values.items()}
    for name, value in ours.items():
        if "'" in value or "\n" in value or "\\" in value:
            raise ValueError(f"{name}: expected a value without quotes, backslashes and line ends.")
    kept = [line for line in _lines(path) if _name(line) not in ours]
    written = "".join(f"{name}='{value}'\n" for name, value in ours.items())
    others = "".join(f"{line}\n" for line in kept)
    write_private(path, HEADER + written + others)


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    header = HEADER.splitlines()
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line not in header]


def _name(line: str) -> str:
    return line.removeprefix("export ").partition("=")[0].strip()
