"""The long form: `python -m tests.faults --times 50 --seed 1 --out FOLDER [FAULT...]`, as `make faults` starts it.

Each try is a line of FOLDER/tries.jsonl, so that an interrupted measurement is continued; the table is FOLDER/table.md. Ends with 1
where a try was not as it should be, and names its seed. A seed decides where a fault is sent and when; how far a process has come
by then differs a little from time to time.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.disturbances import ALL, tried
from tests.faults.world import a_world

COLUMNS = (
    "| fault | tries | processes that ended early | lost | doubled | wrong | false successes | recovery, median and most, s "
    "| redone micro-batches, mean and most |\n|---|---|---|---|---|---|---|---|---|\n"
)


def main() -> int:
    """Try, and write the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__.splitlines()[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="names; all by default")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    known = {fault.name: fault for fault in ALL}
    if unknown := sorted(set(options.faults) - set(known)):
        parser.error(f"expected faults of {', '.join(known)}, found {', '.join(unknown)}")
    chosen = [known[name] for name in options.faults or known]

    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "tries.jsonl"
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    known_tries = {(row["fault"], row["seed"]) for row in done}
    to_do = [
        (fault, seed)
        for number in range(options.times)
        for fault in chosen
        if (fault.name, seed := f"{options.seed}.{number}" if options.times > 1 else options.seed) not in known_tries
    ]
    if to_do:
        with tempfile.TemporaryDirectory(prefix="toolformer-faults-") as folder, a_world(Path(folder)) as world:
            for fault, seed in to_do:
                if reason := fault.why_not(world):
                    _say(f"{fault.name}: not tried: {reason}")
                    continue
                outcome = tried(world, fault, seed)
                row = {
                    "fault": fault.name, "seed": seed, "at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
                    "lost": outcome.lost, "doubled": outcome.doubled, "wrong": outcome.wrong,
                    "false_successes": outcome.false_successes, "redone": outcome.redone, "recovered": outcome.recovered,
                    "failures": outcome.failures, "problems": outcome.problems, "seconds": outcome.seconds,
                }  # fmt: skip
                done.append(row)
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                _say(f"{fault.name} {seed}: {outcome.seconds:.1f} s, {len(outcome.failures)} ended early")
                for problem in outcome.problems:
                    _say(f"    {problem}\n    again: make faults FAULTS={fault.name} SEED={seed} TIMES=1")
    table = table_of(done)
    (options.out / "table.md").write_text(table)
    _say(table)
    return int(any(row["problems"] for row in done))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """The table of all tries."""
    lines = []
    for fault in ALL:
        of_fault = [row for row in rows if row["fault"] == fault.name]
        if not of_fault:
            continue
        sums = [sum(row[name] for row in of_fault) for name in ("lost", "doubled", "wrong", "false_successes")]
        recovered = [row["recovered"] for row in of_fault if row["recovered"] is not None]
        redone = [row["redone"] for row in of_fault]
        recovery = f"{statistics.median(recovered):.1f}, {max(recovered):.1f}" if recovered else ""
        cells = [fault.name, len(of_fault), sum(len(row["failures"]) for row in of_fault), *sums, recovery]
        cells.append(f"{statistics.mean(redone):.1f}, {max(redone):g}")
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return COLUMNS + "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
