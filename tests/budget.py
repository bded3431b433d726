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
SHARED = "(fixtures of the whole run)"
"""What ends after the last test: services that many tests have used."""


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
        self._marks: list[tuple[float, float]] = []
        self._is_last = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> Generator[None, object, object]:
        """Start a test's clocks."""
        self._is_last = nextitem is None
        self._marks = [_now()]
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give the report of a test's last phase what the test took: CPU, wall, and CPU of what all tests share."""
        report = yield
        self._marks.append(_now())
        if call.when == "teardown":
            (began_cpu, began), (body_cpu, _), (cpu, now) = self._marks[0], self._marks[-2], self._marks[-1]
            shared = cpu - body_cpu if self._is_last else 0.0
            report.user_properties.append(("cost", [cpu - began_cpu - shared, now - began, shared]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's cost up."""
        cost = dict(report.user_properties).get("cost")
        if not self._adds_up or report.when != "teardown" or cost is None:
            return
        folder = "/".join(Path(report.nodeid.partition("::")[0]).parts[:3][:-1])
        self._cpu_s[folder] += cost[0]
        self._tests[folder] += 1
        self._cpu_s[SHARED] += cost[2]
        self._walls.append((cost[1], report.nodeid))
        if path := os.environ.get("TEST_COSTS"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{cost[0]:.3f}\t{cost[1]:.3f}\t{report.nodeid}\n")

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


def _now() -> tuple[float, float]:
    """Return CPU seconds of this process and its waited-for children, and the time."""
    return sum(os.times()[:4]), time.perf_counter()
