"""Submit, read, cancel, retry and remove workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts, journal, tasks, workflows
from tunefleet.db.rows import ArtifactRow, TaskRow, WorkflowRow
from tunefleet.errors import ConflictError, Fault, NotFoundError, SpecError
from tunefleet.orchestrator import redaction
from tunefleet.orchestrator.access.permissions import Actor, may_change, may_read, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.fleet.engines import Engines
from tunefleet.orchestrator.ids import only_match
from tunefleet.orchestrator.storage import checkpoint_retention
from tunefleet.orchestrator.tasks import relations, removal, spec_columns, unreported_ends
from tunefleet.orchestrator.tasks.views import task_view, workflow_detail, workflow_view
from tunefleet.orchestrator.views import artifact_view, before_cursor, bounded_limit, split_page
from tunefleet.orchestrator.workflows import resubmission, submission
from tunefleet.orchestrator.workflows.submission import Submission
from tunefleet.placement import WorkerState
from tunefleet.schemas.api import (
    ArtifactView,
    FaultView,
    Page,
    RetryRequest,
    SubmitRequest,
    ValidateReply,
    WorkflowDetail,
    WorkflowView,
)
from tunefleet.schemas.ui import EdgeView
from tunefleet.spec import Workflow, parse_workflow
from tunefleet.spec.documents.submit_checks import new_faults, remarks
from tunefleet.spec.expressions.references import references_of
from tunefleet.spec.text import read_text


async def submit(
    core: ServerContext, actor: Actor, request: SubmitRequest, *, idempotency_key: str | None = None
) -> WorkflowDetail:
    """Validate a workflow file and store it with its tasks, all or nothing.

    Raises:
        SpecError: If the workflow file is invalid; all errors are listed.
        NotFoundError: If an input was not uploaded.
        ConflictError: If the idempotency key was used for another workflow file.
        ForbiddenError: If the actor may not submit.
    """
    may_submit(actor)
    workflow, warnings = await asyncio.to_thread(_parsed, request)
    new_submission = Submission(
        actor,
        workflow,
        request.document,
        request.inputs,
        request.strict,
        idempotency_key=idempotency_key,
        mails=core.settings.smtp_url is not None,
        remarks=warnings,
    )
    return await store(core, new_submission)


def _parsed(request: SubmitRequest) -> tuple[Workflow, tuple[str, ...]]:
    workflow = parse_workflow(request.document, filename=request.filename)
    if workflow.sweep is not None:
        hint = "submit it with `tunefleet sweep FILE`, or leave it out"
        mark = read_text(request.document).mark(("sweep",), key=True)
        raise SpecError([Fault("sweep", "is not a run", mark.line, mark.column, hint)], filename=request.filename)
    # Fills the cache in this thread: redacting a large text in the transaction would hold up all writes.
    redaction.text(request.document)
    return workflow, tuple(remarks((node, spec_columns.known(node)) for node in workflow.tasks))


async def store(
    core: ServerContext,
    new_submission: Submission,
    *,
    then: Callable[[Connection, list[TaskRow], float], None] | None = None,
) -> WorkflowDetail:
    """Store a submission and return the workflow.

    Args:
        then: Called in the same transaction with the new tasks.
    """
    snapshot = cluster_state.fleet_snapshot(core)
    new_submission = replace(new_submission, engines=core.state(Engines))

    def operation(connection: Connection) -> WorkflowDetail:
        fleet = cluster_state.serving(cluster_state.states(connection, snapshot), new_submission.actor.project)
        workflow_id = submission.store(connection, new_submission, snapshot.now, fleet)
        row = workflows.by_ids(connection, [workflow_id])[workflow_id]
        if then is not None:
            then(connection, tasks.of_workflows(connection, [row.seq])[row.seq], snapshot.now)
        return _detail(connection, row, snapshot, fleet)

    return await core.write(operation)


def validate(document: str, filename: str | None = None) -> ValidateReply:
    """Validate a workflow file without storing it."""
    try:
        workflow = parse_workflow(document, filename=filename)
    except SpecError as error:
        return ValidateReply(ok=False, faults=fault_views(error.faults))
    listed = [(node, spec_columns.known(node)) for node in workflow.tasks]
    if faults := new_faults(listed):
        return ValidateReply(ok=False, faults=fault_views(faults))
    return ValidateReply(ok=True, tasks=tuple(node.name for node in workflow.tasks), warnings=tuple(remarks(listed)))


def fault_views(faults: Sequence[Fault]) -> tuple[FaultView, ...]:
    """Return the API views of errors in a workflow file."""
    return tuple(FaultView(path=f.path, message=f.message, line=f.line, column=f.column, hint=f.hint) for f in faults)


async def get(core: ServerContext, actor: Actor, workflow_id: str) -> WorkflowDetail:
    """Return a workflow by its id or a unique prefix of it.

    Raises:
        ConflictError: If several ids have the prefix.
        NotFoundError: If none has it.
    """
    may_read(actor)
    snapshot = cluster_state.fleet_snapshot(core)
    return await core.read(lambda connection: _detail(connection, find(connection, actor, workflow_id), snapshot))


async def list_(
    core: ServerContext,
    actor: Actor,
    *,
    limit: int = 50,
    cursor: str | None = None,
    status: str | None = None,
    owner: str | None = None,
    name: str | None = None,
) -> Page[WorkflowView]:
    """Return workflows, newest first; each filter takes several values separated by commas."""
    may_read(actor)
    limit, snapshot = bounded_limit(limit), cluster_state.fleet_snapshot(core)
    filters = {"status": status, "owner": owner, "name": name}
    last = before_cursor(cursor)

    def operation(connection: Connection) -> Page[WorkflowView]:
        rows, next_cursor = split_page(
            workflows.page(connection, project=actor.project, limit=limit + 1, before=last, filters=filters), limit
        )
        return Page[WorkflowView](items=tuple(_views(connection, rows, snapshot)), next_cursor=next_cursor)

    return await core.read(operation)


async def cancel(core: ServerContext, actor: Actor, workflow_id: str) -> WorkflowDetail:
    """Cancel every task of a workflow that is not final.

    Raises:
        ConflictError: If all its tasks are final.
        ForbiddenError: If it belongs to another owner.
    """
    snapshot = cluster_state.fleet_snapshot(core)

    def operation(connection: Connection) -> WorkflowDetail:
        row = find(connection, actor, workflow_id)
        may_change(actor, row.owner, row.id)
        if row.status != "running":
            raise ConflictError(f"Workflow {row.id} is already {row.status}.")
        found = tasks.of_workflows(connection, [row.seq])[row.seq]
        unreported_ends.cancel_tasks(connection, [task for task in found if task.finished_at is None], snapshot)
        return _detail(connection, workflows.by_ids(connection, [row.id])[row.id], snapshot)

    return await core.write(operation)


async def retry(
    core: ServerContext, actor: Actor, workflow_id: str, request: RetryRequest | None = None
) -> WorkflowDetail:
    """Run the unfinished tasks of a final workflow again, as a new workflow.

    Completed tasks, and those of which only the delivery failed, are not run again: their results are reused.

    Raises:
        SpecError: If the changed workflow file is invalid.
        ConflictError: If it has not ended, all its tasks have completed, a retry of it is running or has completed,
            or an override addresses a task that is not run again.
        ForbiddenError: If the actor may not submit.
    """
    may_submit(actor)
    row = await core.read(lambda connection: find(connection, actor, workflow_id))
    if row.status == "running":
        raise _still_running(row)
    return await store(core, await resubmission.workflow_submission(core, actor, row, request or RetryRequest()))


async def remove(core: ServerContext, actor: Actor, workflow_id: str) -> None:
    """Remove a final workflow with its tasks and their results.

    Raises:
        ConflictError: If it has not ended, or a task of another workflow still needs one of its tasks.
        ForbiddenError: If it belongs to another owner.
    """

    def operation(connection: Connection) -> None:
        row = find(connection, actor, workflow_id)
        may_change(actor, row.owner, row.id)
        if row.status == "running":
            raise _still_running(row)
        removal.refuse_needed(connection, tasks.of_workflows(connection, [row.seq])[row.seq])
        removal.remove_workflows(connection, [row.seq], core.clock.wall())

    await core.write(operation)


def _still_running(row: WorkflowRow) -> ConflictError:
    return ConflictError(f"Workflow {row.id} has not ended.", hint=f"Cancel it first with `tunefleet cancel {row.id}`.")


def find(connection: Connection, actor: Actor, workflow_id: str) -> WorkflowRow:
    """Return a workflow of the actor's project by its id or a unique prefix of it.

    Raises:
        ConflictError: If several ids have the prefix.
        NotFoundError: If none has it.
    """
    exact = workflows.by_ids(connection, [workflow_id]).get(workflow_id)
    if exact is not None and exact.project == actor.project:
        return exact
    prefix = workflow_id if workflow_id.startswith("wf-") else f"wf-{workflow_id}"
    found = only_match("workflows", workflow_id, partial(workflows.by_prefix, connection, prefix, actor.project))
    if found is None:
        raise NotFoundError(f"Workflow {workflow_id} not found.", hint="List them with `tunefleet ls`.")
    return found


def _detail(
    connection: Connection, row: WorkflowRow, snapshot: FleetSnapshot, fleet: Sequence[WorkerState] | None = None
) -> WorkflowDetail:
    return workflow_detail(_views(connection, [row], snapshot, fleet)[0], workflows.document(connection, row.seq))


def _views(
    connection: Connection,
    rows: Sequence[WorkflowRow],
    snapshot: FleetSnapshot,
    fleet: Sequence[WorkerState] | None = None,
) -> list[WorkflowView]:
    seqs = [row.seq for row in rows]
    found, warnings = tasks.of_workflows(connection, seqs), workflows.warnings(connection, seqs)
    every = [task for each in found.values() for task in each]
    why = cluster_state.reasons(connection, snapshot, every, fleet)
    launches = journal.launches_of_all(connection, [task.id for task in every if task.status == "running"])
    about = relations.of(connection, every)
    newer = relations.newest_retries(connection, rows)
    return [
        workflow_view(
            row,
            warnings[row.seq],
            [
                task_view(task, why=why.get(task.id), launches=launches.get(task.id, ()), related=about)
                for task in found[row.seq]
            ],
            newer.get(row.id),
        )
        for row in rows
    ]


async def edges(core: ServerContext, actor: Actor, workflow_id: str) -> list[EdgeView]:
    """Return what each task of a workflow takes from each of its upstream tasks."""
    may_read(actor)

    def operation(connection: Connection) -> list[EdgeView]:
        row = find(connection, actor, workflow_id)
        rows = tasks.of_workflows(connection, [row.seq]).get(row.seq, [])
        upstreams_by_task = relations.of(connection, rows).upstreams
        waiting = [each for each in rows if upstreams_by_task.get(each.seq)]
        documents = tasks.documents(connection, [each.seq for each in waiting])
        read = artifacts.read_by(connection, [each.id for each in waiting])
        found = []
        for each in waiting:
            values = _values(documents[each.seq].spec, upstreams_by_task[each.seq])
            for id_, _ in upstreams_by_task[each.seq]:
                artifacts_made = _artifacts_of(id_, read.get(each.id, ()))
                found.append(EdgeView(source=id_, target=each.id, artifacts=artifacts_made, values=values[id_]))
        return found

    return await core.read(operation)


def _artifacts_of(task_id: str, rows: Sequence[ArtifactRow]) -> tuple[ArtifactView, ...]:
    return tuple(artifact_view(row) for row in rows if row.task_id == task_id and row.kind != checkpoint_retention.KIND)


def _values(spec: str, upstreams: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the paths that a spec references in each upstream task, by the task's id."""
    found = references_of(orjson.loads(spec), [name for _, name in upstreams])
    return {
        id_: tuple(dict.fromkeys(".".join(each.path) for _, each in found if each.node in {id_, name}))
        for id_, name in upstreams
    }
