"""From a document to rows: parse, resolve inputs, store workflow and tasks in one operation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tunefleet.errors import ConflictError, Fault, NotFoundError, SpecError
from tunefleet.placement import Requirement, WorkerState, explain
from tunefleet.services import placing, requirements
from tunefleet.services.identity import Actor
from tunefleet.services.ids import new_id
from tunefleet.spec import TaskNode, Workflow, dump_task_spec
from tunefleet.store import Connection, artifacts, events, tasks, workflows
from tunefleet.store.events import Event
from tunefleet.store.rows import WorkflowRow
from tunefleet.store.task_moves import New, enter

NAMED_POINTER = "data.artifact"
"""Where a spec may name a pushed artifact."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A parsed document, and what goes with it.

    Args:
        actor: Whose it is.
        workflow: The parsed document.
        document: Its text.
        inputs: Task name → pointer → artifact digest.
        strict: Refuse a task that no registered worker could ever run.
        idempotency_key: A repeated submit with this key returns the first one's workflow.
        parent_task_id: The task that this one repeats.
    """

    actor: Actor
    workflow: Workflow
    document: str
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    strict: bool = False
    idempotency_key: str | None = None
    parent_task_id: str | None = None

    @property
    def request_hash(self) -> str:
        """What a repeated submit must have in common with the first."""
        return hashlib.sha256(orjson.dumps([self.document, self.inputs], option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True, slots=True)
class _Input:
    artifact_id: str
    digest: str
    name: str


def store(connection: Connection, submission: Submission, now: float, fleet: Sequence[WorkerState]) -> str:
    """Store a workflow with its tasks and events, and return its id.

    Args:
        connection: Of the operation.
        submission: What to store.
        now: Unix time.
        fleet: All registered workers.

    Raises:
        ConflictError: If the idempotency key was used for another document.
        NotFoundError: If an input is not known to the server.
        SpecError: If the submit is strict and a task could never run.
    """
    first = _first_with_key(connection, submission)
    if first is not None:
        return first.id
    workflow_id = new_id("wf")
    needs = {node.name: requirements.of(node.spec) for node in submission.workflow.tasks}
    warnings = _warnings(submission, needs, fleet)
    row = _workflow_row(submission, workflow_id, now)
    seq = workflows.insert_one(connection, row, document=submission.document, warnings=orjson.dumps(warnings).decode())
    told = Event("workflow.submitted", now, workflow_id=workflow_id, workflow_seq=seq, data={"name": row["name"]})
    events.append(connection, [told])
    _store_tasks(connection, submission, (workflow_id, seq), needs, now)
    return workflow_id


def _first_with_key(connection: Connection, submission: Submission) -> WorkflowRow | None:
    key, actor = submission.idempotency_key, submission.actor
    if key is None:
        return None
    first = workflows.by_idempotency_key(connection, project=actor.project, owner=actor.owner, key=key)
    if first is not None and first.request_hash != submission.request_hash:
        raise ConflictError(
            f"The idempotency key {key!r} was used for another document ({first.id}).", hint="Use a new key."
        )
    return first


def _warnings(submission: Submission, needs: Mapping[str, Requirement], fleet: Sequence[WorkerState]) -> list[str]:
    told = {name: explain(need, fleet) for name, need in needs.items()}
    stuck = {name: why for name, why in told.items() if why is not None and why.startswith("unschedulable")}
    if stuck and submission.strict:
        faults = [Fault("spec.resources", f"no worker could run the task {name}: {why}") for name, why in stuck.items()]
        raise SpecError(faults, filename=submission.workflow.name)
    return [f"The task {name} is {why}" for name, why in stuck.items()]


def _workflow_row(submission: Submission, workflow_id: str, now: float) -> dict[str, Any]:
    actor, workflow = submission.actor, submission.workflow
    return {
        "id": workflow_id, "project": actor.project, "name": workflow.name or workflow.tasks[0].name,
        "owner": actor.owner, "status": "running", "open_tasks": len(workflow.tasks), "failed_tasks": 0,
        "cancelled_tasks": 0, "created_at": now,
        "idempotency_key": submission.idempotency_key, "request_hash": submission.request_hash,
    }  # fmt: skip


def _store_tasks(
    connection: Connection,
    submission: Submission,
    workflow: tuple[str, int],
    needs: Mapping[str, Requirement],
    now: float,
) -> None:
    new, used = [], []
    for node in submission.workflow.tasks:
        spec = dump_task_spec(node.spec)
        inputs = _resolve(connection, submission.actor, node, submission.inputs.get(node.name, {}), spec)
        values = _task_values(submission, node, workflow, needs[node.name], now)
        refs = {pointer: {"digest": found.digest, "name": found.name} for pointer, found in inputs.items()}
        new.append(New(values, orjson.dumps(spec).decode(), orjson.dumps(refs).decode()))
        used += [(values["id"], found.artifact_id) for found in inputs.values()]
    for need in needs.values():
        tasks.add_requirement(connection, need.key, need.dump())
    enter(connection, new, now)
    tasks.use_artifacts(connection, used)


def _task_values(
    submission: Submission, node: TaskNode, workflow: tuple[str, int], need: Requirement, now: float
) -> dict[str, Any]:
    spec = node.spec
    wait_s = spec.limits.max_queue_s
    return {
        "id": new_id("task"), "project": submission.actor.project, "workflow_id": workflow[0],
        "workflow_seq": workflow[1], "name": node.name, "kind": need.kind, "slot_class": need.slot_class,
        "owner": submission.actor.owner, "parent_task_id": submission.parent_task_id, "priority": spec.priority,
        "rank": placing.rank(now, spec.priority), "requirement_key": need.key,
        "max_attempts": spec.retry.max_attempts, "backoff_s": spec.retry.backoff_s,
        "retry_on": ",".join(spec.retry.on), "on_lost": spec.on_lost, "max_runtime_s": spec.limits.max_runtime_s,
        "queue_deadline": None if wait_s is None else now + wait_s, "created_at": now,
    }  # fmt: skip


def _resolve(
    connection: Connection, actor: Actor, node: TaskNode, given: Mapping[str, str], spec: Mapping[str, Any]
) -> dict[str, _Input]:
    found: dict[str, _Input] = {}
    for pointer, digest in given.items():
        rows = artifacts.find(connection, project=actor.project, column="digest", value=digest)
        if not rows:
            raise NotFoundError(
                f"The input {pointer} of {node.name} names an artifact that the server does not have ({digest[:12]}…).",
                hint="Upload it first; the tunefleet client does so by itself.",
            )
        found[pointer] = _Input(rows[0].id, rows[0].digest, rows[0].name)
    data = spec.get("data")
    name = data.get("artifact") if isinstance(data, Mapping) else None
    if name and NAMED_POINTER not in found:
        rows = artifacts.named(connection, project=actor.project, name=name, task_id=None)
        rows = rows or artifacts.find(connection, project=actor.project, column="digest", value=name)
        rows = rows or artifacts.find(connection, project=actor.project, column="id", value=name)
        if not rows:
            raise NotFoundError(
                f"There is no data named {name!r} ({NAMED_POINTER} of {node.name}).",
                hint="Push it with `tunefleet data push`; `tunefleet data ls` lists what is there.",
            )
        found[NAMED_POINTER] = _Input(rows[0].id, rows[0].digest, rows[0].name)
    return found
