"""Which devices of a worker a task would take: each has the type and the memory, and nobody uses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tunefleet.placement.model import Device, Requirement, WorkerState

# A task that asks for all of a device's memory gets it although the driver keeps a little for itself.
_SPARE: Final = 0.9


_MAX_KNOWN: Final = 100_000
_suited: dict[tuple[int, Requirement], tuple[int, ...]] = {}


def suited(need: Requirement, worker: WorkerState) -> tuple[int, ...]:
    """Return the places of the devices that have both the type and the memory, whoever uses them."""
    if worker.alike is None:
        return _find(need, worker)
    key = (worker.alike, need)
    found = _suited.get(key)
    if found is None:
        if len(_suited) > _MAX_KNOWN:
            _suited.clear()
        found = _suited[key] = _find(need, worker)
    return found


def _find(need: Requirement, worker: WorkerState) -> tuple[int, ...]:
    wanted = _plain(need.gpu_type or "")
    return tuple(
        place
        for place, gpu in enumerate(worker.gpus)
        if gpu.memory_bytes >= need.gpu_memory_bytes
        and (need.gpu_type is None or (wanted and wanted in _plain(gpu.name)))
        and (not need.gpu_places or place in need.gpu_places)
    )


def _plain(name: str) -> str:
    # One driver says "RTX-4090" where another says "RTX 4090".
    return " ".join(name.lower().replace("-", " ").split())


def wanted_count(need: Requirement, fitting: Sequence[int], worker: WorkerState) -> int:
    """Return how many devices a task takes on this worker."""
    if need.gpu_optional and not worker.gpus:
        return 0
    return max(need.gpu_count, len(fitting)) if need.gpu_all else need.gpu_count


def usable(need: Requirement, gpu: Device) -> bool:
    """Whether nobody else stands in the way on a device that suits."""
    if gpu.used_by is not None:
        return False
    return gpu.free_bytes is None or gpu.free_bytes >= min(need.gpu_memory_bytes, _SPARE * gpu.memory_bytes)


def smallest_first(places: Iterable[int], worker: WorkerState) -> list[int]:
    """Return devices in the order in which tasks take them: large ones are left for who needs them."""
    return sorted(places, key=lambda place: (worker.gpus[place].memory_bytes, place))


def free(need: Requirement, fitting: Sequence[int], worker: WorkerState) -> list[int]:
    """Return the devices that nobody uses, of those that `suited` returned."""
    gpus, taken = worker.gpus, worker.taken
    return [place for place in fitting if place not in taken and usable(need, gpus[place])]


def choose(need: Requirement, worker: WorkerState) -> tuple[int, ...]:
    """Return the places of the devices that a task takes on a worker that it fits."""
    fitting = suited(need, worker)
    ordered = sorted(smallest_first(free(need, fitting, worker), worker), key=lambda place: place != need.gpu_first)
    return tuple(ordered[: wanted_count(need, fitting, worker)])


def enough(need: Requirement, worker: WorkerState) -> bool:
    """Whether as many of the devices that suit are free as a task takes, with the one that must be among them."""
    fitting = suited(need, worker)
    count = wanted_count(need, fitting, worker)
    found = free(need, fitting, worker)
    return len(found) >= count and (not count or need.gpu_first is None or need.gpu_first in found)


def missing(need: Requirement, worker: WorkerState) -> int | None:
    """Return how many more must become free; null if there are too few even without what our own tasks use."""
    fitting = suited(need, worker)
    count = wanted_count(need, fitting, worker)
    open_ = found = 0
    for place in fitting:
        gpu = worker.gpus[place]
        # What others use on a device may stay; what our own tasks use of its memory comes back.
        if gpu.used_by is None:
            open_ += 1
            found += place not in worker.taken and usable(need, gpu)
    return None if open_ < count else max(0, count - found)


def unfree(need: Requirement, worker: WorkerState) -> str:
    """Say of a worker that has not enough of them why too few of the devices that suit are free, as a clause."""
    fitting = suited(need, worker)
    count = wanted_count(need, fitting, worker)
    found = free(need, fitting, worker)
    ours = [place for place in fitting if place not in worker.taken]
    others = sorted({gpu.used_by for place in ours if (gpu := worker.gpus[place]).used_by is not None})
    full = [worker.gpus[place] for place in ours if place not in found and worker.gpus[place].used_by is None]
    told = [f"one is in use by {who}" for who in others]
    told += [f"{gpu.name} has {(gpu.free_bytes or 0) >> 20:,} MiB free" for gpu in full]
    few = "has no free GPU" if not found else f"has {len(found)} of {count} GPUs free"
    few = few if len(found) < count else f"has its GPU {need.gpu_first} not free"
    return few + (f" ({', '.join(told[:3])})" if told else "")
