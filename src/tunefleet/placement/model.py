"""What a task needs and what a worker has, as placement sees them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

LIGHT_KINDS: Final = frozenset({"echo"})
"""Task kinds that run inside the worker, without a process of their own."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a task needs of a worker; tasks that need the same share one.

    Args:
        kind: The task kind.
        slot_class: `job` or `light`.
        cpu: Logical cores.
        memory_bytes: Main memory.
        gpu_count: How many GPUs, each with the type and the memory.
        gpu_type: Part of the product name, in any case; null for any.
        gpu_memory_bytes: Memory of each device.
        tags: Tags that the worker must have.
        code: Whether the task brings code of its own.
        model: A worker that has this model in its cache is preferred.
    """

    kind: str
    slot_class: str
    cpu: int = 0
    memory_bytes: int = 0
    gpu_count: int = 0
    gpu_type: str | None = None
    gpu_memory_bytes: int = 0
    tags: tuple[str, ...] = ()
    code: bool = False
    model: str | None = None

    def dump(self) -> str:
        """Return it as canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def key(self) -> str:
        """A short name that equal requirements share."""
        return hashlib.sha256(self.dump().encode()).hexdigest()[:16]

    @classmethod
    def load(cls, text: str) -> Requirement:
        """Read what `dump` wrote; fields of a newer version are ignored."""
        data: dict[str, Any] = json.loads(text)
        known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        return cls(**{**known, "tags": tuple(data.get("tags", ()))})


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of a worker."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker, and what of it is free.

    Args:
        id: The worker.
        present: Whether it answers now; an absent one may come back.
        executors: Task kind → null, or why the worker cannot run it.
        slots: Slot class → how many the worker has.
        free: Slot class → how many more tasks it takes now.
        cpu: Logical cores.
        memory_bytes: Main memory.
        gpus: Its devices.
        gpus_taken: How many of them open attempts use.
        tags: Its tags.
        allow_code: Whether it runs code that a task brings.
        models: Models in its cache.
        cordoned: Kinds that it was offered in vain too often.
        pulls: It takes tasks by itself, and is never given one.
    """

    id: str
    present: bool
    executors: dict[str, str | None]
    slots: dict[str, int]
    free: dict[str, int]
    cpu: int = 0
    memory_bytes: int = 0
    gpus: tuple[Device, ...] = ()
    gpus_taken: int = 0
    tags: frozenset[str] = frozenset()
    allow_code: bool = False
    models: frozenset[str] = frozenset()
    cordoned: frozenset[str] = frozenset()
    pulls: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting task.

    Args:
        task_id: The task.
        requirement: What it needs.
        rank: Its place in the queue; lower goes first.
        avoid: Workers that did not take it lately.
        prefers: The worker that has its job folder, and its checkpoints with it.
        only: Nobody but that worker can go on with it.
    """

    task_id: str
    requirement: Requirement
    rank: float
    avoid: frozenset[str] = field(default=frozenset())
    prefers: str | None = None
    only: bool = False
