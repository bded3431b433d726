"""What `tunefleet doctor` reports about Slurm and Ray."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tunefleet.cli.server.checks import ray, slurm


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """Slurm's commands, which answer as told: a stand-in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "srun", "scontrol"):
        path = folder / name
        path.write_text("#!/bin/sh\nexit 0\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("TUNEFLEET_SLURM", "true")
    monkeypatch.setenv("TUNEFLEET_NODES_URL", "http://10.0.0.1:8000")
    return folder


def test_one_that_answers(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = slurm()
    assert found is not None
    assert found.state == "good"
    monkeypatch.delenv("TUNEFLEET_NODES_URL")
    found = slurm()
    assert found is not None
    assert (found.state, "TUNEFLEET_NODES_URL" in (found.mend or "")) == ("warning", True)


def test_one_that_does_not(commands: Path) -> None:
    (commands / "squeue").write_text(
        "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n"
    )
    found = slurm()
    assert found is not None
    assert found.state == "bad"
    assert "Unable to contact" in found.found
    (commands / "sbatch").unlink()
    found = slurm()
    assert found is not None
    assert "sbatch" in found.found


@pytest.mark.usefixtures("home")
def test_a_ray_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_RAY_ADDRESS", "http://127.0.0.1:9")
    found = ray()
    assert found is not None
    assert found.state == "bad"
    assert "127.0.0.1:9" in found.found
