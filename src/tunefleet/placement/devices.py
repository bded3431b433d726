"""GPU selection on one worker: devices with the requested type and memory that are free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tunefleet.placement.model import Device, Requirement, WorkerState

# The driver reserves some memory, so a task that requests all of a device's memory gets it with 90 % free.
_SPARE: Final = 0.9

_MAX_KNOWN: Final = 100_000
# Cache by hardware group and requirement: a fleet has thousands of workers, but few kinds of them.
_suited: dict[tuple[int, Requirement], tuple[int, ...]] = {}


def suited(need: Requirement, worker: WorkerState) -> tuple[int, ...]:
    """Return the indices of the devices with the requested type and memory, free or in use."""
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
    # Drivers write the same product as "RTX-4090" or "RTX 4090".
    return " ".join(name.lower().replace("-", " ").split())


def wanted_count(need: Requirement, fitting: Sequence[int], worker: WorkerState) -> int:
    """Return how many devices the task takes on this worker."""
    if need.gpu_optional and not worker.gpus:
        return 0
    return max(need.gpu_count, len(fitting)) if need.gpu_all else need.gpu_count


def usable(need: Requirement, gpu: Device) -> bool:
    """Whether no other process blocks a suitable device."""
    if gpu.used_by is not None:
        return False
    return gpu.free_bytes is None or gpu.free_bytes >= min(need.gpu_memory_bytes, _SPARE * gpu.memory_bytes)


def smallest_first(places: Iterable[int], worker: WorkerState) -> list[int]:
    """Return devices in allocation order: the smallest first, so that large ones stay free for tasks that need them."""
    return sorted(places, key=lambda place: (worker.gpus[place].memory_bytes, place))


def free(need: Requirement, fitting: Sequence[int], worker: WorkerState) -> list[int]:
    """Return the free devices among those that `suited` returned."""
    gpus, taken = worker.gpus, worker.taken
    return [place for place in fitting if place not in taken and usable(need, gpus[place])]


def choose(need: Requirement, worker: WorkerState) -> tuple[int, ...]:
    """Return the indices of the devices that the task takes on a worker that it fits."""
    fitting = suited(need, worker)
    ordered = sorted(smallest_first(free(need, fitting, worker), worker), key=lambda place: place != need.gpu_first)
    return tuple(ordered[: wanted_count(need, fitting, worker)])


def enough(need: Requirement, worker: WorkerState) -> bool:
    """Whether enough suitable devices are free, including `gpu_first` if it is set."""
    fitting = suited(need, worker)
    count = wanted_count(need, fitting, worker)
    found = free(need, fitting, worker)
    return len(found) >= count and (not count or need.gpu_first is None or need.gpu_first in found)


def missing(need: Requirement, worker: WorkerState) -> int | None:
    """Return how many more devices must become free; None if the end of our own tasks would not free enough."""
    fitting = suited(need, worker)
    count = wanted_count(need, fitting, worker)
    open_ = found = 0
    for place in fitting:
        gpu = worker.gpus[place]
        # A process outside the fleet may stay; memory that our own tasks use is freed when they end.
        if gpu.used_by is None:
            open_ += 1
            found += place not in worker.taken and usable(need, gpu)
    return None if open_ < count else max(0, count - found)


def unfree(need: Requirement, worker: WorkerState) -> str:
    """Return a clause that names why too few suitable devices of a worker are free."""
    fitting = suited(need, worker)
    count = wanted_count(need, fitting, worker)
    found = free(need, fitting, worker)
    ours = [place for place in fitting if place not in worker.taken]
    others = sorted({gpu.used_by for place in ours if (gpu := worker.gpus[place]).used_by is not None})
    full = [worker.gpus[place] for place in ours if place not in found and worker.gpus[place].used_by is None]
    causes = [f"one is in use by {process}" for process in others]
    causes += [f"{gpu.name} has {(gpu.free_bytes or 0) >> 20:,} MiB free" for gpu in full]
    shortage = "has no free GPU" if not found else f"has {len(found)} of {count} GPUs free"
    shortage = shortage if len(found) < count else f"has its GPU {need.gpu_first} not free"
    return shortage + (f" ({', '.join(causes[:3])})" if causes else "")
