"""Ask an advisory database about what the lock files name: `make audit-dependencies`.

Exit status 1 where a package has a known weakness, with the versions that mend it. Where no database answers,
as in a network that has a mirror of the packages alone, nothing is known: that is said, and is no error.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PIN = re.compile(r"^[a-z0-9][a-z0-9.-]*==[^ \\]+(?: ; [^\\\n]*[^ \\\n])?", re.MULTILINE)
"""With its marker: of a package with a version for each Python, the one of this Python is looked up."""


def main(program: str, locks: list[str]) -> int:
    """Run `pip-audit` over the pins of these files, and say what it found."""
    pins = [pin for lock in locks for pin in PIN.findall(Path(lock).read_text(encoding="utf-8"))]
    # One first: without a database each package would be asked for in vain, for a minute.
    known = looked_up(program, pins[:1]) and looked_up(program, pins)
    if not known:
        print(
            f"audit-dependencies: SKIPPED: no advisory database answers; nothing is known of {len(pins)} packages."
        )
        return 0
    for package in known:
        for weakness in package["vulns"]:
            mended = ", ".join(weakness["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {weakness['id']}; mended in {mended}")
    weak = sum(bool(package["vulns"]) for package in known)
    unknown = len(pins) - len(known)
    print(f"audit-dependencies: {len(known)} packages looked up, {weak} weak, {unknown} not in the database.")
    return 1 if weak else 0


def looked_up(program: str, pins: list[str]) -> list[dict[str, Any]]:
    """What the database says of those packages that it knows: name, version and weaknesses."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(pins) + "\n")
        file.flush()
        argv = [
            program,
            "--no-deps",
            "--disable-pip",
            "--progress-spinner",
            "off",
            "--format",
            "json",
            "-r",
            file.name,
        ]
        asked = subprocess.run(argv, capture_output=True, text=True, check=False)
    try:
        return [package for package in json.loads(asked.stdout)["dependencies"] if "vulns" in package]
    except (ValueError, KeyError):
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
