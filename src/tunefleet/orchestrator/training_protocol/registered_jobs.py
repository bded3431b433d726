"""Jobs that are registered by their own reporter: stored as tasks that are never scheduled."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, events, tasks, training_protocol, workflows
from tunefleet.db.repositories.events import Event
from tunefleet.db.repositories.task_transitions import Move, New, enter
from tunefleet.db.repositories.training_protocol import JobRow
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.errors import ConflictError, ForbiddenError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import EXTERNAL, Actor, may_read, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.agents import TRAINING_KINDS
from tunefleet.orchestrator.ids import attempt_token, new_id, new_ordered_id
from tunefleet.orchestrator.tasks.spec_columns import rank
from tunefleet.orchestrator.tasks.transitions import switch
from tunefleet.orchestrator.training_protocol import job_status as states
from tunefleet.orchestrator.training_protocol.held_attempts import Held
from tunefleet.orchestrator.training_protocol.job_status import dataset_of, model_of, settings_of, state_of
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.placement import Requirement
from tunefleet.schemas.training_protocol.jobs import JobItem, JobList, JobPage, JobRegistered, JobRegistration
from tunefleet.schemas.training_protocol.training import StatusPatch

_WAITING: Final = frozenset({"queued", "pending"})
LIST_LIMIT: Final = 50


async def register(core: ServerContext, actor: Actor, body: JobRegistration) -> JobRegistered:
    """Register or update a job that its own machine runs, and return the token that it reports with.

    The job belongs to the caller, regardless of the body.

    Raises:
        ForbiddenError: If the actor may not submit, or the job belongs to another user.
        ConflictError: If the id is that of a submitted task, or the lifecycle does not allow the status.
        InputError: If the status is not valid.
        QuotaError: If the project would exceed its storage quota.
    """
    may_submit(actor)
    now = core.clock.wall()
    task, attempt_id = await core.write(partial(_register, core=core, actor=actor, body=body, now=now))
    return JobRegistered(
        job_id=task.id,
        user_id=task.owner,
        job_token=attempt_token(core.secret, attempt_id),
        status=state_of(task.status),
    )


def _register(
    connection: Connection, *, core: ServerContext, actor: Actor, body: JobRegistration, now: float
) -> tuple[TaskRow, str]:
    before = tasks.by_ids(connection, [body.job_id], lock=True).get(body.job_id)
    if before is None:
        held = make(connection, actor, body, now)
    else:
        held = _known(connection, actor, before)
        row = training_protocol.job(connection, before.id)
        assert row is not None
        merged = {**orjson.loads(row.body), **_given(body)}
        text = orjson.dumps(merged).decode()
        grown = len(text) - len(row.body)
        quotas.refuse_storing(connection, before.project, max(0, grown))
        training_protocol.put_job(connection, row._replace(body=text))
        workflows.grow(connection, held.task.workflow_seq, before.project, grown)
    if body.status is not None and body.status not in _WAITING:
        states.apply(connection, held, StatusPatch(status=body.status), core=core, now=now)
    return held.task, held.attempt.id


def _known(connection: Connection, actor: Actor, task: TaskRow) -> Held:
    if task.project != actor.project or (task.owner != actor.owner and actor.role != "admin"):
        raise ForbiddenError(f"Job {task.id} belongs to another user.", hint="Register yours with another id.")
    newest = attempts.of_task(connection, task)[-1:]
    if not newest or not newest[0].worker_id.startswith(EXTERNAL):
        raise ConflictError(
            f"{task.id} was submitted to this server; only its worker may report for it.",
            hint="Register yours with another id.",
        )
    return Held(newest[0], task)


def make(
    connection: Connection,
    actor: Actor,
    body: JobRegistration,
    now: float,
    *,
    resumed_from: str | None = None,
    checkpoint: str | None = None,
) -> Held:
    """Store a registered job: a workflow of one task, with an attempt held by its reporter.

    Raises:
        QuotaError: If the project would exceed its storage quota.
    """
    spec = _spec(body)
    kind = spec["taskType"]
    name = "".join(each if each.isprintable() else " " for each in body.name or "").strip() or body.job_id
    document = {"apiVersion": "tunefleet/v1", "metadata": {"name": name}, "spec": spec}
    workflow_id = new_id("wf")
    text, stored = orjson.dumps(document, option=orjson.OPT_INDENT_2), orjson.dumps(spec)
    given = orjson.dumps(_given(body)).decode()
    size_bytes = len(text) + len(stored) + len(given)
    quotas.refuse_storing(connection, actor.project, size_bytes)
    seq = workflows.insert_one(
        connection,
        {
            "id": workflow_id, "project": actor.project, "name": name, "owner": actor.owner, "status": "running",
            "open_tasks": 1, "failed_tasks": 0, "cancelled_tasks": 0, "created_at": now, "idempotency_key": None,
            "request_hash": None,
        },
        document=text.decode(),
        warnings="[]",
        size_bytes=size_bytes,
    )  # fmt: skip
    submitted = Event("workflow.submitted", now, None, workflow_id, seq, data={"name": name}, project=actor.project)
    events.append(connection, [submitted])
    # Only a formality: the job is never matched against workers.
    need = Requirement(kind=kind, slot_class="job")
    tasks.add_requirement(connection, need.key, need.dump())
    values = {
        "id": body.job_id, "project": actor.project, "workflow_id": workflow_id, "workflow_seq": seq, "name": name,
        "kind": kind, "slot_class": "job", "owner": actor.owner, "parent_task_id": resumed_from, "priority": 0,
        "rank": rank(now, 0), "requirement_key": need.key, "max_attempts": 1, "backoff_s": 0.0, "retry_on": "",
        "on_lost": "wait", "max_runtime_s": None, "queue_deadline": None, "created_at": now,
    }  # fmt: skip
    row = enter(connection, [New(values, stored.decode(), "{}")], now)[0]
    training_protocol.put_job(connection, JobRow(row.id, given, resumed_from, checkpoint, "[]"))
    return _hold(connection, row, now)


def _hold(connection: Connection, row: TaskRow, now: float) -> Held:
    worker_id = f"{EXTERNAL}{row.owner}"
    attempt = AttemptRow(
        new_ordered_id("att"), row.id, row.seq, 1, worker_id, row.kind, row.slot_class, row.requirement_key, "offered",
        None, None, now, None, None,
    )  # fmt: skip
    attempts.insert_all(connection, [attempt])
    changes = {"attempt_id": attempt.id, "attempts": 1, "worker_id": worker_id}
    moved = switch(connection, [Move(row, TaskReason.OFFERED, changes=changes, data={"attempt": 1})], now)[0]
    return Held(attempt, moved)


def _given(body: JobRegistration) -> dict[str, Any]:
    """Return the body of a registration without the fields that the server decides."""
    # Round trip through JSON text, which normalizes numbers that the database cannot store.
    text = body.model_dump_json(exclude_unset=True, exclude={"job_id", "user_id", "status"})
    given: dict[str, Any] = orjson.loads(text)
    return given


def _spec(body: JobRegistration) -> dict[str, Any]:
    settings = settings_of({"config": body.config})
    lora = bool(settings.get("use_lora") or settings.get("lora_config") or body.config.get("lora"))
    model = body.model_name or _name_of(body.config)
    spec: dict[str, Any] = {"taskType": "lora_sft" if lora else "sft"}
    if model is not None:
        spec["model"] = {"source": {"identifier": model}}
    return spec


def _name_of(config: dict[str, Any]) -> str | None:
    model = config.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    return name if isinstance(name, str) and name else None


async def page(
    core: ServerContext, actor: Actor, *, status: str | None, limit: int, offset: int, owner: str | None = None
) -> JobPage:
    """Return training jobs, newest first: a member's own; those of all owners for an admin or viewer."""
    may_read(actor)
    whose = actor.owner if actor.role == "member" else owner

    def operation(connection: Connection) -> JobPage:
        rows, total = training_protocol.page(
            connection,
            project=actor.project,
            owner=whose,
            kinds=TRAINING_KINDS,
            status=status,
            limit=limit,
            offset=offset,
        )
        known = training_protocol.jobs(connection, [row.id for row in rows])
        items = [_item(connection, row, known.get(row.id)) for row in rows]
        return JobPage(jobs=items, total=total, limit=limit, offset=offset)

    return await core.read(operation)


async def newest(core: ServerContext, actor: Actor) -> JobList:
    """Return the newest training jobs."""
    found = await page(core, actor, status=None, limit=LIST_LIMIT, offset=0)
    return JobList(count=len(found.jobs), jobs=found.jobs)


def _item(connection: Connection, row: TaskRow, known: JobRow | None) -> JobItem:
    body: dict[str, Any] = orjson.loads(known.body) if known else {}
    model, dataset = body.get("model_name"), body.get("dataset_path")
    if model is None or dataset is None:
        spec: dict[str, Any] = orjson.loads(tasks.document(connection, row).as_run)
        model, dataset = model or model_of(spec), dataset or dataset_of(spec)
    return JobItem(
        id=row.id,
        job_id=row.id,
        user_id=row.owner,
        name=row.name,
        model_name=model,
        dataset_path=dataset,
        status=state_of(row.status),
        error_message=row.error,
        agent_id=row.worker_id,
        started_at=to_optional_datetime(row.started_at),
        completed_at=to_optional_datetime(row.finished_at),
        created_at=to_datetime(row.created_at),
    )
