"""Which GPU a job gets: one that fits its spec and that nobody else has claimed on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunefleet.errors import MachineError
from tunefleet.spec import load_task_spec
from tunefleet.wire.link import Gpu


def choose(spec: Mapping[str, Any], gpus: Sequence[Gpu], *, holder: Callable[[str], str | None]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs for a task; empty on a machine without, or if the task wants none.

    Args:
        spec: The task's spec, JSON.
        gpus: The worker's devices.
        holder: Says who has claimed a device; `None` if it is free.

    Raises:
        MachineError: If the task may use a GPU here, but none that fits is free.
    """
    if not gpus:
        return ()
    wanted = load_task_spec(spec).resources.hardware.gpu
    if wanted is not None and wanted.count == 0:
        return ()
    name = "" if wanted is None or wanted.type == "any" else wanted.type
    memory = (wanted.memory_bytes if wanted is not None else None) or 0
    fitting = [
        gpu for gpu in gpus if re.search(re.escape(name), gpu.name, re.IGNORECASE) and gpu.memory_total_bytes >= memory
    ]
    free = [gpu for gpu in fitting if holder(gpu.uuid) is None]
    if not free:
        held = ", ".join(f"{gpu.name} by {holder(gpu.uuid)}" for gpu in fitting) or "none fits"
        raise MachineError(
            f"No GPU is free for the task ({held}).", hint="Wait for the other process, or give the worker another GPU."
        )
    # The one with the most free memory: somebody outside may use the others.
    return (max(free, key=lambda gpu: gpu.memory_free_bytes or 0).uuid,)
