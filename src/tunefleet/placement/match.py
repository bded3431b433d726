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


@dataclass(frozen=True, slots=True)
class Reject:
    """The worker cannot run the task.

    Args:
        reason: Everything that is missing, as a clause: "has 8 GiB memory, 32 GiB are needed, and lacks the tag lab".
        lasting: Whether the worker can never run the task, not only at the moment.
    """

    reason: str
    lasting: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """The worker can run the task now."""


_FIT: Final = Fit()


def match(requirement: Requirement, worker: WorkerState) -> Reject | Fit:
    """Return whether a worker can run a task now, later or never."""
    if lacks(requirement, worker) is not None:
        return Reject(", and ".join(_all_lacking(requirement, worker)), lasting=True)
    short = _short(requirement, worker)
    hindrance = _away(requirement, worker) or (short and _told(short, requirement, worker))
    return Reject(hindrance, lasting=False) if hindrance else _FIT


def fits(need: Requirement, worker: WorkerState) -> bool:
    """Whether an able worker can run the task now; faster than `match`, since it builds no message."""
    return _away(need, worker) is None and _short(need, worker) is None


def may_get(worker: WorkerState) -> bool:
    """Whether a worker may get tasks now."""
    return worker.present and not worker.pulls and worker.closed is None


def missing(need: Requirement, worker: WorkerState) -> tuple[int, int, int] | None:
    """Return how much must still become free on an able worker.

    Returns:
        GPUs, bytes of memory and cores; None if the task would not fit even after our own tasks have ended.
    """
    takes = worker.slots if worker.takes is None else worker.takes
    if takes.get(need.slot_class, 0) <= 0 or _away(need, worker) is not None:
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


# A worker with a tag of this prefix takes only tasks that request the tag.
_ONLY: Final = "only:"
_MAX_NEEDS: Final = 2_000
_MAX_ALIKE: Final = 20_000
# Caches: requirements repeat over tasks and hardware repeats over workers, so a cycle compares each pair once.
_lacking: dict[Requirement, dict[int, str | None]] = {}


def only(task_id: str) -> str:
    """Return the tag that binds a task and the workers started for it."""
    return f"{_ONLY}{task_id}"


def able(need: Requirement, workers: Iterable[WorkerState]) -> list[WorkerState]:
    """Return the workers that could run the task when free, in their order."""
    known = _known(need)
    return [worker for worker in workers if _known_lacking(known, need, worker) is None]


def is_able(need: Requirement, workers: Iterable[WorkerState]) -> bool:
    """Whether any worker could run the task when free; stops at the first."""
    known = _known(need)
    return any(_known_lacking(known, need, worker) is None for worker in workers)


def _known_lacking(known: dict[int, str | None], need: Requirement, worker: WorkerState) -> str | None:
    """Return the result of `lacks`, from the cache of equal workers where possible."""
    # A worker's own id counts as its tag, so the result for a task that names it is not that of the group.
    alike = worker.alike if worker.id not in need.tags else None
    lacking = known.get(alike, "") if alike is not None else ""
    return lacks(need, worker) if lacking == "" else lacking


def lacks(need: Requirement, worker: WorkerState) -> str | None:
    """Return the first permanent mismatch as a clause; None if there is none. `match` returns all of them."""
    found = next(_all_lacking(need, worker), None)
    if worker.alike is not None and worker.id not in need.tags:
        _known(need)[worker.alike] = found
    return found


def _known(need: Requirement) -> dict[int, str | None]:
    """Return the cached mismatches of a requirement, by the id of the group of equal workers."""
    known = _lacking.get(need)
    if known is None or len(known) > _MAX_ALIKE:
        if len(_lacking) > _MAX_NEEDS:
            _lacking.clear()
        known = _lacking[need] = {}
    return known


def _all_lacking(need: Requirement, worker: WorkerState) -> Iterator[str]:
    """Yield each permanent mismatch as a clause; lazy, since most callers need only the first."""
    if worker.project is not None and need.project is not None and worker.project != need.project:
        yield f"serves the project {worker.project} only"
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
    yield from _lacking_names(need, worker)
    gpus = _lacks_gpus(need, worker)
    if gpus is not None:
        yield gpus


def _lacking_names(need: Requirement, worker: WorkerState) -> Iterator[str]:
    missing = [name for name in need.tags if name not in worker.tags and name != worker.id]
    if missing:
        yield f"lacks the tag {', '.join(missing)}"
    foreign = [name for name in worker.tags if name.startswith(_ONLY) and name not in need.tags]
    if foreign:
        yield f"takes only tasks with the tag {foreign[0]}"
    missing = [name for name in need.secrets if not {name, f"{name}@{need.project}"} & worker.secrets]
    kept = [name for name in missing if any(each.startswith(f"{name}@") for each in worker.secrets)]
    if kept:
        yield f"keeps the secret {', '.join(kept)} for other projects"
    if missing != kept:
        yield f"lacks the secret {', '.join(name for name in missing if name not in kept)}"
    ready = worker.environments
    missing = [] if ready is None else [name for name in need.environments if name not in ready]
    if missing:
        yield f"lacks the environment {', '.join(missing)} (create it there with `tunefleet env create`)"
    there = worker.features.get(need.kind)
    if there is not None:
        for name in need.features:
            why = there.get(name, "")
            if why is not None:
                yield f"lacks {name}" + (f": {why.rstrip('.')}" if why else "")
    if need.code and not worker.allow_code:
        yield "does not allow custom code (--allow-code, TUNEFLEET_ALLOW_CODE=true)"


def _lacks_gpus(need: Requirement, worker: WorkerState) -> str | None:
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


def _away(need: Requirement, worker: WorkerState) -> str | None:
    if worker.pulls:
        return "pulls the tasks of its key's owner when it polls"
    if not worker.present:
        return "does not answer"
    if worker.closed is not None:
        return worker.closed
    if need.kind in worker.cordoned:
        return f"did not accept {need.kind} tasks and gets none for a while"
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
    return "gpus" if need.gpu_count and not devices.enough(need, worker) else None


def _told(short: _Short, need: Requirement, worker: WorkerState) -> str:
    if short == "slots":
        return "is busy"
    if short == "cores":
        return f"has {max(0, worker.cpu - worker.cpu_taken)} of its {worker.cpu} cores free, {need.cpu} are needed"
    if short == "memory":
        return f"has {size(memory_free(worker))} memory free, {size(need.memory_bytes)} are needed"
    if short == "disk":
        return f"has {size(worker.disk_free_bytes or 0)} disk free, {size(need.disk_bytes)} are needed"
    return devices.unfree(need, worker)


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
