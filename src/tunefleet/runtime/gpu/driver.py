"""Version of the NVIDIA driver and of its newest supported CUDA, from NVML or `nvidia-smi`."""

from __future__ import annotations

import importlib
import logging
import shutil
import subprocess
from typing import Any, Final, NamedTuple

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 20.0


class Driver(NamedTuple):
    """Versions; None if there is no driver, or it does not report them."""

    version: str | None = None
    cuda: str | None = None


def read_driver() -> Driver:
    """Return the versions. Raises nothing."""
    try:
        nvml = importlib.import_module("pynvml")  # comes with tunefleet[train]
    except ImportError:
        return _by_smi()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.debug("NVML is not available: %s", error)
        return _by_smi()
    try:
        return Driver(_text(nvml.nvmlSystemGetDriverVersion()), _cuda(int(nvml.nvmlSystemGetCudaDriverVersion_v2())))
    except nvml.NVMLError as error:
        logger.debug("NVML does not report its versions: %s", error)
        return _by_smi()
    finally:
        nvml.nvmlShutdown()


def _by_smi() -> Driver:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Driver()
    try:
        command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("nvidia-smi does not report the driver's version: %s", error)
        return Driver()
    return Driver(output.partition("\n")[0].strip() or None)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
