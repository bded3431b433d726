"""A package with an executor of its own, installed into a folder, on a real fleet; and the contract that it keeps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "executors" / "word_count"


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and its metadata, as `pip install --target` leaves it."""
    folder = tmp_path_factory.mktemp("layer")
    copy = shutil.copytree(PACKAGE, tmp_path_factory.mktemp("package") / PACKAGE.name)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    made = subprocess.run(
        [*command, "--target", str(folder), str(copy)], capture_output=True, text=True, timeout=120, check=False
    )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], layer: Path) -> Iterator[LocalFleet]:
    environment = {"PYTHONPATH": str(layer), "TUNEFLEET_WARM_START": "false"}
    with LocalFleet(
        tmp_path_factory.mktemp("fleet"), port=free_port(), environment=environment, save_client=False
    ) as made:
        yield made


def cli(fleet: LocalFleet, layer: Path, *arguments: str) -> str:
    given = {**os.environ, "PYTHONPATH": str(layer), "TUNEFLEET_URL": fleet.url, "TUNEFLEET_KEY": fleet.key}
    command = [str(Path(sys.executable).with_name("tunefleet")), *arguments]
    made = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def test_a_kind_of_ones_own_is_checked_run_and_merged_like_any_other(fleet: LocalFleet, layer: Path) -> None:
    submitted = json.loads(cli(fleet, layer, "submit", str(PACKAGE / "word_count.yaml"), "--json"))
    with Client(fleet.url, fleet.key) as client:
        flow = client.workflows.wait(submitted["id"], timeout_s=120)
        task = client.tasks.get(flow.tasks[0].id)
        assert task.status == "completed", task.error
        assert task.result is not None
        assert task.result["result"]["words"] == 5
        artifact = next(each for each in client.artifacts.list(task_id=task.id).items if each.name == "words.csv")
        assert artifact.kind == "report"
        offers = client.workers.list().items[0].capabilities.executors
        assert [each.merges for each in offers if each.kind == "word_count"] == [True]


def test_the_package_keeps_the_contract(layer: Path, tmp_path: Path) -> None:
    given = {**os.environ, "PYTHONPATH": str(layer)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PACKAGE / "tests")]
    made = subprocess.run(command, env=given, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "6 passed" in made.stdout
