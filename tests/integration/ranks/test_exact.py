"""Real trainings of two ranks over gloo: paused, or begun again before a broken checkpoint, they come out equal."""

from __future__ import annotations

import json
import os
import random
from itertools import pairwise
from typing import Any

import pytest

from tests.integration.ranks.conftest import end, job
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import JobHandle, Supervisor
from tunefleet.schemas.journal import ANY_RECORD, EventRecord, MetricRecord
from tunefleet.trainer_control.checkpoints.manifest import list_complete

pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.timeout(600)]

PROGRAM = "rank_program:main"
STEPS = int(os.environ.get("TUNEFLEET_RANK_STEPS", "60"))


def left(handle: JobHandle, name: str) -> Any:
    return json.loads((handle.folder.root / f"{name}.json").read_text())


def windows(handle: JobHandle) -> list[tuple[int, int]]:
    """The windows of the loss over all launches, by step."""
    records = [
        ANY_RECORD.validate_json(line)
        for file in handle.folder.journal_dir.glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    return sorted(item.window for item in records if isinstance(item, MetricRecord) and item.window is not None)


def paused(supervisor: Supervisor, name: str, train: dict[str, Any], after: int) -> JobHandle:
    """Train without us, from beginning to end; then with us, and pause at a random step."""
    at = random.randrange(after, max(after + 1, train["max_steps"] - 30))
    print(f"{name} is asked to pause in step {at}")
    handle = supervisor.launch(job(PROGRAM, job_id=name, do="train", baseline=True, at=[at, 1, "pause"], **train))
    assert end(handle, 240).reason is TaskReason.PAUSED
    # Rank 0 hears a quarter of a second later of what another rank was asked; how late it acts then is held elsewhere.
    assert at <= list_complete(handle.folder.checkpoints_dir)[-1].step
    assert not (handle.folder.root / "final").exists(), "the script went on after the pause"
    return handle


def resumed(supervisor: Supervisor, name: str, train: dict[str, Any]) -> JobHandle:
    """Go on to the end, and come to the weights that there would have been without us."""
    handle = supervisor.launch(job(PROGRAM, job_id=name, attempt=2, do="train", baseline=False, **train))
    assert end(handle, 240).reason is TaskReason.FINISHED
    assert left(handle, "trained") == left(handle, "bare")
    return handle


def test_going_on_before_a_broken_checkpoint_of_two_ranks_is_exact(supervisor: Supervisor) -> None:
    third = STEPS // 3
    train = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": third}
    damaged = list_complete(paused(supervisor, "ddp", train, third + 1).folder.checkpoints_dir)[-1]
    file = damaged.path / "rng_state_1.pth"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    # Beside it one that is aborted: it needs the same imports.
    aborted = supervisor.launch(
        job(PROGRAM, job_id="aborted", do="train", baseline=False, at=[4, 1, "abort"], max_steps=10**6)
    )
    again = resumed(supervisor, "ddp", train)
    assert "rng_state_1.pth does not match its digest" in again.folder.log.read_text()
    journal = (again.folder.journal_dir / f"{again.job.launch}.jsonl").read_text().splitlines()
    events = [record for line in journal if isinstance(record := ANY_RECORD.validate_json(line), EventRecord)]
    assert any(f"{damaged.path.name} is set aside: rng_state_1.pth" in event.message for event in events)
    (from_step,) = [event.data["step"] for event in events if event.name == "training.resumed"]
    assert from_step in (third, third * 2)
    assert from_step < damaged.step
    assert end(aborted, 240).reason is TaskReason.ABORTED
    assert not (aborted.folder.root / "final").exists()
    assert list_complete(aborted.folder.checkpoints_dir) == []


def test_a_pause_of_two_ranks_that_share_the_model_is_exact(supervisor: Supervisor) -> None:
    steps = min(STEPS, 20)
    train = {"max_steps": steps, "fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}
    paused(supervisor, "fsdp", train, 3)
    handle = resumed(supervisor, "fsdp", train)
    tiles = windows(handle)
    assert [tiles[0][0], tiles[-1][1]] == [1, steps]
    assert all(late[0] == early[1] + 1 for early, late in pairwise(tiles))
    (checkpoint,) = list_complete(handle.folder.checkpoints_dir)
    files = {entry["path"] for entry in json.loads((checkpoint.path / "manifest.json").read_text())["files"]}
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= files
    assert {f"pytorch_model_fsdp_0/__{rank}_0.distcp" for rank in (0, 1)} <= files, "it was not sharded"
