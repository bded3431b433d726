"""How one worker stands, for placement: what it said of itself, less what it has taken.

Nothing is read here. What was made of the same facts before is remembered: from one placement to the next most workers
stand as they stood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple

import orjson

from tunefleet.db.repositories import attempts
from tunefleet.db.repositories.attempts import Held
from tunefleet.db.repositories.controls import ControlRow
from tunefleet.placement import Device, Requirement, WorkerState
from tunefleet.placement.devices import smallest_first, suited
from tunefleet.schemas.worker_link import Capabilities, Load, release_of

Needs = Callable[[Iterable[str]], Mapping[str, Requirement]]

_MAX_KNOWN: Final = 20_000
_known: dict[str, tuple[About, WorkerState]] = {}
_alike: dict[tuple[Any, ...], int] = {}
_numbers = count()


class About(NamedTuple):
    """All that decides how a worker stands.

    Args:
        limits: Slot class → how many attempts it takes in all; null if it does not answer.
        project: The only project that it serves; null if it serves all.
    """

    id: str
    text: str
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
def capabilities(text: str) -> Capabilities:
    """Read what a worker said of itself."""
    return Capabilities.model_validate_json(text)


def closed(decided: ControlRow | None) -> str | None:
    """Say why a worker gets nothing new, as a clause after its name; null if it may."""
    if decided is None:
        return None
    if decided.drains:
        return "is drained: it finishes what it has, then leaves"
    if decided.cordoned_at is not None:
        return "is cordoned (`tunefleet workers uncordon` opens it)"
    if decided.elastic_disabled_at is not None:
        return "rests: it was idle, and comes back when the queue grows (elastic scaling)"
    return None


def remembered(about: About, known: Needs) -> WorkerState:
    """Return how a worker stands, as `state` does; what was made of the same facts last is given again."""
    before = _known.get(about.id)
    if before is not None and before[0] == about:
        return before[1]
    if len(_known) > _MAX_KNOWN:
        _known.clear()
    found = state(about, known)
    _known[about.id] = (about, found)
    return found


def state(about: About, known: Needs) -> WorkerState:
    """Return how a worker stands."""
    plain, limits = _described(about.id, about.text, about.project), about.limits
    takes = plain.slots if limits is None else {n: min(slots, limits.get(n, 0)) for n, slots in plain.slots.items()}
    held = attempts.held(about.held)
    # One copy with all that differs: a pass makes a thousand of them.
    return replace(
        plain,
        present=limits is not None and about.online,
        takes=takes,
        cordoned=about.cordoned,
        pulls=about.pulls,
        closed=closed(about.decided),
        kept_for=about.kept_for,
        cached=plain.cached | about.warm if about.warm else plain.cached,
        **_loaded(plain, about.load),
        **_taken(plain, takes, held, known({each.requirement_key for each in held}) if held else {}),
    )


@lru_cache(maxsize=_MAX_KNOWN)
def _described(worker_id: str, text: str, project: str | None) -> WorkerState:
    """Return a worker as it describes itself, with nothing of it in use."""
    has = Capabilities.model_validate_json(text)  # not `capabilities`: nobody needs it again, and there are thousands
    slots = {str(name): slots for name, slots in has.slots.items()}
    plain = WorkerState(
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
        environments=None if has.environments is None else frozenset(has.environments),
        features={offer.kind: offer.features for offer in has.executors if offer.features is not None},
        allow_code=has.allow_code,
        cached=frozenset((*has.cached_models, *has.cached_datasets)),
        cost_per_hour=has.cost_per_hour,
        project=project,
        host=has.hostname,
        release=release_of(has.version, has.torch_version),
    )
    return replace(plain, alike=_number(plain))


def _number(plain: WorkerState) -> int:
    """Return a number that workers share which lack and have the same for good."""
    lasting = (
        tuple(sorted(plain.executors.items())), tuple(sorted(plain.slots.items())), plain.cpu, plain.memory_bytes,
        tuple((gpu.name, gpu.memory_bytes) for gpu in plain.gpus), plain.tags, plain.secrets,
        plain.environments, plain.allow_code, plain.project, orjson.dumps(plain.features, option=orjson.OPT_SORT_KEYS),
    )  # fmt: skip
    if len(_alike) > _MAX_KNOWN:
        _alike.clear()
    return _alike.setdefault(lasting, next(_numbers))


def _loaded(plain: WorkerState, load: Load | None) -> dict[str, Any]:
    """Return what of a worker differs by its load."""
    if load is None:
        return {}
    now = {gpu.uuid: gpu for gpu in load.gpus}
    gpus = tuple(
        replace(gpu, free_bytes=seen.memory_free_bytes, used_by=seen.in_use_by) if (seen := now.get(gpu.uuid)) else gpu
        for gpu in plain.gpus
    )
    return {"gpus": gpus, "memory_free_bytes": load.memory_free_bytes, "disk_free_bytes": load.disk_free_bytes}


def _taken(
    plain: WorkerState, takes: Mapping[str, int], held: Sequence[Held], known: Mapping[str, Requirement]
) -> dict[str, Any]:
    """Return what of a worker its open attempts use, and what they leave free."""
    free, cpu, memory = dict(takes), 0, 0
    places = {gpu.uuid: place for place, gpu in enumerate(plain.gpus)}
    taken: set[int] = set()
    for each in held:
        free[each.slot_class] = free.get(each.slot_class, 0) - 1
        if each.slot_class == "job":
            cpu += known[each.requirement_key].cpu
            memory += known[each.requirement_key].memory_bytes
        if each.gpus:
            taken |= {places[uuid] for uuid in each.gpus.split(",") if uuid in places}
    for each in held:
        if plain.gpus and not each.gpus:
            need = known[each.requirement_key]
            # Whoever runs it has chosen by itself: it is taken to be the smallest that suit.
            likely = smallest_first((place for place in suited(need, plain) if place not in taken), plain)
            taken |= set(likely[: need.gpu_count])
    return {"free": free, "cpu_taken": cpu, "memory_taken": memory, "taken": frozenset(taken)}
