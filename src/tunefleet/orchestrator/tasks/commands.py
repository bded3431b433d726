"""Commands in progress: what is sent to a worker, what it reports, and how they end with their attempt.

A pause is stored as a command too, so that its outcome is visible; it is sent as desired state, not as a command.
Functions on a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import attempts, commands, events, tasks
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import AttemptRow, CommandRow, TaskRow
from tunefleet.lifecycle.task import TaskReason
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.fleet import usage
from tunefleet.orchestrator.ids import attempt_token
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.worker_link import Command, CommandOutcome, pause_id

# Commands that are done when their checkpoint is complete; all others are done when they are applied.
_CHECKPOINT_COMMANDS = frozenset({ControlCommand.SAVE_CHECKPOINT, ControlCommand.SAVE_AND_STOP, ControlCommand.PAUSE})


def done(row: CommandRow) -> bool:
    """Whether a command has its final state."""
    return row.settled or (row.state == "applied" and row.command not in _CHECKPOINT_COMMANDS)


def sendable(
    connection: Connection, worker_id: str, open_attempts: Mapping[str, AttemptRow], secret: bytes
) -> list[Command]:
    """Return the unacknowledged commands for a worker's attempts and for the worker itself."""
    found = []
    for row in commands.pending(connection, worker_id):
        # Sent as desired state.
        if row.command == ControlCommand.PAUSE:
            continue
        attempt = open_attempts.get(row.attempt_id or "")
        if row.attempt_id is None or (attempt is not None and attempt.state == "accepted"):
            token = "" if row.attempt_id is None else attempt_token(secret, row.attempt_id)
            data = orjson.loads(row.data)
            found.append(Command(token=token, command_id=row.id, command=row.command, data=data))
    return found


def take_outcomes(
    connection: Connection,
    outcomes: Sequence[CommandOutcome],
    worker_id: str,
    open_attempts: Mapping[str, AttemptRow],
    rows: dict[str, TaskRow],
    now: float,
) -> None:
    """Store a worker's reports on its commands; outdated reports and those on other workers' commands are ignored."""
    if not outcomes:
        return
    open_ = {row.id: row for row in commands.under_way(connection, worker_id)}
    for outcome in outcomes:
        row = open_.get(outcome.command_id)
        if row is None or (row.attempt_id is not None and row.attempt_id not in open_attempts):
            continue
        message = None if outcome.message is None else scrub(outcome.message)
        result = None if outcome.result is None else scrub(orjson.dumps(outcome.result).decode())
        after = commands.advanced(
            row, outcome.state, now, step=outcome.step, checkpoint=outcome.checkpoint, message=message, result=result
        )
        if after is None:
            continue
        open_[after.id] = after
        commands.store(connection, [after])
        task = rows.get(row.task_id or "")
        _append_event(connection, after, task, now)
        if task is not None and after.command == ControlCommand.PAUSE and after.state == "failed":
            rows[task.id] = _give_up_pause(connection, task, open_attempts[row.attempt_id or ""], after)


def take_back_pause(connection: Connection, task: TaskRow, now: float) -> None:
    """Cancel a pause request; a pause that was not sent yet is not sent."""
    asked = commands.get(connection, pause_id(task.id, task.attempts, task.generation))
    tasks.desire(connection, task.id, "run")
    events.append(connection, [events.of_task(task, "task.resuming", now, {})])
    if asked is not None and asked.state == "pending":
        after = asked._replace(state="failed", message="Cancelled: the run was resumed.", updated_at=now)
        commands.store(connection, [after])
        _append_event(connection, after, task, now)
    wake(connection, f"worker:{task.worker_id}", f"task:{task.id}")


def close(
    connection: Connection, attempts: Iterable[AttemptRow], why: str, now: float, *, paused: bool = False
) -> None:
    """Fail the open commands of attempts that have ended."""
    ids = [row.id for row in attempts if row.slot_class == "job"]
    if not ids:
        return
    message = f"Not executed: {why}"
    closed = [
        row._replace(state="durable", updated_at=now)
        if paused and row.command == ControlCommand.PAUSE
        else row._replace(state="failed", message=message, updated_at=now)
        for row in commands.of_attempts(connection, ids)
        if not done(row)
    ]
    commands.store(connection, closed)


