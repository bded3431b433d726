"""The state of one worker for placement: its reported capabilities minus what its open attempts use.

Nothing is read from the store here. States are cached: most workers do not change from one cycle to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple

import orjson

from tunefleet.db.fleet.worker_rows import ControlRow
from tunefleet.db.repositories import attempts
from tunefleet.db.repositories.attempts import Held
from tunefleet.placement import Device, Requirement, WorkerState
from tunefleet.placement.devices import smallest_first, suited
from tunefleet.schemas.worker_link import Capabilities, Load, release_of

Needs = Callable[[Iterable[str]], Mapping[str, Requirement]]

_MAX_KNOWN: Final = 20_000
_known: dict[str, tuple[WorkerFacts, WorkerState]] = {}
_groups: dict[tuple[Any, ...], int] = {}
_group_numbers = count()


class WorkerFacts(NamedTuple):
    """Everything that determines a worker's state; the cache key.

    Args:
        limits: Slot class → maximum number of attempts; None if the worker is not live.
        project: The only project that it serves; None if it serves all.
    """

    id: str
    capabilities_json: str
    online: bool
    pulls: bool
    limits: dict[str, int] | None
    held: str
    cordoned: frozenset[str]
    decided: ControlRow | None
    load: Load | None
    warm: frozenset[str] | None
    kept_for: str | None
    project: str | None = None


@lru_cache(maxsize=10_000)
def capabilities(capabilities_json: str) -> Capabilities:
    """Parse the capabilities that a worker reported."""
    return Capabilities.model_validate_json(capabilities_json)


def closed(decided: ControlRow | None) -> str | None:
    """Return why a worker gets no new tasks, as a clause after its name; None if it may."""
    if decided is None:
        return None
    if decided.drains:
        return "is draining: it finishes its tasks, then exits"
    if decided.cordoned_at is not None:
        return "is cordoned (`tunefleet workers uncordon` reopens it)"
    if decided.elastic_disabled_at is not None:
        return "is on standby: it was idle, and is activated when the queue grows (elastic scaling)"
    return None


def cached_state(facts: WorkerFacts, known: Needs) -> WorkerState:
    """Return a worker's state like `state`, from the cache if nothing has changed."""
    before = _known.get(facts.id)
    if before is not None and before[0] == facts:
        return before[1]
    if len(_known) > _MAX_KNOWN:
        _known.clear()
    found = state(facts, known)
    _known[facts.id] = (facts, found)
    return found


def state(facts: WorkerFacts, known: Needs) -> WorkerState:
    """Return a worker's state."""
    idle, limits = _idle_state(facts.id, facts.capabilities_json, facts.project), facts.limits
    takes = idle.slots if limits is None else {n: min(slots, limits.get(n, 0)) for n, slots in idle.slots.items()}
    held = attempts.held(facts.held)
    # One `replace` with all changes: a cycle does this a thousand times.
    return replace(
        idle,
        present=limits is not None and facts.online,
        takes=takes,
        cordoned=facts.cordoned,
        pulls=facts.pulls,
        closed=closed(facts.decided),
        kept_for=facts.kept_for,
        cached=idle.cached | facts.warm if facts.warm else idle.cached,
        **_load_fields(idle, facts.load),
        **_usage_fields(idle, takes, held, known({each.requirement_key for each in held}) if held else {}),
    )


@lru_cache(maxsize=_MAX_KNOWN)
def _idle_state(worker_id: str, capabilities_json: str, project: str | None) -> WorkerState:
    """Return an idle worker with its reported capabilities."""
    # Not `capabilities`: used only once for each text, it would evict the entries of others.
    has = Capabilities.model_validate_json(capabilities_json)
    slots = {str(name): slots for name, slots in has.slots.items()}
    idle = WorkerState(
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
            # The free memory at registration is outdated; the current value comes with the load.
            Device(gpu.name, gpu.memory_total_bytes, gpu.uuid, None, gpu.in_use_by)
            for gpu in has.gpus
        ),
        tags=frozenset(has.tags),
        secrets=frozenset(has.secrets),
        environments=None if has.environments is None else frozenset(has.environments),
        features={offer.kind: offer.features for offer in has.executors if offer.features is not None},
        allow_code=has.allow_code,
        cached=frozenset((*has.cached_models, *has.cached_datasets)),
        cost_per_hour=has.cost_per_hour,
        project=project,
        host=has.hostname,
        release=release_of(has.version, has.torch_version),
    )
    return replace(idle, hardware_group=_group_number(idle))


def _group_number(idle: WorkerState) -> int:
    """Return a number that workers with equal permanent properties share."""
    permanent = (
        tuple(sorted(idle.executors.items())), tuple(sorted(idle.slots.items())), idle.cpu, idle.memory_bytes,
        tuple((gpu.name, gpu.memory_bytes) for gpu in idle.gpus), idle.tags, idle.secrets,
        idle.environments, idle.allow_code, idle.project, orjson.dumps(idle.features, option=orjson.OPT_SORT_KEYS),
    )  # fmt: skip
    if len(_groups) > _MAX_KNOWN:
        _groups.clear()
    return _groups.setdefault(permanent, next(_group_numbers))


def _load_fields(idle: WorkerState, load: Load | None) -> dict[str, Any]:
    """Return the fields that depend on the current load."""
    if load is None:
        return {}
    now = {gpu.uuid: gpu for gpu in load.gpus}
    gpus = tuple(
        replace(gpu, free_bytes=seen.memory_free_bytes, used_by=seen.in_use_by) if (seen := now.get(gpu.uuid)) else gpu
        for gpu in idle.gpus
    )
    return {"gpus": gpus, "memory_free_bytes": load.memory_free_bytes, "disk_free_bytes": load.disk_free_bytes}


def _usage_fields(
    idle: WorkerState, takes: Mapping[str, int], held: Sequence[Held], known: Mapping[str, Requirement]
) -> dict[str, Any]:
    """Return the resources that the open attempts use, and the free slots."""
    free, cpu, memory = dict(takes), 0, 0
    indices = {gpu.uuid: index for index, gpu in enumerate(idle.gpus)}
    taken: set[int] = set()
    for each in held:
        free[each.slot_class] = free.get(each.slot_class, 0) - 1
        if each.slot_class == "job":
            cpu += known[each.requirement_key].cpu
            memory += known[each.requirement_key].memory_bytes
        if each.gpus:
            taken |= {indices[uuid] for uuid in each.gpus.split(",") if uuid in indices}
    for each in held:
        if idle.gpus and not each.gpus:
            need = known[each.requirement_key]
            # The worker has chosen the devices itself: assume the smallest suitable ones.
            likely = smallest_first((index for index in suited(need, idle) if index not in taken), idle)
            taken |= set(likely[: need.gpu_count])
    return {"free": free, "cpu_taken": cpu, "memory_taken": memory, "taken": frozenset(taken)}
