"""The fleet as placement sees it: registered workers, who answers, and what of them is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from tunefleet.placement import Device, Requirement, WorkerState, explain
from tunefleet.placement.devices import smallest_first, suited
from tunefleet.services import related
from tunefleet.services.core import Core
from tunefleet.services.fleet import AGENT_SESSION
from tunefleet.store import Connection, attempts, controls, queue, resumes, tasks, workers
from tunefleet.store.attempts import TakenRow
from tunefleet.store.controls import ControlRow
from tunefleet.store.queue import STRIKES
from tunefleet.store.rows import TaskRow, WorkerRow
from tunefleet.wire.link import Capabilities, Load

_MAX_KNOWN: Final = 10_000
_known_needs: dict[str, Requirement] = {}
"""A key is a digest of what it stands for: what was read once stays right, in whatever database."""


@dataclass(frozen=True, slots=True)
class Presences:
    """What the leader remembers of its workers at one moment.

    Args:
        now: Unix time.
        limits: Worker id → slot class → how many attempts it takes in all; only workers that answer.
        loads: Worker id → how busy it is, where that is known and still true.
        warm: Worker id → models and datasets that it was given lately.
        kept: Worker id → the waiting task for which it gathers what becomes free.
    """

    now: float
    limits: dict[str, dict[str, int]]
    loads: dict[str, Load] = field(default_factory=dict)
    warm: dict[str, frozenset[str]] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)


def presences(core: Core) -> Presences:
    """Return who answers now; called on the event loop, used in the store's threads."""
    patience_s = core.settings.lost_after_s / 2
    limits = {
        worker_id: dict(presence.limits)
        for worker_id, presence in core.fleet.presences.items()
        if not presence.lost and presence.limits and core.fleet.silence_s(worker_id) < patience_s
    }
    now = core.clock.wall()
    loads = {id_: told.load for id_ in limits if (told := core.fleet.presences[id_]).load and not told.outdated}
    since = now - core.settings.cache_ttl_s
    warm = {
        worker_id: frozenset(name for name, at in given.items() if at > since)
        for worker_id, given in core.fleet.warm.items()
    }
    return Presences(now, limits, loads, warm, dict(core.fleet.kept))


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
    known = needs(connection, {taken.requirement_key for rows in held.values() for taken in rows})
    cordoned: dict[str, set[str]] = {}
    for cordon in queue.all_cordons(connection):
        if cordon.strikes >= STRIKES and cordon.until > here.now:
            cordoned.setdefault(cordon.worker_id, set()).add(cordon.kind)
    decided = controls.all_rows(connection)
    return [
        replace(
            _state(row, here, held.get(row.id, ()), known, frozenset(cordoned.get(row.id, ()))),
            closed=closed(decided.get(row.id)),
        )
        for row in workers.all_rows(connection)
    ]


def closed(decided: ControlRow | None) -> str | None:
    """Say why a worker gets nothing new, as a clause after its name; null if it may.

    Args:
        decided: What people, and the elastic scaling, have decided about it.
    """
    if decided is None:
        return None
    if decided.drains:
        return "is drained: it finishes what it has, then leaves"
    if decided.cordoned_at is not None:
        return "is cordoned (`tunefleet workers uncordon` opens it)"
    if decided.elastic_disabled_at is not None:
        return "rests: it was idle, and comes back when the queue grows (elastic scaling)"
    return None


def state_of(connection: Connection, here: Presences, row: WorkerRow) -> WorkerState:
    """Return an agent with what is free, as for a worker that is given tasks; strikes do not count."""
    mine = attempts.open_of(connection, row.id).values()
    held = [TakenRow(row.id, each.slot_class, each.requirement_key, each.gpus, 1) for each in mine]
    state = _state(row, here, held, needs(connection, {each.requirement_key for each in held}), frozenset())
    return replace(state, pulls=False, closed=closed(controls.get(connection, row.id)))


