"""Cluster state: the registered workers with liveness and free resources, as placement sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from tunefleet.db import DEFAULT_PROJECT, Connection
from tunefleet.db.fleet import worker_rows
from tunefleet.db.fleet.worker_rows import ControlRow
from tunefleet.db.repositories import attempts, queue, tasks
from tunefleet.db.repositories.attempts import Held
from tunefleet.db.repositories.queue import STRIKES
from tunefleet.db.rows import TaskRow, WorkerRow
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import engines, federation_capacity, worker_state
from tunefleet.orchestrator.fleet.engines import Engines
from tunefleet.orchestrator.fleet.presence import AGENT_SESSION, Fleet
from tunefleet.orchestrator.fleet.worker_state import WorkerFacts
from tunefleet.placement import Requirement, WorkerState, explain
from tunefleet.schemas.worker_link import Load

_MAX_KNOWN: Final = 10_000
# Keys are content digests, so that entries never go stale, even with several databases in one process.
_known_needs: dict[str, Requirement] = {}
_known_with_project: dict[tuple[str, str], Requirement] = {}


@dataclass(frozen=True, slots=True)
class JoinWait:
    """Why the files of a sharded task have not been merged yet."""

    failures: int
    until: float
    why: str


@dataclass(slots=True)
class MergeWaits:
    """Sharded tasks whose files could not be merged yet, by `seq`; known to the leader only."""

    by_task: dict[int, JoinWait] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """A snapshot of the leader's in-memory state of its workers.

    Args:
        limits: Worker id → slot class → maximum number of attempts; only live workers.
        loads: Worker id → current load, where it is known and not outdated.
        warm: Worker id → models and datasets that it was given recently.
        reserved: Worker id → the waiting task that its capacity is reserved for.
        delivering: Attempt whose job has ended, so that it takes no slot → why its upload is held up; empty if it is
            not.
        fetching: Attempt → a clause on what it downloads before its job starts.
        joins: `seq` of a sharded task whose shards cannot be merged yet → what they wait for.
        absent: Engine that is not configured on this server → the setting it needs.
    """

    now: float
    limits: dict[str, dict[str, int]]
    loads: dict[str, Load] = field(default_factory=dict)
    warm: dict[str, frozenset[str]] = field(default_factory=dict)
    reserved: dict[str, str] = field(default_factory=dict)
    delivering: dict[str, str] = field(default_factory=dict)
    fetching: dict[str, str] = field(default_factory=dict)
    joins: dict[int, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    nodes_jobs: int = 1


def fleet_snapshot(core: ServerContext) -> FleetSnapshot:
    """Take a snapshot on the event loop, for use in the store's threads."""
    # This blocks the event loop: one pass over thousands of workers, and no copies of values that are replaced, not
    # changed, on update.
    limits: dict[str, dict[str, int]] = {}
    loads: dict[str, Load] = {}
    delivering: dict[str, str] = {}
    fetching: dict[str, str] = {}
    silent = core.state(Fleet).silent(core.settings.lost_after_s / 2)
    for worker_id, presence in core.state(Fleet).presences.items():
        if presence.delivering:
            delivering.update(presence.delivering)
        if presence.fetching:
            fetching.update(presence.fetching)
        if presence.lost or not presence.limits or worker_id in silent:
            continue
        limits[worker_id] = presence.limits
        if presence.load is not None and not presence.outdated:
            loads[worker_id] = presence.load
    now = core.clock.wall()
    warm = core.state(Fleet).warm_since(now - core.settings.cache_ttl_s)
    joins = {**core.state(Fleet).joins, **{seq: wait.why for seq, wait in core.state(MergeWaits).by_task.items()}}
    return FleetSnapshot(
        now, limits, loads, warm, dict(core.state(Fleet).reserved), delivering, fetching, joins,
        core.state(Engines).absent, core.settings.nodes_jobs,
    )  # fmt: skip


def needs(connection: Connection, keys: Iterable[str]) -> dict[str, Requirement]:
    """Return the requirements with the given keys."""
    wanted = set(keys)
    # Copy the hits first: this thread or another one may clear the cache before the rest has been read.
    found = {key: need for key in wanted if (need := _known_needs.get(key)) is not None}
    unknown = sorted(wanted - found.keys())
    if unknown:
        bodies = tasks.requirement_bodies(connection, unknown)
        read = {key: Requirement.load(body) for key, body in bodies.items()}
        if len(_known_needs) > _MAX_KNOWN:
            _known_needs.clear()
        _known_needs.update(read)
        found |= read
    return {key: found[key] for key in wanted}


