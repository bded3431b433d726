"""Control a task: pause, resume, stop, and commands with their outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import orjson
from pydantic import ValidationError

from tunefleet.db import Connection, wake
from tunefleet.db.fleet import worker_rows
from tunefleet.db.repositories import attempts, commands, events
from tunefleet.db.repositories import tasks as task_rows
from tunefleet.db.rows import CommandRow, TaskRow
from tunefleet.errors import ConflictError, InputError, NotFoundError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import agents, worker_state
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.tasks import checkpoints, tasks
from tunefleet.orchestrator.tasks import commands as task_commands
from tunefleet.orchestrator.tasks.tasks import find, find_owned
from tunefleet.orchestrator.tasks.views import checkpoint_view, command_view
from tunefleet.schemas.api import CheckpointView, CommandRequest, CommandView, TaskDetail
from tunefleet.schemas.control import ControlCommand, SetData
from tunefleet.schemas.worker_link import pause_id
from tunefleet.spec.value_preview import nearest
from tunefleet.validation_errors import summary

# Maximum long-poll duration for a command's outcome.
MAX_WAIT_S: Final = 30.0
# Participles for error messages: "only a running one can be …".
_PARTICIPLES: Final[Mapping[ControlCommand, str]] = {
    ControlCommand.PAUSE: "paused",
    ControlCommand.SAVE_CHECKPOINT: "saved",
    ControlCommand.GRACEFUL_STOP: "stopped early",
    ControlCommand.SAVE_AND_STOP: "stopped early",
}


async def pause(core: ServerContext, actor: Actor, task_id: str) -> TaskDetail:
    """Request a pause: the run saves a checkpoint after the current step and stops. Idempotent.

    Raises:
        ConflictError: If it is not running, is being cancelled, or its kind cannot be paused.
        ForbiddenError: If it belongs to another owner.
    """
    now = core.clock.wall()

    def operation(connection: Connection) -> str:
        row = find_owned(connection, actor, task_id)
        if row.status == TaskStatus.PAUSED:
            return row.id
        _refuse_idle(row, _PARTICIPLES[ControlCommand.PAUSE])
        _refuse_unsupported(connection, row, ControlCommand.PAUSE, _PARTICIPLES[ControlCommand.PAUSE])
        if row.desired != "pause":
            task_rows.desire(connection, row.id, "pause")
            command_id = pause_id(row.id, row.attempts, row.generation + 1)
            commands.insert_one(connection, _row(row, command_id, ControlCommand.PAUSE, {}, actor, now))
            events.append(connection, [events.of_task(row, "task.pausing", now, {"command_id": command_id})])
            wake(connection, f"worker:{row.worker_id}", f"task:{row.id}")
        return row.id

    return await tasks.get(core, actor, await core.write(operation))


async def stop(core: ServerContext, actor: Actor, task_id: str, *, save: bool = True) -> CommandView:
    """End a run early, as completed: its current weights are delivered."""
    name = ControlCommand.SAVE_AND_STOP if save else ControlCommand.GRACEFUL_STOP
    return await command(core, actor, task_id, CommandRequest(command=name))


async def command(core: ServerContext, actor: Actor, task_id: str, request: CommandRequest) -> CommandView:
    """Send a command to a running task; a known command id returns its command.

    Raises:
        ConflictError: If the task is not running, its kind does not support the command, or the id belongs to another
            command.
        ForbiddenError: If the task belongs to another owner.
    """
    name, data = _checked(request)
    if name is ControlCommand.PAUSE:
        task = await pause(core, actor, task_id)
        return (await list_(core, actor, task.id))[-1]
    now = core.clock.wall()

    def operation(connection: Connection) -> CommandRow:
        row = find_owned(connection, actor, task_id)
        known = None if request.command_id is None else commands.get(connection, request.command_id)
        if known is not None:
            if (known.task_id, known.command, orjson.loads(known.data)) != (row.id, name.value, data):
                raise ConflictError(f"The command id {known.id} was used for another command.", hint="Use a new one.")
            return known
        what = _PARTICIPLES.get(name, f"given command {name.value}")
        _refuse_idle(row, what)
        _refuse_unsupported(connection, row, name, what)
        made = _row(row, request.command_id or new_id("cmd"), name, data, actor, now)
        commands.insert_one(connection, made)
        event = {"command_id": made.id, "command": made.command}
        events.append(connection, [events.of_task(row, "command.asked", now, event)])
        return made

    return command_view(await core.write(operation))


async def list_(core: ServerContext, actor: Actor, task_id: str) -> list[CommandView]:
    """Return the commands of a task, oldest first."""
    may_read(actor)
    rows = await core.read(lambda connection: commands.of_task(connection, find(connection, actor, task_id).id))
    return [command_view(row) for row in rows]


async def get(core: ServerContext, actor: Actor, task_id: str, command_id: str, *, wait_s: float = 0.0) -> CommandView:
    """Return a command as soon as it has its final state, or after the timeout.

    Raises:
        NotFoundError: If the task has no such command.
    """
    may_read(actor)
    ends_at = core.clock.monotonic() + min(max(wait_s, 0.0), MAX_WAIT_S)
    topic = commands.topic(command_id)
    while True:
        seen = core.signals.version(topic)
        row = await core.read(partial(_one, actor=actor, task_id=task_id, command_id=command_id))
        left_s = ends_at - core.clock.monotonic()
        if task_commands.done(row) or left_s <= 0 or core.signals.closed:
            return command_view(row)
        await core.signals.wait(topic, left_s, seen)
        # Notified topics return from `wait` without yielding: let other coroutines run.
        await asyncio.sleep(0)


async def list_checkpoints(core: ServerContext, actor: Actor, task_id: str) -> list[CheckpointView]:
    """Return the checkpoints of a task in step order, without superseded ones."""
    may_read(actor)
    known = await core.read(lambda connection: checkpoints.known(connection, find(connection, actor, task_id)))
    return [checkpoint_view(each) for each in known]


def _one(connection: Connection, *, actor: Actor, task_id: str, command_id: str) -> CommandRow:
    task = find(connection, actor, task_id)
    row = commands.get(connection, command_id)
    if row is None or row.task_id != task.id:
        raise NotFoundError(f"Run {task.id} has no command {command_id}.")
    return row


def _refuse_idle(row: TaskRow, what: str) -> None:
    if row.status != TaskStatus.RUNNING:
        hints = {
            "paused": f"Continue it with `tunefleet resume {row.id}`.",
            "pending": f"It has not started; cancel it with `tunefleet cancel {row.id}`.",
            "queued": f"It has not started; cancel it with `tunefleet cancel {row.id}`.",
            "dispatched": f"It is starting: try again in a moment, or cancel it with `tunefleet cancel {row.id}`.",
        }
        if row.status == TaskStatus.QUEUED and row.attempts:
            hints["queued"] = "It is queued to continue: try again when it runs."
        raise ConflictError(
            f"Run {row.id} is {row.status}; only an active run can be {what}.", hint=hints.get(row.status)
        )
    if row.worker_id is None:
        raise ConflictError(
            f"Run {row.id} is sharded across several workers and cannot be {what}.",
            hint=f"Use `tunefleet cancel {row.id}`.",
        )
    if row.slot_class != "job":
        raise ConflictError(
            f"A run of kind {row.kind} cannot be {what}: it does not train.", hint=f"Use `tunefleet cancel {row.id}`."
        )
    if row.desired == "cancel":
        raise ConflictError(f"Run {row.id} is being cancelled.")


def _refuse_unsupported(connection: Connection, row: TaskRow, name: ControlCommand, what: str) -> None:
    """Refuse a command that the job does not support, and which would stay pending until its end."""
    agents.refuse_unreachable(connection, row)
    parents = attempts.merged_into(connection, [row.attempt_id] if row.attempt_id else [])
    for task_id in parents.values():
        raise ConflictError(
            f"Run {row.id} is coalesced into {task_id} and cannot be {what} separately.",
            hint=f"Use `tunefleet cancel {row.id}`: the others continue.",
        )
    supported = _supported_commands(connection, row)
    if supported is None or name in supported:
        return
    takes = f"it supports only {', '.join(sorted(supported))}" if supported else "it supports no commands"
    raise ConflictError(
        f"A run of kind {row.kind} cannot be {what}: {takes}.",
        hint=f"Cancel it with `tunefleet cancel {row.id}`, then restart it with `tunefleet retry {row.id}`.",
    )


def _supported_commands(connection: Connection, row: TaskRow) -> tuple[str, ...] | None:
    worker = worker_rows.get(connection, row.worker_id) if row.worker_id is not None else None
    offers = () if worker is None else worker_state.capabilities(worker.capabilities).executors
    return next((offer.heeds for offer in offers if offer.kind == row.kind), None)


def _checked(request: CommandRequest) -> tuple[ControlCommand, dict[str, Any]]:
    names = ", ".join(sorted(ControlCommand))
    try:
        name = ControlCommand(request.command)
    except ValueError:
        raise InputError(f"Unknown command {request.command!r}.", hint=f"Available: {names}.") from None
    if name is not ControlCommand.SET:
        return name, request.data
    try:
        data = SetData.model_validate(request.data, strict=False).model_dump(exclude_none=True)
    except ValidationError as error:
        raise InputError(f"Invalid data for set: {summary(error, most=1)}.") from None
    unknown = sorted(set(request.data) - set(SetData.model_fields))
    if unknown or not data:
        known = ", ".join(SetData.model_fields)
        wrong = f"set has no field {unknown[0]!r}." if unknown else "set needs at least one field."
        guess = nearest(unknown[0], list(SetData.model_fields)) if unknown else None
        raise InputError(wrong, hint=f"Did you mean {guess}?" if guess else f"It has: {known}.")
    return name, data


def _row(
    task: TaskRow, command_id: str, name: ControlCommand, data: dict[str, Any], actor: Actor, now: float
) -> CommandRow:
    assert task.worker_id is not None, "the task is running"
    return CommandRow(
        command_id, task.id, task.attempt_id, task.worker_id, name.value, orjson.dumps(data).decode(), "pending",
        None, None, None, actor.owner, now, now,
    )  # fmt: skip
