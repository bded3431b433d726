"""A plain `pip install tunefleet` gives CLI, SDK and server, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.proof, pytest.mark.timeout(330)]
PROGRAM = Path(__file__).with_name("program") / "plain_install.py"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What one process found where only the plain dependencies can be imported."""
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_blocker_blocks(found: dict[str, Any]) -> None:
    assert found["blocked"] == ["torch", "transformers", "peft", "safetensors", "pytest"]


def test_all_but_the_programs_and_the_clouds_runs_without_torch(found: dict[str, Any]) -> None:
    """Each module of a cloud's store needs the package of that cloud, and only it."""
    clouds = {name: why for name, why in found["failures"].items() if name.startswith("tunefleet.artifacts.")}
    assert {name: why for name, why in found["failures"].items() if name not in clouds} == {}
    assert set(clouds) == {
        "tunefleet.artifacts.azure", "tunefleet.artifacts.gcs",
        "tunefleet.artifacts.objects", "tunefleet.artifacts.publish",
        "tunefleet.artifacts.s3",
    }  # fmt: skip


def test_who_averages_nothing_does_not_wait_for_numpy(found: dict[str, Any]) -> None:
    assert found["early"] == []


def test_a_plain_server_averages_adapters(found: dict[str, Any]) -> None:
    assert found["average"] == 2.5


def test_the_command_shows_its_help_without_torch(found: dict[str, Any]) -> None:
    assert "submit" in found["help"]
