"""Names of endpoints: which tasks serve them, and who may use a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import endpoints, tasks
from tunefleet.db.repositories.endpoints import EndpointRow
from tunefleet.db.rows import TaskRow
from tunefleet.errors import ConflictError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor
from tunefleet.spec.tasks.serve_task import ServeSpec, endpoint_name

KIND = "serve"


@dataclass(frozen=True, slots=True)
class Live:
    """An endpoint with at least one task that has not ended, and the options of the newest one."""

    seq: int
    project: str
    name: str
    wait_s: float
    requests_per_minute: int | None
    ttl_s: float | None = None


def claim(
    connection: Connection, actor: Actor, served: Iterable[tuple[TaskRow, Mapping[str, Any]]], now: float
) -> None:
    """Store which endpoints new tasks serve.

    Args:
        served: Tasks of any kind, with their specs.

    Raises:
        ConflictError: If another owner serves an endpoint of that name.
    """
    for row, spec in served:
        if row.kind != KIND:
            continue
        name = endpoint_name(spec, row.id)
        known = endpoints.by_name(connection, row.project, name)
        if known is None:
            known = endpoints.insert_one(connection, row.project, name, row.owner, now)
        elif known.owner != row.owner:
            if actor.role != "admin" and _open_tasks(connection, known):
                raise ConflictError(
                    f"The endpoint {name} belongs to {known.owner}.", hint="Choose another `serve.name`."
                )
            endpoints.set_owner(connection, known.seq, row.owner)
        endpoints.set_idle_task(connection, known.seq, None)
        endpoints.add_task(connection, known.seq, row.seq)


def live(connection: Connection, project: str, name: str) -> Live | None:
    """Return an endpoint that has a task that has not ended."""
    row = endpoints.by_name(connection, project, name)
    if row is None:
        return None
    running = _open_tasks(connection, row)
    return _live(connection, row, running[0]) if running else None


def idle_task(connection: Connection, project: str, name: str) -> tuple[str, str] | None:
    """Return the task that a request to an idle endpoint starts again, and its owner; None if it is not idle."""
    row = endpoints.by_name(connection, project, name)
    if row is None or row.idle_task_id is None or _open_tasks(connection, row):
        return None
    # It may have been cancelled or removed since.
    task = tasks.by_ids(connection, [row.idle_task_id]).get(row.idle_task_id)
    return (row.idle_task_id, row.owner) if task is not None and task.status == TaskStatus.COMPLETED else None


def of_attempt(connection: Connection, attempt: AttemptActor) -> tuple[Live, int]:
    """Return the endpoint that a worker serves, and the generation of its task.

    Raises:
        ConflictError: If the attempt's task serves none.
    """
    task = tasks.by_ids(connection, [attempt.task_id])[attempt.task_id]
    row = endpoints.of_task(connection, task.seq)
    if row is None:
        raise ConflictError(f"The run {task.id} of kind {task.kind} serves no endpoint.")
    return _live(connection, row, task), task.workflow_seq


def _open_tasks(connection: Connection, row: EndpointRow) -> list[TaskRow]:
    return [each for each in endpoints.tasks_of(connection, row.seq) if not TaskStatus(each.status).final]


def _live(connection: Connection, row: EndpointRow, task: TaskRow) -> Live:
    spec = orjson.loads(tasks.document(connection, task).spec)
    options = ServeSpec.model_validate(spec.get("serve") or {})
    wait_s = spec.get("readinessTimeoutSeconds") or options.wait_s
    return Live(row.seq, row.project, row.name, wait_s, options.requests_per_minute, spec.get("ttlSeconds"))
