"""Status reports of jobs: the only way in which a reporter changes a task's status."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import commands, events, journal
from tunefleet.errors import ConflictError, InputError
from tunefleet.lifecycle.task import OUTCOMES, TaskReason, TaskStatus
from tunefleet.orchestrator.access.permissions import AttemptActor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import agents
from tunefleet.orchestrator.ids import attempt_token
from tunefleet.orchestrator.tasks import commands as task_commands
from tunefleet.orchestrator.training_protocol import failure_analysis
from tunefleet.orchestrator.training_protocol import held_attempts as holding
from tunefleet.orchestrator.training_protocol.held_attempts import Held
from tunefleet.orchestrator.views import to_datetime
from tunefleet.orchestrator.workers import exchange_transaction
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.training_protocol.jobs import StatusStored
from tunefleet.schemas.training_protocol.training import StatusPatch
from tunefleet.schemas.worker_link import CommandOutcome, Finish

REPORTABLE: Final = ("running", "paused", "completed", "failed", "cancelled")
# Final status of a job → commands that cause it.
_ENDS: Final[dict[str, frozenset[str]]] = {
    "paused": frozenset({ControlCommand.PAUSE}),
    "completed": frozenset({ControlCommand.GRACEFUL_STOP, ControlCommand.SAVE_AND_STOP}),
    "cancelled": frozenset({ControlCommand.ABORT}),
}
_SAVING: Final = frozenset({ControlCommand.PAUSE, ControlCommand.SAVE_AND_STOP})
_REASONS: Final = {
    "completed": TaskReason.FINISHED,
    "cancelled": TaskReason.ABORTED,
    "paused": TaskReason.PAUSED,
}


async def report(core: ServerContext, actor: AttemptActor, patch: StatusPatch) -> StatusStored:
    """Store the status that a job reports; idempotent.

    Raises:
        ConflictError: If the lifecycle does not allow the change; the message names both statuses.
    """
    await agents.touch(core, actor)
    now = core.clock.wall()
    status = await core.write(partial(_store, actor=actor, patch=patch, core=core, now=now))
    return StatusStored(status=state_of(status), updated_at=to_datetime(now))


def _store(connection: Connection, *, actor: AttemptActor, patch: StatusPatch, core: ServerContext, now: float) -> str:
    return apply(connection, holding.of_attempt(connection, actor), patch, core=core, now=now)


def apply(connection: Connection, held: Held, patch: StatusPatch, *, core: ServerContext, now: float) -> str:
    """Apply a reported status to a held task, and return the task's status afterwards.

    A failure that the task's policy retries puts it back into the queue.
    """
    status = patch.status
    if status not in REPORTABLE:
        raise InputError(f"{status!r} is not a job status.", hint=f"Use one of {', '.join(REPORTABLE)}.")
    if _is_repetition(held, status):
        return held.task.status
    if not held.current:
        raise ConflictError(
            f"Job {held.task.id} is {held.task.status} and no longer this attempt's; it cannot become {status}."
        )
    if status == "running":
        _run(connection, held, now)
    else:
        holding.start(connection, held, now)
        _end(connection, held, patch, core, now)
    wake(connection, f"task:{held.task.id}", f"worker:{held.attempt.worker_id}")
    return held.task.status


def _is_repetition(held: Held, status: str) -> bool:
    if held.current and held.task.status == status:
        return True
    if held.attempt.state != "finished" or held.attempt.reason is None:
        return False
    return not held.current and OUTCOMES[TaskReason(held.attempt.reason)].status == status


def _run(connection: Connection, held: Held, now: float) -> None:
    if held.task.status == TaskStatus.DISPATCHED:
        holding.start(connection, held, now)
    elif held.task.status == TaskStatus.PAUSED:
        holding.reopen(connection, held, now)
    else:
        raise _refusal(held, "running")


def _end(connection: Connection, held: Held, patch: StatusPatch, core: ServerContext, now: float) -> None:
    if held.task.status != TaskStatus.RUNNING:
        if held.task.status != TaskStatus.PAUSED or patch.status not in {"failed", "cancelled"}:
            raise _refusal(held, patch.status)
        holding.reopen(connection, held, now)
    reason = _REASONS.get(patch.status) or failure_analysis.reason_of(patch.error)
    done = _carried_out(connection, held, patch)
    if done and patch.status == "completed":
        reason = TaskReason.STOPPED_EARLY
    sentence, detail = failure_analysis.split_error(patch.error)
    finish = Finish.model_validate(
        {
            "token": attempt_token(core.secret, held.attempt.id),
            "outcome": patch.status,
            "reason": reason.value,
            "error": sentence,
            "detail": detail,
            "result": _result(connection, held) if patch.status == "completed" else {},
        }
    )
    if patch.checkpoint is not None or patch.step is not None:
        data = {"name": patch.checkpoint, "step": patch.step, "message": f"The job is {patch.status}."}
        events.append(connection, [events.of_task(held.task, "task.message", now, data)])
    mine, rows = {held.attempt.id: held.attempt}, {held.task.id: held.task}
    # The final status implies the outcome of the command that caused it; the command's own outcome may never arrive.
    task_commands.take_outcomes(connection, done, held.attempt.worker_id, mine, rows, now)
    exchange_transaction.finish(connection, {held.attempt.id: finish}, mine, rows, now, core.blobs)
    held.task = holding.reread(connection, held.task.id)


def _carried_out(connection: Connection, held: Held, patch: StatusPatch) -> list[CommandOutcome]:
    ends = _ENDS.get(patch.status, frozenset())
    return [
        CommandOutcome(
            command_id=row.id,
            state="durable" if row.command in _SAVING else "applied",
            step=patch.step,
            checkpoint=patch.checkpoint,
        )
        for row in commands.of_attempts(connection, [held.attempt.id])
        if row.command in ends and (row.state != "pending" or row.command == ControlCommand.PAUSE)
    ]


def _refusal(held: Held, status: str) -> ConflictError:
    return ConflictError(f"Job {held.task.id} is {held.task.status}; it cannot become {status}.")


def _result(connection: Connection, held: Held) -> dict[str, Any]:
    """Return the result of a completed job: its last progress."""
    launch = journal.launch(connection, held.task.id, f"report-{held.attempt.id}")
    progress: dict[str, Any] = orjson.loads(launch.progress) if launch is not None and launch.progress else {}
    return {"step": progress.get("step"), "max_steps": progress.get("max_steps")}


def settings_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the training parameters of a registration; empty if they are not a mapping."""
    config = body.get("config")
    found = config.get("training") if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def state_of(status: str) -> str:
    """Return the protocol's name of a task's status."""
    return {"dispatched": "pending", "pending": "queued", "skipped": "completed"}.get(status, status)


def model_of(spec: dict[str, Any]) -> str | None:
    """Return the model in a spec."""
    source = (spec.get("model") or {}).get("source") or {}
    name = source.get("identifier")
    return name if isinstance(name, str) else None


def dataset_of(spec: dict[str, Any]) -> str | None:
    """Return the dataset in a spec."""
    data = spec.get("data") or {}
    jsonl = data.get("jsonl") or {}
    found = (
        *(data.get(name) for name in ("dataset_name", "path", "artifact", "jsonl_path")),
        *(jsonl.get(name) for name in ("path", "worker_path")),
    )
    return next((name for name in found if isinstance(name, str)), None)
