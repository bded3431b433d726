"""What the two commands of the README install, and what continuous integration runs."""

from __future__ import annotations

import os
import re
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
