"""Fail queued tasks that no registered worker could ever run, once that has lasted for their grace time.

Off unless `TUNEFLEET_NO_WORKER_GRACE_S` or `limits.no_worker_grace_s` is set. Since when a requirement has no able
worker is known to the leader only: a new leader starts to count at zero, so a task may wait longer, never shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.fleet import clusters, worker_rows
from tunefleet.db.repositories import queue
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.scheduling.demand import RecentPools, WorkerPool
from tunefleet.orchestrator.tasks.transitions import Move, switch
from tunefleet.placement import Requirement, WorkerState, explain, is_able
from tunefleet.placement.gangs import largest
from tunefleet.placement.match import able

CHECK_S: Final = 5.0
# Maximum number of tasks with one requirement that a check ends; the next one takes the rest.
_MAX_ENDED: Final = 500
# (requirement key, project)
_Key = tuple[str, str]


@dataclass(slots=True)
class GraceTimes:
    """Since when no registered worker can run a requirement, on the monotonic clock of the leader."""

    since: dict[_Key, float] = field(default_factory=dict)
    checked_at: float | None = None


async def run_once(core: ServerContext) -> int:
    """Fail the tasks whose grace time has passed; return their number. Checks every `CHECK_S`."""
    times, now = core.state(GraceTimes), core.clock.monotonic()
    if times.checked_at is not None and now - times.checked_at < CHECK_S:
        return 0
    times.checked_at = now
    snapshot, pools = cluster_state.fleet_snapshot(core), core.state(RecentPools).since(core.clock.wall())
    hidden_before = core.clock.wall() - core.settings.hide_workers_after_s
    default_s = core.settings.no_worker_grace_s
    stuck = await core.read(
        partial(_stuck, snapshot=snapshot, pools=pools, hidden_before=hidden_before, default_s=default_s)
    )
    times.since = {key: times.since.get(key, now) for key in stuck}
    due = {key: each for key, each in stuck.items() if now - times.since[key] >= each[0]}
    return await core.write(partial(_end, due=due, now=snapshot.now)) if due else 0


def _stuck(
    connection: Connection,
    *,
    snapshot: FleetSnapshot,
    pools: Sequence[WorkerPool],
    hidden_before: float,
    default_s: float | None,
) -> dict[_Key, tuple[float, str]]:
    """Return the grace time in seconds and the pending reason of each requirement without an able worker."""
    lines = queue.lines(connection)
    known = cluster_state.needs(connection, {key for key, _ in lines})
    grace = {key: need.no_worker_grace_s or default_s for key, need in known.items()}
    lines = [(key, project) for key, project in lines if grace[key] is not None]
    if not lines:
        return {}
    gone = worker_rows.gone_before(connection, hidden_before)
    fleet = [worker for worker in cluster_state.states(connection, snapshot) if worker.id not in gone]
    needs = cluster_state.needs_of(connection, lines, fleet)
    found: dict[_Key, tuple[float, str]] = {}
    for (key, project), need in needs.items():
        serving = cluster_state.serving(fleet, project)
        grace_s = grace[key]
        if grace_s is not None and not _is_able(need, serving, pools):
            found[key, project] = grace_s, explain(need, serving) or "unschedulable."
    return found


def _is_able(need: Requirement, fleet: Sequence[WorkerState], pools: Sequence[WorkerPool]) -> bool:
    """Whether a registered worker, or one that an autoscaler may start, could run it when free."""
    if any(pool.may_run(need) for pool in pools):
        return True
    if need.nodes > 1:
        return largest(need, able(need, fleet)) >= need.nodes
    return is_able(need, fleet)


def _end(connection: Connection, *, due: Mapping[_Key, tuple[float, str]], now: float) -> int:
    moves: list[Move] = []
    for (key, project), (grace_s, why) in due.items():
        rows = queue.first(connection, key, project, now=now, count=_MAX_ENDED)
        # The cluster manager starts workers for a task with an engine: its own rules say when that has failed.
        engines = clusters.engines_of(connection, [row.seq for row in rows])
        for row in rows:
            if row.seq not in engines and now - (row.queued_at or now) >= grace_s:
                error = f"No registered worker has been able to run it for {grace_s:g} s: {why}"
                moves.append(Move(row, TaskReason.NO_WORKER, changes={"error": error}))
    switch(connection, moves, now)
    return len(moves)
