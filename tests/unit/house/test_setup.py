"""What the two commands of the README install, and what continuous integration runs."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest


@pytest.fixture
def project(repository: Path) -> dict[str, object]:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture
def pins(repository: Path) -> dict[str, str]:
    lines = (repository / "constraints/constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("==") for line in lines if not line.startswith("#")]
    assert all(sign == "==" and version for _, sign, version in pairs), "every line is an exact pin"
    return {_canonical(name): version for name, _, version in pairs}


def test_every_dependency_is_pinned(project: dict, pins: dict[str, str]) -> None:
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    names = {_canonical(re.match(r"[\w.-]+", line)[0]) for line in wanted} - {"tunefleet"}
    assert names - set(pins) == set()
    assert pins["torch"] == "2.13.0"


def test_a_plain_install_brings_no_training_library(project: dict) -> None:
    plain = {_canonical(re.match(r"[\w.-]+", line)[0]) for line in project["dependencies"]}
    assert not plain & {"torch", "transformers", "trl", "peft", "datasets", "accelerate", "bitsandbytes"}


def test_no_registry_is_named(repository: Path) -> None:
    for name in ("constraints/constraints.txt", "pyproject.toml", "Makefile", "scripts/setup.sh", ".ci/run"):
        assert "://" not in (repository / name).read_text(encoding="utf-8"), name


def test_ci_runs_checks_and_tests(repository: Path) -> None:
    script = repository / ".ci/run"
    assert os.access(script, os.X_OK)
    commands = script.read_text(encoding="utf-8").splitlines()
    assert "make check" in commands
    assert "make test" in commands
    # Programs that tests start are set up beside .venv, environments beside the checks, and all before the tests.
    order = ["make test-programs &", "make environment", "make test-environments &", "make check", "wait", "make test"]
    assert [line for line in commands if line in order] == order
    assert ".ci/run" in (repository / ".github/workflows/ci.yml").read_text(encoding="utf-8")


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
