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
    if worker.hardware_group is None:
        return _find(need, worker)
    key = (worker.hardware_group, need)
    found = _suited.get(key)
    if found is None:
        if len(_suited) > _MAX_KNOWN:
            _suited.clear()
        found = _suited[key] = _find(need, worker)
    return found


def _find(need: Requirement, worker: WorkerState) -> tuple[int, ...]:
    wanted = _plain(need.gpu_type or "")
    return tuple(
        index
        for index, gpu in enumerate(worker.gpus)
        if gpu.memory_bytes >= need.gpu_memory_bytes
        and (need.gpu_type is None or (wanted and wanted in _plain(gpu.name)))
        and (not need.gpu_places or index in need.gpu_places)
    )


def _plain(name: str) -> str:
    # Drivers write the same product as "RTX-4090" or "RTX 4090".
    return " ".join(name.lower().replace("-", " ").split())


def wanted_count(need: Requirement, suitable: Sequence[int], worker: WorkerState) -> int:
    """Return how many devices the task takes on this worker."""
    if need.gpu_optional and not worker.gpus:
        return 0
    return max(need.gpu_count, len(suitable)) if need.gpu_all else need.gpu_count


def usable(need: Requirement, gpu: Device) -> bool:
    """Whether no other process blocks a suitable device."""
    if gpu.used_by is not None:
        return False
    return gpu.free_bytes is None or gpu.free_bytes >= min(need.gpu_memory_bytes, _SPARE * gpu.memory_bytes)


def smallest_first(indices: Iterable[int], worker: WorkerState) -> list[int]:
    """Return devices in allocation order: the smallest first, so that large ones stay free for tasks that need them."""
    return sorted(indices, key=lambda index: (worker.gpus[index].memory_bytes, index))


def free(need: Requirement, suitable: Sequence[int], worker: WorkerState) -> list[int]:
    """Return the free devices among those that `suited` returned."""
    gpus, taken = worker.gpus, worker.taken
    return [index for index in suitable if index not in taken and usable(need, gpus[index])]


def choose(need: Requirement, worker: WorkerState) -> tuple[int, ...]:
    """Return the indices of the devices that the task takes on a worker that it fits."""
    suitable = suited(need, worker)
    ordered = sorted(smallest_first(free(need, suitable, worker), worker), key=lambda index: index != need.gpu_first)
    return tuple(ordered[: wanted_count(need, suitable, worker)])


def has_enough(need: Requirement, worker: WorkerState) -> bool:
    """Whether enough suitable devices are free, including `gpu_first` if it is set."""
    suitable = suited(need, worker)
    count = wanted_count(need, suitable, worker)
    free_now = free(need, suitable, worker)
    return len(free_now) >= count and (not count or need.gpu_first is None or need.gpu_first in free_now)


def missing(need: Requirement, worker: WorkerState) -> int | None:
    """Return how many more devices must become free; None if the end of our own tasks would not free enough."""
    suitable = suited(need, worker)
    count = wanted_count(need, suitable, worker)
    usable_count = free_now = 0
    for index in suitable:
        gpu = worker.gpus[index]
        # A process outside the fleet may stay; memory that our own tasks use is freed when they end.
        if gpu.used_by is None:
            usable_count += 1
            free_now += index not in worker.taken and usable(need, gpu)
    return None if usable_count < count else max(0, count - free_now)


def describe_shortage(need: Requirement, worker: WorkerState) -> str:
    """Return a clause that names why too few suitable devices of a worker are free."""
    suitable = suited(need, worker)
    count = wanted_count(need, suitable, worker)
    free_now = free(need, suitable, worker)
    ours = [index for index in suitable if index not in worker.taken]
    others = sorted({gpu.used_by for index in ours if (gpu := worker.gpus[index]).used_by is not None})
    full = [worker.gpus[index] for index in ours if index not in free_now and worker.gpus[index].used_by is None]
    causes = [f"one is in use by {process}" for process in others]
    causes += [f"{gpu.name} has {(gpu.free_bytes or 0) >> 20:,} MiB free" for gpu in full]
    shortage = "has no free GPU" if not free_now else f"has {len(free_now)} of {count} GPUs free"
    shortage = shortage if len(free_now) < count else f"has GPU {need.gpu_first} in use"
    return shortage + (f" ({', '.join(causes[:3])})" if causes else "")
