"""Prune: remove old workflows and their files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from tunefleet.db import DEFAULT_PROJECT, Connection
from tunefleet.db.campaigns import models
from tunefleet.db.repositories import artifacts as artifact_rows
from tunefleet.db.repositories import dependencies, tasks, workflows
from tunefleet.db.rows import WorkflowRow
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.storage import garbage_collection
from tunefleet.orchestrator.storage.garbage_collection import Collected
from tunefleet.orchestrator.storage.usage_report import Count
from tunefleet.orchestrator.tasks import removal, task_federations
from tunefleet.schemas.api import PruneReply

# Workflows per operation, so that other writes do not wait long.
_GROUP: Final = 20


async def run(
    core: ServerContext, older_than_s: float, dry_run: bool = False, *, project: str = DEFAULT_PROJECT
) -> PruneReply:
    """Remove workflows that ended long ago with their results, then collect garbage.

    Args:
        older_than_s: Minimum time since the end of a workflow.
        dry_run: Only report what would be removed.
    """
    limit = core.clock.wall() - older_than_s
    rows = await core.read(partial(_ended, project=project, limit=limit))
    freed = Collected(0, 0)
    if dry_run:
        made = await core.read(partial(_made, rows=rows))
    else:
        ended, rows, made = rows, [], []
        for start in range(0, len(ended), _GROUP):
            gone, theirs = await core.write(partial(_remove, rows=ended[start : start + _GROUP], at=core.clock.wall()))
            rows += gone
            made += theirs
        freed = await garbage_collection.collect(core)
        core.state(Count).forget()
    return PruneReply(
        workflows=tuple(row.id for row in rows),
        artifacts=tuple(made),
        blobs=freed.files,
        freed_bytes=freed.size_bytes,
        dry_run=dry_run,
    )


def _ended(connection: Connection, *, project: str, limit: float) -> list[WorkflowRow]:
    return _free(connection, workflows.ended_before(connection, limit, project=project))


def _free(connection: Connection, rows: Sequence[WorkflowRow]) -> list[WorkflowRow]:
    seqs = [row.seq for row in rows]
    needed = dependencies.workflows_needed(connection, seqs)
    kept = {task.workflow_seq for task in tasks.by_ids(connection, models.all_in_use(connection)).values()}
    kept |= {
        seq
        for seq, theirs in tasks.of_workflows(connection, seqs).items()
        if task_federations.versions_in_use(connection, theirs)
    }
    return [row for row in rows if row.seq not in needed and row.seq not in kept]


def _remove(connection: Connection, *, rows: Sequence[WorkflowRow], at: float) -> tuple[list[WorkflowRow], list[str]]:
    """Remove workflows with their results; return the workflows and the names of their artifacts."""
    # Checked again: since the read, a workflow may have been removed, or become a dependency of a new task.
    now = workflows.by_ids(connection, [row.id for row in rows])
    gone = _free(connection, [row for row in rows if now.get(row.id) == row])
    made = _made(connection, rows=gone)
    removal.remove_workflows(connection, [row.seq for row in gone], at)
    return gone, made


def _made(connection: Connection, *, rows: Sequence[WorkflowRow]) -> list[str]:
    found = tasks.of_workflows(connection, [row.seq for row in rows])
    return artifact_rows.of_tasks(connection, [task.id for mine in found.values() for task in mine])
