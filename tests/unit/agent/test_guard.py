"""What the agent decides by itself: with a double of a launch, and the real rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunefleet.agent import guard as guard_module
from tunefleet.agent.guard import Guard
from tunefleet.agent.job import AgentJob
from tunefleet.agent.records import AgentRecord
from tunefleet.jobs import JobEnd
from tunefleet.jobs.watchdog import Stall
from tunefleet.lifecycle.task import TaskReason
from tunefleet.wire.jobfolder import Job, JobFolder
from tunefleet.wire.training import JobState


class Launch:
    """A double of a `JobHandle` that notes how it was ended."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.job = Job(
            job_id="j",
            task_id="j",
            attempt=1,
            launch="l1",
            kind="sft",
            name="n",
            program="p:q",
            spec={},
            gpus=("GPU-a",),
        )
        self.done: list[str] = []

    def kill(self) -> None:
        self.done.append("kill")

    def cancel(self, grace_s: float = 0) -> None:
        self.done.append("cancel")

    def command(self, name: str, data: Any = None, command_id: str | None = None) -> None:
        self.done.append(name)


class Watch:
    """A double of the watchdog that sees a standstill."""

    def __init__(self, *_: object) -> None:
        pass

    def look(self) -> Stall:
        return Stall(700.0, 5, "training", "loop.py:7", "")


def job(tmp_path: Path, **spec: Any) -> AgentJob:
    record = AgentRecord(job_id="j", name="n", kind="sft", spec=spec, order=0.0, state=JobState.RUNNING, launch="l1")
    return AgentJob(JobFolder(tmp_path / "j"), record, lambda _: None)


def guarded(found: AgentJob) -> tuple[Guard, Launch]:
    return Guard(found), Launch(found.folder)


def end(reason: TaskReason = TaskReason.KILLED, outcome: Any = "failed") -> JobEnd:
    return JobEnd(outcome=outcome, reason=reason, launch="l1")


@pytest.mark.parametrize(
    ("on_stall", "done", "verdict"), [("keep", [], None), ("restart", ["kill"], "again"), ("fail", ["kill"], "700 s")]
)
def test_a_standstill_is_said_and_acted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_stall: str, done: list[str], verdict: str | None
) -> None:
    monkeypatch.setattr(guard_module, "Watchdog", Watch)
    found = job(tmp_path, on_stall=on_stall)
    guard, launch = guarded(found)
    guard.look(launch)  # type: ignore[arg-type]
    assert "700 s" in found.record.warnings[0]
    assert launch.done == done
    said = guard.verdict(launch, end())  # type: ignore[arg-type]
    assert said == verdict or (verdict is not None and verdict in (said or ""))


def test_restarts_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "Watchdog", Watch)
    found = job(tmp_path, on_stall="restart")
    found.note(restarts=guard_module.MAX_RESTARTS)
    guard, launch = guarded(found)
    guard.look(launch)  # type: ignore[arg-type]
    assert "700 s" in (guard.verdict(launch, end()) or "")  # type: ignore[arg-type]


def test_a_job_that_runs_too_long_is_ended_and_time_counts_over_launches(tmp_path: Path) -> None:
    found = job(tmp_path, limits={"max_runtime_s": 50})
    found.note(ran_s=51.0)
    guard, launch = guarded(found)
    guard.look(launch)  # type: ignore[arg-type]
    assert launch.done == ["cancel"]
    said = guard.verdict(launch, end(TaskReason.ABORTED, "cancelled"))  # type: ignore[arg-type]
    assert "max_runtime_s (50 s)" in (said or "")
