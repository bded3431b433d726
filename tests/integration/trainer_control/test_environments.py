"""The control callback where nothing of ours is but the package (`--no-deps`), with an old and a new Transformers.

`scripts/environments.sh` makes the environments; `make test` calls it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.proof]


# The tests of trainers run with the newest one.
@pytest.mark.parametrize("version", ["4.57", pytest.param("5.23")])
def test_save_pause_resume_abort_and_a_crash(
    version: str, repository: Path, tmp_path: Path, missing: Callable[[str], None]
) -> None:
    python = repository / f".venv-transformers-{version}/bin/python"
    if not python.exists():
        missing(f"the environment with transformers {version} (scripts/environments.sh)")
    proof = Path(__file__).with_name("environment_proof.py")
    jobs = tmp_path / "jobs"
    environment = {**os.environ, "TUNEFLEET_JOBS_DIR": str(jobs), "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [python, proof, tmp_path], env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"')]
    about, *trainings = lines
    assert about["transformers"].startswith(version), ran.stderr
    assert about["absent"] == ["httpx", "fastapi", "sqlalchemy"]
    codes = {training["training"]: training["returncode"] for training in trainings}
    assert codes == {"none": 0, "save_checkpoint": 0, "pause": 0, "pause-resumed": 0, "abort": 9, "crash": 1}, (
        ran.stderr
    )

    def status(job: str) -> dict[str, object]:
        return dict(json.loads((jobs / job / "status.json").read_text()))

    def outcome(job: str) -> tuple[object, ...]:
        (item,) = json.loads((jobs / job / "commands.json").read_text())["commands"]
        return item["state"], item["step"], item["checkpoint"]

    def written(job: str) -> list[str]:
        return sorted(path.name for path in (tmp_path / job).glob("*"))

    everything = ["checkpoint-4", "checkpoint-6", "final", "weights"]
    assert outcome("save_checkpoint") == ("durable", 3, "checkpoint-3")
    assert written("save_checkpoint") == ["checkpoint-3", *everything]
    assert outcome("pause") == ("durable", 3, "checkpoint-3")
    assert (status("pause")["state"], status("pause-resumed")["state"]) == ("paused", "completed")
    weights = [(tmp_path / job / "weights").read_text() for job in ("none", "save_checkpoint", "pause")]
    assert len(set(weights)) == 1
    assert (outcome("abort"), status("abort")["state"], written("abort")) == (("applied", 3, None), "aborted", [])
    crash = status("crash")
    assert (crash["state"], crash["error"]) == ("failed", "RuntimeError: the script's own fault")
    assert "in on_step_begin" in str(crash["traceback"])
    assert not list(jobs.glob("*/endpoint.json"))
