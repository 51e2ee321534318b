"""What the tests cost and what was not tried: a pytest plugin that prints both at the end, also of a run in several workers.

CPU seconds are those of a process with its ended children. A file's tests are charged with the fixtures that
they are the first to ask for. Collection, the servers of `tests/servers.py`, and Airflow with its services in
`tests/system`, which are no children, have sums of their own. What other tests take that call `up` is
missing.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests import servers


def _cpu_seconds() -> float:
    """Of this process and its ended children but the servers."""
    return sum(os.times()[:4]) - sum(servers.seconds_of_ended)


class Costs:
    """In a worker it measures, in the controller it adds up; without workers both."""

    def __init__(self) -> None:
        self._measured_at = 0.0
        self._by_file: Counter[str] = Counter()
        self._shared: Counter[str] = Counter()
        self._skipped: defaultdict[str, set[str]] = defaultdict(set)
        """Tests, and files that were skipped whole, by their reason."""

    def pytest_collection_finish(self) -> None:
        self._measured_at = self._shared["start and collection"] = _cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        before, self._measured_at = self._measured_at, _cpu_seconds()
        report.cpu_seconds = self._measured_at - before  # travels to the controller with the report
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._by_file[report.nodeid.partition("::")[0]] += report.cpu_seconds  # type: ignore[attr-defined]
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):  # an expected failure is no skip
            self._skipped[report.longrepr[2].removeprefix("Skipped: ")].add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        self._shared["Postgres and S3 of the fixtures"] += sum(servers.seconds_of_ended)
        self._shared["Airflow and its services"] += sum(servers.seconds_of_supervised)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_seconds"] = dict(self._shared)
        return (yield)

    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended; one that crashed has told nothing."""
        self._shared.update(getattr(node, "workeroutput", {}).get("cpu_seconds", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._by_file) > 1:
            terminalreporter.section("CPU seconds of the slowest files")
            for path, seconds in self._by_file.most_common(10):
                terminalreporter.write_line(f"{seconds:8.1f}  {path}")
            sums = {f"all {len(self._by_file)} files": self._by_file.total(), **self._shared}
            named = ", ".join(f"{name} {seconds:.1f}" for name, seconds in sums.items())
            terminalreporter.write_line(f"{sum(sums.values()):8.1f}  in all: {named}")
        if self._skipped:
            terminalreporter.section("skipped")
            for reason, skipped in sorted(self._skipped.items()):
                terminalreporter.write_line(f"{len(skipped):8}  {reason}")
