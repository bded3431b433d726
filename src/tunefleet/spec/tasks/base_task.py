"""What every task kind has, and what those have whose items can be split among workers."""

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

# What every task leaves: its result, under both names, and its log.
ALWAYS_LEFT: Final = ("responses.json", "results.json", "logs")


@dataclass(frozen=True, slots=True)
class Devices:
    """Which GPUs of its worker a task takes.

    Args:
        count: How many; with `everything` the least number.
        optional: A worker without a GPU will do.
        indices: Only these, by their number among those of the worker; any if it is empty.
        primary: The number of the first of them, if that matters.
        cause: The key that needs them, where `resources` asks for none.
    """

    count: int
    optional: bool = False
    everything: bool = False
    indices: tuple[int, ...] = ()
    primary: int | None = None
    cause: str | None = None


class BaseTaskSpec(Block):
    """What every task kind has."""

    splits: ClassVar[bool] = False
    """Whether the items of the kind can be split among workers."""
    spans: ClassVar[bool] = False
    """Whether one task of the kind can run on several workers at the same time."""

    task_type: str = Field(alias="taskType")
    """The task kind."""
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    """What a worker must have."""
    engine: Engine | None = None
    """`slurm` or `ray`: the task gets nodes from that system, and a worker of its own on each for as long as it needs
    them; without it the workers that are there run it."""
    output: OutputSpec = Field(default_factory=OutputSpec)
    """What is delivered."""
    retry: RetrySpec = Field(default_factory=RetrySpec)
    """How often a failed task is tried."""
    priority: Annotated[int, Field(ge=-100, le=100), NotBool] = 0
    """Among waiting tasks a higher one goes first; waiting raises it slowly."""
    slo_s: Timeout | None = Field(default=None, alias="sloSeconds")
    """Seconds from the submit in which the task should be done: the nearer that moment, the further it moves forward in
    the queue. What is late is still run; `limits` ends tasks."""
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    """How long the task may take."""
    on_lost: Literal["replace", "wait"] = "replace"
    """When the worker does not come back: place the task anew from its last uploaded checkpoint, or wait."""
    notify: Annotated[tuple[NotifySpec, ...], Field(max_length=20)] = ()
    """Who is told what of the task, beside your own channels."""

    @property
    def requires_code(self) -> bool:
        """Whether the task runs code that comes with the document or the model (needs `--allow-code`)."""
        return False

    @property
    def environments(self) -> tuple[str, ...]:
        """The environments (`tunefleet env`) without which a worker cannot run it, beside that of its kind."""
        return ()

    @property
    def features(self) -> tuple[str, ...]:
        """What it asks for beside its kind, and only some of the workers that run that kind have."""
        return ()

    @property
    def model_identifier(self) -> str | None:
        """The model that a worker is best to have already."""
        return None

    @property
    def devices(self) -> Devices:
        """Which GPUs the task takes."""
        gpu = self.resources.hardware.gpu
        return Devices(count=1, optional=True) if gpu is None else Devices(gpu.count)

    def processes_on(self, gpus: int) -> int:
        """Return how many processes the task's job has.

        Args:
            gpus: How many GPUs it was given.
        """
        del gpus  # one process has all of them
        return 1

    @property
    def left(self) -> tuple[str, ...]:
        """What the task leaves, as far as that is known before it runs."""
        return self.leaves({name: getattr(self, name) for name in type(self).model_fields})

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what a task of this kind leaves, as `output.artifacts` may name it.

        Args:
            blocks: As `faults` takes them.
        """
        del blocks  # what is in them makes no difference here
        return ALWAYS_LEFT

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks.

        Args:
            blocks: Attribute name → block, without those that are wrong in themselves; so one pass reports all faults.

        Returns:
            Faults as `(path below spec, message, hint)`.
        """
        resources: ResourcesSpec | None = blocks.get("resources")
        found = output_faults(cls.leaves(blocks), blocks)
        # Of a kind that is not known nothing can be said.
        if resources is not None and resources.replicas > 1 and not cls.splits and cls is not BaseTaskSpec:
            kind = cls.model_fields["task_type"].default
            hint = "leave it out, or submit it several times"
            found.append(("resources.replicas", f"{kind} tasks have no items that could be split", hint))
        if resources is not None and resources.most_nodes > 1 and not cls.spans and cls is not BaseTaskSpec:
            kind = cls.model_fields["task_type"].default
            found.append(("resources.nodes", f"{kind} tasks run on one worker", "leave it out"))
        return found + engine_faults(blocks)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        faults = self.faults({name: getattr(self, name) for name in type(self).model_fields})
        if faults:
            raise many_wrong(faults)
        return self


class SplittableTaskSpec(BaseTaskSpec):
    """What the kinds have whose items can be split among workers."""

    splits: ClassVar[bool] = True

    parallel: ParallelSpec = Field(default_factory=ParallelSpec)
    """Split the items into shards for several workers; results are put together in order."""
    shard: ShardSpec | None = None
    """The part of the items that this task takes; the server writes it."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        resources: ResourcesSpec | None = blocks.get("resources")
        parallel: ParallelSpec | None = blocks.get("parallel")
        found = super().faults(blocks)
        replicas = resources.replicas if resources is not None else 1
        leave = "leave one of them out"
        if replicas > 1 and parallel is not None and "enabled" in parallel.model_fields_set:
            if not parallel.enabled:
                found.append(("resources.replicas", "contradicts parallel.enabled: false", leave))
            elif parallel.max_shards not in {None, replicas}:
                found.append(("resources.replicas", f"contradicts max_shards: {parallel.max_shards}", leave))
        if blocks.get("shard") is not None and (replicas > 1 or (parallel is not None and parallel.enabled)):
            found.append(("shard", "is a part already, and is not split again", leave))
        return found


def asked_shards(spec: Mapping[str, Any]) -> int | None:
    """Return how many parts a task is to be split into at most.

    Args:
        spec: The `spec` mapping of a task, as it is stored.

    Returns:
        1 if it is not to be split, None for as many as there are workers.
    """
    federation = spec.get("federation")
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


T = TypeVar("T")


def part_of(items: Sequence[T], spec: Mapping[str, Any]) -> list[T]:
    """Return the items that are a task's own, in their order; all of them if it is no part.

    Args:
        items: Those of the whole task.
        spec: The task's spec; see `positions_of`.
    """
    return [items[at] for at in positions_of(len(items), spec)]


def positions_of(count: int, spec: Mapping[str, Any]) -> range:
    """Return where in a list the items are that are a task's own.

    Contiguous parts lie one behind the other and differ by one item at most, so that their results, one after the
    other, are the whole's.

    Args:
        count: How many items the whole task has.
        spec: The task's spec; `shard` says which part (`index`, from 0) of how many (`total`) it is;
            not `contiguous`: every `total`-th item.
    """
    shard = spec.get("shard")
    if not isinstance(shard, Mapping):
        return range(count)
    index, total = int(shard["index"]), int(shard["total"])
    if not shard.get("contiguous", True):
        return range(index, count, total)
    return range(count * index // total, count * (index + 1) // total)
