"""Checkpoints that travel: sent while the job trains, fetched and checked before it goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.fakes import FakeEnd, Running, World
from tunefleet.errors import ArtifactError, InputError, NotFoundError, UnreachableError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_link import InputRef, ResumeFrom
from tunefleet.trainer_control.checkpoints.manifest import finish_checkpoint, invalid_reason, list_complete
from tunefleet.worker.jobs.checkpoint_restore import CheckpointRestorer
from tunefleet.worker.outputs import checkpoint_uploads


def make(folder: JobFolder, step: int, *, best: int | None = None, content: bytes = b"weights") -> Path:
    path = folder.checkpoints_dir / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(content + b" of step %d" % step)
    state = {"global_step": step, "log_history": [{"step": step, "eval_loss": 1 / step}]}
    if best is not None:
        state["best_model_checkpoint"] = f"/elsewhere/checkpoint-{best}"
    (path / "trainer_state.json").write_text(json.dumps(state))
    finish_checkpoint(path)
    return path


class Server:
    """Uploaded checkpoints, by digest of our choice."""

    def __init__(self, store: Path) -> None:
        self.folder = JobFolder(store)
        self.damaged = False
        self.fetched: list[str] = []

    def fetch(self, ref: InputRef, dest: Path) -> object:
        source = self.folder.checkpoints_dir / ref.name
        if not source.exists():
            raise NotFoundError("There is no such artifact.")
        self.fetched.append(ref.name)
        shutil.copytree(source, dest, dirs_exist_ok=True)
        if self.damaged:
            (dest / "model.safetensors").write_bytes(b"weights of step XX")
        return dest


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "server")


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    made = JobFolder(tmp_path / "results" / "task-1")
    made.root.mkdir(parents=True)
    return made


def restorer(folder: JobFolder, server: Server) -> CheckpointRestorer:
    return CheckpointRestorer(folder, lambda task_id: JobFolder(folder.root.parent / task_id), server.fetch)


def ref(step: int) -> InputRef:
    return InputRef(digest=f"{step:064d}", name=f"checkpoint-{step}")


def steps(folder: JobFolder) -> list[int]:
    return [each.step for each in list_complete(folder.checkpoints_dir)]


def test_a_newer_checkpoint_here_is_not_fetched_and_an_older_one_is_overtaken(
    folder: JobFolder, server: Server
) -> None:
    make(server.folder, 8)
    make(folder, 12)
    assert restorer(folder, server).prepare(ResumeFrom(step=8, checkpoint=ref(8))) is None
    assert server.fetched == []
    make(server.folder, 16)
    assert restorer(folder, server).prepare(ResumeFrom(step=16, checkpoint=ref(16))) is None
    assert steps(folder) == [12, 16]
    assert invalid_reason(folder.checkpoints_dir / "checkpoint-16") is None


def test_the_best_one_comes_along(folder: JobFolder, server: Server) -> None:
    make(server.folder, 8)
    make(server.folder, 16, best=8)
    restorer(folder, server).prepare(ResumeFrom(step=16, checkpoint=ref(16), best=ref(8)))
    assert steps(folder) == [8, 16]


def test_a_damaged_upload_is_refused_and_the_training_goes_on_from_what_is_here(
    folder: JobFolder, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    make(server.folder, 16)
    make(folder, 12)
    server.damaged = True
    assert restorer(folder, server).prepare(ResumeFrom(step=16, checkpoint=ref(16))) is None
    assert steps(folder) == [12]
    assert "does not match its digest" in caplog.text
    assert "resuming from step 12" in caplog.text
    assert not list(folder.root.glob(".restoring*")), "nothing of it is left to be taken up again"


def test_exactly_one_step_sets_aside_what_lies_beyond(folder: JobFolder, server: Server) -> None:
    for step in (4, 8, 12):
        make(folder, step)
    assert restorer(folder, server).prepare(ResumeFrom(step=8, exact=True)) == 8
    assert steps(folder) == [4, 8]
    # What was set aside is there for one who changes his mind, even where the server has nothing.
    assert restorer(folder, server).prepare(ResumeFrom(step=12, exact=True)) == 12
    assert steps(folder) == [4, 8, 12]
    with pytest.raises(InputError, match="step 6"):
        restorer(folder, server).prepare(ResumeFrom(step=6, exact=True, checkpoint=ref(6)))


def test_a_broken_one_here_is_replaced_by_the_one_of_the_server(folder: JobFolder, server: Server) -> None:
    make(server.folder, 8)
    path = make(folder, 8)
    (path / "model.safetensors").write_bytes(b"torn")
    assert restorer(folder, server).prepare(ResumeFrom(step=8, exact=True, checkpoint=ref(8))) == 8
    assert invalid_reason(folder.checkpoints_dir / "checkpoint-8") is None


def test_the_folder_of_the_task_before_is_used_without_the_server(folder: JobFolder, server: Server) -> None:
    parent = JobFolder(folder.root.parent / "task-0")
    source = make(parent, 8)
    resume = ResumeFrom(step=8, exact=True, from_task="task-0", checkpoint=ref(8))
    assert restorer(folder, server).prepare(resume) == 8
    assert server.fetched == []
    (folder.checkpoints_dir / "checkpoint-8" / "trainer_state.json").write_text("{}")
    assert invalid_reason(source) is None, "what a trainer may rewrite is a copy"


def test_the_newest_and_the_best_are_sent_and_protected_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_uploads, "_LOOK_S", 0.02)
    world = World(tmp_path / "results")
    token = world.server.offer()
    seen: list[tuple[str, Any, Any]] = []

    def push(task_id: str, name: str, kind: str, path: Path, metadata: Mapping[str, Any], files: Any) -> object:
        keep = json.loads((world.results / "task-1" / "keep.json").read_text())
        seen.append((name, keep["uploading"], dict(metadata or {})))
        return None

    with Running(world):
        folder = world.job().folder
        monkeypatch.setattr(world.files, "push_artifact", push)
        make(folder, 4)
        world.server.wait_for(lambda: [name for name, _, _ in seen] == ["checkpoint-4"])
        make(folder, 8, best=8)
        make(folder, 12, best=8)
        world.server.wait_for(lambda: {name for name, _, _ in seen} >= {"checkpoint-12", "checkpoint-8"})
        world.job().end(FakeEnd("failed", TaskReason.BUG, "No."))
        world.server.finished(token)
    assert all(keep == [name] for name, keep, _ in seen)
    about = {name: metadata for name, _, metadata in seen}
    assert about["checkpoint-12"]["best"] is False
    assert (about["checkpoint-12"]["step"], about["checkpoint-12"]["eval_loss"]) == (12, 1 / 12)
    assert json.loads(folder.keep_json.read_text())["uploading"] == []
    assert len(seen) == 3, "none is sent twice"
    assert about["checkpoint-8"]["best"] is True


def test_a_pause_is_said_when_its_checkpoint_is_on_the_server(tmp_path: Path) -> None:
    world = World(tmp_path / "results")
    token = world.server.offer()
    world.files.push_error = UnreachableError("The server is away.")
    with Running(world):
        job = world.job()
        make(job.folder, 8)
        job.end(FakeEnd("paused", TaskReason.PAUSED))
        world.server.wait_for(lambda: len(world.records()) == 1)
        assert world.server.rows[token].finish is None
        world.files.push_error = None
        assert world.server.finished(token).outcome == "paused"
    assert world.files.pushed == [("task-1", "checkpoint-8", "checkpoint")]


@pytest.mark.parametrize("spec", [{"checkpoint": {"upload": False}}, {}])
def test_what_is_not_to_be_sent_or_cannot_be_does_not_hold_up_a_pause(tmp_path: Path, spec: dict[str, Any]) -> None:
    world = World(tmp_path / "results")
    token = world.server.offer(spec=spec)
    world.files.push_error = ArtifactError("It is too odd.")
    with Running(world):
        job = world.job()
        make(job.folder, 8)
        job.end(FakeEnd("paused", TaskReason.PAUSED))
        assert world.server.finished(token).outcome == "paused"
    assert world.files.pushed == []
