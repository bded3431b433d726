"""What this machine is and has: processors, memory, disk, GPUs. Imports no training library."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import psutil

from tunefleet.jobs.gpuinfo import GpuFigures, read_gpus
from tunefleet.settings import WorkerSettings
from tunefleet.wire.link import Capabilities, ExecutorOffer, Gpu

D = TypeVar("D", Gpu, GpuFigures)


def capabilities(
    settings: WorkerSettings,
    executors: tuple[ExecutorOffer, ...],
    *,
    results_dir: Path,
    in_use: Mapping[str, str] | None = None,
) -> Capabilities:
    """Describe this worker.

    Args:
        settings: Slots and tags.
        executors: The kinds that it knows.
        results_dir: Whose disk counts.
        in_use: UUID → who else uses a GPU.
    """
    memory = psutil.virtual_memory()
    return Capabilities(
        version=version("tunefleet"),
        hostname=socket.gethostname(),
        executors=executors,
        slots={"job": settings.job_slots, "light": settings.light_slots},
        cpu_count=usable_cpus(),
        memory_total_bytes=memory.total,
        memory_free_bytes=memory.available,
        disk_free_bytes=shutil.disk_usage(results_dir).free,
        gpus=gpus(settings.visible_gpus, in_use),
        tags=settings.tags,
        allow_code=settings.allow_code,
        platform=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


def usable_cpus() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def gpus(visible: str | None, in_use: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """Return the GPUs that the driver names, limited to `CUDA_VISIBLE_DEVICES`; none without a driver.

    Args:
        visible: The value of `CUDA_VISIBLE_DEVICES`; `None` if it is not set.
        in_use: UUID → who else uses a device.
    """
    found = [
        Gpu(
            index=gpu.index,
            name=gpu.name,
            uuid=gpu.uuid,
            memory_total_bytes=gpu.memory_total_bytes or 0,
            memory_free_bytes=gpu.memory_free_bytes,
            in_use_by=(in_use or {}).get(gpu.uuid),
        )
        for gpu in read_gpus()
    ]
    return visible_gpus(found, visible)


def visible_gpus(found: Sequence[D], visible: str | None) -> tuple[D, ...]:
    """Apply `CUDA_VISIBLE_DEVICES`: indices or UUID prefixes, in its order, up to the first that does not exist.

    Args:
        found: All GPUs of the machine.
        visible: The variable's value; `None` if it is not set.
    """
    if visible is None:
        return tuple(found)
    chosen: list[D] = []
    for word in (part.strip() for part in visible.split(",")):
        match = [
            gpu for gpu in found if (str(gpu.index) == word if word.isdigit() else word and gpu.uuid.startswith(word))
        ]
        if len(match) != 1:
            break
        chosen += match
    return tuple(chosen)
