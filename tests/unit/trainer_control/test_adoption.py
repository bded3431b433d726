"""Where a command that is a job saves, its checkpoints are the job's: those of before are found, also restored ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tunefleet.trainer_control.autoload import trainings
from tunefleet.trainer_control.checkpoints.manifest import finish_checkpoint, list_complete
from tunefleet.trainer_control.checkpoints.resume import decide


def job(launch: str) -> dict[str, Any]:
    return {"job_id": "task-1", "launch": launch, "attempt": 1}


def saved(place: Path, step: int) -> Path:
    folder = place / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(f"{step}")
    finish_checkpoint(folder)
    return folder


def begun(folder: Path, launch: str, output_dir: Path, *, wanted: bool = True) -> trainings.Training:
    decide(folder, job(launch))  # as the program does before the command runs
    return trainings.begin(folder, job(launch), output_dir, wanted=wanted)


def test_checkpoints_of_the_script_are_those_of_the_job(tmp_path: Path) -> None:
    out = tmp_path.resolve() / "work" / "out"
    assert begun(tmp_path, "launch-1", out).checkpoint is None
    saved(out, 4)
    assert [each.step for each in list_complete(tmp_path / "checkpoints")] == [4]
    again = begun(tmp_path, "launch-2", out)
    assert again.checkpoint is not None
    assert again.checkpoint.path == out / "checkpoint-4"
    assert begun(tmp_path, "launch-3", out, wanted=False).checkpoint is None, "the script names one itself"


def test_a_restored_checkpoint_lies_where_the_script_saves(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoints", 8)
    out = tmp_path.resolve() / "work" / "out"
    found = begun(tmp_path, "launch-1", out).checkpoint
    assert found is not None
    assert (found.step, found.path) == (8, out / "checkpoint-8")
    assert (tmp_path / "checkpoints").is_symlink()
    moved = tmp_path.resolve() / "work" / "elsewhere"
    after = begun(tmp_path, "launch-2", moved).checkpoint
    assert after is not None
    assert after.path == moved / "checkpoint-8", "a script that saves in a folder of another name takes it along"


def test_checkpoints_outside_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    folder, outside = tmp_path / "job", tmp_path / "scratch"
    folder.mkdir()
    saved(outside, 2)
    assert begun(folder, "launch-1", outside).checkpoint is None, "it may be another run's"
    assert not (folder / "checkpoints").is_symlink()


def test_a_run_without_a_decision_is_resumed_as_before(tmp_path: Path) -> None:
    out = tmp_path / "out"
    trainings.begin(tmp_path, job("launch-1"), out, wanted=True)
    saved(out, 4)
    told = trainings.begin(tmp_path, {**job("launch-2"), "attempt": 2}, out, wanted=True)
    assert told.checkpoint is not None
    assert told.checkpoint.step == 4
    assert not (tmp_path / "checkpoints").exists()
    assert json.loads((tmp_path / trainings.FILE).read_text())["trainings"][1]["launch"] == "launch-2"