def states(connection: Connection, snapshot: FleetSnapshot) -> list[WorkerState]:
    """Return all registered workers with their free resources."""
    held = attempts.taken(connection, but=snapshot.delivering)
    known = partial(needs, connection)
    cordoned: dict[str, set[str]] = {}
    for cordon in queue.all_cordons(connection):
        if cordon.strikes >= STRIKES and cordon.until > snapshot.now:
            cordoned.setdefault(cordon.worker_id, set()).add(cordon.kind)
    decided = worker_rows.all_controls(connection)
    nothing: frozenset[str] = frozenset()
    found = []
    for columns in worker_rows.with_capabilities(connection):
        id_ = columns[0]
        refused = frozenset(cordoned[id_]) if id_ in cordoned else nothing
        facts = _facts(columns, snapshot, held.get(id_, ""), refused, decided.get(id_))
        found.append(worker_state.cached_state(facts, known))
    return found


def state_of(connection: Connection, snapshot: FleetSnapshot, row: WorkerRow) -> WorkerState:
    """Return an agent's state as if it were a worker that gets tasks; strikes do not count."""
    mine = attempts.open_of(connection, row.id).values()
    held = ";".join(Held(each.slot_class, each.requirement_key, each.gpus or "").text() for each in mine)
    decided = worker_rows.controls_of(connection, row.id)
    columns = row.id, row.status, row.session, row.capabilities, row.project
    facts = _facts(columns, snapshot, held, frozenset(), decided)
    return replace(worker_state.state(facts, partial(needs, connection)), pulls=False)


def _facts(
    columns: Sequence[str],
    snapshot: FleetSnapshot,
    held: str,
    cordoned: frozenset[str],
    decided: ControlRow | None,
) -> WorkerFacts:
    id_, status, session, text, project = columns
    return WorkerFacts(
        id_, text, status == "online", session == AGENT_SESSION, snapshot.limits.get(id_), held, cordoned, decided,
        snapshot.loads.get(id_), snapshot.warm.get(id_), snapshot.reserved.get(id_), only_project(project),
    )  # fmt: skip


def only_project(project: str) -> str | None:
    """Return the only project that a worker with a key of `project` serves; None if it serves all."""
    return None if project == DEFAULT_PROJECT else project


def serving(fleet: Iterable[WorkerState], project: str) -> list[WorkerState]:
    """Return the workers that serve a project."""
    return [worker for worker in fleet if worker.project is None or worker.project == project]


def of_project(need: Requirement, project: str) -> Requirement:
    """Return the requirement with its project, for fleets where some workers serve one project only."""
    known = _known_with_project.get((need.key, project))
    if known is None:
        if len(_known_with_project) > _MAX_KNOWN:
            _known_with_project.clear()
        known = _known_with_project[(need.key, project)] = replace(need, project=project)
    return known


def with_project(need: Requirement, project: str) -> Requirement:
    """Return the requirement with its project if it names secrets, which a worker may restrict to a project."""
    return of_project(need, project) if need.secrets else need


def needs_of(
    connection: Connection, lines: Sequence[tuple[str, str]], fleet: Iterable[WorkerState]
) -> dict[tuple[str, str], Requirement]:
    """Return the requirements of queued tasks, by key and project."""
    known = needs(connection, {key for key, _ in lines})
    bound = any(worker.project is not None for worker in fleet)
    say = of_project if bound else with_project
    return {(key, project): say(known[key], project) for key, project in lines}


def avoided(connection: Connection, task_ids: list[str], now: float) -> dict[str, frozenset[str]]:
    """Return the workers that did not accept a task recently, by task id."""
    # The usual case: no offer has failed, and one cheap query replaces one over all ids.
    if not queue.any_trouble(connection):
        return {}
    found: dict[str, set[str]] = {}
    for void in queue.void_offers_of(connection, task_ids):
        if void.until > now:
            found.setdefault(void.task_id, set()).add(void.worker_id)
    return {task_id: frozenset(ids) for task_id, ids in found.items()}


