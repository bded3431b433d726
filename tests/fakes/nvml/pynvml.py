"""A fake of `pynvml` (nvidia-ml-py): a machine whose GPUs are written in a JSON file.

`FAKE_NVML` names the file; it is read at each call, so a test may let a process appear on a GPU. Put the folder of this
file in front of `PYTHONPATH`, or the module into `sys.modules`. A value that is missing is not supported.

    {"gpus": [{"uuid": "GPU-a", "name": "Fake RTX", "total": 8589934592, "used": 1, "utilisation": 3,
               "temperature": 40, "power_mw": 25000, "compute": [[PID, BYTES]], "graphics": [[PID, BYTES]],
               "mig": [{…}, {…}]}]}
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_TEMPERATURE_GPU = 0


class NVMLError(Exception):
    """Any error of the library."""


def nvmlInit() -> None:
    if not Path(os.environ.get("FAKE_NVML", "/nowhere")).exists():
        raise NVMLError("Driver Not Loaded")


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return "550.54"


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return 12040


def nvmlDeviceGetCount() -> int:
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index: int) -> dict[str, Any]:
    return _gpus()[index]


def nvmlDeviceGetMigMode(gpu: dict[str, Any]) -> list[int]:
    return [1, 1] if gpu["mig"] else [0, 0]


def nvmlDeviceGetMaxMigDeviceCount(gpu: dict[str, Any]) -> int:
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(gpu: dict[str, Any], index: int) -> dict[str, Any]:
    if index >= len(gpu["mig"]):
        raise NVMLError("Not Found")
    return Device(gpu["mig"][index])


def nvmlDeviceGetName(gpu: dict[str, Any]) -> str:
    return gpu["name"]


def nvmlDeviceGetUUID(gpu: dict[str, Any]) -> str:
    return gpu["uuid"]


def nvmlDeviceGetMemoryInfo(gpu: dict[str, Any]) -> Any:
    return SimpleNamespace(total=gpu["total"], used=gpu["used"], free=gpu["total"] - gpu["used"])


def nvmlDeviceGetUtilizationRates(gpu: dict[str, Any]) -> Any:
    return SimpleNamespace(gpu=gpu["utilisation"], memory=0)


def nvmlDeviceGetTemperature(gpu: dict[str, Any], sensor: int) -> int:
    return gpu["temperature"]


def nvmlDeviceGetPowerUsage(gpu: dict[str, Any]) -> int:
    return gpu["power_mw"]


def nvmlDeviceGetComputeRunningProcesses(gpu: dict[str, Any]) -> list[Any]:
    return _processes(gpu["compute"])


def nvmlDeviceGetGraphicsRunningProcesses(gpu: dict[str, Any]) -> list[Any]:
    return _processes(gpu["graphics"])


class Device(dict[str, Any]):
    """A GPU that says "Not Supported" to what it lacks."""

    def __missing__(self, key: str) -> Any:
        raise NVMLError("Not Supported")


def _gpus() -> list[Device]:
    return [Device(gpu) for gpu in json.loads(Path(os.environ["FAKE_NVML"]).read_text())["gpus"]]


def _processes(pairs: list[list[int]]) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in pairs]
