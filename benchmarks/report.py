"""The measured figures as JSON, for later comparison, and as a Markdown table, for people."""

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ALL_TOOLS = "all"
"""Name of the rows that add up a work's tools."""


def machine() -> dict[str, Any]:
    """Date, processor, load and versions: what a figure is worth nothing without."""
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="minutes"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_a_minute": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "transformers": importlib.metadata.version("transformers"),
    }


def write_report(folder: Path, results: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write `bench.json` and `bench.md` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    as_json, as_markdown = folder / "bench.json", folder / "bench.md"
    as_json.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    as_markdown.write_text(markdown(results), encoding="utf-8")
    return as_json, as_markdown


def markdown(results: Mapping[str, Any]) -> str:
    """All tables."""
    about = results["machine"]
    parts = [
        f"# Benchmarks, {about['date']}\n\n{about['processor']}, {about['cores']} cores, load {about['load_a_minute']} at the end; "
        f"Python {about['python']}, torch {about['torch']}, transformers {about['transformers']}. "
        f"CPU seconds of one thread a text.\n"
    ]
    for name, title in (("A", "Work A: GPT-2 shape, random weights"), ("B", "Work B: SmolLM2 on real text")):
        if name in results:
            parts.append(f"## {title}\n\n{work_tables(results[name])}")
    sections = {
        "launches": "Operations and device reads of a decode step on a device twin",
        "roofline": "Predicted, not measured: milliseconds a text on GPUs and what limits each phase, texts an hour, hours",
    }
    for name, title in sections.items():
        if name in results:
            parts.append(f"## {title}\n\n{table(results[name])}\n")
    return "\n".join(parts)


def work_tables(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Times, floors and agreement of work A or B."""
    rows = [*found["rows"], *_added_up(found["rows"])]
    lines = [
        {
            "tool": row["tool"],
            "variant": row["variant"],
            "format": row["number_format"],
            "texts": row["texts"],
            "calls a text": row["calls"],
            **row["seconds"],
            "times the reference": row["reference_seconds"] / row["seconds"]["total"],
        }
        for row in rows
    ]
    floors = [
        {
            "tool": item["tool"],
            "format": item["number_format"],
            "GFLOP/s": item["gflop_a_second"],
            **item["seconds"],
            "positions, times the floor": _over_floor(found["rows"], item, "positions"),
            "scoring, times the floor": _over_floor(found["rows"], item, "scoring"),
        }
        for item in found["floors"]
    ]
    agreement = [
        {
            "tool": item["tool"],
            "variant": item["variant"],
            "format": item["number_format"],
            "positions (pruned, differing)": f"{item['positions']} ({item['positions_pruned']}, {item['positions_differing']})",
            "samples (differing, not at a border)": "{samples} ({differing}, {not_explained})".format(
                **item["samples"]
            ),
            "draws (at a border)": "{draws} ({draws_at_border})".format(**item["samples"]),
            "calls pruned": item["calls_pruned"],
            **{
                f"kept at {kept['threshold']} (differing)": f"{kept['kept']} of {kept['calls']} ({kept['differing']})"
                for kept in item["kept"]
            },
        }
        for item in found["agreement"]
    ]
    return (
        f"{table(lines)}\n\nThe floor, and how far the engine without pruning is from it:\n\n{table(floors)}\n\n"
        f"Against the reference, given the same calls:\n\n{table(agreement)}\n"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; the first row names the columns."""
    if not rows:
        return "Nothing was measured."
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "all"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def _added_up(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a variant over all tools: texts weigh the same; none where there is one tool alone."""
    if len({row["tool"] for row in rows}) < 2:
        return []
    found: list[dict[str, Any]] = []
    for key in dict.fromkeys((row["number_format"], row["variant"]) for row in rows):
        group = [row for row in rows if (row["number_format"], row["variant"]) == key]
        texts = sum(row["texts"] for row in group)

        def mean(values: Sequence[float], group: Sequence[Mapping[str, Any]] = group, texts: int = texts) -> float:
            return float(sum(value * row["texts"] for value, row in zip(values, group, strict=True)) / texts)

        found.append(
            {
                "tool": ALL_TOOLS,
                "number_format": key[0],
                "variant": key[1],
                "texts": texts,
                "calls": mean([row["calls"] for row in group]),
                "seconds": {stage: mean([row["seconds"][stage] for row in group]) for stage in group[0]["seconds"]},
                "reference_seconds": mean([row["reference_seconds"] for row in group]),
            }
        )
    return found


def _over_floor(rows: Sequence[Mapping[str, Any]], floor: Mapping[str, Any], stage: str) -> float | str:
    for row in rows:
        same = (row["tool"], row["number_format"]) == (floor["tool"], floor["number_format"])
        if same and row["variant"] == "ours, no pruning" and floor["seconds"][stage] > 0:
            return float(row["seconds"][stage] / floor["seconds"][stage])
    return "-"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
