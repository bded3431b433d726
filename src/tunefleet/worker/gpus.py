"""Which GPUs a job gets: those that fit its spec, and that nobody has claimed on this machine or uses otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunefleet.errors import MachineError
from tunefleet.jobs.gpus import GpuBusyError
from tunefleet.spec import load_task_spec
from tunefleet.wire.link import Gpu


def choose(spec: Mapping[str, Any], gpus: Sequence[Gpu], *, holder: Callable[[str], str | None]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs for a task; empty on a machine without, or if the task wants none.

    Args:
        spec: The task's spec, JSON.
        gpus: The worker's devices.
        holder: Says who has claimed a device; `None` if it is free.

    Raises:
        GpuBusyError: If the task may use GPUs here, but not enough that fit are free.
        MachineError: If too few fit.
    """
    if not gpus:
        return ()
    wanted = load_task_spec(spec).resources.hardware.gpu
    count = 1 if wanted is None else wanted.count
    if count == 0:
        return ()
    name = "" if wanted is None or wanted.type == "any" else wanted.type
    memory = (wanted.memory_bytes if wanted is not None else None) or 0
    fitting = [
        gpu for gpu in gpus if re.search(re.escape(name), gpu.name, re.IGNORECASE) and gpu.memory_total_bytes >= memory
    ]
    if len(fitting) < count:
        few = "none fits" if not fitting else f"{len(fitting)} of {count} fit"
        raise MachineError(f"No GPU is free for the task ({few}).", hint="Give the worker another GPU.")
    taken = {gpu.uuid: gpu.in_use_by or holder(gpu.uuid) for gpu in fitting}
    free = [gpu for gpu in fitting if taken[gpu.uuid] is None]
    if len(free) < count:
        held = ", ".join(f"{gpu.name} by {taken[gpu.uuid]}" for gpu in fitting if taken[gpu.uuid])
        few = "No GPU is" if count == 1 else f"{len(free)} of {count} GPUs are"
        raise GpuBusyError(
            f"{few} free for the task ({held}).",
            hint="Wait for the other process, or give the worker another GPU.",
        )
    # Those with the most free memory: somebody outside may use the others.
    free.sort(key=lambda gpu: gpu.memory_free_bytes or 0, reverse=True)
    return tuple(gpu.uuid for gpu in free[:count])
