"""Memory limits of containers by Linux' control groups, of version 1 or 2, where this machine lets us make one."""

import os
from contextlib import suppress
from pathlib import Path

LIMIT_FILES = ("memory.limit_in_bytes", "memory.max")  # of version 1, of version 2
PEAK_FILES = ("memory.max_usage_in_bytes", "memory.peak")
OOM_FILES = ("memory.oom_control", "memory.events")


def cgroup_base() -> Path | None:
    """The folder in which memory cgroups can be made, or None."""
    for base in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        probe = base / f"toolformer-probe-{os.getpid()}"
        try:
            if not (base / "cgroup.procs").exists():
                continue
            if (base / "cgroup.subtree_control").exists():
                (base / "cgroup.subtree_control").write_text("+memory")
            probe.mkdir()
            limited = any((probe / name).exists() for name in LIMIT_FILES)
            probe.rmdir()
        except OSError:
            continue
        if limited:
            return base
    return None


def make_cgroup(name: str, limit_bytes: int) -> Path | None:
    """A cgroup with that limit; None where there are none."""
    base = cgroup_base()
    if base is None:
        return None
    folder = base / f"toolformer-{name}"
    folder.mkdir()
    for file in LIMIT_FILES:
        if (folder / file).exists():
            (folder / file).write_text(str(limit_bytes))
    return folder


def close_cgroup(folder: Path) -> tuple[int, bool]:
    """Remove it; returns its peak in bytes, and whether the kernel killed one of its processes."""
    peak = [int((folder / name).read_text()) for name in PEAK_FILES if (folder / name).exists()]
    words = " ".join((folder / name).read_text() for name in OOM_FILES if (folder / name).exists()).split()
    killed = "oom_kill" in words and words[words.index("oom_kill") + 1] != "0"
    with suppress(OSError):
        folder.rmdir()
    return max(peak, default=0), killed
