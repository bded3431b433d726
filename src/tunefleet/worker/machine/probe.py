"""Hardware and software of this machine: CPU, memory, disk, GPUs. Imports no training library."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from tunefleet.runtime import envs
from tunefleet.runtime.environment import core_count
from tunefleet.runtime.gpu.driver import read_driver
from tunefleet.runtime.gpu.info import read_gpus, visible
from tunefleet.runtime.gpu_allocation import described
from tunefleet.schemas.worker_link import Capabilities, ExecutorOffer, GpuLoad, Load
from tunefleet.settings import WorkerSettings
from tunefleet.transport.base import address_towards
from tunefleet.worker.machine import hub


def capabilities(
    settings: WorkerSettings,
    executors: tuple[ExecutorOffer, ...],
    *,
    results_dir: Path,
    in_use: Mapping[str, str] | None = None,
    secrets: tuple[str, ...] = (),
) -> Capabilities:
    """Describe this worker."""
    models, datasets = hub.cached(settings.hub_dir)
    memory, driver = psutil.virtual_memory(), read_driver()
    return Capabilities(
        version=version("tunefleet"),
        hostname=socket.gethostname(),
        executors=executors,
        slots={"job": settings.job_slots, "light": settings.light_slots},
        cpu_count=core_count(),
        memory_total_bytes=memory.total,
        memory_free_bytes=memory.available,
        disk_free_bytes=shutil.disk_usage(results_dir).free,
        gpus=described(visible(read_gpus(), settings.visible_gpus), in_use),
        tags=settings.tags,
        cached_models=models,
        cached_datasets=datasets,
        cache_read_at=time.time(),
        secrets=secrets,
        environments=envs.ready(),
        allow_code=settings.allow_code,
        platform=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        bandwidth_bytes_per_s=settings.bandwidth_bytes_per_s,
        cost_per_hour=settings.cost_per_hour,
        link="http" if settings.redis_url is None else "redis",
        cpu_model=cpu_model(),
        driver_version=driver.version,
        cuda_version=driver.cuda,
        address=settings.gang_address or address_towards(settings.server_url),
        torch_version=torch_version(),
        started_at=psutil.Process().create_time(),
        pid=os.getpid(),
    )


def load(
    settings: WorkerSettings,
    *,
    results_dir: Path,
    in_use: Mapping[str, str] | None = None,
    meter: EnergyMeter | None = None,
) -> Load:
    """Return the current load of this machine."""
    one, five, fifteen = psutil.getloadavg()
    gpus = tuple(
        GpuLoad(
            uuid=gpu.uuid,
            memory_free_bytes=gpu.memory_free_bytes,
            in_use_by=(in_use or {}).get(gpu.uuid),
            utilisation_percent=gpu.utilisation_percent,
            power_w=gpu.power_w,
            temperature_c=gpu.temperature_c,
        )
        for gpu in visible(read_gpus(), settings.visible_gpus)
    )
    return Load(
        memory_free_bytes=psutil.virtual_memory().available,
        disk_free_bytes=shutil.disk_usage(results_dir).free,
        load_1m=one,
        load_5m=five,
        load_15m=fifteen,
        uptime_s=max(0.0, time.time() - psutil.Process().create_time()),
        gpus=gpus,
        gpu_energy_j=meter.read(gpus, now=time.monotonic()) if meter is not None else None,
    )


def torch_version() -> str | None:
    """Return the torch version without importing torch; None if it is not installed."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Return the product name of the CPU, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


class EnergyMeter:
    """Integrates GPU power over time, with the mean power of two readings for the time between them."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._joules: float | None = None

    def read(self, gpus: Iterable[GpuLoad], *, now: float) -> float | None:
        """Take a reading.

        Returns:
            Joules since the first reading; None until a GPU has reported its power.
        """
        power = {gpu.uuid: gpu.power_w for gpu in gpus if gpu.power_w is not None}
        if power and self._joules is None:
            self._joules = 0.0
        # A gap in the readings of a GPU adds nothing, rather than an estimate.
        for uuid in power.keys() & self._last.keys():
            before_w, before = self._last[uuid]
            self._joules = (self._joules or 0.0) + (before_w + power[uuid]) / 2 * (now - before)
        self._last = {uuid: (power_w, now) for uuid, power_w in power.items()}
        return self._joules
