"""What a run costs: processor time by folder and the slowest tests, printed at the end of it.

A test's processor time is that of its process and of the child processes that were waited for meanwhile. What runs on
after its parent, such as a daemon, counts in the total that `scripts/run_tests.py` prints, and in no folder.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

SLOWEST = 10
"""So many tests are listed."""


class Budget:
    """Measures each test where it runs, and adds up where all reports arrive: in the controller, with xdist.

    Args:
        adds_up: Whether this process is that one.
    """

    def __init__(self, *, adds_up: bool) -> None:
        self._adds_up = adds_up
        self._cpu_s: defaultdict[str, float] = defaultdict(float)
        self._tests: Counter[str] = Counter()
        self._walls: list[tuple[float, str]] = []
        self._started = (0.0, 0.0)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Start a test's clocks."""
        self._started = (sum(os.times()[:4]), time.perf_counter())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give the report of a test's last phase what the whole test took."""
        report = yield
        if call.when == "teardown":
            cpu, wall = sum(os.times()[:4]) - self._started[0], time.perf_counter() - self._started[1]
            report.user_properties.append(("cost", [round(cpu, 3), round(wall, 3)]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's cost up."""
        cost = dict(report.user_properties).get("cost")
        if not self._adds_up or report.when != "teardown" or cost is None:
            return
        folder = "/".join(Path(report.nodeid.partition("::")[0]).parts[:3][:-1])
        self._cpu_s[folder] += cost[0]
        self._tests[folder] += 1
        self._walls.append((cost[1], report.nodeid))
        if path := os.environ.get("TEST_COSTS"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{cost[0]}\t{cost[1]}\t{report.nodeid}\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print both lists."""
        if not self._walls:
            return
        terminalreporter.section("cost")
        for folder, cpu in sorted(self._cpu_s.items(), key=lambda each: -each[1]):
            terminalreporter.line(f"{cpu:7.1f} CPU-s  {self._tests[folder]:5d} tests  {folder}")
        terminalreporter.line(f"slowest {SLOWEST}:")
        for wall, nodeid in sorted(self._walls, reverse=True)[:SLOWEST]:
            terminalreporter.line(f"{wall:7.1f} s  {nodeid}")
