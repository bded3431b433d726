"""How many processes a training has, and which wishes for that contradict each other."""

from __future__ import annotations

from typing import Any

from tunefleet.spec.resources import ResourcesSpec
from tunefleet.spec.training import TrainingSpec

Faults = list[tuple[str, str, str | None]]


def process_count(resources: ResourcesSpec, training: TrainingSpec) -> int:
    """Return how many ranks a training has: what was asked for, else one for each of its GPUs."""
    gpu = resources.hardware.gpu
    return max(resources.processes, training.nproc_per_node or 1, gpu.count if gpu is not None else 1, 1)


def process_faults(blocks: dict[str, Any]) -> Faults:
    """Find faults between `resources` and `training`; `blocks` as `across` has them."""
    resources: ResourcesSpec | None = blocks.get("resources")
    training: TrainingSpec | None = blocks.get("training")
    if resources is None or training is None:
        return []
    count, gpu = process_count(resources, training), resources.hardware.gpu
    asked = max(resources.processes, training.nproc_per_node or 1)
    gpus = gpu.count if gpu is not None else None
    leave = "leave one of them out"
    where = "training.nproc_per_node" if (training.nproc_per_node or 1) > 1 else "resources.processes"
    data = blocks.get("data")
    checks: tuple[tuple[bool, str, str, str | None], ...] = (
        (
            training.nproc_per_node is not None and resources.processes not in (1, training.nproc_per_node),
            "training.nproc_per_node",
            f"contradicts resources.processes: {resources.processes}",
            leave,
        ),
        (
            count > 1 and gpus is None,
            where,
            "needs to know which devices its processes have",
            f"add resources.hardware.gpu.count: {count}, or 0 to train on CPUs",
        ),
        (
            gpus is not None and gpus > 0 and asked not in (1, gpus),
            where,
            f"must be as many as there are GPUs, which are {gpus}",
            f"write resources.hardware.gpu.count: {asked}, or 0 to train on CPUs",
        ),
        (
            training.allow_multi_gpu is False and (gpus or 0) > 1,
            "training.allow_multi_gpu",
            f"contradicts resources.hardware.gpu.count: {gpus}",
            leave,
        ),
        (
            training.distributed == "fsdp" and count == 1,
            "training.distributed",
            "fsdp shares a model out among processes, and there is one",
            "add resources.processes, or leave it out",
        ),
        (
            training.distributed == "fsdp" and _is_quantized(blocks),
            "training.distributed",
            "fsdp cannot share quantised weights out",
            "write ddp, or leave the quantisation out",
        ),
        (
            count > 1 and getattr(data, "streaming", False),
            where,
            "a stream has one reader",
            "leave data.streaming out, or train in one process",
        ),
    )
    return [(at, message, hint) for failed, at, message, hint in checks if failed]


def _is_quantized(blocks: dict[str, Any]) -> bool:
    loading = getattr(blocks.get("model"), "transformers", None)
    asked = [block for block in (blocks.get("quantization"), loading) if block is not None]
    return any(block.load_in_4bit or block.load_in_8bit for block in asked)