def close_of_worker(connection: Connection, worker_id: str, now: float) -> None:
    """Fail the commands of a lost worker, so that it does not run them when it comes back much later."""
    commands.store(
        connection,
        [
            row._replace(state="failed", message="Not executed: the worker is lost.", updated_at=now)
            for row in commands.under_way(connection, worker_id)
            if row.task_id is None and not done(row)
        ],
    )


def note_stalls(
    connection: Connection,
    stalled: Mapping[str, float],
    open_attempts: Mapping[str, AttemptRow],
    rows: dict[str, TaskRow],
    now: float,
) -> None:
    """Store which of a worker's jobs are stalled, and since when."""
    for attempt in open_attempts.values():
        task = rows.get(attempt.task_id)
        silent_s = stalled.get(attempt.id)
        if (
            task is None
            or attempt.member
            or attempt.state != "accepted"
            or (silent_s is None) == (task.stalled_since is None)
        ):
            continue
        since = None if silent_s is None else now - silent_s
        rows[task.id] = task._replace(stalled_since=since)
        tasks.set_stalled(connection, task.id, since)
        kind = "task.stalled" if silent_s is not None else "task.stall_ended"
        data = {} if silent_s is None else {"silent_s": round(silent_s, 1)}
        events.append(connection, [events.of_task(task, kind, now, data)])


def _give_up_pause(connection: Connection, task: TaskRow, attempt: AttemptRow, row: CommandRow) -> TaskRow:
    """Reset the desired state after a failed pause: the run continues."""
    # Only the current request: an outcome of an earlier pause must not cancel a later one.
    if task.desired != "pause" or row.id != pause_id(task.id, attempt.number, task.generation):
        return task
    tasks.desire(connection, task.id, "run")
    return task._replace(desired="run", generation=task.generation + 1)


def _append_event(connection: Connection, row: CommandRow, task: TaskRow | None, now: float) -> None:
    data = {"command_id": row.id, "command": row.command, "step": row.step, "checkpoint": row.checkpoint}
    data = {name: value for name, value in data.items() if value is not None}
    if row.message is not None:
        data["message"] = row.message
    kind = f"command.{row.state}"
    if task is None:
        events.append(connection, [Event(kind, now, worker_id=row.worker_id, data=data)])
    else:
        events.append(connection, [events.of_task(task, kind, now, data)])


def void(connection: Connection, rows: Sequence[TaskRow], reason: TaskReason, now: float) -> None:
    """Void the attempts of tasks that are being cancelled, so that their workers cannot overwrite the outcome."""
    held = attempts.by_ids(connection, [row.attempt_id for row in rows if row.attempt_id])
    gangs = attempts.of_gangs(connection, [row.id for row in held.values() if row.gang_of is not None])
    held |= {node.id: node for nodes in gangs.values() for node in nodes}
    gone = [a._replace(state="void", reason=reason.value, finished_at=now) for a in held.values() if a.open]
    attempts.store(connection, gone)
    usage.ended(connection, gone, {row.id: row for row in rows})
    close(connection, held.values(), "the task was cancelled.", now)
    wake(connection, "placement", *(f"worker:{row.worker_id}" for row in rows if row.worker_id))
    wake(connection, *(f"worker:{node.worker_id}" for node in gone if node.member))


def ask(connection: Connection, rows: Sequence[TaskRow], now: float) -> None:
    """Request the cancellation of running tasks; their workers report it after the current step."""
    for row in rows:
        if row.desired != "cancel":
            tasks.desire(connection, row.id, "cancel")
            events.append(connection, [events.of_task(row, "task.cancelling", now, {})])
        wake(connection, f"worker:{row.worker_id}", f"task:{row.id}")
