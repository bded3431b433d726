"""Job operations for users of the protocol: control, parameter updates, resume, start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import tasks, training_protocol, workflows
from tunefleet.db.repositories.training_protocol import JobRow
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError, InputError, NotFoundError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import EXTERNAL, Actor, may_change, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import agents
from tunefleet.orchestrator.ids import attempt_token
from tunefleet.orchestrator.tasks import control as task_control
from tunefleet.orchestrator.tasks import tasks as task_verbs
from tunefleet.orchestrator.tasks.inputs import NAMED_POINTER
from tunefleet.orchestrator.tasks.resume import FromStep
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.orchestrator.training_protocol import registered_jobs
from tunefleet.orchestrator.training_protocol.job_status import settings_of, state_of
from tunefleet.orchestrator.views import to_datetime
from tunefleet.orchestrator.workflows import reruns
from tunefleet.orchestrator.workflows import workflows as workflow_verbs
from tunefleet.orchestrator.workflows.submission import Submission
from tunefleet.schemas.api import CommandRequest
from tunefleet.schemas.control import ControlCommand
from tunefleet.schemas.training_protocol.jobs import (
    ControlAction,
    ControlDone,
    JobRegistration,
    ParametersUpdated,
    ParameterUpdate,
    ResumedJob,
    ResumeJob,
    Started,
    StartJob,
)
from tunefleet.spec import TrainingSpec

# The only parameter of the protocol that can be changed in a running job.
_LIVE: Final = "learning_rate"
_STEP: Final = re.compile(r"(?:^|/)checkpoint-(\d{1,15})/?$")
# Parameter name of agents → field of `spec.training`.
_SPELLINGS: Final = {
    "num_epochs": "num_train_epochs", "per_device_train_batch_size": "batch_size", "max_length": "max_seq_length",
    "evaluation_strategy": "eval_strategy",
}  # fmt: skip
_RESUMABLE: Final = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.PAUSED})


async def control(core: ServerContext, actor: Actor, task_id: str, body: ControlAction) -> ControlDone:
    """Request to cancel, pause or resume a job; returns before it is carried out.

    Raises:
        ConflictError: If its status does not allow it, or its machine receives no commands.
        ForbiddenError: If it belongs to another user.
        InputError: If the checkpoint is not valid.
    """
    row = await _row(core, actor, task_id)
    if body.action == "cancel":
        after = await task_verbs.cancel(core, actor, row.id)
    elif body.action == "pause":
        after = await task_control.pause(core, actor, row.id)
    else:
        after = await reruns.resume(core, actor, row.id, step_of(body.checkpoint_path))
    result = {"job_id": after.id, "status": state_of(after.status), "desired": after.desired}
    return ControlDone(action=body.action, job_id=row.id, result=result)


async def update_params(core: ServerContext, actor: Actor, task_id: str, body: ParameterUpdate) -> ParametersUpdated:
    """Change parameters of a running job: the learning rate immediately, others when it is resumed as a new job.

    Raises:
        InputError: If there is nothing to change, or a parameter cannot be changed.
        ConflictError: If it is not running.
        ForbiddenError: If it belongs to another user.
    """
    row = await _row(core, actor, task_id)
    if body.model_extra:
        unknown = sorted(body.model_extra)[0]
        raise InputError(
            f"{unknown!r} cannot be changed.", hint=f"Parameters that can: {', '.join(type(body).model_fields)}."
        )
    given = body.model_dump(exclude_none=True)
    if not given:
        raise InputError("There is nothing to change.", hint=f"Give one of {', '.join(type(body).model_fields)}.")
    if row.status != TaskStatus.RUNNING:
        raise ConflictError(f"Job {row.id} is {state_of(row.status)}; only a running job accepts parameters.")
    later = "when the job is resumed as a new one (POST …/resume)"
    fields = dict.fromkeys(given, later)
    command_id = None
    if _LIVE in given and await core.read(partial(agents.why_unreachable, row=row)) is None:
        wanted = CommandRequest(command=ControlCommand.SET, data={_LIVE: given[_LIVE]})
        command_id = (await task_control.command(core, actor, row.id, wanted)).id
        fields[_LIVE] = "at the end of the running step"
    now = core.clock.wall()
    noted = {
        "requested_at": to_datetime(now).isoformat(), "requested_by": actor.owner, "updates": given,
            "effective": fields,
    }  # fmt: skip
    # Kept for a later resume, which applies all updates to the new job.
    await core.write(partial(_note, task_id=row.id, noted=noted))
    summary = "; ".join(f"{name}: {when}" for name, when in fields.items())
    return ParametersUpdated(
        updates=given, applied_at=to_datetime(now), message=summary, fields=fields, command_id=command_id
    )


def _note(connection: Connection, *, task_id: str, noted: dict[str, Any]) -> None:
    row = training_protocol.job(connection, task_id) or JobRow(task_id, "{}", None, None, "[]")
    updates = [*orjson.loads(row.updates), noted]
    training_protocol.put_job(connection, row._replace(updates=orjson.dumps(updates).decode()))


async def resume(core: ServerContext, actor: Actor, task_id: str, body: ResumeJob) -> ResumedJob:
    """Resume a failed or cancelled job as a new one, optionally with other parameters.

    A registered job becomes another registered one, which its reporter starts. A paused job without adjustments is
    simply resumed.

    Raises:
        InputError: If its status does not allow it, or an adjustment or the checkpoint is unknown.
        ConflictError: If there is no checkpoint to resume from.
        ForbiddenError: If it belongs to another user.
    """
    row = await _row(core, actor, task_id)
    before = await core.read(partial(training_protocol.job, task_id=row.id))
    external = (row.worker_id or "").startswith(EXTERNAL)
    if row.status not in _RESUMABLE and not (external and row.status == TaskStatus.DISPATCHED):
        raise InputError(
            f"Job {row.id} is {state_of(row.status)}; only a failed, cancelled or paused job can be resumed."
        )
    adjustments = {**_deferred(before), **body.config_adjustments}
    if external:
        return await _register_again(core, actor, row, before, body, adjustments)
    step: FromStep = "best" if body.resume_from_best else step_of(body.checkpoint_path)
    if row.status == TaskStatus.PAUSED and adjustments:
        raise ConflictError(
            f"Job {row.id} is paused, and can only be resumed unchanged.",
            hint=f"Run `tunefleet cancel {row.id}`, then resume it as a new job with other parameters.",
        )
    made = await reruns.resume(core, actor, row.id, step, _overrides(adjustments))
    if made.id != row.id:
        link = JobRow(made.id, "{}", row.id, body.checkpoint_path, "[]")
        await core.write(partial(training_protocol.put_job, row=link))
    return ResumedJob(
        job_id=made.id,
        resumed_from=row.id,
        checkpoint_path=body.checkpoint_path,
        message=f"Job {made.id} is {state_of(made.status)}.",
    )


async def _register_again(
    core: ServerContext,
    actor: Actor,
    row: TaskRow,
    before: JobRow | None,
    body: ResumeJob,
    adjustments: Mapping[str, Any],
) -> ResumedJob:
    known: dict[str, Any] = orjson.loads(before.body) if before else {}
    config = known.get("config") or {}
    settings = {**settings_of(known), **adjustments}
    now = core.clock.wall()
    # Truncated, because job ids have a maximum length and each resume appends to it.
    job_id = f"{row.id[:100]}-resume-{int(now * 1000)}"
    wanted = JobRegistration.model_validate(
        {**known, "job_id": job_id, "name": known.get("name") or row.name, "config": {**config, "training": settings}}
    )
    path = "best" if body.resume_from_best and body.checkpoint_path is None else body.checkpoint_path
    held = await core.write(
        lambda connection: registered_jobs.make(connection, actor, wanted, now, resumed_from=row.id, checkpoint=path)
    )
    return ResumedJob(
        job_id=job_id,
        resumed_from=row.id,
        checkpoint_path=path,
        message="The job is registered; start it from the checkpoint where it runs.",
        job_token=attempt_token(core.secret, held.attempt.id),
    )


def _deferred(before: JobRow | None) -> dict[str, Any]:
    """Return the parameter updates that were requested while the job was running."""
    found: dict[str, Any] = {}
    for each in orjson.loads(before.updates) if before else ():
        found |= each["updates"]
    return found


def _overrides(adjustments: Mapping[str, Any]) -> dict[str, Any]:
    known = TrainingSpec.model_fields
    found = {}
    for name, value in adjustments.items():
        field = _SPELLINGS.get(name, name)
        if field not in known:
            raise InputError(f"Unknown training parameter {name!r}.", hint=f"Available: {', '.join(sorted(known))}.")
        found[f"training.{field}"] = value
    return found


def step_of(path: str | None) -> int | None:
    """Return the step in a checkpoint's path or name; None for None.

    Raises:
        InputError: If it does not end with `checkpoint-<step>`.
    """
    if path is None:
        return None
    found = _STEP.search(path)
    if found is None:
        raise InputError(f"{path!r} is not a checkpoint name.", hint="Use checkpoint-<step>.")
    return int(found[1])


async def start(core: ServerContext, actor: Actor, body: StartJob) -> Started:
    """Submit the workflow file of an earlier workflow again.

    Raises:
        SpecError: If the changed workflow file is not valid.
        ForbiddenError: If the actor may not submit.
    """
    may_submit(actor)
    row = await core.read(partial(_configured, actor=actor, config_id=body.config_id))
    changes: dict[str, Any] = {}
    if body.dataset_path is not None:
        document = await core.read(lambda connection: tasks.document(connection, row))
        changes = _other_data(orjson.loads(document.as_run), body.dataset_path)
    wanted = await reruns.resubmission_of(core, actor, row.id, changes)
    wanted = replace(wanted, idempotency_key=body.execution_id, parent_task_id=None)
    if body.name is not None:
        wanted = _renamed(wanted, body.name)
    made = await workflow_verbs.store(core, wanted)
    return Started(job_id=made.tasks[0].id, message=f"Job {made.tasks[0].id} is {made.tasks[0].status}.")


def _configured(connection: Connection, *, actor: Actor, config_id: str) -> TaskRow:
    found = workflows.by_ids(connection, [config_id]).get(config_id)
    if found is None:
        named = workflows.page(
            connection, project=actor.project, limit=1, before=None, filters={"name": config_id, "owner": None}
        )
        found = named[0] if named else None
    if found is None or found.project != actor.project:
        raise NotFoundError(
            f"Workflow {config_id} not found.", hint="config_id is the id or name of a submitted workflow."
        )
    return tasks.of_workflows(connection, [found.seq])[found.seq][0]


def _other_data(spec: Mapping[str, Any], path: str) -> dict[str, Any]:
    used = ("dataset_name", "config_name", "revision", "path", "artifact", "jsonl", "jsonl_path", "prompts")
    data = spec.get("data") or {}
    changes: dict[str, Any] = {f"data.{name}": None for name in used if data.get(name) is not None}
    if path.startswith("hf://"):
        return {**changes, "data.dataset_name": path.removeprefix("hf://")}
    if path.startswith("builtin:"):
        return {**changes, "data.path": path}
    return {**changes, NAMED_POINTER: path}


def _renamed(submission: Submission, name: str) -> Submission:
    flow = submission.workflow
    old = flow.tasks[0].name
    inputs = {name if each == old else each: refs for each, refs in submission.inputs.items()}
    return replace(
        submission, workflow=replace(flow, name=name, tasks=(replace(flow.tasks[0], name=name),)), inputs=inputs
    )


async def _row(core: ServerContext, actor: Actor, task_id: str) -> TaskRow:
    row = await core.read(lambda connection: find(connection, actor, task_id))
    may_change(actor, row.owner, row.id)
    return row
