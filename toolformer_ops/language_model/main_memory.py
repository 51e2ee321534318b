"""How much main memory is free to this process. Imports no torch."""

from pathlib import Path

import psutil


def free_main_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of main memory that this process may still take.

    It is what the machine has, or what its container's limit leaves.
    """
    free = int(psutil.virtual_memory().available)
    for group, limit, used, cache in (
        (cgroup, "memory.max", "memory.current", "inactive_file"),
        (cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        if (
            not (group / limit).is_file()
            or (most := (group / limit).read_text(encoding="ascii").strip()) == "max"
        ):
            continue
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        taken = int((group / used).read_text(encoding="ascii")) - int(
            stat.get(cache, 0)
        )  # read files count as used
        free = min(free, int(most) - taken)
    return max(0, free)
