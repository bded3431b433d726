"""Match one task's requirement against one worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tunefleet.placement import devices
from tunefleet.placement.model import Requirement, WorkerState

# The operating system uses part of the memory: a task that requests nearly all of it fits with 75 % free.
_SPARE: Final = 0.75
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

_Short = Literal["slots", "cores", "memory", "disk", "gpus"]
# A worker with a tag of this prefix takes only tasks that request the tag.
_ONLY: Final = "only:"
_MAX_REQUIREMENTS: Final = 2_000
_MAX_GROUPS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Reject:
    """The worker cannot run the task.

    Args:
        reason: Everything that is missing, as a clause: "has 8 GiB memory, 32 GiB are needed, and lacks the tag lab".
        permanent: Whether the worker can never run the task, not only at the moment.
    """

    reason: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """The worker can run the task now."""


_FIT: Final = Fit()


def match(requirement: Requirement, worker: WorkerState) -> Reject | Fit:
    """Return whether a worker can run a task now, later or never."""
    if lacks(requirement, worker) is not None:
        return Reject(", and ".join(_all_mismatches(requirement, worker)), permanent=True)
    short = _short(requirement, worker)
    hindrance = _unavailable(requirement, worker) or (short and _describe_shortage(short, requirement, worker))
    return Reject(hindrance, permanent=False) if hindrance else _FIT


def fits(need: Requirement, worker: WorkerState) -> bool:
    """Whether an able worker can run the task now; faster than `match`, since it builds no message."""
    return _unavailable(need, worker) is None and _short(need, worker) is None


def accepts_tasks(worker: WorkerState) -> bool:
    """Whether a worker may get tasks now."""
    return worker.present and not worker.pulls and worker.closed is None


def missing(need: Requirement, worker: WorkerState) -> tuple[int, int, int] | None:
    """Return how much must still become free on an able worker.

    Returns:
        GPUs, bytes of memory and cores; None if the task would not fit even after our own tasks have ended.
    """
    takes = worker.slots if worker.takes is None else worker.takes
    if takes.get(need.slot_class, 0) <= 0 or _unavailable(need, worker) is not None:
        return None
    if not worker.taken and takes == worker.free:
        if _short(need, worker) is not None:
            return None  # none of our tasks runs there, so nothing will be freed
    elif worker.disk_free_bytes is not None and need.disk_bytes > worker.disk_free_bytes:
        return None
    gpus = devices.missing(need, worker) if need.gpu_count else 0
    if gpus is None:
        return None
    memory = need.memory_bytes - memory_free(worker) if need.memory_bytes else 0
    cores = need.cpu - worker.cpu + worker.cpu_taken if need.cpu else 0
    return gpus, max(0, memory), max(0, cores)


# Caches: requirements repeat over tasks and hardware repeats over workers, so a cycle compares each pair once.
_mismatches: dict[Requirement, dict[int, str | None]] = {}


def only(task_id: str) -> str:
    """Return the tag that binds a task and the workers started for it."""
    return f"{_ONLY}{task_id}"


def able(need: Requirement, workers: Iterable[WorkerState]) -> list[WorkerState]:
    """Return the workers that could run the task when free, in their order."""
    known = _cache_of(need)
    return [worker for worker in workers if _cached_mismatch(known, need, worker) is None]


def is_able(need: Requirement, workers: Iterable[WorkerState]) -> bool:
    """Whether any worker could run the task when free; stops at the first."""
    known = _cache_of(need)
    return any(_cached_mismatch(known, need, worker) is None for worker in workers)


def _cached_mismatch(known: dict[int, str | None], need: Requirement, worker: WorkerState) -> str | None:
    """Return the result of `lacks`, from the cache of equal workers where possible."""
    # A worker's own id counts as its tag, so the result for a task that names it is not that of the group.
    hardware_group = worker.hardware_group if worker.id not in need.tags else None
    mismatch = known.get(hardware_group, "") if hardware_group is not None else ""
    return lacks(need, worker) if mismatch == "" else mismatch


def lacks(need: Requirement, worker: WorkerState) -> str | None:
    """Return the first permanent mismatch as a clause; None if there is none. `match` returns all of them."""
    found = next(_all_mismatches(need, worker), None)
    if worker.hardware_group is not None and worker.id not in need.tags:
        _cache_of(need)[worker.hardware_group] = found
    return found


def _cache_of(need: Requirement) -> dict[int, str | None]:
    """Return the cached mismatches of a requirement, by the id of the group of equal workers."""
    known = _mismatches.get(need)
    if known is None or len(known) > _MAX_GROUPS:
        if len(_mismatches) > _MAX_REQUIREMENTS:
            _mismatches.clear()
        known = _mismatches[need] = {}
    return known


def _all_mismatches(need: Requirement, worker: WorkerState) -> Iterator[str]:
    """Yield each permanent mismatch as a clause; lazy, since most callers need only the first."""
    if worker.project is not None and need.project is not None and worker.project != need.project:
        yield f"serves project {worker.project} only"
    if need.kind not in worker.executors:
        yield f"cannot run {need.kind} tasks"
    elif (reason := worker.executors[need.kind]) is not None:
        yield f"cannot run {need.kind} tasks: {reason.removesuffix('.')}"
    elif worker.slots.get(need.slot_class, 0) <= 0:
        yield f"has no slot for {need.slot_class} tasks"
    if need.cpu > worker.cpu:
        yield f"has {worker.cpu} cores, {need.cpu} are needed"
    if need.memory_bytes > worker.memory_bytes:
        yield f"has {size(worker.memory_bytes)} memory, {size(need.memory_bytes)} are needed"
    yield from _name_mismatches(need, worker)
    gpus = _gpu_mismatch(need, worker)
    if gpus is not None:
        yield gpus


def _name_mismatches(need: Requirement, worker: WorkerState) -> Iterator[str]:
    missing = [name for name in need.tags if name not in worker.tags and name != worker.id]
    if missing:
        yield f"lacks the tag {', '.join(missing)}"
    exclusive = [name for name in worker.tags if name.startswith(_ONLY) and name not in need.tags]
    if exclusive:
        yield f"accepts only tasks with the tag {exclusive[0]}"
    missing = [name for name in need.secrets if not {name, f"{name}@{need.project}"} & worker.secrets]
    elsewhere = [name for name in missing if any(each.startswith(f"{name}@") for each in worker.secrets)]
    if elsewhere:
        yield f"keeps the secret {', '.join(elsewhere)} for other projects"
    if missing != elsewhere:
        yield f"lacks the secret {', '.join(name for name in missing if name not in elsewhere)}"
    ready = worker.environments
    missing = [] if ready is None else [name for name in need.environments if name not in ready]
    if missing:
        yield f"lacks the environment {', '.join(missing)} (create it there with `tunefleet env create`)"
    reported = worker.features.get(need.kind)
    if reported is not None:
        for name in need.features:
            why = reported.get(name, "")
            if why is not None:
                yield f"lacks {name}" + (f": {why.rstrip('.')}" if why else "")
    if need.code and not worker.allow_code:
        yield "does not allow custom code (--allow-code, TUNEFLEET_ALLOW_CODE=true)"


def _gpu_mismatch(need: Requirement, worker: WorkerState) -> str | None:
    if need.gpu_count == 0 or (need.gpu_optional and not worker.gpus):
        return None
    fitting, cause = devices.suited(need, worker), need.gpu_cause
    if need.gpu_count <= len(fitting) and need.gpu_first in (None, *fitting):
        return None
    if len(worker.gpus) < need.gpu_count:
        return f"has {len(worker.gpus)} GPUs, {need.gpu_count} are needed{f' for {cause}' if cause else ''}"
    wanted = " ".join(
        part
        for part in (need.gpu_type or "", f"with {size(need.gpu_memory_bytes)}" if need.gpu_memory_bytes else "")
        if part
    )
    if need.gpu_places or need.gpu_first is not None:
        wanted = f"{wanted} number {', '.join(map(str, need.gpu_places or (need.gpu_first,)))}".strip()
    return f"has {', '.join(sorted({gpu.name for gpu in worker.gpus}))}, {need.gpu_count} × {wanted} is needed"


def _unavailable(need: Requirement, worker: WorkerState) -> str | None:
    if worker.pulls:
        return "pulls the tasks of its key's owner when it polls"
    if not worker.present:
        return "does not respond"
    if worker.closed is not None:
        return worker.closed
    if need.kind in worker.cordoned:
        return f"recently did not accept {need.kind} tasks and gets none for a while"
    return None


def _short(need: Requirement, worker: WorkerState) -> _Short | None:
    """Return which resource is short now; None if the task fits. Builds no message: most are never read."""
    if worker.free.get(need.slot_class, 0) <= 0:
        return "slots"
    if need.cpu and need.cpu > worker.cpu - worker.cpu_taken:
        return "cores"
    if need.memory_bytes and _short_of_memory(need, worker):
        return "memory"
    if worker.disk_free_bytes is not None and need.disk_bytes > worker.disk_free_bytes:
        return "disk"
    return "gpus" if need.gpu_count and not devices.has_enough(need, worker) else None


def _describe_shortage(short: _Short, need: Requirement, worker: WorkerState) -> str:
    if short == "slots":
        return "is busy"
    if short == "cores":
        return f"has {max(0, worker.cpu - worker.cpu_taken)} of its {worker.cpu} cores free, {need.cpu} are needed"
    if short == "memory":
        return f"has {size(memory_free(worker))} memory free, {size(need.memory_bytes)} are needed"
    if short == "disk":
        return f"has {size(worker.disk_free_bytes or 0)} disk free, {size(need.disk_bytes)} are needed"
    return devices.describe_shortage(need, worker)


def _short_of_memory(need: Requirement, worker: WorkerState) -> bool:
    if need.memory_bytes > worker.memory_bytes - worker.memory_taken:
        return True
    free = worker.memory_free_bytes
    return free is not None and free < min(need.memory_bytes, _SPARE * worker.memory_bytes)


def memory_free(worker: WorkerState) -> int:
    """Return the memory for another task: neither requested by a task nor used by other processes."""
    left = max(0, worker.memory_bytes - worker.memory_taken)
    return left if worker.memory_free_bytes is None else min(left, worker.memory_free_bytes)


def size(size_bytes: int) -> str:
    """Format a number of bytes with a binary unit."""
    value = float(size_bytes)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} {_UNITS[-1]}"