def reasons(
    connection: Connection, snapshot: FleetSnapshot, rows: Sequence[TaskRow], fleet: Sequence[WorkerState] | None = None
) -> dict[str, str]:
    """Return the pending reasons, by task id; tasks that are not pending are left out."""
    found = engines.pending_reasons(connection, rows, snapshot.joins)
    found |= {row.id: why for row in rows if (why := _running_reason(row, snapshot)) is not None}
    waiting = [row for row in rows if row.status == "queued"]
    if not waiting:
        return found
    known = needs(connection, (row.requirement_key for row in waiting))
    avoid = avoided(connection, [row.id for row in waiting], snapshot.now)
    fleet = states(connection, snapshot) if fleet is None else fleet
    cache: dict[tuple[str, str, frozenset[str]], str | None] = {}
    held = quotas.QuotaChecks(connection, snapshot.now)
    serve = {project: serving(fleet, project) for project in {row.project for row in waiting}}
    with_reservation = frozenset(snapshot.reserved.values())
    nodes = engines.node_reasons(connection, waiting, snapshot.absent, snapshot.nodes_jobs)
    bound = _bound_workers(connection, waiting)
    together = {
        task_id: why
        for project, fleet_of_project in serve.items()
        for task_id, why in _held_back(connection, waiting, project, known, fleet_of_project).items()
    }
    for row in waiting:
        if row.ready_at > snapshot.now:
            pause_s = row.ready_at - snapshot.now
            found[row.id] = f"backing off: attempt {row.failures + 1} of {row.max_attempts} starts in {pause_s:.0f} s."
            continue
        if (over := held.why(row.project, known[row.requirement_key])) is not None:
            found[row.id] = over
            continue
        if row.id in nodes:
            found[row.id] = nodes[row.id]
            continue
        if row.id in together:
            found[row.id] = together[row.id]
            continue
        fleet, need = serve[row.project], with_project(known[row.requirement_key], row.project)
        if row.id in bound:
            blocked = explain(need, [each for each in fleet if each.id == bound[row.id]])
            found[row.id] = f"waiting: only {bound[row.id]} has its checkpoint ({blocked or 'queued'})."
            continue
        if row.id in with_reservation:
            needed = explain(need, fleet, task_id=row.id)
            ids = [worker_id for worker_id, task_id in snapshot.reserved.items() if task_id == row.id]
            reserved = f"{', '.join(ids)} {'is' if len(ids) == 1 else 'are'} reserved"
            found[row.id] = f"waiting: {reserved} for it until enough resources are free ({needed or 'queued'})."
            continue
        key = (row.requirement_key, row.project, avoid.get(row.id, frozenset()))
        if key not in cache:
            cache[key] = explain(need, fleet, avoid=key[2])
        found[row.id] = cache[key] or "waiting: queued, scheduling."
    return found


def _held_back(
    connection: Connection,
    waiting: Sequence[TaskRow],
    project: str,
    known: Mapping[str, Requirement],
    fleet: Sequence[WorkerState],
) -> dict[str, str]:
    """Return the reasons of shards that wait until enough of their federation can run at the same time."""
    rows = [row for row in waiting if row.project == project]
    needs = {row.id: with_project(known[row.requirement_key], project) for row in rows}
    return federation_capacity.held_back(connection, rows, needs, fleet)


def _bound_workers(connection: Connection, rows: Sequence[TaskRow]) -> dict[str, str]:
    found = attempts.resumes_of(connection, [row.id for row in rows if row.slot_class == "job"])
    return {task_id: row.worker_id for task_id, row in found.items() if row.bound and row.worker_id is not None}


def _running_reason(row: TaskRow, snapshot: FleetSnapshot) -> str | None:
    if row.status != "running":
        return None
    if row.attempt_id in snapshot.delivering:
        held_up = snapshot.delivering[row.attempt_id]
        return f"delivering: {held_up or 'the job has ended, and its results are being uploaded.'}"
    if row.attempt_id in snapshot.fetching:
        return f"{snapshot.fetching[row.attempt_id]}."
    if row.desired == "cancel":
        return "cancelling: stops after the current step."
    return "pausing: saves a checkpoint after the current step, then stops." if row.desired == "pause" else None
