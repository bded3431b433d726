"""The GPUs of this machine: devices, load, and their allocation to jobs."""

from __future__ import annotations

import logging
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tunefleet.runtime import gpu_allocation
from tunefleet.runtime.gpu import gpu_locks as ledger
from tunefleet.runtime.gpu.info import GpuFigures, read_gpus, visible
from tunefleet.runtime.monitor.preemption import GpuContentionMonitor
from tunefleet.settings import AgentSettings

logger = logging.getLogger(__name__)

GIB: Final = 1 << 30
CPU: Final = {"name": "CPU", "total_memory_gb": 0.0, "cuda_version": "N/A", "device_count": 0}
_BF16: Final = re.compile(
    r"A\d|H\d|L\d|B\d|RTX (?:[3-9]0|A|PRO|[2-9]000 Ada)|GH|GB|Ada|Blackwell|Hopper", re.IGNORECASE
)


class Gpus:
    """Devices and their load, polled by a thread."""

    def __init__(self, settings: AgentSettings, *, read: Callable[[], Sequence[GpuFigures]] = read_gpus) -> None:
        self._settings = settings
        self._read = read
        self._devices: tuple[GpuFigures, ...] = ()
        self._cuda: str | None = None
        self.gpu_monitor = self._gpu_monitor() if settings.yielding != "off" else None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-load", daemon=True)

    def start(self) -> None:
        """Read the devices once, then poll them in the background if there are any."""
        self.look()
        if self._devices:
            self._cuda = _cuda_version()
            if self.gpu_monitor is not None:
                self.gpu_monitor.look()
                self.gpu_monitor.start()
            self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        if self.gpu_monitor is not None:
            self.gpu_monitor.close()
        self._stopping.set()

    def _gpu_monitor(self) -> GpuContentionMonitor:
        return GpuContentionMonitor(
            ledger.ledger_dir(self._settings.endpoints_dir),
            idle_s=self._settings.yield_idle_s,
            read=lambda: visible(self._read(), self._settings.visible_gpus),
        )

    def look(self) -> None:
        """Read the devices from the driver."""
        self._devices = visible(self._read(), self._settings.visible_gpus)

    @property
    def devices(self) -> tuple[GpuFigures, ...]:
        """The devices that the agent may use, as of the last reading."""
        return self._devices

    @property
    def has_bf16(self) -> bool:
        """Whether every device supports bfloat16, judged by its product name."""
        return all(_BF16.search(gpu.name) for gpu in self._devices)

    def info(self) -> dict[str, Any]:
        """Return the GPU part of `GET /health`."""
        if not self._devices:
            return dict(CPU)
        first = self._devices[0]
        return {
            "name": first.name,
            "total_memory_gb": round((first.memory_total_bytes or 0) / GIB, 2),
            "cuda_version": self._cuda or "N/A",
            "device_count": len(self._devices),
        }

    def load(self, uuid: str) -> float | None:
        """Return a device's utilization in percent as of the last reading; None if unknown."""
        return next((gpu.utilisation_percent for gpu in self._devices if gpu.uuid == uuid), None)

    def limit_bytes(self) -> int | None:
        """Return the GPU memory limit of a job on the largest device, in bytes; None without a device."""
        sizes = [gpu.memory_total_bytes for gpu in self._devices if gpu.memory_total_bytes]
        return int(max(sizes) * self._settings.gpu_memory_fraction) if sizes else None

    def choose(self, spec: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs for a job; empty on a machine without GPUs, or if the job needs none.

        Raises:
            GpuBusyError: If they are currently in use.
            MachineError: If this machine does not have enough GPUs of that type and memory.
        """
        folder = ledger.ledger_dir(self._settings.endpoints_dir)
        return gpu_allocation.choose(spec, self._devices, ledger=folder, gpu_monitor=self.gpu_monitor)

    def _run(self) -> None:
        while not self._stopping.wait(self._settings.gpu_interval_s):
            self.look()


def _cuda_version() -> str | None:
    """Return the CUDA version that the driver supports, as shown by `nvidia-smi`."""
    try:
        answer = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("nvidia-smi failed: %s", error)
        return None
    match = re.search(r"CUDA Version:\s*([\d.]+)", answer)
    return match[1] if match else None
