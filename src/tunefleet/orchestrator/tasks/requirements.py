"""Derive a task's requirement from its spec."""

from __future__ import annotations

from tunefleet.placement import LIGHT_KINDS, Requirement
from tunefleet.spec import BaseTaskSpec, dump_task_spec
from tunefleet.spec.expressions.references import secrets_of
from tunefleet.spec.options.output import S3


def of(spec: BaseTaskSpec) -> Requirement:
    """Return the requirement of a spec."""
    hardware, wanted = spec.resources.hardware, spec.devices
    light = spec.task_type in LIGHT_KINDS
    # An inline task takes a GPU only if its spec requests one.
    count = 0 if light and hardware.gpu is None else wanted.count
    gpu = hardware.gpu if count else None
    return Requirement(
        kind=spec.task_type,
        slot_class="light" if light else "job",
        cpu=hardware.cpu or 0,
        memory_bytes=hardware.memory_bytes or 0,
        disk_bytes=hardware.disk_bytes or 0,
        gpu_count=count,
        gpu_optional=wanted.optional and count > 0,
        gpu_all=wanted.everything and count > 0,
        gpu_places=wanted.indices if count else (),
        gpu_first=wanted.primary if count else None,
        gpu_type=gpu.type if gpu is not None and gpu.type != "any" else None,
        gpu_memory_bytes=(gpu.memory_bytes or 0) if gpu is not None else 0,
        gpu_cause=wanted.cause if count else None,
        tags=tuple(sorted(set(spec.resources.tags))),
        secrets=secrets_of(dump_task_spec(spec)),
        environments=spec.environments,
        features=(*spec.features, *((S3,) if spec.output.destination.type == S3 else ())),
        code=spec.requires_code,
        model=spec.model_identifier,
        datasets=_datasets(spec),
        nodes=spec.resources.least_nodes,
        nodes_max=spec.resources.most_nodes,
    )


def _datasets(spec: BaseTaskSpec) -> tuple[str, ...]:
    data = getattr(spec, "data", None)
    named = [getattr(data, "dataset_name", None)]
    if getattr(data, "type", None) == "dataset":
        named.append(getattr(data, "url", None))
    return tuple(sorted({name for name in named if name}))
