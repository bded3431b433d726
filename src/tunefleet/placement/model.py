"""The placement model: task requirements and worker states."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final

# Inline task types: they run inside the worker process.
LIGHT_KINDS: Final = frozenset({"api", "echo"})

_LISTS: Final = ("tags", "secrets", "environments", "features", "datasets", "gpu_places")


@dataclass(frozen=True)
class Requirement:
    """What a task needs of a worker; tasks with equal needs share one.

    Args:
        gpu_first: Index of the device that must be included and comes first; None for any.
        gpu_type: Part of the product name, case-insensitive, a hyphen equals a space; None for any.
        features: Optional features that the task needs besides its kind, such as a converter.
        no_worker_grace_s: Seconds after which the task fails if no registered worker could ever run it; None for the
            server's default.
        project: The task's project, where some workers or secrets serve one project only; None if irrelevant.
    """

    kind: str
    slot_class: str
    cpu: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    gpu_count: int = 0
    gpu_optional: bool = False
    gpu_all: bool = False
    gpu_places: tuple[int, ...] = ()
    gpu_first: int | None = None
    gpu_type: str | None = None
    gpu_memory_bytes: int = 0
    gpu_cause: str | None = None
    tags: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    code: bool = False
    model: str | None = None
    datasets: tuple[str, ...] = ()
    project: str | None = None
    nodes: int = 1
    nodes_max: int = 1
    no_worker_grace_s: float | None = None

    def dump(self) -> str:
        """Return canonical JSON without default values."""
        defaults = {name: default.default for name, default in self.__dataclass_fields__.items()}
        # Defaults are left out so that a field added by a later version does not change the key of stored requirements.
        changed = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        return json.dumps(changed, sort_keys=True, separators=(",", ":"))

    @cached_property
    def key(self) -> str:
        """A digest that equal requirements share."""
        return hashlib.sha256(self.dump().encode()).hexdigest()[:16]

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    def __hash__(self) -> int:
        """Hash the key, computed once: a cycle does hundreds of thousands of lookups."""
        return self._hash

    @property
    def names(self) -> frozenset[str]:
        """Names of the model and the datasets, for cache affinity."""
        return frozenset(self.datasets) | ({self.model} if self.model else frozenset())

    @property
    def accumulates(self) -> bool:
        """Whether several tasks may have to end before it fits, so that capacity must be reserved."""
        return self.gpu_count > 1 or self.gpu_all or self.memory_bytes > 0 or self.cpu > 1 or self.nodes > 1

    @classmethod
    def load(cls, text: str) -> Requirement:
        """Parse the output of `dump`; fields of newer versions are ignored."""
        data: dict[str, Any] = json.loads(text)
        known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        return cls(**{**known, **{name: tuple(data.get(name, ())) for name in _LISTS}})


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of a worker.

    Args:
        free_bytes: Memory that is free now; None if the worker does not report it.
        used_by: The process outside the fleet that uses it, so that no task starts there; None if there is none.
    """

    name: str
    memory_bytes: int
    uuid: str = ""
    free_bytes: int | None = None
    used_by: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker and its free resources.

    Args:
        executors: Task kind → None, or why the worker cannot run it.
        free: Slot class → free slots now.
        takes: Slot class → usable slots, since some may be closed; None for all of `slots`.
        memory_free_bytes: Free memory of the machine in the last report; None if unknown.
        disk_free_bytes: Free disk space; None if unknown.
        environments: Names of the environments that are ready; None if the worker does not report them.
        features: Kind → feature → None, or why it is missing; kinds without a report are left out.
        alike: Workers with the same number have the same executors, slots, hardware, tags, secrets, environments and
            features, and so the same permanent mismatches; None if not computed.
        closed: Why it gets no new tasks, as a clause after its name; None if it may.
        kept_for: The waiting task that its capacity is reserved for.
        project: The only project that it serves; None if it serves all.
    """

    id: str
    present: bool
    executors: dict[str, str | None]
    slots: dict[str, int]
    free: dict[str, int]
    takes: dict[str, int] | None = None
    cpu: int = 0
    cpu_taken: int = 0
    memory_bytes: int = 0
    memory_taken: int = 0
    memory_free_bytes: int | None = None
    disk_free_bytes: int | None = None
    gpus: tuple[Device, ...] = ()
    taken: frozenset[int] = frozenset()
    tags: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    environments: frozenset[str] | None = frozenset()
    features: dict[str, dict[str, str | None]] = field(default_factory=dict)
    allow_code: bool = False
    cached: frozenset[str] = frozenset()
    cost_per_hour: float = 1.0
    cordoned: frozenset[str] = frozenset()
    pulls: bool = False
    hardware_group: int | None = None
    closed: str | None = None
    merges: frozenset[str] = frozenset()
    kept_for: str | None = None
    project: str | None = None
    host: str = ""
    release: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A queued task.

    Args:
        avoid: Workers that recently did not accept the task, or failed it.
        prefers: The worker that holds its checkpoint or the files of an earlier stage.
        only: Whether it may run on `prefers` only.
    """

    task_id: str
    requirement: Requirement
    rank: float
    avoid: frozenset[str] = field(default=frozenset())
    prefers: str | None = None
    only: bool = False
