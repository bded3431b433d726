"""Edges of a workflow: artifacts and values that tasks take from each other."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts, tasks
from tunefleet.db.rows import ArtifactRow
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.storage import checkpoint_retention
from tunefleet.orchestrator.tasks import relations
from tunefleet.orchestrator.views import artifact_view
from tunefleet.orchestrator.workflows import workflows
from tunefleet.schemas.api import ArtifactView
from tunefleet.schemas.ui import EdgeView
from tunefleet.spec.expressions.references import references_of


async def edges(core: ServerContext, actor: Actor, workflow_id: str) -> list[EdgeView]:
    """Return what each task of a workflow takes from each of its upstream tasks."""
    may_read(actor)

    def operation(connection: Connection) -> list[EdgeView]:
        row = workflows.find(connection, actor, workflow_id)
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
