"""Real trainings of two ranks over gloo: a pause is exact, commands reach every rank, a lost rank ends the job."""

from __future__ import annotations

import json
import os
import random
from itertools import pairwise
from typing import Any

import pytest

from tests.integration.ranks.conftest import end, job
from tunefleet.attach.checkpoints import list_whole
from tunefleet.jobs import JobHandle, Supervisor
from tunefleet.lifecycle.task import TaskReason
from tunefleet.wire.journal import ANY_RECORD, EventRecord, MetricRecord

pytestmark = [pytest.mark.torch, pytest.mark.slow]

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


def paused_and_resumed(supervisor: Supervisor, name: str, steps: int, **options: Any) -> JobHandle:
    at = random.randrange(3, steps - 12)
    print(f"{name} is asked to pause in step {at}")
    train = {"do": "train", "max_steps": steps, **options}
    first = supervisor.launch(job("rank_program:main", job_id=name, baseline=True, at=[at, 1, "pause"], **train))
    assert end(first, 240).reason is TaskReason.PAUSED
    (checkpoint,) = list_whole(first.folder.checkpoints_dir)
    assert at <= checkpoint.step <= at + 9
    assert not (first.folder.root / "final").exists(), "the script went on after the pause"
    again = supervisor.launch(job("rank_program:main", job_id=name, attempt=2, baseline=False, **train))
    assert end(again, 240).reason is TaskReason.FINISHED
    assert left(again, "trained") == left(again, "bare")
    tiles = windows(again)
    assert [tiles[0][0], tiles[-1][1]] == [1, steps]
    assert all(late[0] == early[1] + 1 for early, late in pairwise(tiles))
    return again


def test_a_pause_of_two_ranks_is_exact(supervisor: Supervisor) -> None:
    """Beside it two jobs that end otherwise: they need the same imports."""
    aborted = supervisor.launch(
        job("rank_program:main", job_id="aborted", do="train", baseline=False, at=[4, 1, "abort"], max_steps=10**6)
    )
    lost = supervisor.launch(
        job("rank_program:main", job_id="lost", do="train", baseline=False, at=[4, 1, "kill"], max_steps=10**6)
    )
    paused_and_resumed(supervisor, "ddp", STEPS)
    assert end(aborted, 240).reason is TaskReason.ABORTED
    assert not (aborted.folder.root / "final").exists()
    assert list_whole(aborted.folder.checkpoints_dir) == []
    assert end(lost, 240).reason is TaskReason.KILLED


def test_a_pause_of_two_ranks_that_share_the_model_is_exact(supervisor: Supervisor) -> None:
    sharded = {"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}
    handle = paused_and_resumed(supervisor, "fsdp", min(STEPS, 20), **sharded)
    (checkpoint,) = list_whole(handle.folder.checkpoints_dir)
    files = {entry["path"] for entry in json.loads((checkpoint.path / "manifest.json").read_text())["files"]}
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= files
    assert {f"pytorch_model_fsdp_0/__{rank}_0.distcp" for rank in (0, 1)} <= files, "it was not sharded"


def test_ranks_that_never_wait_for_each_other_act_at_the_same_steps(supervisor: Supervisor) -> None:
    jobs = [
        supervisor.launch(
            job("rank_program:main", job_id=f"loop-{size}", processes=size, do="loop", steps=400, seed=random.random())
        )
        for size in (2, 3)
    ]
    for size, handle in zip((2, 3), jobs, strict=True):
        assert end(handle, 120).reason is TaskReason.FINISHED
        acted = left(handle, "acted")
        assert acted == [acted[0]] * size
        asked = {f"rank-{rank}-{number}" for rank in range(size) for number in range(5)}
        fallback = {f"fallback-{rank}" for rank in range(size)}
        assert sorted(name for _, name in acted[0]) == sorted(asked | fallback)


def test_a_broken_newest_checkpoint_is_named_and_the_one_before_is_used(supervisor: Supervisor) -> None:
    options = {"do": "train", "baseline": False, "max_steps": 12, "save_strategy": "steps", "save_steps": 4}
    first = supervisor.launch(job("rank_program:main", **options))
    assert end(first, 120).reason is TaskReason.FINISHED
    weights = left(first, "trained")
    damaged = first.folder.checkpoints_dir / "checkpoint-12" / "rng_state_1.pth"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    again = supervisor.launch(job("rank_program:main", attempt=2, **options))
    assert end(again, 120).reason is TaskReason.FINISHED
    assert left(again, "trained") == weights
    assert "rng_state_1.pth does not match its digest" in again.folder.log.read_text()
    journal = (again.folder.journal_dir / f"{again.job.launch}.jsonl").read_text().splitlines()
    events = [record for line in journal if isinstance(record := ANY_RECORD.validate_json(line), EventRecord)]
    assert any("checkpoint-12 is set aside: rng_state_1.pth" in event.message for event in events)
    assert any(event.name == "training.resumed" and event.data["step"] == 8 for event in events)
