"""What the pictures of settings, workers and a workflow's edges show: a machine with GPUs, keys, a channel, two stages.

The machine is a double: it joins and tells its load through the API, as a worker does, and takes nothing.
"""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any, Final, Self

import httpx

from tunefleet.client import Client

DOUBLE: Final = "dgx-1"
ROOT: Final = Path(__file__).resolve().parent.parent
_GIB: Final = 1 << 30
_TELL_S: Final = 1.0
_PATIENCE_S: Final = 900.0


class GpuDouble:
    """A worker with GPUs that only says so; a context manager.

    Args:
        url: The server.
        key: Of the role worker.
        worker_id: What it is called.
        gpus: Names of its GPUs.
        gpu_bytes: Memory of each.
    """

    def __init__(
        self,
        url: str,
        key: str,
        worker_id: str,
        gpus: tuple[str, ...] = ("NVIDIA H100 80GB HBM3",) * 4,
        gpu_bytes: int = 80 * _GIB,
    ) -> None:
        self.worker_id = worker_id
        self._client = httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=60.0)
        self._gpus = gpus
        self._gpu_bytes = gpu_bytes
        self._stop = threading.Event()
        self._still: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._tell, name=f"double-{worker_id}", daemon=True)

    def __enter__(self) -> Self:
        self._client.post("/link/register", json=self._introduction()).raise_for_status()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def rest(self) -> None:
        """Tell the same load from now on."""
        self._still = self.load(0.0)

    def load(self, moment: float) -> dict[str, Any]:
        """Return how busy it is at a moment: waves, each GPU at another height."""
        gpus = []
        for index in range(len(self._gpus)):
            wave = 0.5 + 0.5 * math.sin(moment / 7 + index)
            gpus.append(
                {
                    "uuid": self._uuid(index),
                    "memory_free_bytes": int(self._gpu_bytes * (0.15 + 0.2 * index * (1 - wave))),
                    "utilisation_percent": round(55 + 44 * wave, 1),
                    "power_w": round(310 + 380 * wave, 1),
                    "temperature_c": round(52 + 22 * wave, 1),
                    "in_use_by": "jupyter (pid 4711)" if index == len(self._gpus) - 1 else None,
                }
            )
        return {
            "memory_free_bytes": int((300 + 80 * math.sin(moment / 11)) * _GIB),
            "disk_free_bytes": 1800 * _GIB,
            "load_1m": round(20 + 9 * math.sin(moment / 5), 2),
            "load_5m": 21.0,
            "load_15m": 18.5,
            "uptime_s": moment,
            "gpus": gpus,
        }

    def _tell(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(_TELL_S):
            told = {"worker_id": self.worker_id, "session": "double", "wait_s": 0.0}
            load = self._still or self.load(time.monotonic() - began + 4000)
            self._client.post("/link/exchange", json={**told, "load": load}).raise_for_status()

    def _introduction(self) -> dict[str, Any]:
        return {
            "worker_id": self.worker_id,
            "session": "double",
            "state_id": f"state-{self.worker_id}",
            "capabilities": {
                "version": "0.0.9",
                "hostname": self.worker_id,
                "executors": [
                    *({"kind": kind} for kind in ("dpo", "kto", "grpo")),
                    {"kind": "ppo", "available": False, "reason": "The environment ppo is not there."},
                ],
                "slots": {"job": len(self._gpus)},
                "cpu_count": 64,
                "cpu_model": "AMD EPYC 9554",
                "memory_total_bytes": 512 * _GIB,
                "memory_free_bytes": 300 * _GIB,
                "disk_free_bytes": 1800 * _GIB,
                "platform": "Linux 6.8 x86_64",
                "cuda_version": "12.8",
                "driver_version": "570.86",
                "tags": ["h100", "lab"],
                "gpus": [
                    {"index": index, "name": name, "uuid": self._uuid(index), "memory_total_bytes": self._gpu_bytes}
                    for index, name in enumerate(self._gpus)
                ],
            },
        }

    def _uuid(self, index: int) -> str:
        return f"GPU-{self.worker_id}-{index}"


def prepare(client: Client) -> dict[str, str]:
    """Let something happen that can be shown; return page → address."""
    client.keys.create("ada", "member")
    client.keys.create("wall-screen", "viewer", owner="lab")
    client.notifications.create_channel("team", "https://hooks.slack.com/services/T0/B0/x", on=("failed", "stalled"))
    stages = client.submit(ROOT / "examples/workflows/two_stage_lora.yaml")
    client.workflows.wait(stages.workflow.id, timeout_s=_PATIENCE_S)
    worker = next(each.id for each in client.workers.list().items if not each.capabilities.gpus)
    return {
        "settings": "/ui/settings",
        "worker": f"/ui/workers/{worker}",
        "worker-gpus": f"/ui/workers/{DOUBLE}",
        "workflow-edges": f"/ui/workflows/{stages.workflow.id}",
    }
