"""Load history of workers, kept for a day, for charts next to a task's metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import usage
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.views import to_datetime
from tunefleet.orchestrator.workers import workers
from tunefleet.schemas.fleet import LoadSample, WorkerHistory
from tunefleet.schemas.worker_link import Load

# Retention.
KEPT_S: Final = 24 * 3600.0
FORGET_EVERY_S: Final = 3600.0


@dataclass(slots=True)
class _Retention:
    """When expired loads were deleted last."""

    forgot_at: float = 0.0


async def flush(core: ServerContext) -> None:
    """Store the loads reported since the last call, and delete expired ones once an hour."""
    now = core.clock.wall()
    load_reports, core.state(Fleet).load_reports = core.state(Fleet).load_reports, {}
    forget = now - core.state(_Retention).forgot_at >= FORGET_EVERY_S
    if not load_reports and not forget:
        return
    if forget:
        core.state(_Retention).forgot_at = now
    rows = [(worker_id, at, load.model_dump_json(exclude_none=True)) for worker_id, (at, load) in load_reports.items()]

    def operation(connection: Connection) -> None:
        worker_rows.add_loads(connection, rows)
        usage.note_power(connection, load_reports)
        if forget:
            worker_rows.forget_loads_before(connection, now - KEPT_S)

    await core.write(operation)


async def history(
    core: ServerContext, actor: Actor, worker_id: str, *, since: float | None, until: float | None, most: int
) -> WorkerHistory:
    """Return the load history of a worker, oldest first, downsampled to `most` samples."""
    id_ = (await workers.get(core, actor, worker_id)).id
    start, end = since if since is not None else 0.0, until if until is not None else math.inf

    def operation(connection: Connection) -> WorkerHistory:
        rows = worker_rows.loads_between(connection, id_, start, min(end, 1e12))
        every = -(-len(rows) // most) if rows else 1
        # Counted from the newest, so that it is always included.
        shown = rows[::-1][::every][::-1]
        samples = (LoadSample(at=to_datetime(at), load=Load.model_validate_json(body)) for at, body in shown)
        return WorkerHistory(worker_id=id_, total=len(rows), samples=tuple(samples))

    return await core.read(operation)
