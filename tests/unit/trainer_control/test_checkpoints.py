"""Checkpoints: only what is known to be whole is resumed from, and nothing that a resume needs is deleted."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from tunefleet.artifacts import manifest_digest
from tunefleet.schemas.api import FileEntry
from tunefleet.trainer_control.checkpoints import finalizer as finisher_module
from tunefleet.trainer_control.checkpoints.finalizer import CheckpointFinalizer, SavedCheckpoint
from tunefleet.trainer_control.checkpoints.manifest import (
    Checkpoint,
    find_newest,
    finish_checkpoint,
    invalid_reason,
    list_complete,
    newest_valid,
    supersede_beyond,
)
from tunefleet.trainer_control.checkpoints.resume import retain


def make(folder: Path, step: int, *, finish: bool = True, text: str = "weights") -> Path:
    path = folder / f"checkpoint-{step}"
    (path / "inner").mkdir(parents=True)
    (path / "model.safetensors").write_text(f"{text} of {step}")
    (path / "inner" / "manifest.json").write_text("{}")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    if finish:
        finish_checkpoint(path)
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def test_a_manifest_lists_every_file_and_its_digest_is_that_of_an_artifact(tmp_path: Path) -> None:
    checkpoint = finish_checkpoint(make(tmp_path, 5, finish=False))
    manifest = json.loads((checkpoint.path / "manifest.json").read_text())
    assert {file["path"] for file in manifest["files"]} == {
        "model.safetensors",
        "trainer_state.json",
        "inner/manifest.json",
    }
    assert checkpoint.digest == manifest_digest([FileEntry(**file) for file in manifest["files"]])
    assert checkpoint.size_bytes == sum(file["size_bytes"] for file in manifest["files"])
    assert (checkpoint.step, invalid_reason(checkpoint.path)) == (5, None)


def test_without_a_folder_there_is_nothing_to_resume_from(tmp_path: Path) -> None:
    assert newest_valid(tmp_path / "checkpoints") is None


def test_the_newest_is_the_one_with_the_highest_step(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        make(tmp_path, step)
    found = find_newest(tmp_path)
    assert found is not None
    assert found.step == 100


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "missing", "no manifest", "torn manifest", "wrong manifest"]
)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, 10)
    path = make(tmp_path, 20)
    weights, manifest = path / "model.safetensors", path / "manifest.json"
    match damage:
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:-1])
        case "flipped":
            data = bytearray(weights.read_bytes())
            data[0] ^= 1
            weights.write_bytes(data)
        case "missing":
            weights.unlink()
        case "no manifest":
            manifest.unlink()
        case "torn manifest":
            manifest.write_bytes(manifest.read_bytes()[:-9])
        case "wrong manifest":
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "digest": "0" * 64}))
    with caplog.at_level(logging.WARNING):
        assert newest_valid(tmp_path) == tmp_path / "checkpoint-10"
    assert "checkpoint-20 is set aside" in caplog.text
    assert names(tmp_path / "superseded") == {"checkpoint-20"}


def test_a_look_from_outside_moves_nothing(tmp_path: Path) -> None:
    make(tmp_path, 10)
    make(tmp_path, 20, finish=False)
    assert newest_valid(tmp_path, set_aside=False) == tmp_path / "checkpoint-10"
    assert names(tmp_path) == {"checkpoint-10", "checkpoint-20"}


def test_what_lies_beyond_a_resume_is_kept_aside(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        make(tmp_path, step)
    (tmp_path / "superseded" / "checkpoint-30").mkdir(parents=True)
    supersede_beyond(tmp_path, 10)
    assert names(tmp_path) == {"checkpoint-10", "superseded"}
    assert names(tmp_path / "superseded") == {"checkpoint-20", "checkpoint-30", "checkpoint-30.1"}


def test_retention_keeps_the_newest_the_best_and_the_limit(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        make(tmp_path, step)
    assert retain(tmp_path, limit=2, keep=["checkpoint-10"]) == ["checkpoint-20", "checkpoint-30"]
    assert names(tmp_path) == {"checkpoint-10", "checkpoint-40"}


def test_a_limit_of_one_keeps_both_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        make(tmp_path, step)
    retain(tmp_path, limit=1, keep=["checkpoint-20"])
    assert names(tmp_path) == {"checkpoint-20", "checkpoint-30"}


def test_nothing_is_deleted_for_a_checkpoint_without_a_manifest(tmp_path: Path) -> None:
    make(tmp_path, 10)
    make(tmp_path, 20, finish=False)
    assert retain(tmp_path, limit=1) == []
    assert names(tmp_path) == {"checkpoint-10", "checkpoint-20"}


def test_without_a_limit_all_stay(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        make(tmp_path, step)
    assert retain(tmp_path, limit=None) == []
    assert [item.step for item in list_complete(tmp_path)] == [10, 20, 30]


def test_superseded_ones_go_once_the_run_has_passed_them(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        make(tmp_path, step)
    supersede_beyond(tmp_path, 10)
    make(tmp_path, 20)
    retain(tmp_path, limit=None)
    assert names(tmp_path / "superseded") == {"checkpoint-30"}


class Watched:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def finisher(self) -> CheckpointFinalizer:
        return CheckpointFinalizer(
            lambda: self.calls.append("journal"),
            lambda saved, _: self.calls.append(f"durable {saved.path.name}"),
            lambda saved, error: self.calls.append(f"failed {saved.path.name} {error.errno}"),
        )


def test_the_journal_is_durable_before_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()

    def finish(path: Path, hashed: None, *, launch: str | None) -> Checkpoint:
        watched.calls.append("manifest")
        return finish_checkpoint(path, hashed, launch=launch)

    monkeypatch.setattr(finisher_module, "finish_checkpoint", finish)
    finisher = watched.finisher()
    finisher.submit(SavedCheckpoint(make(tmp_path, 5, finish=False), 0.0))
    assert finisher.drain(10)
    assert watched.calls == ["journal", "manifest", "durable checkpoint-5"]


def test_one_that_cannot_be_finished_does_not_stop_the_next(tmp_path: Path) -> None:
    watched = Watched()
    finisher = watched.finisher()
    finisher.submit(SavedCheckpoint(tmp_path / "checkpoint-1", 0.0))
    finisher.submit(SavedCheckpoint(make(tmp_path, 2, finish=False), 0.0))
    assert finisher.drain(10)
    assert [call for call in watched.calls if call != "journal"] == ["failed checkpoint-1 2", "durable checkpoint-2"]


def test_a_wait_for_a_slow_disk_has_an_end(tmp_path: Path) -> None:
    release = threading.Event()
    finisher = CheckpointFinalizer(lambda: release.wait(60) and None, lambda *_: None, lambda *_: None)
    finisher.submit(SavedCheckpoint(make(tmp_path, 1, finish=False), 0.0))
    assert not finisher.drain(0.05)
    release.set()
    assert finisher.drain(10)
