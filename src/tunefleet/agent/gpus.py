"""The GPUs of this machine as the agent sees them: what they are, how busy they are, and which one a job gets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from tunefleet.settings import AgentSettings

logger = logging.getLogger(__name__)

GIB: Final = 1 << 30
CPU: Final = {"name": "CPU", "total_memory_gb": 0.0, "cuda_version": "N/A", "device_count": 0}


class Gpus:
    """Devices and their load, looked at now and then by a thread.

    Args:
        settings: Which may be used, and how often to look.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._devices: tuple[Any, ...] = ()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Look once, then go on looking in the background."""

    def stop(self) -> None:
        """End the looking."""
        self._stopping.set()

    def info(self) -> dict[str, Any]:
        """Return what `GET /health` says of them."""
        return dict(CPU)

    def load(self, uuid: str) -> float | None:
        """Return a device's utilisation in percent, as it was seen last."""
        return None

    def choose(self, spec: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs for a job."""
        return ()
