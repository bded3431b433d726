"""What a backend asks of jobs: with a double of a launch that loads for a while, and the real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunefleet.agent.jobs.command_outbox import CommandExecutor
from tunefleet.agent.jobs.job import AgentJob, AgentRecord
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.schemas.control import CommandState
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.training_protocol.training import AgentCommand, AgentOutcome, JobState


class Launch:
    """A double of a `JobHandle` that takes commands once it has loaded."""

    def __init__(self) -> None:
        self.loaded = False
        self.taken: list[str] = []

    def command(self, name: str, data: Any, command_id: str) -> None:
        if not self.loaded:
            raise ConflictError("It takes no commands now: it is running (loading).")
        self.taken.append(command_id)

    def command_state(self, command_id: str) -> CommandState:
        if command_id not in self.taken:
            raise NotFoundError(f"It knows no command {command_id}.")
        return CommandState(command_id=command_id, command="set", state="applied", step=3)


class Book:
    """A double of a `JobTable` with one job."""

    def __init__(self, job: AgentJob) -> None:
        self.job = job

    def find(self, job_id: str) -> AgentJob:
        return self.job


SET = AgentCommand(command_id="cmd-1", command="set", job_id="j", data={"learning_rate": 1e-5})


@pytest.fixture
def job(tmp_path: Path) -> AgentJob:
    record = AgentRecord(job_id="j", name="n", kind="sft", spec={}, order=0.0, state=JobState.RUNNING)
    return AgentJob(JobFolder(tmp_path / "j"), record, lambda _: None)


def orders(job: AgentJob, tmp_path: Path) -> CommandExecutor:
    def verb(command: AgentCommand) -> AgentOutcome:
        raise AssertionError(command)

    return CommandExecutor(Book(job), verb, tmp_path / ".agent", lambda: None)  # type: ignore[arg-type]


def follow(found: CommandExecutor) -> None:
    """Do what the orders' thread does in one round."""
    for command in list(found._open.values()):
        found._follow(command)


def states(found: CommandExecutor) -> dict[str, str]:
    return {outcome.command_id: outcome.state for outcome in found.outcomes()}


def test_a_command_waits_until_the_trainer_takes_it_also_over_a_restart(job: AgentJob, tmp_path: Path) -> None:
    first = orders(job, tmp_path)
    first.take([SET])
    follow(first)
    assert states(first) == {"cmd-1": "acknowledged"}, "the process is not even started"
    launch = Launch()
    job.handle = launch  # type: ignore[assignment]
    follow(first)
    assert states(first) == {"cmd-1": "acknowledged"}
    second = orders(job, tmp_path)
    launch.loaded = True
    follow(second)
    follow(second)
    assert states(second) == {"cmd-1": "applied"}
    assert launch.taken == ["cmd-1"]


def test_a_command_fails_once_the_job_takes_none_any_more(job: AgentJob, tmp_path: Path) -> None:
    found = orders(job, tmp_path)
    found.take([SET])
    job.folder.root.mkdir(parents=True, exist_ok=True)
    job.note(state=JobState.PAUSED)
    follow(found)
    (outcome,) = found.outcomes()
    assert (outcome.state, "it is paused" in str(outcome.message)) == ("failed", True)
    follow(found)
