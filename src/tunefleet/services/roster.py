"""The fleet as placement sees it: registered workers, who answers, and what of them is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from tunefleet.placement import Device, Requirement, WorkerState, explain
from tunefleet.services import related
from tunefleet.services.core import Core
from tunefleet.services.fleet import AGENT_SESSION
from tunefleet.store import Connection, attempts, queue, resumes, tasks, workers
from tunefleet.store.attempts import TakenRow
from tunefleet.store.queue import STRIKES
from tunefleet.store.rows import TaskRow, WorkerRow
from tunefleet.wire.link import Capabilities

_MAX_KNOWN: Final = 10_000
_known_needs: dict[str, Requirement] = {}
"""A key is a digest of what it stands for: what was read once stays right, in whatever database."""


@dataclass(frozen=True, slots=True)
class Presences:
    """What the leader remembers of its workers at one moment.

    Args:
        now: Unix time.
        limits: Worker id → slot class → how many attempts it takes in all; only workers that answer.
    """

    now: float
    limits: dict[str, dict[str, int]]


def presences(core: Core) -> Presences:
    """Return who answers now; called on the event loop, used in the store's threads."""
    patience_s = core.settings.lost_after_s / 2
    limits = {
        worker_id: dict(presence.limits)
        for worker_id, presence in core.fleet.presences.items()
        if not presence.lost and presence.limits and core.fleet.silence_s(worker_id) < patience_s
    }
    return Presences(core.clock.wall(), limits)


@lru_cache(maxsize=10_000)
def capabilities(text: str) -> Capabilities:
    """Read what a worker said of itself."""
    return Capabilities.model_validate_json(text)


def needs(connection: Connection, keys: Iterable[str]) -> dict[str, Requirement]:
    """Return what groups of tasks need, by key."""
    wanted = set(keys)
    unknown = sorted(wanted - _known_needs.keys())
    if unknown:
        bodies = tasks.requirement_bodies(connection, unknown)
        if len(_known_needs) > _MAX_KNOWN:
            _known_needs.clear()
        _known_needs.update((key, Requirement.load(body)) for key, body in bodies.items())
    return {key: _known_needs[key] for key in wanted}


def states(connection: Connection, here: Presences) -> list[WorkerState]:
    """Return all registered workers with what is free."""
    held: dict[str, list[TakenRow]] = {}
    for taken in attempts.taken(connection):
        held.setdefault(taken.worker_id, []).append(taken)
    known = needs(connection, (taken.requirement_key for rows in held.values() for taken in rows))
    cordoned: dict[str, set[str]] = {}
    for cordon in queue.all_cordons(connection):
        if cordon.strikes >= STRIKES and cordon.until > here.now:
            cordoned.setdefault(cordon.worker_id, set()).add(cordon.kind)
    return [
        _state(row, here, held.get(row.id, []), known, frozenset(cordoned.get(row.id, ())))
        for row in workers.all_rows(connection)
    ]


def state_of(connection: Connection, here: Presences, row: WorkerRow) -> WorkerState:
    """Return an agent with what is free, as for a worker that is given tasks; strikes do not count."""
    counts = Counter((each.slot_class, each.requirement_key) for each in attempts.open_of(connection, row.id).values())
    held = [TakenRow(row.id, slot_class, key, count) for (slot_class, key), count in counts.items()]
    state = _state(row, here, held, needs(connection, (each.requirement_key for each in held)), frozenset())
    return replace(state, pulls=False)


def _state(
    row: WorkerRow,
    here: Presences,
    held: list[TakenRow],
    known: Mapping[str, Requirement],
    cordoned: frozenset[str],
) -> WorkerState:
    has = capabilities(row.capabilities)
    limits = here.limits.get(row.id, {})
    taken: Counter[str] = Counter()
    for each in held:
        taken[each.slot_class] += each.how_many
    slots = {str(name): count for name, count in has.slots.items()}
    return WorkerState(
        id=row.id,
        present=row.status == "online" and row.id in here.limits,
        executors={offer.kind: None if offer.available else offer.reason or "not available" for offer in has.executors},
        slots=slots,
        free={name: min(count, limits.get(name, 0)) - taken[name] for name, count in slots.items()},
        cpu=has.cpu_count,
        memory_bytes=has.memory_total_bytes,
        gpus=tuple(Device(gpu.name, gpu.memory_total_bytes) for gpu in has.gpus),
        gpus_taken=sum(known[each.requirement_key].gpu_count * each.how_many for each in held)
        + sum(gpu.in_use_by is not None for gpu in has.gpus),
        tags=frozenset(has.tags),
        allow_code=has.allow_code,
        models=frozenset(has.cached_models),
        cordoned=cordoned,
        pulls=row.session == AGENT_SESSION,
    )


def avoided(connection: Connection, task_ids: list[str], now: float) -> dict[str, frozenset[str]]:
    """Return which workers did not take a task lately, by task id."""
    if not queue.any_trouble(connection):
        return {}
    found: dict[str, set[str]] = {}
    for void in queue.void_offers_of(connection, task_ids):
        if void.until > now:
            found.setdefault(void.task_id, set()).add(void.worker_id)
    return {task_id: frozenset(ids) for task_id, ids in found.items()}


def reasons(
    connection: Connection, here: Presences, rows: Sequence[TaskRow], fleet: Sequence[WorkerState] | None = None
) -> dict[str, str]:
    """Say why tasks wait, by task id; tasks that do not wait are left out.

    Args:
        connection: To read with.
        here: Who answers now.
        rows: The tasks.
        fleet: What `states` returned, if the caller has it.
    """
    told = related.reasons(connection, rows) | {row.id: why for row in rows if (why := _ending(row)) is not None}
    waiting = [row for row in rows if row.status == "queued"]
    if not waiting:
        return told
    known = needs(connection, (row.requirement_key for row in waiting))
    avoid = avoided(connection, [row.id for row in waiting], here.now)
    fleet = states(connection, here) if fleet is None else fleet
    cache: dict[tuple[str, frozenset[str]], str | None] = {}
    bound = _bound(connection, waiting)
    for row in waiting:
        if row.ready_at > here.now:
            pause_s = row.ready_at - here.now
            told[row.id] = f"backing off: attempt {row.failures + 1} of {row.max_attempts}, again in {pause_s:.0f} s."
            continue
        if row.id in bound:
            verdict = explain(known[row.requirement_key], [each for each in fleet if each.id == bound[row.id]])
            told[row.id] = f"waiting: {bound[row.id]} alone has its checkpoint ({verdict or 'its turn comes'})."
            continue
        key = (row.requirement_key, avoid.get(row.id, frozenset()))
        if key not in cache:
            cache[key] = explain(known[row.requirement_key], fleet, avoid=key[1])
        told[row.id] = cache[key] or "waiting: it is placed in a moment, when its turn comes."
    return told


def _bound(connection: Connection, rows: Sequence[TaskRow]) -> dict[str, str]:
    found = resumes.of_tasks(connection, [row.id for row in rows if row.slot_class == "job"])
    return {task_id: row.worker_id for task_id, row in found.items() if row.bound and row.worker_id is not None}


def _ending(row: TaskRow) -> str | None:
    if row.status != "running":
        return None
    if row.desired == "cancel":
        return "cancelling: it ends at the end of the running step."
    return "pausing: it saves at the end of the running step, and ends." if row.desired == "pause" else None
