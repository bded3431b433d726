"""Views of endpoints, and their end."""

from __future__ import annotations

from collections.abc import Sequence

from tunefleet.db import Connection
from tunefleet.db.repositories import endpoints
from tunefleet.db.repositories.endpoints import EndpointRow, Usage
from tunefleet.db.rows import TaskRow
from tunefleet.errors import NotFoundError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, may_change, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.serving.calls import Endpoint
from tunefleet.orchestrator.serving.relay import Endpoints
from tunefleet.orchestrator.tasks import unreported_ends
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.endpoints import EndpointReplica, EndpointState, EndpointView

Found = tuple[EndpointRow, Sequence[TaskRow], Usage]


async def list_(core: ServerContext, actor: Actor) -> list[EndpointView]:
    """Return the endpoints of the actor's project that have a task, by name."""
    may_read(actor)

    def operation(connection: Connection) -> list[Found]:
        rows = endpoints.of_project(connection, actor.project)
        used = endpoints.usage_of(connection, [row.seq for row in rows])
        return [(row, endpoints.tasks_of(connection, row.seq), used.get(row.seq, Usage())) for row in rows]

    return [_view(core, found) for found in await core.read(operation) if found[1]]


async def get(core: ServerContext, actor: Actor, name: str) -> EndpointView:
    """Return an endpoint.

    Raises:
        NotFoundError: If there is none of that name.
    """
    may_read(actor)

    def operation(connection: Connection) -> Found:
        row = _row(connection, actor, name)
        used = endpoints.usage_of(connection, [row.seq]).get(row.seq, Usage())
        return row, endpoints.tasks_of(connection, row.seq), used

    return _view(core, await core.read(operation))


async def stop(core: ServerContext, actor: Actor, name: str) -> None:
    """Cancel the tasks of an endpoint. Idempotent.

    Raises:
        ForbiddenError: If it belongs to another owner.
        NotFoundError: If there is none of that name.
    """
    snapshot = cluster_state.fleet_snapshot(core)

    def operation(connection: Connection) -> None:
        row = _row(connection, actor, name)
        may_change(actor, row.owner, f"The endpoint {name}")
        rows = [each for each in endpoints.tasks_of(connection, row.seq) if not TaskStatus(each.status).final]
        unreported_ends.cancel_tasks(connection, rows, snapshot)
        endpoints.set_idle_task(connection, row.seq, None)

    await core.write(operation)


def _row(connection: Connection, actor: Actor, name: str) -> EndpointRow:
    row = endpoints.by_name(connection, actor.project, name)
    if row is None:
        raise NotFoundError(f"There is no endpoint {name}.", hint="List them with `tunefleet endpoints`.")
    return row


def _view(core: ServerContext, found: Found) -> EndpointView:
    row, tasks, used = found
    now = core.clock.monotonic()
    known = core.state(Endpoints).by_name.get((row.project, row.name))
    live = [each for each in tasks if not TaskStatus(each.status).final]
    replicas = tuple(_replica(known, each, now) for each in live)
    state, reason = _state(live, replicas, tasks)
    if not live and row.idle_task_id is not None:
        state, reason = "idle", None
    serving = known.serving(now) if known is not None else []
    return EndpointView(
        name=row.name,
        url=f"/serve/{row.name}/v1",
        state=state,
        reason=reason,
        owner=row.owner,
        models=serving[0].models if serving else (),
        replicas=replicas,
        waiting=len(known.waiting) if known is not None else 0,
        created_at=to_datetime(row.created_at),
        requests=used.requests,
        prompt_tokens=used.prompt_tokens,
        completion_tokens=used.completion_tokens,
    )


def _replica(known: Endpoint | None, task: TaskRow, now: float) -> EndpointReplica:
    found = known.replicas.get(task.id) if known is not None else None
    return EndpointReplica(
        task_id=task.id,
        status=task.status,
        ready=found is not None and found.serves(now),
        worker_id=task.worker_id,
        open_requests=len(found.calls) if found is not None else 0,
    )


def _state(
    live: Sequence[TaskRow], replicas: Sequence[EndpointReplica], tasks: Sequence[TaskRow]
) -> tuple[EndpointState, str | None]:
    if any(each.ready for each in replicas):
        return "ready", None
    if any(each.status == TaskStatus.RUNNING for each in live):
        return "loading", None
    if live:
        return "queued", live[0].reason
    return "stopped", tasks[0].error if tasks else None
