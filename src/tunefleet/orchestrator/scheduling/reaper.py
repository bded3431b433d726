"""The reaper: lost workers, timeouts, and rows that are written in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.access import keys
from tunefleet.db.fleet import worker_rows as workers
from tunefleet.db.repositories import attempts, events, queue, tasks
from tunefleet.db.repositories.attempts import OpenRow
from tunefleet.db.repositories.events import Event
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.access.permissions import EXTERNAL, KeyCache
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import agents, cluster_state, usage
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.scheduling import fair_share
from tunefleet.orchestrator.tasks import commands, resume, unreported_ends
from tunefleet.orchestrator.tasks.transitions import Move, switch
from tunefleet.orchestrator.tasks.unreported_ends import Ending
from tunefleet.orchestrator.telemetry import series, worker_load
from tunefleet.orchestrator.workers import gangs

# Maximum age of a stored `last_seen_at`.
FLUSH_S: Final = 10.0
# The reaper runs once a second; a later run means that this server is behind.
_LATE_S: Final = 1.5


@dataclass(slots=True)
class _SweepTimes:
    """Times of the reaper's last steps on this server."""

    ready_at: float = 0.0
    flushed_at: float | None = None


@dataclass(frozen=True, slots=True)
class _State:
    workers: Sequence[Sequence[str]]
    """Id, status, session and state folder of each worker."""
    open: list[OpenRow]
    gangs: bool
    expired: bool
    ready: bool


@dataclass(slots=True)
class _Findings:
    lost: list[str] = field(default_factory=list)
    unaccepted: list[str] = field(default_factory=list)
    overdue: list[str] = field(default_factory=list)
    unreachable_cancels: list[str] = field(default_factory=list)
    gangs: bool = False
    patience_s: float = 0.0
    expired: bool = False

    @property
    def count(self) -> int:
        return (
            len(self.lost)
            + len(self.unaccepted)
            + len(self.overdue)
            + len(self.unreachable_cancels)
            + self.expired
            + self.gangs
        )


async def run_once(core: ServerContext) -> int:
    """Declare silent workers lost, void offers that were not accepted, end tasks that exceed their limits.

    Call it about once a second: silence is only counted between calls, not while no server was leading.
    """
    now, mark = core.clock.wall(), core.state(_SweepTimes)
    since, mark.ready_at = mark.ready_at, now
    state = await core.read(partial(_read_state, since=since, now=now, patience_s=core.settings.lost_after_s))
    findings = _evaluate(core, state, core.state(Fleet).tick(core.clock.monotonic()), now)
    if findings.count:
        snapshot = cluster_state.fleet_snapshot(core)
        for worker_id in await core.write(
            partial(_apply, findings=findings, snapshot=snapshot, fleet=core.state(Fleet))
        ):
            # A worker without a message since the server started has no presence.
            presence = core.state(Fleet).presences.get(worker_id)
            if presence is not None:
                presence.lost = True
    if state.ready:
        core.signals.notify("placement")
    await _flush(core)
    return findings.count


def _read_state(connection: Connection, *, since: float, now: float, patience_s: float) -> _State:
    return _State(
        workers.watched(connection),
        attempts.open_rows(connection),
        bool(gangs.overdue(connection, now, patience_s)),
        bool(queue.expired(connection, now)),
        queue.any_ready_between(connection, since, now),
    )


def _evaluate(core: ServerContext, state: _State, elapsed_s: float, now: float) -> _Findings:
    lost_after_s = core.settings.lost_after_s
    silent = core.state(Fleet).watch([id_ for id_, status, _, _ in state.workers if status == "online"], elapsed_s)
    # After a late run an accept may have arrived and not been read: do not age offers. A worker that stays silent is
    # declared lost in any case.
    offered_s = elapsed_s if elapsed_s <= _LATE_S else 0.0
    ages = core.state(Fleet).age([row.attempt_id for row in state.open if row.state == "offered"], offered_s)
    found = _Findings(gangs=state.gangs, patience_s=lost_after_s, expired=state.expired)
    found.lost = [
        id_
        for id_, _, session, state_id in state.workers
        if silent.get(id_, 0.0) >= agents.patience_s(session, state_id, lost_after_s)
    ]
    gone = set(found.lost)
    for row in state.open:
        if row.worker_id in gone:
            continue
        if row.state == "offered" and row.worker_id.startswith(EXTERNAL):
            continue  # a registered external job may take any time to its first report
        if row.state == "offered":
            if ages[row.attempt_id] >= core.settings.accept_within_s:
                found.unaccepted.append(row.attempt_id)
        elif row.desired == "cancel" and silent.get(row.worker_id, lost_after_s) >= lost_after_s / 2:
            found.unreachable_cancels.append(row.task_id)
        elif row.deadline is not None and row.deadline <= now:
            found.overdue.append(row.attempt_id)
    return found


