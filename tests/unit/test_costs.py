"""What is printed at the end of the tests: slowest files first, and one line a reason for what was skipped."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.costs import Costs


def _report(nodeid: str, seconds: float, skipped: str = "") -> Any:
    outcome: Any = "skipped" if skipped else "passed"
    longrepr = ("file", 1, f"Skipped: {skipped}") if skipped else None
    return pytest.TestReport(nodeid, ("", None, ""), {}, outcome, longrepr, "call", cpu_seconds=seconds)


def test_files_are_printed_with_their_seconds_in_all_workers_and_each_reason_of_a_skip_once() -> None:
    costs, lines = Costs(), []
    for number in range(12):
        costs.pytest_runtest_logreport(_report(f"tests/{number:02}.py::test[a::b]", number / 2))
    costs.pytest_runtest_logreport(_report("tests/03.py::test_two", 20.0, "needs root"))
    costs.pytest_runtest_logreport(_report("tests/04.py::test_two", 0.0, "needs root"))
    for _ in range(2):
        costs.pytest_testnodedown(SimpleNamespace(workeroutput={"cpu_seconds": {"start and collection": 4.5}}))
        # A file that needs what is missing is skipped while each worker collects it.
        costs.pytest_collectreport(pytest.CollectReport("tests/05.py", "skipped", ("f", 1, "Skipped: needs a GPU"), []))
    costs.pytest_testnodedown(SimpleNamespace())  # crashed
    terminal: Any = SimpleNamespace(section=lines.append, write_line=lines.append)
    costs.pytest_terminal_summary(terminal)
    assert lines[1:3] == ["    21.5  tests/03.py", "     5.5  tests/11.py"]
    assert lines[10] == "     1.0  tests/02.py"  # the tenth
    assert lines[11] == "    62.0  in all: all 12 files 53.0, start and collection 9.0"
    assert lines[12:] == ["skipped", "       1  needs a GPU", "       2  needs root"]
