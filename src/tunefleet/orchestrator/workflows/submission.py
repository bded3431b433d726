"""Submission: resolve inputs, and store a workflow with its tasks in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from tunefleet.db import Connection
from tunefleet.db.fleet import clusters
from tunefleet.db.repositories import dependencies, events, tasks, workflows
from tunefleet.db.repositories.dependencies import EdgeRow
from tunefleet.db.repositories.events import Event
from tunefleet.db.repositories.task_transitions import New, enter
from tunefleet.db.rows import TaskRow, WorkflowRow
from tunefleet.errors import ConflictError, Fault, SpecError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.observability import context
from tunefleet.observability.context import SpanContext
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.fleet import engines, federation_capacity
from tunefleet.orchestrator.fleet.engines import Engines
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.notifications import channels
from tunefleet.orchestrator.observability import task_spans
from tunefleet.orchestrator.serving import directory
from tunefleet.orchestrator.tasks import inputs, relations, spec_columns, transitions
from tunefleet.orchestrator.tasks.inputs import Input
from tunefleet.orchestrator.workflows import upstreams
from tunefleet.orchestrator.workflows.upstreams import Waiting
from tunefleet.placement import Requirement, WorkerState, explain, is_able
from tunefleet.spec import BaseTaskSpec, TaskNode, Workflow, asked_shards, dump_task_spec
from tunefleet.spec.documents.paths import NamedTask, named_tasks
from tunefleet.spec.documents.submit_checks import new_faults


@dataclass(frozen=True, slots=True)
class Submission:
    """A parsed workflow file with its submission options.

    Args:
        inputs: Stage name → pointer into its spec → digest of an uploaded artifact.
        strict: Whether a task that no worker can run is an error instead of a warning.
        done: Stage name → task of an earlier workflow that has completed it; it is not run again.
        repeats: Stage name → task of an earlier workflow that it repeats.
        parent: The trace span of the caller; None if the request has none.
    """

    actor: Actor
    workflow: Workflow
    document: str
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    strict: bool = False
    idempotency_key: str | None = None
    parent_task_id: str | None = None
    done: Mapping[str, TaskRow] = field(default_factory=dict)
    repeats: Mapping[str, str] = field(default_factory=dict)
    retry_of: str | None = None
    again: bool = False
    mails: bool = True
    engines: Engines = field(default_factory=Engines)
    parent: SpanContext | None = field(default_factory=context.parent)
    remarks: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[TaskNode, ...]:
        """The tasks to run."""
        return tuple(node for node in self.workflow.tasks if node.name not in self.done)

    @property
    def request_hash(self) -> str:
        """The hash that submissions with the same idempotency key must share."""
        return hashlib.sha256(orjson.dumps([self.document, self.inputs], option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True)
class _Planned:
    """A task to be stored, with what is known of its spec and requirement."""

    task_id: str
    node: TaskNode
    spec: BaseTaskSpec
    need: Requirement
    written: Mapping[str, Any]
    named: Sequence[NamedTask]

    @cached_property
    def body(self) -> bytes:
        """The spec as it is stored."""
        return orjson.dumps(self.written)

    @property
    def waits(self) -> bool:
        """Whether it starts as pending: it has upstream tasks, loads their files, or is to be sharded."""
        return bool(self.node.depends_on or self.node.external or self.named or asked_shards(self.written) != 1)


def store(connection: Connection, submission: Submission, now: float, fleet: Sequence[WorkerState]) -> str:
    """Store a workflow with its tasks and events, and return its id.

    Raises:
        ConflictError: If the idempotency key was used for another workflow file, or a retry of the same workflow is
            running or has completed.
        NotFoundError: If an input is not known to the server.
        SpecError: If the submission is strict and no worker can run a task, or a task that one depends on, or whose
            files it loads, does not exist or did not complete.
        QuotaError: If the project's storage quota would be exceeded.
    """
    first = _first_with_key(connection, submission)
    if first is not None:
        # The retry of a request whose response was lost gets the workflow of the first one.
        return first.id
    if submission.retry_of is not None and not submission.again:
        relations.refuse_second_retry(connection, submission.retry_of)
    workflow_id = new_id("wf")
    planned = [_plan(node) for node in submission.nodes]
    _refuse_unknown_recipients(connection, submission, planned)
    _refuse_unsupported(submission, planned)
    warnings = _warnings(submission, planned, fleet)
    row = _workflow_row(submission, workflow_id, now)
    size_bytes = len(submission.document.encode()) + sum(len(each.body) for each in planned)
    # In the same transaction as the insert: concurrent submissions must not exceed the quota together.
    quotas.refuse_storing(connection, submission.actor.project, size_bytes)
    seq = workflows.insert_one(
        connection, row, document=submission.document, warnings=orjson.dumps(warnings).decode(), size_bytes=size_bytes
    )
    if submission.retry_of is not None:
        workflows.set_retried(connection, submission.retry_of, workflow_id)
    data = {"name": row["name"]}
    event = Event("workflow.submitted", now, None, workflow_id, seq, data=data, project=submission.actor.project)
    events.append(connection, [event])
    _store_tasks(connection, submission, (workflow_id, seq), planned, now)
    return workflow_id


def _first_with_key(connection: Connection, submission: Submission) -> WorkflowRow | None:
    key, actor = submission.idempotency_key, submission.actor
    if key is None:
        return None
    first = workflows.by_idempotency_key(connection, project=actor.project, owner=actor.owner, key=key)
    if first is not None and first.request_hash != submission.request_hash:
        raise ConflictError(
            f"The idempotency key {key!r} was used for another workflow file ({first.id}).", hint="Use a new key."
        )
    return first


def _warnings(submission: Submission, planned: Sequence[_Planned], fleet: Sequence[WorkerState]) -> list[str]:
    # Build messages only for requirements that no worker can ever run: all others wait, at most.
    asked = {each.need for each in planned if each.spec.engine is None}
    hopeless = {need for need in asked if not is_able(need, fleet)}
    reasons = {need: explain(need, fleet) for need in hopeless}
    warned = [(each.node, reasons[each.need]) for each in planned if each.need in hopeless]
    if warned and submission.strict:
        faults = [node.fault("resources", f"no worker could run task {node.name}: {why}") for node, why in warned]
        raise SpecError(faults, filename=submission.workflow.name)
    small = [
        (each.node, short)
        for each in planned
        if (short := federation_capacity.shortage(each.written, each.need, fleet)) is not None
    ]
    if submission.strict and any(too_few for _, (_, too_few) in small):
        faults = [
            node.fault("federation", f"the task {node.name} is {why}") for node, (why, too_few) in small if too_few
        ]
        raise SpecError(faults, filename=submission.workflow.name)
    warned += [(node, why) for node, (why, _) in small]
    return (
        [f"Task {node.name} is {why}" for node, why in warned]
        + list(submission.remarks)
        + [
            f"{name} is not run again: its result is on the server (to deliver it: `tunefleet "
            f"artifacts deliver {row.id}`)."
            for name, row in submission.done.items()
            if row.status != TaskStatus.COMPLETED
        ]
    )


def _refuse_unknown_recipients(connection: Connection, submission: Submission, planned: Sequence[_Planned]) -> None:
    """Refuse notification targets that do not exist; retries are exempt."""
    if submission.parent_task_id is not None or submission.repeats:
        return
    actor = submission.actor
    who = channels.Submitter(actor.project, actor.owner, submission.mails)
    faults = channels.subscription_faults(connection, who, ((each.node, each.spec.notify) for each in planned))
    if faults:
        raise SpecError(faults, filename=submission.workflow.name)


def _refuse_unsupported(submission: Submission, planned: Sequence[_Planned]) -> None:
    """Refuse engines that are not configured, and keys that new tasks may not use."""
    specs = [(each.node, each.spec) for each in planned]
    faults = engines.engine_faults(submission.engines, specs) + new_faults(specs)
    if faults:
        raise SpecError(faults, filename=submission.workflow.name)


def _workflow_row(submission: Submission, workflow_id: str, now: float) -> dict[str, Any]:
    actor, workflow = submission.actor, submission.workflow
    return {
        "id": workflow_id, "project": actor.project, "name": workflow.name or workflow.tasks[0].name,
        "owner": actor.owner, "status": "running", "open_tasks": len(submission.nodes), "failed_tasks": 0,
        "cancelled_tasks": 0, "created_at": now,
        "idempotency_key": submission.idempotency_key, "request_hash": submission.request_hash,
    }  # fmt: skip


def _plan(node: TaskNode) -> _Planned:
    task_id = new_id("task")
    if node.spec is not None:
        spec: BaseTaskSpec = node.spec
        need, written = spec_columns.need_of(node.spec, task_id), dump_task_spec(node.spec)
    else:
        written = dict(node.raw)
        spec, need = spec_columns.so_far(written)
    if node.condition is not None:
        written["condition"] = node.condition.model_dump(mode="json", by_alias=True)
    return _Planned(task_id, node, spec, need, written, named_tasks(written))


def _store_tasks(
    connection: Connection, submission: Submission, workflow: tuple[str, int], planned: Sequence[_Planned], now: float
) -> None:
    new, used = [], []
    for each in planned:
        found = _inputs(connection, submission, each)
        values = _task_values(submission, each, workflow, now)
        if not each.waits and each.spec.engine is None:
            refs = orjson.loads(inputs.dump(found))
            values["merge_key"] = spec_columns.merge_key(values["owner"], values["project"], each.written, refs)
        new.append(New(values, each.body.decode(), inputs.dump(found), each.waits))
        left = inputs.left_by(connection, values["project"], each.named)
        used += [(values["id"], artifact_id) for artifact_id in left | {one.artifact_id for one in found.values()}]
    for need in {each.need.key: each.need for each in planned}.values():
        spec_columns.store(connection, need)
    rows = enter(connection, new, now)
    named = ((row, each.spec.engine) for row, each in zip(rows, planned, strict=True))
    clusters.name_engines(connection, [(row, engine.type) for row, engine in named if engine is not None])
    if submission.parent is not None:
        tasks.add_traces(connection, [task_spans.below(row.id, submission.parent) for row in rows])
    else:
        task_spans.inherit(connection, {row.id: row.parent_task_id for row in rows if row.parent_task_id is not None})
    tasks.use_artifacts(connection, used)
    served = ((row, each.written) for row, each in zip(rows, planned, strict=True))
    directory.claim(connection, submission.actor, served, now)
    channels.store_subscriptions(connection, ((row, each.spec.notify) for row, each in zip(rows, planned, strict=True)))
    # After all rows exist: an edge may point to any of them, and some tasks are ready immediately.
    waiting = [row for row, each in zip(rows, planned, strict=True) if each.waits]
    if waiting:
        dependencies.insert_all(connection, _edges(connection, submission, planned, rows))
        transitions.begin(connection, waiting, now)


def _inputs(connection: Connection, submission: Submission, each: _Planned) -> dict[str, Input]:
    project, name = submission.actor.project, each.node.name
    found = inputs.given(connection, project, name, submission.inputs.get(name, {}))
    return found | inputs.named(connection, project, name, each.written, but=found)


def _task_values(submission: Submission, each: _Planned, workflow: tuple[str, int], now: float) -> dict[str, Any]:
    return {
        "id": each.task_id, "project": submission.actor.project, "workflow_id": workflow[0],
        "workflow_seq": workflow[1], "name": each.node.name, "kind": each.need.kind,
        "owner": submission.actor.owner, "created_at": now,
        "queue_deadline": None if each.waits else spec_columns.queue_deadline(each.spec, now),
        "parent_task_id": submission.repeats.get(each.node.name, submission.parent_task_id),
        **spec_columns.columns(each.spec, each.need, now),
        **spec_columns.described(each.written),
    }  # fmt: skip


def _edges(
    connection: Connection, submission: Submission, planned: Sequence[_Planned], rows: Sequence[TaskRow]
) -> list[EdgeRow]:
    faults: list[Fault] = []
    waiting = [Waiting(row, each.node, each.named) for row, each in zip(rows, planned, strict=True)]
    found = upstreams.edges_of(connection, submission.actor.project, waiting, submission.done, faults)
    if faults:
        raise SpecError(faults, filename=submission.workflow.name)
    return found
