"""`make bench-database` on sixty documents."""

import os
import subprocess
import sys

import pytest

from benchmarks.progress import Progress


@pytest.mark.slow
def test_the_benchmark_of_the_database_measures_its_last_step(tmp_path):
    """Every stage of the factory is called with stand-ins, which follow their interfaces."""
    command = [sys.executable, "-m", "benchmarks.database", "--size=60", str(tmp_path)]
    finished = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert Progress.read(tmp_path / "60.json").ended[-1] == "end"
