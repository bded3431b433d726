"""The base of all task types, and of those whose items can be split across several workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import Field, model_validator

from tunefleet.spec.base import Block, NotBool, Timeout, many_wrong
from tunefleet.spec.options.engine import Engine, engine_faults
from tunefleet.spec.options.notify import NotifySpec
from tunefleet.spec.options.output import OutputSpec
from tunefleet.spec.options.policy import LimitsSpec, ParallelSpec, RetrySpec, ShardSpec
from tunefleet.spec.options.resources import ResourcesSpec
from tunefleet.spec.tasks.cross_field_checks import Faults, output_faults

# Outputs of every task: its result, under both names, and its log.
ALWAYS_LEFT: Final = ("responses.json", "results.json", "logs")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Devices:
    """Which GPUs of its worker a task uses.

    Args:
        count: Number of GPUs; with `everything` the minimum.
        optional: Whether a worker without a GPU is sufficient.
        indices: Allowed GPUs, by index on the worker; any if empty.
        primary: Index of the first GPU, if set.
        cause: The key that requires GPUs if `resources` requests none.
    """

    count: int
    optional: bool = False
    everything: bool = False
    indices: tuple[int, ...] = ()
    primary: int | None = None
    cause: str | None = None


class BaseTaskSpec(Block):
    """Keys of every task type."""

    splits: ClassVar[bool] = False
    """Whether the items of the task type can be split across several workers."""
    spans: ClassVar[bool] = False
    """Whether one task can run on several workers at the same time."""

    task_type: str = Field(alias="taskType")
    """Task type."""
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    """Requirements on the worker."""
    engine: Engine | None = None
    """`slurm` or `ray`: request nodes from that cluster manager and run a dedicated worker on each; default: run on the
    connected workers."""
    output: OutputSpec = Field(default_factory=OutputSpec)
    """Delivery of results and files."""
    retry: RetrySpec = Field(default_factory=RetrySpec)
    """Retry policy."""
    priority: Annotated[int, Field(ge=-100, le=100), NotBool] = 0
    """Priority in the queue: higher values run first; it rises slowly with waiting time."""
    slo_s: Timeout | None = Field(default=None, alias="sloSeconds")
    """Target time from submit to completion, in seconds. As the deadline approaches, the task moves forward in the
    queue. Late tasks still run; use `limits` to end them."""
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    """Time limits."""
    on_lost: Literal["replace", "wait"] = "replace"
    """If the worker is lost: reschedule the task from its last uploaded checkpoint (`replace`), or wait for the
    worker."""
    notify: Annotated[tuple[NotifySpec, ...], Field(max_length=20)] = ()
    """Notifications about the task, in addition to your own channels."""

    @property
    def requires_code(self) -> bool:
        """Whether the task runs custom code from the workflow or the model, which requires `--allow-code`."""
        return False

    @property
    def environments(self) -> tuple[str, ...]:
        """Environments (`tunefleet env`) that a worker needs, in addition to that of the task type."""
        return ()

    @property
    def features(self) -> tuple[str, ...]:
        """Features that only some of the workers with this task type have."""
        return ()

    @property
    def model_identifier(self) -> str | None:
        """The model that a worker should preferably have in its cache."""
        return None

    @property
    def devices(self) -> Devices:
        """Which GPUs the task uses."""
        gpu = self.resources.hardware.gpu
        return Devices(count=1, optional=True) if gpu is None else Devices(gpu.count)

    def processes_on(self, gpus: int) -> int:
        """Return the number of processes of the task's job.

        Args:
            gpus: Number of GPUs assigned to it.
        """
        del gpus  # a single process uses all of them
        return 1

    @property
    def left(self) -> tuple[str, ...]:
        """Outputs of the task, as far as known before it runs."""
        return self.leaves({name: getattr(self, name) for name in type(self).model_fields})

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of a task of this type, by the names that `output.artifacts` uses.

        Args:
            blocks: As passed to `faults`.
        """
        del blocks  # the outputs do not depend on them here
        return ALWAYS_LEFT

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks.

        Args:
            blocks: Attribute name → block, without the invalid ones, so that one pass can report all errors.

        Returns:
            Errors as `(path below spec, message, hint)`.
        """
        resources: ResourcesSpec | None = blocks.get("resources")
        found = output_faults(cls.leaves(blocks), blocks)
        # `BaseTaskSpec` itself stands for an unknown task type: its capabilities are not known.
        if resources is not None and resources.replicas > 1 and not cls.splits and cls is not BaseTaskSpec:
            kind = cls.model_fields["task_type"].default
            hint = "remove it, or submit the task several times"
            found.append(("resources.replicas", f"{kind} tasks have no items to split", hint))
        if resources is not None and resources.most_nodes > 1 and not cls.spans and cls is not BaseTaskSpec:
            kind = cls.model_fields["task_type"].default
            found.append(("resources.nodes", f"{kind} tasks run on one worker", "remove it"))
        return found + engine_faults(blocks)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        faults = self.faults({name: getattr(self, name) for name in type(self).model_fields})
        if faults:
            raise many_wrong(faults)
        return self


class SplittableTaskSpec(BaseTaskSpec):
    """Keys of task types whose items can be split across several workers."""

    splits: ClassVar[bool] = True

    parallel: ParallelSpec = Field(default_factory=ParallelSpec)
    """Split the items into shards for several workers; results are joined in order."""
    shard: ShardSpec | None = None
    """The items of this shard; set by the server."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        resources: ResourcesSpec | None = blocks.get("resources")
        parallel: ParallelSpec | None = blocks.get("parallel")
        found = super().faults(blocks)
        replicas = resources.replicas if resources is not None else 1
        leave = "remove one of them"
        if replicas > 1 and parallel is not None and "enabled" in parallel.model_fields_set:
            if not parallel.enabled:
                found.append(("resources.replicas", "contradicts parallel.enabled: false", leave))
            elif parallel.max_shards not in {None, replicas}:
                found.append(("resources.replicas", f"contradicts max_shards: {parallel.max_shards}", leave))
        if blocks.get("shard") is not None and (replicas > 1 or (parallel is not None and parallel.enabled)):
            found.append(("shard", "is already a shard and cannot be split again", leave))
        return found


