"""From a task's spec to what it needs of a worker."""

from __future__ import annotations

from tunefleet.placement import LIGHT_KINDS, Requirement
from tunefleet.spec import TaskSpec


def of(spec: TaskSpec) -> Requirement:
    """Return what a task needs of a worker."""
    hardware = spec.resources.hardware
    gpu = hardware.gpu
    counted = gpu is not None and gpu.count > 0
    return Requirement(
        kind=spec.task_type,
        slot_class="light" if spec.task_type in LIGHT_KINDS else "job",
        cpu=hardware.cpu or 0,
        memory_bytes=hardware.memory_bytes or 0,
        gpu_count=gpu.count if gpu is not None else 0,
        gpu_type=gpu.type if gpu is not None and counted and gpu.type != "any" else None,
        gpu_memory_bytes=(gpu.memory_bytes or 0) if gpu is not None and counted else 0,
        tags=tuple(sorted(set(spec.resources.tags))),
        code=spec.requires_code,
        model=None if spec.task_type == "echo" else spec.model.source.identifier,
    )
