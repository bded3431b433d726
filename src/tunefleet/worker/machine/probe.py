"""Hardware and software of this machine, its cached models, and periodic reports of its load."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil

from tunefleet.runtime import envs
from tunefleet.runtime.environment import core_count
from tunefleet.runtime.gpu.info import read_driver, read_gpus, visible
from tunefleet.runtime.gpu_allocation import described
from tunefleet.schemas.worker_link import Capabilities, ExecutorOffer, GpuLoad, Load
from tunefleet.settings import WorkerSettings
from tunefleet.transport.base import address_towards
from tunefleet.worker.outbox import Outbox

_JOIN_S: Final = 5.0
logger = logging.getLogger(__name__)
# Limit of reported models and of reported datasets; the most recently changed ones are kept.
MAX_NAMES: Final = 1000


def capabilities(
    settings: WorkerSettings,
    executors: tuple[ExecutorOffer, ...],
    *,
    results_dir: Path,
    in_use: Mapping[str, str] | None = None,
    secrets: tuple[str, ...] = (),
) -> Capabilities:
    """Describe this worker."""
    models, datasets = cached_models(settings.hub_dir)
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


def cached_models(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the models and of the datasets in a hub cache, each sorted."""
    found: dict[str, list[tuple[float, str]]] = {"models": [], "datasets": []}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                kind, *name = entry.name.split("--")
                if kind in found and name and _has_snapshot(entry.path):
                    found[kind].append((entry.stat().st_mtime, "/".join(name)))
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        logger.warning("Could not read the cache %s; its contents are not reported: %s", folder, error)
        return (), ()
    models, datasets = (_newest(each) for each in found.values())
    return models, datasets


def _newest(found: list[tuple[float, str]]) -> tuple[str, ...]:
    return tuple(sorted(name for _, name in sorted(found, reverse=True)[:MAX_NAMES]))


def _has_snapshot(path: str) -> bool:
    """Whether a download has completed: an interrupted one leaves blobs and no snapshot."""
    try:
        with os.scandir(Path(path) / "snapshots") as snapshots:
            return any(True for _ in snapshots)
    except OSError:
        return False


class Heartbeat:
    """Reads the load in its own thread, immediately and then every interval."""

    def __init__(self, outbox: Outbox, read: Callable[[], Load], interval_s: float) -> None:
        self._outbox = outbox
        self._read = read
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while True:
            try:
                self._outbox.load(self._read())
            except OSError as error:
                logger.warning("Could not read the load of this machine: %s", error)
            if self._over.wait(self._interval_s):
                return