def asked_shards(spec: Mapping[str, Any]) -> int | None:
    """Return the maximum number of shards of a task.

    Args:
        spec: The stored `spec` mapping of a task.

    Returns:
        1 if it is not split, `None` for one shard per worker.
    """
    federation = spec.get("federation")
    # A federated task is split into its parts like a sharded task, but its parts are not split again.
    if isinstance(federation, Mapping):
        parts = federation.get("workers")
        return 1 if spec.get("shard") is not None else parts if isinstance(parts, int) else None
    parallel, resources = spec.get("parallel"), spec.get("resources")
    enabled = isinstance(parallel, Mapping) and parallel.get("enabled") is True
    asked = parallel.get("max_shards") if enabled and isinstance(parallel, Mapping) else None
    replicas = resources.get("replicas") if isinstance(resources, Mapping) else None
    several = isinstance(replicas, int) and replicas > 1
    if not enabled and not several:
        return 1
    return int(asked) if isinstance(asked, int) else int(replicas) if several and isinstance(replicas, int) else None


def part_of(items: Sequence[T], spec: Mapping[str, Any]) -> list[T]:
    """Return the items of a task's shard, in order; all of them if it is not a shard.

    Args:
        items: All items of the parent task.
        spec: The task's spec; see `positions_of`.
    """
    return [items[at] for at in positions_of(len(items), spec)]


def positions_of(count: int, spec: Mapping[str, Any]) -> range:
    """Return the positions of the items of a task's shard.

    Contiguous shards differ by one item at most, and their results in sequence are those of the parent task.

    Args:
        count: Number of items of the parent task.
        spec: The task's spec; `shard` has the `index` (from 0) of `total` shards; without `contiguous` a shard takes
            every `total`-th item.
    """
    shard = spec.get("shard")
    if not isinstance(shard, Mapping):
        return range(count)
    index, total = int(shard["index"]), int(shard["total"])
    if not shard.get("contiguous", True):
        return range(index, count, total)
    # Integer arithmetic distributes the remainder evenly and never loses an item.
    return range(count * index // total, count * (index + 1) // total)
