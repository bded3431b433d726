"""Forget what ended long ago, and the files that go with it."""

from __future__ import annotations

from functools import partial
from typing import Final

from tunefleet.services import garbage, removal
from tunefleet.services.core import Core
from tunefleet.services.garbage import Collected
from tunefleet.store import DEFAULT_PROJECT, Connection, edges, tasks, workflows
from tunefleet.store import artifacts as artifact_rows
from tunefleet.store.rows import WorkflowRow
from tunefleet.wire.api import PruneReply

_GROUP: Final = 20
"""Workflows removed in one operation: others must not wait long for the writer."""


async def run(core: Core, older_than_s: float, dry_run: bool = False) -> PruneReply:
    """Remove workflows that ended so long ago, with all that they made, then files that nothing refers to.

    Args:
        core: The server.
        older_than_s: Age since their end.
        dry_run: Only say what would be removed.
    """
    limit = core.clock.wall() - older_than_s
    rows = await core.read(partial(_ended, limit=limit))
    seqs = [row.seq for row in rows]
    made = await core.read(partial(_made, seqs=seqs))
    freed = Collected(0, 0)
    if not dry_run:
        for start in range(0, len(seqs), _GROUP):
            await core.write(partial(removal.remove_workflows, seqs=seqs[start : start + _GROUP]))
        freed = await garbage.collect(core)
    return PruneReply(
        workflows=tuple(row.id for row in rows),
        artifacts=tuple(made),
        blobs=freed.files,
        freed_bytes=freed.size_bytes,
        dry_run=dry_run,
    )


def _ended(connection: Connection, *, limit: float) -> list[WorkflowRow]:
    rows = workflows.ended_before(connection, limit, project=DEFAULT_PROJECT)
    needed = edges.workflows_needed(connection, [row.seq for row in rows])
    return [row for row in rows if row.seq not in needed]


def _made(connection: Connection, *, seqs: list[int]) -> list[str]:
    found = tasks.of_workflows(connection, seqs)
    return artifact_rows.of_tasks(connection, [row.id for rows in found.values() for row in rows])
