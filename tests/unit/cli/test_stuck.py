"""What `--wait` says of tasks that no worker can run."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tunefleet.cli.tasks.submit import UnschedulableNotice
from tunefleet.errors import ConflictError
from tunefleet.schemas.api import TaskView

WHY = "unschedulable: w1 lacks the tag fast."


def task(why: str | None, id_: str = "task-1") -> TaskView:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return TaskView(
        id=id_, workflow_id="wf-1", name="tune", kind="sft", status="queued", owner="admin", created_at=at, why=why
    )


def test_it_is_said_once_and_only_when_it_lasts(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter((0.0, 4.0, 5.0, 9.0, 9.5, 20.0, 25.0, 30.0))
    look = UnschedulableNotice(strict=False, clock=lambda: next(times)).task
    for why in (WHY, None, WHY, WHY, "waiting: w1 is busy."):
        look(task(why))
    assert not capsys.readouterr().err, "a worker may just be starting, or is busy"
    for _ in range(3):
        look(task(WHY))
    said = " ".join(capsys.readouterr().err.split())
    assert said.count(f"tune (task-1) is {WHY}") == 1
    assert "--strict" in said


def test_who_is_strict_waits_no_longer() -> None:
    times = iter((0.0, 6.0))
    look = UnschedulableNotice(strict=True, clock=lambda: next(times)).task
    look(task(WHY))
    with pytest.raises(ConflictError, match="lacks the tag fast") as caught:
        look(task(WHY))
    assert "tunefleet cancel task-1" in (caught.value.hint or "")
