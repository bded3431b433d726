"""An attempt that reports in the training-agent protocol: what it holds, its first sign of life, its launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, journal, tasks
from tunefleet.db.rows import AttemptRow, LaunchRow, TaskRow
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.access.permissions import AttemptActor
from tunefleet.orchestrator.tasks.transitions import Move, switch

# The task kinds that are jobs of this protocol.
TRAININGS: Final = ("sft", "lora_sft")


@dataclass(slots=True)
class Held:
    """An attempt and its task, locked for the operation."""

    attempt: AttemptRow
    task: TaskRow

    @property
    def current(self) -> bool:
        """Whether the task is still this attempt's."""
        return self.task.attempt_id == self.attempt.id


def of_attempt(connection: Connection, who: AttemptActor) -> Held:
    """Read and lock what a token speaks for."""
    task = tasks.by_ids(connection, [who.task_id], lock=True).get(who.task_id)
    attempt = attempts.by_ids(connection, [who.attempt_id]).get(who.attempt_id)
    if task is None or attempt is None or attempt.state == "void":
        raise ConflictError(f"The job {who.task_id} is no longer held with this token.", hint="End it.")
    return Held(attempt, task)


def of_reporter(connection: Connection, who: AttemptActor, now: float) -> Held:
    """Read and lock what a token speaks for, and note that it runs: only a job that runs has something to report."""
    held = of_attempt(connection, who)
    start(connection, held, now)
    return held


def start(connection: Connection, held: Held, now: float) -> None:
    """Note that a registered job runs, unless that is known."""
    if held.attempt.state != "offered":
        return
    held.attempt = held.attempt._replace(state="accepted", accepted_at=now)
    attempts.store(connection, [held.attempt])
    changes = {"started_at": now, "queue_deadline": None, "error": None}
    held.task = switch(
        connection, [Move(held.task, TaskReason.STARTED, changes=changes, data={"attempt": held.attempt.number})], now
    )[0]


def reopen(connection: Connection, held: Held, now: float) -> None:
    """Let a paused job go on where it is, with the token that it has."""
    held.attempt = held.attempt._replace(state="accepted", reason=None, error=None, finished_at=None)
    attempts.store(connection, [held.attempt])
    # The generation goes on: the ids of wishes are made of it.
    same = {"attempt_id": held.attempt.id, "worker_id": held.attempt.worker_id, "reached": held.task.generation}
    task = switch(connection, [Move(held.task, TaskReason.RESUMED)], now)[0]
    task = switch(connection, [Move(task, TaskReason.OFFERED, changes=same)], now)[0]
    changes = {"started_at": now, "error": None}
    held.task = switch(
        connection, [Move(task, TaskReason.STARTED, changes=changes, data={"attempt": held.attempt.number})], now
    )[0]


def launch_of(connection: Connection, held: Held, now: float) -> LaunchRow:
    """Return the one launch that an attempt's reports are stored under."""
    name = f"report-{held.attempt.id}"
    known = journal.launch(connection, held.task.id, name)
    return known or journal.add_launch(
        connection, task_id=held.task.id, launch_id=name, attempt_id=held.attempt.id, at=now
    )


def reread(connection: Connection, task_id: str) -> TaskRow:
    """Return a task as it is after a change in the same operation."""
    return tasks.by_ids(connection, [task_id])[task_id]
