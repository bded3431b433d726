"""What a test run costs is counted in whole, printed at its end, and never fails it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.proof
BURN = "import time; end = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
TESTS = """
import subprocess, sys, time
def test_quick(): pass
def test_busy():
    subprocess.run([sys.executable, "-c", {burn!r}], check=True)
"""
CONFTEST = """
from tests.budget import Budget
def pytest_configure(config):
    config.pluginmanager.register(Budget(adds_up=not hasattr(config, "workerinput")))
"""


def ran(repository: Path, *command: str, budget: str = "1000") -> tuple[int, str, float]:
    """Run a command under the script; return its exit code, what was printed, and the CPU seconds in that."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.run_tests", "--budget", budget, "--", *command],
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"^(\d+) CPU-s in \d+ s; calibration loop 0\.\d+ CPU-s; total / loop = \d+$", done.stdout, re.M)
    assert found, done.stdout + done.stderr
    return done.returncode, done.stdout, float(found[1])


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 5", 5), ("kill -9 $$", 137)])
def test_the_exit_code_is_that_of_the_command(repository: Path, command: str, code: int) -> None:
    assert ran(repository, "bash", "-c", command)[0] == code


@pytest.mark.skipif(sys.platform != "linux", reason="needs a subreaper")
def test_a_process_that_outlives_its_parent_counts(repository: Path, tmp_path: Path) -> None:
    done = tmp_path / "done"
    burning = f'{BURN}\nopen("{done}", "w")'
    orphaned = f"({sys.executable} -c '{burning}' &); until [ -e {done} ]; do sleep 0.1; done; sleep 1"
    assert ran(repository, "bash", "-c", orphaned)[2] >= 1, "0.6 s, rounded"


def test_a_run_above_its_budget_warns_and_passes(repository: Path) -> None:
    code, said, _ = ran(repository, sys.executable, "-c", BURN, budget="0.1")
    assert code == 0
    assert "WARNING: above the budget of 1 (0 CPU-s" in said
    assert "WARNING" not in ran(repository, sys.executable, "-c", BURN)[1]


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n1")], ids=["one process", "xdist"])
def test_the_cost_of_a_test_has_that_of_its_processes(repository: Path, tmp_path: Path, options: tuple[str]) -> None:
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "tests/unit/test_it.py").write_text(TESTS.format(burn=BURN))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").touch()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(repository), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    (cpu,) = re.findall(r"^ *([\d.]+) CPU-s +2 tests +tests/unit$", done.stdout, re.M)
    assert float(cpu) >= 0.6
    listed = done.stdout.partition("slowest 10:")[2]
    assert listed.index("test_busy") < listed.index("test_quick")
