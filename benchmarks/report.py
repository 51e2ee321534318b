"""What every benchmark prints: the machine, the date and the versions, then a table a section; the same as JSON."""

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers")


def heading() -> str:
    """Date, processor, load and versions: a figure is worth nothing without them."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    return (
        f"{datetime.datetime.now(tz=datetime.UTC).isoformat(timespec='minutes')}, {[*models, platform.machine()][0]}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end; Python {platform.python_version()}, "
        f"{', '.join(versions)}."
    )


def write_report(folder: Path, name: str, sections: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Write `name`.json and `name`.md, the rows of each section by its title; returns the Markdown."""
    about = heading()
    folder.mkdir(parents=True, exist_ok=True)
    values = {"machine": about, **sections}
    (folder / f"{name}.json").write_text(
        json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    tables = [f"## {title}\n\n{table(rows)}\n" for title, rows in sections.items()]
    text = "\n".join([f"# Benchmarks\n\n{about}\n", *tables])
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return text


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; the first row names the columns."""
    if not rows:
        return "Nothing was measured."
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(cell(row[name]) for name in names)} |" for row in rows]
    return "\n".join(lines)


def cell(value: Any) -> str:
    """A value as tables show it: three digits, a dash for None."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "-" if value is None else str(value)
