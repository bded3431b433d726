"""Attempts that report in the training-agent protocol: lookup with lock, start, reopen, launch."""

from __future__ import annotations

from dataclasses import dataclass

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, journal, tasks
from tunefleet.db.rows import AttemptRow, LaunchRow, TaskRow
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.access.permissions import AttemptActor
from tunefleet.orchestrator.tasks.transitions import Move, switch


@dataclass(slots=True)
class Held:
    """An attempt and its task, locked for the transaction."""

    attempt: AttemptRow
    task: TaskRow

    @property
    def current(self) -> bool:
        """Whether this is the task's current attempt."""
        return self.task.attempt_id == self.attempt.id


def of_attempt(connection: Connection, actor: AttemptActor) -> Held:
    """Load and lock the attempt of a token."""
    task = tasks.by_ids(connection, [actor.task_id], lock=True).get(actor.task_id)
    attempt = attempts.by_ids(connection, [actor.attempt_id]).get(actor.attempt_id)
    if task is None or attempt is None or attempt.state == "void":
        raise ConflictError(f"This token no longer owns job {actor.task_id}.", hint="Stop the job.")
    return Held(attempt, task)


def of_reporter(connection: Connection, actor: AttemptActor, now: float) -> Held:
    """Load and lock the attempt of a token, and mark it as running, which a report implies."""
    held = of_attempt(connection, actor)
    start(connection, held, now)
    return held


def start(connection: Connection, held: Held, now: float) -> None:
    """Mark a registered job as running, unless it already is."""
    if held.attempt.state != "offered":
        return
    held.attempt = held.attempt._replace(state="accepted", accepted_at=now)
    attempts.store(connection, [held.attempt])
    changes = {"started_at": now, "queue_deadline": None, "error": None}
    held.task = switch(
        connection, [Move(held.task, TaskReason.STARTED, changes=changes, data={"attempt": held.attempt.number})], now
    )[0]


def reopen(connection: Connection, held: Held, now: float) -> None:
    """Resume a paused job on its machine, under the same token."""
    held.attempt = held.attempt._replace(state="accepted", reason=None, error=None, finished_at=None)
    attempts.store(connection, [held.attempt])
    # The generation is kept: command ids contain it and must stay unique.
    same = {"attempt_id": held.attempt.id, "worker_id": held.attempt.worker_id, "reached": held.task.generation}
    task = switch(connection, [Move(held.task, TaskReason.RESUMED)], now)[0]
    task = switch(connection, [Move(task, TaskReason.OFFERED, changes=same)], now)[0]
    changes = {"started_at": now, "error": None}
    held.task = switch(
        connection, [Move(task, TaskReason.STARTED, changes=changes, data={"attempt": held.attempt.number})], now
    )[0]


def launch_of(connection: Connection, held: Held, now: float) -> LaunchRow:
    """Return the launch that an attempt's reports are stored under."""
    name = f"report-{held.attempt.id}"
    known = journal.launch(connection, held.task.id, name)
    return known or journal.add_launch(
        connection, task_id=held.task.id, launch_id=name, attempt_id=held.attempt.id, at=now
    )


def reread(connection: Connection, task_id: str) -> TaskRow:
    """Reload a task after a change in the same transaction."""
    return tasks.by_ids(connection, [task_id])[task_id]