def _state(
    row: WorkerRow,
    here: Presences,
    held: Sequence[TakenRow],
    known: Mapping[str, Requirement],
    cordoned: frozenset[str],
) -> WorkerState:
    plain = _described(row.id, row.capabilities)
    limits = here.limits.get(row.id)
    takes = plain.slots if limits is None else {n: min(count, limits.get(n, 0)) for n, count in plain.slots.items()}
    state = replace(
        plain,
        present=limits is not None and row.status == "online",
        free=takes,
        takes=takes,
        cordoned=cordoned,
        pulls=row.session == AGENT_SESSION,
        kept_for=here.kept.get(row.id),
    )
    load, warm = here.loads.get(row.id), here.warm.get(row.id)
    if load is not None:
        state = _with_load(state, load)
    if warm:
        state = replace(state, cached=state.cached | warm)
    return _less(state, held, known) if held else state


@lru_cache(maxsize=20_000)
def _described(worker_id: str, text: str) -> WorkerState:
    """Return a worker as it describes itself, with nothing of it in use."""
    has = capabilities(text)
    slots = {str(name): count for name, count in has.slots.items()}
    return WorkerState(
        id=worker_id,
        present=True,
        executors={offer.kind: None if offer.available else offer.reason or "not available" for offer in has.executors},
        merges=frozenset(offer.kind for offer in has.executors if offer.available and offer.merges),
        slots=slots,
        free=slots,
        cpu=has.cpu_count,
        memory_bytes=has.memory_total_bytes,
        disk_free_bytes=has.disk_free_bytes,
        gpus=tuple(
            # What was free when it registered says nothing of now.
            Device(gpu.name, gpu.memory_total_bytes, gpu.uuid, None, gpu.in_use_by)
            for gpu in has.gpus
        ),
        tags=frozenset(has.tags),
        secrets=frozenset(has.secrets),
        allow_code=has.allow_code,
        cached=frozenset((*has.cached_models, *has.cached_datasets)),
        cost_per_hour=has.cost_per_hour,
    )


def _with_load(state: WorkerState, load: Load) -> WorkerState:
    now = {gpu.uuid: gpu for gpu in load.gpus}
    gpus = tuple(
        replace(gpu, free_bytes=seen.memory_free_bytes, used_by=seen.in_use_by) if (seen := now.get(gpu.uuid)) else gpu
        for gpu in state.gpus
    )
    return replace(state, gpus=gpus, memory_free_bytes=load.memory_free_bytes, disk_free_bytes=load.disk_free_bytes)


def _less(state: WorkerState, held: Sequence[TakenRow], known: Mapping[str, Requirement]) -> WorkerState:
    """Return a worker without what its open attempts use."""
    free, cpu, memory = dict(state.free), 0, 0
    places = {gpu.uuid: place for place, gpu in enumerate(state.gpus)}
    taken: set[int] = set()
    for each in held:
        free[each.slot_class] = free.get(each.slot_class, 0) - each.how_many
        if each.slot_class == "job":
            cpu += known[each.requirement_key].cpu * each.how_many
            memory += known[each.requirement_key].memory_bytes * each.how_many
        taken |= {places[uuid] for uuid in (each.gpus or "").split(",") if uuid in places}
    for each in held:
        if each.gpus is None and state.gpus:
            need = known[each.requirement_key]
            # Whoever runs it has chosen by itself: it is taken to be the smallest that suit.
            likely = smallest_first((place for place in suited(need, state) if place not in taken), state)
            taken |= set(likely[: need.gpu_count * each.how_many])
    return replace(state, free=free, cpu_taken=cpu, memory_taken=memory, taken=frozenset(taken))


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
    kept = frozenset(here.kept.values())
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
        if row.id in kept:
            needed = explain(known[row.requirement_key], fleet, task_id=row.id)
            worker_id = next(worker_id for worker_id, task_id in here.kept.items() if task_id == row.id)
            told[row.id] = f"waiting: {worker_id} gathers for it what becomes free ({needed or 'its turn comes'})."
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