def _apply(connection: Connection, *, findings: _Findings, snapshot: FleetSnapshot, fleet: Fleet) -> list[str]:
    """Apply the findings; return the workers that are lost."""
    now = snapshot.now
    lost = [worker_id for worker_id in findings.lost if _still_silent(connection, fleet, worker_id)]
    for worker_id in lost:
        _lose(connection, worker_id, now)
    offers = [row for row in attempts.by_ids(connection, findings.unaccepted).values() if row.state == "offered"]
    if offers:
        unreported_ends.refuse_offers(connection, offers, now)
    late = [row for row in attempts.by_ids(connection, findings.overdue).values() if row.state == "accepted"]
    unreported_ends.end(
        connection, [(row, TaskReason.TIMEOUT, "Ran for longer than limits.max_runtime_s.") for row in late], now
    )
    pending = tasks.by_ids(connection, findings.unreachable_cancels, lock=True).values()
    unreported_ends.end_cancelled(
        connection, [row for row in pending if row.status == "running" and row.desired == "cancel"], now
    )
    unreported_ends.end(connection, gangs.overdue(connection, now, findings.patience_s), now)
    if findings.expired:
        _expire(connection, snapshot)
    return lost


def _still_silent(connection: Connection, fleet: Fleet, worker_id: str) -> bool:
    # The write may have been queued for long: a worker that has reported since, or has left, is not lost.
    row = workers.get(connection, worker_id)
    return row is not None and row.status == "online" and fleet.silence_s(worker_id) > 0


def _lose(connection: Connection, worker_id: str, now: float) -> None:
    workers.set_status(connection, worker_id, "lost")
    events.append(connection, [Event("worker.lost", now, worker_id=worker_id)])
    commands.close_of_worker(connection, worker_id, now)
    mine = list(attempts.open_of(connection, worker_id).values())
    rows = tasks.by_ids(connection, [row.task_id for row in mine])
    ended: list[Ending] = []
    for row in mine:
        task = rows[row.task_id]
        if row.state == "offered" or task.status == TaskStatus.DISPATCHED:
            ended.append((row, TaskReason.NOT_ACCEPTED, None))
        elif task.on_lost == "replace" or task.desired == "cancel":
            ended.append((row, TaskReason.WORKER_LOST, f"Worker {worker_id} does not respond."))
    unreported_ends.end(connection, ended, now)
    resume.give_up(connection, worker_id, now)


def _expire(connection: Connection, snapshot: FleetSnapshot) -> None:
    """End tasks that exceed `max_queue_s`, with their last pending reason in the error."""
    rows = queue.expired(connection, snapshot.now)
    why = cluster_state.reasons(connection, snapshot, rows)
    specs = tasks.documents(connection, [row.seq for row in rows])
    moves: list[Move] = []
    for row in rows:
        limit_s = (orjson.loads(specs[row.seq].as_run).get("limits") or {}).get("max_queue_s", 0.0)
        error = f"Queued for longer than limits.max_queue_s ({limit_s:g} s): {why.get(row.id, 'waiting.')}"
        moves.append(Move(row, TaskReason.TIMEOUT, changes={"error": error}))
    switch(connection, moves, snapshot.now)


async def _flush(core: ServerContext) -> None:
    mark, now = core.state(_SweepTimes), core.clock.monotonic()
    if mark.flushed_at is not None and now - mark.flushed_at < FLUSH_S:
        return
    mark.flushed_at = now
    # Swapped out before the await: messages that arrive meanwhile go to the next batch.
    seen, core.state(Fleet).seen_at = core.state(Fleet).seen_at, {}
    if seen:
        await core.write(lambda connection: workers.set_seen(connection, seen.items()))
    await flush_keys(core)
    await worker_load.flush(core)
    await fair_share.catch_up(core)
    await usage.forget(core)


async def flush_keys(core: ServerContext) -> None:
    """Store when keys were used, and drop curves without viewers from the cache; runs on every server."""
    used, core.state(KeyCache).used_at = core.state(KeyCache).used_at, {}
    if used:
        await core.write(lambda connection: keys.set_used(connection, used.items()))
    series.forget_unseen(core)
