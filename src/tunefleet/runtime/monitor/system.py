"""Current figures of this machine from the kernel: CPU, memory, a disk, the network."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """One reading; figures that the kernel does not report are None.

    Args:
        cpu_percent: Load of all CPUs together since the last reading of this process, 0 to 100; None at the first.
    """

    cpu_count: int
    cpu_percent: float | None
    memory_total_bytes: int
    memory_used_bytes: int
    disk_free_bytes: int | None
    network_sent_bytes: int | None
    network_received_bytes: int | None

    @property
    def memory_available_bytes(self) -> int:
        """Memory available to new processes."""
        return self.memory_total_bytes - self.memory_used_bytes


class SystemReader:
    """Reads figures repeatedly: the CPU load is the load between two readings."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked = False

    def read(self) -> SystemFigures:
        """Read the figures; takes well under a millisecond."""
        memory = psutil.virtual_memory()
        cpu = psutil.cpu_percent(interval=None)
        looked, self._looked = self._looked, True
        sent, received = _network()
        return SystemFigures(
            cpu_count=psutil.cpu_count() or 1,
            cpu_percent=cpu if looked else None,
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.total - memory.available,
            disk_free_bytes=_disk_free(self._path),
            network_sent_bytes=sent,
            network_received_bytes=received,
        )


def _disk_free(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError as error:
        logger.debug("Could not read the disk of %s: %s", path, error)
        return None


def _network() -> tuple[int | None, int | None]:
    try:
        counters = psutil.net_io_counters(pernic=True)
    except OSError as error:
        logger.debug("Could not read the network counters: %s", error)
        return None, None
    real = [count for name, count in counters.items() if name not in ("lo", "lo0")]
    return sum(count.bytes_sent for count in real), sum(count.bytes_recv for count in real)
