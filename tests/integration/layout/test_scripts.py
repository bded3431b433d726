"""Shell scripts and the Makefile say how they are called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize("script", [".ci/run", "scripts/setup.sh", "scripts/gateway.sh", "scripts/postgres.sh"])
def test_shell_scripts_parse(repository: Path, script: str) -> None:
    subprocess.run(["bash", "-n", script], cwd=repository, check=True)


def test_setup_says_how_it_is_called(repository: Path) -> None:
    done = subprocess.run(["scripts/setup.sh"], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "scripts/setup.sh dev" in done.stderr


def test_setup_without_a_fitting_python_says_what_to_do(repository: Path, tmp_path: Path) -> None:
    copy = tmp_path / "repo"
    (copy / "scripts").mkdir(parents=True)
    (copy / "constraints").mkdir()
    for name in ("scripts/setup.sh", "constraints/constraints.txt"):
        (copy / name).write_bytes((repository / name).read_bytes())
    done = subprocess.run(
        ["bash", "scripts/setup.sh", "run"],
        cwd=copy,
        env={**os.environ, "PYTHON": "no-such-python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr
    assert not (copy / ".venv").exists()


def test_help_lists_every_target(repository: Path) -> None:
    done = subprocess.run(["make", "help"], cwd=repository, capture_output=True, text=True, check=True)
    for target in ("demo", "test", "check", "bench", "chaos", "clean"):
        assert f"make {target} " in done.stdout
