"""From a task's spec to what it needs of a worker."""

from __future__ import annotations

from tunefleet.placement import LIGHT_KINDS, Requirement
from tunefleet.spec import TaskSpec, dump_task_spec
from tunefleet.spec.references import secrets_of


def of(spec: TaskSpec) -> Requirement:
    """Return what a task needs of a worker."""
    hardware = spec.resources.hardware
    gpu = hardware.gpu
    light = spec.task_type in LIGHT_KINDS
    counted = gpu is not None and gpu.count > 0
    all_of_them = _takes_all(spec)
    return Requirement(
        kind=spec.task_type,
        slot_class="light" if light else "job",
        cpu=hardware.cpu or 0,
        memory_bytes=hardware.memory_bytes or 0,
        disk_bytes=getattr(hardware, "disk_bytes", None) or 0,
        # A task that says nothing of GPUs gets one where there is one.
        gpu_count=gpu.count if gpu is not None else int(not light),
        gpu_optional=gpu is None and not light,
        gpu_all=all_of_them,
        gpu_type=gpu.type if gpu is not None and counted and gpu.type != "any" else None,
        gpu_memory_bytes=(gpu.memory_bytes or 0) if gpu is not None and counted else 0,
        tags=tuple(sorted(set(spec.resources.tags))),
        secrets=secrets_of(dump_task_spec(spec)),
        code=spec.requires_code,
        model=_model(spec),
        datasets=_datasets(spec),
    )


def _takes_all(spec: TaskSpec) -> bool:
    """Whether a training takes every GPU of its worker: it may have several, and does not say how many."""
    gpu = spec.resources.hardware.gpu
    unsaid = gpu is None or "count" not in gpu.model_fields_set
    return unsaid and getattr(getattr(spec, "training", None), "allow_multi_gpu", None) is True


def _model(spec: TaskSpec) -> str | None:
    source = getattr(getattr(spec, "model", None), "source", None)
    return getattr(source, "identifier", None)


def _datasets(spec: TaskSpec) -> tuple[str, ...]:
    data = getattr(spec, "data", None)
    named = [getattr(data, "dataset_name", None)]
    if getattr(data, "type", None) == "dataset":
        named.append(getattr(data, "url", None))
    return tuple(sorted({name for name in named if name}))
