"""Allocates GPUs to a job: those that match its spec and are not in use; and describes devices for reports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunefleet.errors import MachineError
from tunefleet.runtime.gpu import gpu_locks
from tunefleet.runtime.gpu.info import GpuFigures
from tunefleet.runtime.monitor.preemption import GpuContentionMonitor
from tunefleet.schemas.worker_link import Gpu
from tunefleet.spec import TaskSpec, load_task_spec


def described(gpus: Sequence[GpuFigures], in_use: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """Return devices as reported to a server or backend."""
    return tuple(
        Gpu(
            index=gpu.index,
            name=gpu.name,
            uuid=gpu.uuid,
            memory_total_bytes=gpu.memory_total_bytes or 0,
            memory_free_bytes=gpu.memory_free_bytes,
            in_use_by=(in_use or {}).get(gpu.uuid),
        )
        for gpu in gpus
    )


def choose(
    spec: Mapping[str, Any],
    gpus: Sequence[GpuFigures],
    *,
    ledger: Path,
    gpu_monitor: GpuContentionMonitor | None,
    given: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs for a task; empty on a machine without GPUs, or if the task needs none.

    Args:
        gpu_monitor: Detects other users of the GPUs; None if contention is ignored.
        given: GPUs chosen by the server; used if they are free.

    Raises:
        GpuBusyError: If enough GPUs match, but not enough of them are free.
        MachineError: If too few GPUs match.
    """
    if not gpus:
        return ()
    task = load_task_spec(spec)
    wanted = task.devices
    count = len(given) or wanted.count
    if count == 0:
        return ()
    fitting = _fitting(task, gpus)
    if not given and wanted.everything:
        count = max(count, len(fitting))
    if len(fitting) < count:
        few = "none matches" if not fitting else f"{len(fitting)} of {count} match"
        raise MachineError(
            f"This machine lacks the GPUs that the task requests ({few}).",
            hint="Run it on another machine, or request less in spec.resources.",
        )
    others = {} if gpu_monitor is None else gpu_monitor.in_use()
    taken = {gpu.uuid: others.get(gpu.uuid) or gpu_locks.holder(ledger, gpu.uuid) for gpu in fitting}
    free = [gpu for gpu in fitting if taken[gpu.uuid] is None]
    if len(free) < count:
        held = ", ".join(f"{gpu.name} by {taken[gpu.uuid]}" for gpu in fitting if taken[gpu.uuid])
        few = "No GPU is" if count == 1 else f"{len(free)} of {count} GPUs are"
        raise gpu_locks.GpuBusyError(
            f"{few} free for the task ({held}).",
            hint="Wait for the other process, or add a GPU.",
        )
    if given and set(given) <= {gpu.uuid for gpu in free}:
        return tuple(given)
    # Most free memory first: the others may be used by a process outside of the ledger.
    first = gpus[wanted.primary].uuid if wanted.primary is not None and wanted.primary < len(gpus) else None
    free.sort(key=lambda gpu: (gpu.uuid == first, gpu.memory_free_bytes or 0), reverse=True)
    return tuple(gpu.uuid for gpu in free[:count])


def _fitting(task: TaskSpec, gpus: Sequence[GpuFigures]) -> list[GpuFigures]:
    """Return the devices that match a task's type, memory and indices."""
    wanted, numbers = task.resources.hardware.gpu, task.devices.indices
    name = "" if wanted is None or wanted.type == "any" else wanted.type
    memory = (wanted.memory_bytes if wanted is not None else None) or 0
    return [
        gpu
        for number, gpu in enumerate(gpus)
        if re.search(re.escape(name), gpu.name, re.IGNORECASE)
        and (gpu.memory_total_bytes or 0) >= memory
        and (not numbers or number in numbers)
    ]
