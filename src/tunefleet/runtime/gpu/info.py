"""Figures of this machine's GPUs and the version of their driver, from NVML or `nvidia-smi`.

Figures that the driver does not report are None: a MIG instance has no utilization of its own, a passively cooled card
may not report its power, and a chip with unified memory reports no memory of its own.
"""

from __future__ import annotations

import csv
import importlib
import logging
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

_TIMEOUT_S: Final = 20.0
logger = logging.getLogger(__name__)
T = TypeVar("T")
# The first call after a boot loads the driver, which takes seconds.
_SMI_TIMEOUT_S: Final = 20.0
_MIB: Final = 1 << 20
_QUERY: Final = ("index", "uuid", "name", "memory.used", "memory.total", "utilization.gpu", "temperature.gpu")
_APPS: Final = ("gpu_uuid", "pid", "used_memory")


class GpuProcess(NamedTuple):
    """A process that has opened a GPU.

    Args:
        memory_bytes: Its GPU memory; None if the driver does not report it.
    """

    pid: int
    memory_bytes: int | None
    kind: Literal["compute", "graphics"] = "compute"


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One device that can be allocated to a job: a GPU, or with MIG each of its instances.

    Args:
        processes: Processes that have opened it; None if the driver does not report them.
    """

    index: int
    uuid: str
    name: str
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilisation_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def memory_free_bytes(self) -> int | None:
        """Free memory; None if the driver does not report it."""
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return self.memory_total_bytes - self.memory_used_bytes


def read_gpus() -> tuple[GpuFigures, ...]:
    """Return the figures of all NVIDIA GPUs of this machine; empty without a GPU or a driver. Raises nothing.

    Takes milliseconds where the driver is loaded; through `nvidia-smi` a tenth of a second or more.
    """
    found = _by_nvml()
    return found if found is not None else _by_smi()


def visible(found: Sequence[GpuFigures], variable: str | None) -> tuple[GpuFigures, ...]:
    """Apply `CUDA_VISIBLE_DEVICES` as CUDA does: indices or UUID prefixes in order, up to the first invalid one.

    Args:
        variable: The variable's value; None if it is not set.
    """
    if variable is None:
        return tuple(found)
    chosen: list[GpuFigures] = []
    for word in (part.strip() for part in variable.split(",")):
        match = [
            gpu for gpu in found if (str(gpu.index) == word if word.isdigit() else word and gpu.uuid.startswith(word))
        ]
        if len(match) != 1:
            break
        chosen += match
    return tuple(chosen)


def _by_nvml() -> tuple[GpuFigures, ...] | None:
    """Read the devices from NVML; None if it is not available."""
    try:
        nvml = importlib.import_module("pynvml")  # comes with tunefleet[train]
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.debug("NVML is not available: %s", error)
        return None
    try:
        found = [figures for index in range(nvml.nvmlDeviceGetCount()) for figures in _Nvml(nvml, index).devices()]
    except nvml.NVMLError as error:
        logger.warning("Could not read the GPUs of this machine: %s", error)
        return None
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    return tuple(found)


class _Nvml:
    """Reads one GPU."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml = nvml
        self._index = index
        self._gpu = nvml.nvmlDeviceGetHandleByIndex(index)

    def devices(self) -> list[GpuFigures]:
        """Return the GPU, or its MIG instances: with MIG enabled, CUDA can only use those."""
        if self._ask(lambda: self._nvml.nvmlDeviceGetMigMode(self._gpu)[0]) != 1:
            return [self._read(self._gpu)]
        count = self._ask(lambda: self._nvml.nvmlDeviceGetMaxMigDeviceCount(self._gpu)) or 0
        handles = [self._ask(self._instance(slot)) for slot in range(count)]
        return [self._read(handle) for handle in handles if handle is not None]

    def _instance(self, slot: int) -> Callable[[], Any]:
        return lambda: self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(self._gpu, slot)

    def _read(self, handle: Any) -> GpuFigures:
        nvml = self._nvml
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        power_mw = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(self._gpu))
        return GpuFigures(
            index=self._index,
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            utilisation_percent=self._ask(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            temperature_c=self._ask(
                lambda: float(nvml.nvmlDeviceGetTemperature(self._gpu, nvml.NVML_TEMPERATURE_GPU)),
            ),
            power_w=None if power_mw is None else power_mw / 1000,
            processes=self._processes(handle),
        )

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        compute = self._ask(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        graphics = self._ask(lambda: self._nvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
        if compute is None and graphics is None:
            return None
        # A process may be in both lists; then it computes.
        found = {entry.pid: GpuProcess(entry.pid, entry.usedGpuMemory, "graphics") for entry in graphics or ()}
        found |= {entry.pid: GpuProcess(entry.pid, entry.usedGpuMemory, "compute") for entry in compute or ()}
        return tuple(found[pid] for pid in sorted(found))

    def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except self._nvml.NVMLError as error:
            logger.debug("GPU %d query failed: %s", self._index, error)  # most often: not supported
            return None


def _by_smi() -> tuple[GpuFigures, ...]:
    rows = _ask_smi("gpu", (*_QUERY, "power.draw"))
    apps = _ask_smi("compute-apps", _APPS) if rows else None
    return tuple(_from_row(row, apps) for row in rows or () if len(row) == len(_QUERY) + 1 and row[0].isdigit())


def _from_row(row: list[str], apps: list[list[str]] | None) -> GpuFigures:
    used, total, utilisation, temperature, power = (_number(cell) for cell in row[3:])
    uuid = row[1]
    return GpuFigures(
        index=int(row[0]),
        uuid=uuid,
        name=row[2],
        memory_used_bytes=_bytes(used),
        memory_total_bytes=_bytes(total),
        utilisation_percent=utilisation,
        temperature_c=temperature,
        power_w=power,
        processes=None
        if apps is None
        else tuple(
            GpuProcess(int(pid), _bytes(_number(memory)))
            for gpu, pid, memory in (app for app in apps if len(app) == len(_APPS))
            if gpu == uuid and pid.isdigit()
        ),
    )


def _ask_smi(what: str, fields: tuple[str, ...]) -> list[list[str]] | None:
    """Return the rows of `nvidia-smi`'s output; None if it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("nvidia-smi failed: %s", error)
        return None
    return [[cell.strip() for cell in row] for row in csv.reader(answer.splitlines(), skipinitialspace=True)]


def _number(cell: str) -> float | None:
    """Parse a cell; `[N/A]`, `[Not Supported]`, `[Unknown Error]` and other text is None."""
    try:
        return float(cell)
    except ValueError:
        return None


def _bytes(mib: float | None) -> int | None:
    return None if mib is None else int(mib * _MIB)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Driver(NamedTuple):
    """Versions; None if there is no driver, or it does not report them."""

    version: str | None = None
    cuda: str | None = None


def read_driver() -> Driver:
    """Return the versions. Raises nothing."""
    try:
        nvml = importlib.import_module("pynvml")  # comes with tunefleet[train]
    except ImportError:
        return _driver_by_smi()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.debug("NVML is not available: %s", error)
        return _driver_by_smi()
    try:
        return Driver(_text(nvml.nvmlSystemGetDriverVersion()), _cuda(int(nvml.nvmlSystemGetCudaDriverVersion_v2())))
    except nvml.NVMLError as error:
        logger.debug("NVML does not report its versions: %s", error)
        return _driver_by_smi()
    finally:
        nvml.nvmlShutdown()


def _driver_by_smi() -> Driver:
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


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
