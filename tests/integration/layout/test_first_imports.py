"""What a process that has just started imports, and what it leaves until it needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunefleet.db import Database

pytestmark = pytest.mark.timeout(330)
PROGRAMS = Path(__file__).with_name("program")


def run(program: str, *words: object, **options: Any) -> dict[str, Any]:
    """Return what a program of this folder found."""
    command = [sys.executable, str(PROGRAMS / program), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return run("command_line.py", env={**kept, "HOME": str(tmp_path_factory.mktemp("home"))})


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("data")
    Database.open(folder / "test.db").close()
    return run("parts.py", folder)


def test_help_imports_nothing_heavy(commands: dict[str, Any]) -> None:
    assert commands["help"] == []


def test_a_list_imports_no_models_of_documents(commands: dict[str, Any]) -> None:
    assert commands["codes"] == [6, 6, 6, 6]
    assert commands["lists"] == []


@pytest.mark.proof
def test_no_validator_is_built_at_import(parts: dict[str, Any]) -> None:
    """A process sees a few of some three hundred blocks, and the settings of one kind of process."""
    count, built = parts["validators"]
    assert count > 150
    assert built == ["FederationSpec"], "FastAPI looks into the bodies of its routes"


@pytest.mark.proof
def test_a_reopened_database_needs_no_alembic(parts: dict[str, Any]) -> None:
    assert parts["reopened"] == []


@pytest.mark.proof
def test_asking_what_is_there_imports_no_training_library(parts: dict[str, Any]) -> None:
    assert parts["offers"] == []


@pytest.mark.proof
def test_without_an_endpoint_nothing_is_imported(parts: dict[str, Any]) -> None:
    assert parts["spans"] == [True, []]


@pytest.mark.proof
def test_a_server_without_a_bucket_does_not_import_boto3_and_one_with_it_says_when_it_lacks(
    parts: dict[str, Any],
) -> None:
    imported, said = parts["blobs"]
    assert imported == []
    assert said.startswith("Artifacts in S3 require the package boto3.")
    assert "[s3]" in said
