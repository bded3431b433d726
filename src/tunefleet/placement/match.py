"""Whether one worker can run what one task needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tunefleet.placement.model import Device, Requirement, WorkerState

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Reject:
    """The worker cannot run the task.

    Args:
        reason: What it lacks, as a clause: "has 8 GiB memory, 32 GiB are needed".
        lasting: Whether waiting does not help: only another worker, or this one changed, could run the task.
    """

    reason: str
    lasting: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """The worker can run the task now.

    Args:
        waste: What would lie idle: sorts workers, the least first.
    """

    waste: tuple[float, ...]


def match(requirement: Requirement, worker: WorkerState) -> Reject | Fit:
    """Decide whether a worker can run a task now, later or never."""
    lacking = _lacks(requirement, worker)
    if lacking is not None:
        return Reject(lacking, lasting=True)
    if worker.pulls:
        return Reject("takes tasks by itself, when it polls", lasting=False)
    if not worker.present:
        return Reject("does not answer", lasting=False)
    if requirement.kind in worker.cordoned:
        return Reject(f"was offered {requirement.kind} tasks in vain and gets none for a while", lasting=False)
    if worker.free.get(requirement.slot_class, 0) <= 0:
        return Reject("is busy", lasting=False)
    if requirement.gpu_count > len(_suited(requirement, worker)) - worker.gpus_taken:
        return Reject("has no free GPU", lasting=False)
    return Fit(_waste(requirement, worker))


def _lacks(need: Requirement, worker: WorkerState) -> str | None:
    if need.kind not in worker.executors:
        return f"cannot run {need.kind} tasks"
    if worker.executors[need.kind] is not None:
        return f"cannot run {need.kind} tasks: {worker.executors[need.kind]}"
    if worker.slots.get(need.slot_class, 0) <= 0:
        return f"has no slot for {need.slot_class} tasks"
    if need.cpu > worker.cpu:
        return f"has {worker.cpu} cores, {need.cpu} are needed"
    if need.memory_bytes > worker.memory_bytes:
        return f"has {size(worker.memory_bytes)} memory, {size(need.memory_bytes)} are needed"
    missing = sorted(set(need.tags) - worker.tags)
    if missing:
        return f"lacks the tag {', '.join(missing)}"
    if need.code and not worker.allow_code:
        return "does not run code that a task brings (--allow-code)"
    return _lacks_gpus(need, worker)


def _lacks_gpus(need: Requirement, worker: WorkerState) -> str | None:
    if need.gpu_count <= len(_suited(need, worker)):
        return None
    if len(worker.gpus) < need.gpu_count:
        return f"has {len(worker.gpus)} GPUs, {need.gpu_count} are needed"
    wanted = " ".join(
        part
        for part in (need.gpu_type or "", f"with {size(need.gpu_memory_bytes)}" if need.gpu_memory_bytes else "")
        if part
    )
    return f"has {', '.join(sorted({gpu.name for gpu in worker.gpus}))}, {need.gpu_count} × {wanted} is needed"


def _suited(need: Requirement, worker: WorkerState) -> list[Device]:
    # Type and memory are asked of the same device: an A100 and a large other card are not "an A100 with 80 GiB".
    wanted = (need.gpu_type or "").lower()
    return [gpu for gpu in worker.gpus if wanted in gpu.name.lower() and gpu.memory_bytes >= need.gpu_memory_bytes]


def _waste(need: Requirement, worker: WorkerState) -> tuple[float, ...]:
    idle_gpus = len(worker.gpus) - worker.gpus_taken - need.gpu_count
    # A task that names no GPU still uses one where there is one: such a worker is what it wants, then the smallest.
    wants_gpu = need.gpu_count == 0 and need.slot_class == "job" and idle_gpus > 0
    vram = sum(gpu.memory_bytes for gpu in worker.gpus)
    cold = need.model is not None and need.model not in worker.models
    return (float(not wants_gpu), float(cold), float(idle_gpus), float(vram), -float(worker.free[need.slot_class]))


def size(size_bytes: int) -> str:
    """Write a number of bytes for people."""
    value = float(size_bytes)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} {_UNITS[-1]}"
