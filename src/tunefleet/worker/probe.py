"""What this machine is and has: processors, memory, disk, GPUs. Imports no training library."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import socket
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from tunefleet.settings import WorkerSettings
from tunefleet.wire.link import Capabilities, ExecutorOffer, Gpu

logger = logging.getLogger(__name__)


def capabilities(settings: WorkerSettings, executors: tuple[ExecutorOffer, ...], *, results_dir: Path) -> Capabilities:
    """Describe this worker.

    Args:
        settings: Slots and tags.
        executors: The kinds that it knows.
        results_dir: Whose disk counts.
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
        gpus=gpus(settings.visible_gpus),
        tags=settings.tags,
        allow_code=settings.allow_code,
        platform=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


def usable_cpus() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def gpus(visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that NVML sees, limited to `CUDA_VISIBLE_DEVICES`; none without a driver.

    Args:
        visible: The value of `CUDA_VISIBLE_DEVICES`; `None` if it is not set.
    """
    try:
        import pynvml  # noqa: PLC0415 -- optional: comes with tunefleet[train]
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.debug("No NVIDIA GPU: %s", error)
        return ()
    try:
        found = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        logger.warning("The GPUs of this machine cannot be read: %s", error)
        return ()
    finally:
        pynvml.nvmlShutdown()
    return visible_gpus(found, visible)


def visible_gpus(found: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Apply `CUDA_VISIBLE_DEVICES`: indices or UUID prefixes, in its order, up to the first that does not exist.

    Args:
        found: All GPUs of the machine.
        visible: The variable's value; `None` if it is not set.
    """
    if visible is None:
        return tuple(found)
    chosen: list[Gpu] = []
    for word in (part.strip() for part in visible.split(",")):
        match = [
            gpu for gpu in found if (str(gpu.index) == word if word.isdigit() else word and gpu.uuid.startswith(word))
        ]
        if len(match) != 1:
            break
        chosen += match
    return tuple(chosen)


def _gpu(nvml, index: int) -> Gpu:  # type: ignore[no-untyped-def]
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name, uuid = (_text(read(handle)) for read in (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetUUID))
    return Gpu(index=index, name=name, uuid=uuid, memory_total_bytes=memory.total, memory_free_bytes=memory.free)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
