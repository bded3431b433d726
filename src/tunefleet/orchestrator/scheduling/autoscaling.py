"""Elastic scaling: idle workers go to standby while the queue is short, and are activated when it grows.

`placement.elastic` decides. Standby is stored with the worker's other controls; idle times are kept in the leader's
memory only and start at zero when the server starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.fleet import clusters, worker_rows
from tunefleet.db.fleet.worker_rows import ControlRow
from tunefleet.db.repositories import attempts, events, queue
from tunefleet.db.repositories.events import Event
from tunefleet.errors import ConflictError
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.access.permissions import Actor, may_administer
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import cluster_state
from tunefleet.orchestrator.fleet.cluster_state import FleetSnapshot
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.workers.workers import owned
from tunefleet.placement import Requirement, WorkerState, only
from tunefleet.placement.elastic import Changes, Member, Rules, Waiting, decide
from tunefleet.schemas.fleet import ElasticView

log = logging.getLogger(__name__)

# Minimum seconds between two checks for workers to activate.
GAP_S: Final = 0.5
# The pause after a check, in multiples of its duration: over a large fleet checks must not take a whole processor.
_PAUSE_FACTOR: Final = 5.0
_MAX_PAUSE_S: Final = 5.0
# Counting stops here for each requirement: beyond it the exact queue length changes no decision.
_MAX_COUNTED: Final = 1000
_LEAST_COOLDOWN_S: Final = 60.0


def pause_s(core: ServerContext) -> float:
    """Return the seconds until the next check if nothing changes."""
    return core.settings.elastic_poll_s


def rest_s(spent_s: float) -> float:
    """Return the pause after a check of `spent_s` seconds: slow checks over a large fleet run less often."""
    return min(_PAUSE_FACTOR * spent_s, _MAX_PAUSE_S)


async def run_once(core: ServerContext) -> int:
    """Activate workers that are needed; put idle ones on standby if the poll interval has passed."""
    if not core.settings.elastic:
        return await _activate_all(core)
    now, mark = core.clock.monotonic(), core.state(Fleet).elastic
    due = mark.looked_at is None or now - mark.looked_at >= core.settings.elastic_poll_s
    if not due and not mark.resting:
        return 0
    if due:
        mark.looked_at = now
    snapshot = cluster_state.fleet_snapshot(core)
    fleet, held, decided, waiting, needed = await core.read(partial(_read_state, snapshot=snapshot))
    mark.resting = {id_ for id_, row in decided.items() if row.elastic_disabled_at is not None}
    members = [_member(core, each, decided.get(each.id), each.id in held, each.id in needed, now) for each in fleet]
    scalable = [each for each in members if each is not None]
    # In a thread: with thousands of workers it would block the event loop.
    changes = await asyncio.to_thread(decide, rules_of(core), scalable, waiting, may_idle=due)
    return await _apply(core, changes)


def rules_of(core: ServerContext) -> Rules:
    """Return the thresholds from the settings."""
    settings = core.settings
    cooldown_s = settings.elastic_cooldown_s
    return Rules(
        idle_s=settings.elastic_idle_s,
        enable_queue=settings.elastic_enable_queue,
        disable_queue=settings.elastic_disable_queue,
        # At least two polls, or a worker could change its state at every check.
        cooldown_s=max(_LEAST_COOLDOWN_S, 2 * settings.elastic_poll_s) if cooldown_s is None else cooldown_s,
        min_active=settings.elastic_min_active,
        enable_many=settings.elastic_enable_many,
    )


async def set_enabled(core: ServerContext, actor: Actor, worker_id: str, *, enabled: bool) -> ElasticView:
    """Activate a worker or put it on standby; automatic scaling continues from there.

    Raises:
        ConflictError: If elastic scaling is switched off.
        ForbiddenError: If the actor is not an admin.
    """
    may_administer(actor)
    if not core.settings.elastic:
        raise ConflictError(
            "Elastic scaling is switched off (TUNEFLEET_ELASTIC).",
            hint="Use `tunefleet workers cordon` to stop new tasks on a worker until you uncordon it.",
        )
    await core.read(partial(owned, actor=actor, worker_id=worker_id))
    reasons = {worker_id: f"requested by {actor.owner}"}
    await _apply(core, Changes(activate=reasons) if enabled else Changes(standby=reasons))
    return ElasticView(worker_id=worker_id, enabled=enabled, elastic_disabled=not enabled)


def _read_state(
    connection: Connection, *, snapshot: FleetSnapshot
) -> tuple[list[WorkerState], set[str], dict[str, ControlRow], list[Waiting], frozenset[str]]:
    # Cluster nodes are allocated for one task and released with it: scaling does not apply to them.
    cluster_tags = {only(job.task_id) for job in clusters.live(connection)}
    fleet = [state for state in cluster_state.states(connection, snapshot) if cluster_tags.isdisjoint(state.tags)]
    held = set(attempts.taken(connection))
    bound = attempts.bound_to(connection, now=snapshot.now)
    groups = sorted(queue.lines(connection))
    needs = cluster_state.needs_of(connection, groups, fleet)
    quota = quotas.QuotaChecks(connection, snapshot.now)
    # No worker can help a task that waits for a quota.
    needed = frozenset(
        worker_id for worker_id, key, project in bound if quota.why(project, needs[(key, project)]) is None
    )
    counts: Counter[Requirement] = Counter()
    for key, project in groups:
        count = queue.count_first(connection, key, project, now=snapshot.now, limit=_MAX_COUNTED)
        counts[needs[(key, project)]] += quota.within(project, needs[(key, project)], count)
    waiting = [Waiting(need, count) for need, count in counts.items()]
    return fleet, held, worker_rows.all_controls(connection), waiting, needed


def _member(
    core: ServerContext, state: WorkerState, decided: ControlRow | None, busy: bool, needed: bool, now: float
) -> Member | None:
    """Return a worker that scaling may change; None for those that it leaves alone."""
    if state.pulls or not state.present or (decided is not None and (decided.drains or decided.cordoned_at)):
        return None
    on_standby = decided is not None and decided.elastic_disabled_at is not None
    worked_at = core.state(Fleet).worked_at
    if busy:
        worked_at[state.id] = now
    changed_at = core.state(Fleet).elastic.changed_at.get(state.id)
    return Member(
        # Standby closes a worker: matched as it is, it could never be activated.
        replace(state, closed=None),
        on_standby=on_standby,
        idle_s=now - worked_at.setdefault(state.id, now),
        unchanged_s=float("inf") if changed_at is None else now - changed_at,
        needed=needed,
    )


async def _activate_all(core: ServerContext) -> int:
    """Activate all workers: scaling was switched off while some were on standby."""
    resting = await core.read(worker_rows.elastic_disabled)
    return await _apply(core, Changes(activate=dict.fromkeys(sorted(resting), "elastic scaling was switched off")))


async def _apply(core: ServerContext, changes: Changes) -> int:
    enabled_by_worker = dict.fromkeys(changes.activate, True) | dict.fromkeys(changes.standby, False)
    if not enabled_by_worker:
        return 0
    changed = await core.write(partial(_store, enabled_by_worker=enabled_by_worker, now=core.clock.wall()))
    for worker_id in changed:
        what, why = (
            ("is activated", changes.activate) if enabled_by_worker[worker_id] else ("is on standby", changes.standby)
        )
        log.info("Worker %s %s: %s.", worker_id, what, why[worker_id])
    now, mark = core.clock.monotonic(), core.state(Fleet).elastic
    mark.changed_at.update(dict.fromkeys(changed, now))
    mark.resting = mark.resting - changes.activate.keys() | changes.standby.keys()
    return len(changed)


def _store(connection: Connection, *, enabled_by_worker: Mapping[str, bool], now: float) -> list[str]:
    """Store which workers are on standby; return those that changed."""
    changed: list[ControlRow] = []
    decided, registered = worker_rows.all_controls(connection), {row[0] for row in worker_rows.watched(connection)}
    for worker_id, enabled in enabled_by_worker.items():
        known = decided.get(worker_id, ControlRow(worker_id))
        if (known.elastic_disabled_at is None) != enabled and worker_id in registered:
            changed.append(known._replace(elastic_disabled_at=None if enabled else now))
    worker_rows.put_standby(connection, changed)
    names = {
        row.worker_id: "worker.enabled" if enabled_by_worker[row.worker_id] else "worker.disabled" for row in changed
    }
    events.append(connection, [Event(name, now, worker_id=worker_id) for worker_id, name in names.items()])
    return list(names)
