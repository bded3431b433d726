"""`spec.federation`: a training that a whole federation does, each of its workers on a part of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import Block, NaturalFloat, NotBool, PositiveInt, Text, wrong
from tunefleet.spec.options.adapter import LoraSpec
from tunefleet.spec.options.federation_options import Strategy, StrategySpec
from tunefleet.spec.options.policy import LimitsSpec
from tunefleet.spec.options.resources import MAX_SHARDS
from tunefleet.spec.options.trainer import OURS
from tunefleet.spec.options.training_options import CommonTrainingSpec
from tunefleet.spec.tasks.cross_field_checks import Faults

_DAY_S: Final = 86_400.0
_SHARED_OUT: Final = frozenset({"fsdp", "deepspeed", "device_map"})


class SplitSpec(Block):
    """`federation.split`: which rows each worker trains on; every row is one worker's. `iid` alone stands for `by`."""

    by: Literal["iid", "column", "dirichlet"] = "iid"
    """`iid`: shuffled and dealt out; `column`: all rows of a value go to one worker; `dirichlet`: equally many rows
    each, in which the values are mixed unevenly (Hsu et al. 2019)."""
    column: Text | None = None
    """The column that `column` and `dirichlet` look at: a text, a number, or true and false."""
    alpha: Annotated[float, Field(ge=1e-3, le=1e6), NotBool] | None = None
    """How even the mixtures of `dirichlet` are: 100 is nearly iid, 0.1 leaves most workers one or two values."""

    @model_validator(mode="after")
    def _complete(self) -> SplitSpec:
        for name, kinds in (("column", {"column", "dirichlet"}), ("alpha", {"dirichlet"})):
            given = getattr(self, name) is not None
            if given and self.by not in kinds:
                raise wrong(f"has no effect with by: {self.by}", f"write by: {min(kinds)}, or leave it out", at=name)
            if not given and self.by in kinds:
                raise wrong(f"is needed with by: {self.by}", f"add {name}", at=name)
        return self


def _named(value: Any) -> Any:
    return {"by": value} if isinstance(value, str) else value


class FederatedTrainingSpec(Block):
    """`spec.federation`: train the adapter as a federation over the fleet."""

    workers: Annotated[int, Field(ge=2, le=MAX_SHARDS), NotBool]
    """How many parts the task is split into; each trains on its own rows, on whichever worker of the fleet has room."""
    split: Annotated[SplitSpec, BeforeValidator(_named)] = Field(default_factory=SplitSpec)
    """Which rows are whose; drawn by `training.seed`."""
    strategy: Strategy = Field(default_factory=StrategySpec)
    """How updates become the next version."""
    min_workers: Annotated[int, Field(ge=1, le=MAX_SHARDS), NotBool] = 2
    """Fewest updates that make a round. The task fails when fewer parts than this are left."""
    rounds: PositiveInt | None = None
    """Rounds after which all parts end; by default they train to their end."""
    sync_every_steps: PositiveInt = 100
    """Optimizer steps between two uploads of a part."""
    deadline_s: Annotated[float, Field(gt=0, le=7 * _DAY_S), NotBool] = 600.0
    """Seconds from a round's first update until it closes with those that are there, `min_workers` at least."""
    wait_s: NaturalFloat | None = None
    """Seconds that a part stands still after an upload until the next version is there; 0 trains on meanwhile. By
    default `deadline_s`, so that all go from round to round together."""
    upload_dtype: Literal["fp32", "bf16", "int8"] = "fp32"
    """How updates are sent: `bf16` is half of it, `int8` a quarter."""

    @property
    def patience_s(self) -> float:
        """How long a part waits for a version."""
        return self.deadline_s if self.wait_s is None else self.wait_s

    @model_validator(mode="after")
    def _consistent(self) -> FederatedTrainingSpec:
        needed = self.strategy.min_updates
        if self.min_workers < needed:
            message = f"is too small for {self.strategy.name}, which needs {needed} updates"
            raise wrong(message, f"write min_workers: {needed}", at="min_workers")
        if self.min_workers > self.workers:
            raise wrong(f"is more than workers, which is {self.workers}", "lower it", at="min_workers")
        if self.strategy.output == "residual":
            message = "leaves a part of each average for the base model, which stays as it is here"
            raise wrong(message, "write output: rank", at="strategy.output")
        return self


def federation_faults(blocks: Mapping[str, Any]) -> Faults:
    """Find what a training asks for that a federation cannot do.

    Args:
        blocks: As `faults` of a task kind takes them.
    """
    spec: FederatedTrainingSpec | None = blocks.get("federation")
    if spec is None:
        return [("shard", "belongs to a part of a federation", "leave it out")] if blocks.get("shard") else []
    faults: Faults = []
    if "lora" in blocks:
        faults += _adapter_faults(blocks["lora"])
    if blocks.get("trainer", OURS) != OURS:
        faults.append(("federation", f"is not heeded by trainer: {blocks['trainer']}", f"write trainer: {OURS}"))
    if getattr(blocks.get("data"), "streaming", False):
        faults.append(("federation", "cannot deal out rows that are streamed", "leave data.streaming out"))
    training: CommonTrainingSpec | None = blocks.get("training")
    if training is not None:
        faults += _training_faults(training)
    limits: LimitsSpec | None = blocks.get("limits")
    if limits is not None and blocks.get("on_stall", "keep") != "keep" and spec.patience_s >= limits.stall_after_s:
        message = f"lets a part wait for {spec.patience_s:g} s, and limits.stall_after_s ends it before"
        faults.append(("federation", message, "raise limits.stall_after_s, or lower federation.wait_s"))
    return faults


def _adapter_faults(lora: LoraSpec | None) -> Faults:
    if lora is None:
        return [("federation", "averages adapters, and this training has none", "add a lora block")]
    checks = ((lora.use_dora, "lora.use_dora"), (lora.bias != "none", "lora.bias"))
    return [(where, "cannot be averaged in a federation", "leave it out") for bad, where in checks if bad]


def _training_faults(training: CommonTrainingSpec) -> Faults:
    faults: Faults = []
    parallelism = training.strategy(2)
    if parallelism in _SHARED_OUT:
        message = f"needs the whole adapter in each process, which {parallelism} shares out"
        faults.append(("federation", message, "write training.parallelism: ddp"))
    if getattr(training, "packing", False) and training.max_steps is None:
        faults.append(("training.max_steps", "is needed with packing in a federation", "say how many steps"))
    return faults
