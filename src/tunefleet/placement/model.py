"""What a task needs and what a worker has, as placement sees them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final

# Task kinds that run inside the worker, without a process of their own.
LIGHT_KINDS: Final = frozenset({"api", "echo"})

_LISTS: Final = ("tags", "secrets", "environments", "features", "datasets", "gpu_places")


@dataclass(frozen=True)
class Requirement:
    """What a task needs of a worker; tasks that need the same share one.

    Args:
        gpu_first: The place of the device that comes first, and must be among them; null if that does not matter.
        gpu_type: Part of the product name, in any case, a hyphen like a space; null for any.
        features: What it asks for beside its kind, such as a converter.
        project: Whose it is, where some workers or secrets serve one project only; null if that does not matter.
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

    def dump(self) -> str:
        """Return it as canonical JSON; what is as it is by default is left out."""
        plain = {name: default.default for name, default in self.__dataclass_fields__.items()}
        told = {name: value for name, value in asdict(self).items() if value != plain[name]}
        return json.dumps(told, sort_keys=True, separators=(",", ":"))

    @cached_property
    def key(self) -> str:
        """A short name that equal requirements share."""
        return hashlib.sha256(self.dump().encode()).hexdigest()[:16]

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    def __hash__(self) -> int:
        """Hash the key: placement looks needs up by the hundred thousand."""
        return self._hash

    @property
    def names(self) -> frozenset[str]:
        """What it is good to have in a cache."""
        return frozenset(self.datasets) | ({self.model} if self.model else frozenset())

    @property
    def accumulates(self) -> bool:
        """Whether the end of one other task may not be enough to make room for it."""
        return self.gpu_count > 1 or self.gpu_all or self.memory_bytes > 0 or self.cpu > 1 or self.nodes > 1

    @classmethod
    def load(cls, text: str) -> Requirement:
        """Read what `dump` wrote; fields of a newer version are ignored."""
        data: dict[str, Any] = json.loads(text)
        known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        return cls(**{**known, **{name: tuple(data.get(name, ())) for name in _LISTS}})


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of a worker.

    Args:
        free_bytes: What of the memory nobody uses now; null if the worker does not say.
        used_by: Who else uses it, so that no task of ours begins there; null if nobody does.
    """

    name: str
    memory_bytes: int
    uuid: str = ""
    free_bytes: int | None = None
    used_by: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker, and what of it is free.

    Args:
        executors: Task kind → null, or why the worker cannot run it.
        free: Slot class → how many more tasks it takes now.
        takes: Slot class → how many it takes in all, now that some may be closed; its slots if not given.
        memory_free_bytes: What of it nobody uses, as the worker said last; null if that is not known.
        disk_free_bytes: Free space of its disk; null if that is not known.
        environments: Names of the environments that are ready there; null if it does not say.
        features: Kind → what some of its tasks ask for → null, or why it is not there; kinds of which it does not say
            are left out.
        alike: Workers with the same number have the same executors, slots, hardware, tags, secrets, environments and
            features, so that what one lacks for good the others lack too; null if nobody has counted.
        closed: Why it gets nothing new, as a clause after its name; null if it may.
        project: The only project that it serves; null if it serves all.
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
    alike: int | None = None
    closed: str | None = None
    merges: frozenset[str] = frozenset()
    kept_for: str | None = None
    project: str | None = None
    host: str = ""
    release: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting task."""

    task_id: str
    requirement: Requirement
    rank: float
    avoid: frozenset[str] = field(default=frozenset())
    prefers: str | None = None
    only: bool = False
