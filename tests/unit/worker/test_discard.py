"""Job folders of removed tasks go; nothing else does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.worker.fakes import Running, World
from tunefleet.worker.jobs.discard import Discarder
from tunefleet.worker.outbox import Outbox


def _job_folder(parent: Path, name: str) -> Path:
    folder = parent / name
    (folder / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    (folder / "checkpoints" / "checkpoint-1" / "weights").write_bytes(b"many")
    (folder / "job.json").write_text("{}")
    return folder


def test_the_folder_of_a_removed_task_goes(tmp_path: Path) -> None:
    world = World(tmp_path / "results")
    gone, stays = (_job_folder(tmp_path / "results", name) for name in ("task-old", "task-new"))
    with Running(world):
        world.server.discard("task-old")
        world.server.wait_for(lambda: not world.server.discards)
    assert not gone.exists()
    assert (stays / "checkpoints" / "checkpoint-1" / "weights").exists()


def test_the_folder_of_a_task_that_is_held_stays(tmp_path: Path) -> None:
    outbox = Outbox("w", "s")
    folder = _job_folder(tmp_path, "task-1")
    discarder = Discarder(tmp_path, outbox, lambda task_id: task_id == "task-1")
    discarder.discard(["task-1"])
    discarder.close()
    assert folder.exists()
    assert outbox.version == 0


@pytest.mark.parametrize("name", ["../elsewhere", ".worker", "absent", "/etc"])
def test_only_job_folders_go(name: str, tmp_path: Path) -> None:
    results, outbox = tmp_path / "results", Outbox("w", "s")
    _job_folder(tmp_path, "elsewhere")
    (results / ".worker").mkdir(parents=True)
    discarder = Discarder(results, outbox, lambda _: False)
    discarder.discard([name])
    discarder.close()
    assert (tmp_path / "elsewhere" / "job.json").exists()
    assert (results / ".worker").exists()
    # Said all the same: there is nothing to be asked for again.
    assert outbox.version == 1


def test_a_folder_that_cannot_go_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = Outbox("w", "s")
    folder = _job_folder(tmp_path, "task-1")

    def refuse(_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(shutil, "rmtree", refuse)
    discarder = Discarder(tmp_path, outbox, lambda _: False)
    discarder.discard(["task-1"])
    discarder.close()
    assert (folder / "job.json").exists()
    assert outbox.version == 0
