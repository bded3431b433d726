"""GPUs and processes of a training task, and contradictions between the keys that set them."""

from __future__ import annotations

from typing import Any

from tunefleet.spec.options.devices import DevicesSpec
from tunefleet.spec.options.resources import ResourcesSpec
from tunefleet.spec.tasks.base_task import Devices

Faults = list[tuple[str, str, str | None]]
_LEAVE = "remove one of them"


def devices_of(resources: ResourcesSpec, training: DevicesSpec) -> Devices:
    """Return the GPUs of a training task: by count, else by index, else one, or all if allowed."""
    gpu, visible, primary = resources.hardware.gpu, training.visible_devices or (), training.primary_gpu
    # The default count of 1 does not restrict `visible_devices` or `allow_multi_gpu`.
    counted = gpu is not None and "count" in gpu.model_fields_set
    asked = _asked(resources, training)
    if gpu is not None and counted:
        count = gpu.count
    elif visible:
        count = 1 if training.allow_multi_gpu is False else len(visible)
    else:
        count = asked
    everything = not counted and not visible and asked == 1 and training.allow_multi_gpu is True
    # For a single GPU, `primary_gpu` selects the device.
    if count == 1 and not everything and primary is not None:
        visible = (primary,)
    return Devices(
        count=count,
        optional=gpu is None and not visible and asked == 1,
        everything=everything,
        indices=visible if count else (),
        primary=primary,
    )


def process_count(resources: ResourcesSpec, training: DevicesSpec, gpus: int) -> int:
    """Return the number of ranks: as requested, else one per GPU.

    Args:
        gpus: Number of GPUs of the task.
    """
    # One process holds all layers, on several GPUs.
    if training.parallelism == "device_map":
        return 1
    asked = _asked(resources, training)
    return asked if asked > 1 else max(1, gpus)


def _asked(resources: ResourcesSpec, training: DevicesSpec) -> int:
    return max(resources.processes, training.nproc_per_node or 1)


def process_faults(blocks: dict[str, Any]) -> Faults:
    """Find contradictions between `resources` and `training`; `blocks` as passed to `faults` of a task type."""
    resources: ResourcesSpec | None = blocks.get("resources")
    training: DevicesSpec | None = blocks.get("training")
    if resources is None or training is None:
        return []
    checks = (*_count_checks(resources, training), *_strategy_checks(resources, training, blocks))
    return [(at, message, hint) for failed, at, message, hint in checks if failed]


def _count_checks(resources: ResourcesSpec, training: DevicesSpec) -> tuple[tuple[bool, str, str, str | None], ...]:
    gpu, asked = resources.hardware.gpu, _asked(resources, training)
    gpus = gpu.count if gpu is not None and "count" in gpu.model_fields_set else None
    where = "training.nproc_per_node" if (training.nproc_per_node or 1) > 1 else "resources.processes"
    visible = training.visible_devices
    named = gpus if gpus is not None else None if visible is None else len(visible)
    return (
        (
            training.nproc_per_node is not None and resources.processes not in (1, training.nproc_per_node),
            "training.nproc_per_node",
            f"contradicts resources.processes: {resources.processes}",
            _LEAVE,
        ),
        (
            asked > 1 and named is None and training.allow_multi_gpu is not True,
            where,
            "needs the devices of its processes",
            f"add resources.hardware.gpu.count: {asked}, or 0 to train on CPUs",
        ),
        (
            named is not None and named > 0 and asked not in (1, named),
            where,
            f"must equal the number of GPUs, which is {named}",
            f"set resources.hardware.gpu.count: {asked}, or 0 to train on CPUs",
        ),
        (
            training.allow_multi_gpu is False and (gpus or 0) > 1,
            "training.allow_multi_gpu",
            f"contradicts resources.hardware.gpu.count: {gpus}",
            _LEAVE,
        ),
        (
            training.allow_multi_gpu is False and asked > 1 and gpus != 0,
            "training.allow_multi_gpu",
            f"contradicts {asked} processes",
            _LEAVE,
        ),
        (
            visible is not None and gpus is not None and gpus > len(visible),
            "training.visible_devices",
            f"lists {len(visible or ())} devices, but resources.hardware.gpu.count is {gpus}",
            "list as many devices",
        ),
        (
            gpus == 0 and (visible is not None or training.primary_gpu is not None),
            "training.visible_devices" if visible is not None else "training.primary_gpu",
            "contradicts resources.hardware.gpu.count: 0",
            _LEAVE,
        ),
    )


def _strategy_checks(
    resources: ResourcesSpec, training: DevicesSpec, blocks: dict[str, Any]
) -> tuple[tuple[bool, str, str, str | None], ...]:
    devices = devices_of(resources, training)
    count, asked = process_count(resources, training, devices.count), _asked(resources, training)
    strategy, streaming = training.strategy(count), getattr(blocks.get("data"), "streaming", False)
    # With `allow_multi_gpu` the number of GPUs is unknown until placement; assume several.
    shares = training.strategy(2 if devices.everything else count)
    where = "training.nproc_per_node" if (training.nproc_per_node or 1) > 1 else "resources.processes"
    quantized = _is_quantized(blocks)
    checkpoint = blocks.get("checkpoint")
    background = getattr(checkpoint, "asynchronous", False)
    return (
        (
            training.parallelism == "fsdp" and count == 1 and not devices.everything,
            "training.parallelism",
            "fsdp needs several processes, but there is one",
            "add resources.hardware.gpu.count, or remove it",
        ),
        (
            shares in {"fsdp", "deepspeed"} and quantized,
            "training.parallelism" if training.parallelism else "training.deepspeed",
            f"{shares} cannot shard quantized weights",
            "set parallelism: ddp, or remove the quantization",
        ),
        (
            strategy in {"deepspeed", "device_map"} and devices.count == 0,
            "training.parallelism" if training.parallelism else "training.deepspeed",
            f"{strategy} needs GPUs",
            "write a count above 0 in resources.hardware.gpu, or remove it",
        ),
        (
            training.parallelism == "device_map" and asked > 1,
            where,
            "contradicts parallelism: device_map, which runs in one process",
            _LEAVE,
        ),
        (
            streaming and (count > 1 or devices.everything),
            where if asked > 1 else "data.streaming",
            "streaming supports one reader only",
            "remove data.streaming, or train in one process",
        ),
        (
            background and (count > 1 or devices.everything),
            "checkpoint.asynchronous",
            "is only for single-process training",
            "remove it, or train on one device",
        ),
    )


def _is_quantized(blocks: dict[str, Any]) -> bool:
    loading = getattr(blocks.get("model"), "transformers", None)
    asked = [block for block in (blocks.get("quantization"), loading) if block is not None]
    return any(block.load_in_4bit or block.load_in_8bit for block in asked)
