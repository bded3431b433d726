"""What this machine is and has: processors, memory, disk, GPUs. Imports no training library."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import psutil

from tunefleet.jobs.devices import described
from tunefleet.jobs.gpuinfo import read_gpus, visible
from tunefleet.settings import WorkerSettings
from tunefleet.wire.link import Capabilities, ExecutorOffer


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
        gpus=described(visible(read_gpus(), settings.visible_gpus), in_use),
        tags=settings.tags,
        allow_code=settings.allow_code,
        platform=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


def usable_cpus() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1
