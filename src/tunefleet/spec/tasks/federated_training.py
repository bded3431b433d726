"""`spec.federation`: federated training over the fleet, each worker on a part of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import Block, NaturalFloat, NotBool, PositiveInt, Text, wrong
from tunefleet.spec.options.federation_options import Strategy, StrategySpec
from tunefleet.spec.options.model import LoraSpec
from tunefleet.spec.options.policy import LimitsSpec
from tunefleet.spec.options.resources import MAX_SHARDS
from tunefleet.spec.options.trainer import OURS
from tunefleet.spec.options.training_options import CommonTrainingSpec
from tunefleet.spec.tasks.cross_field_checks import Faults

_DAY_S: Final = 86_400.0
_SHARDED_STRATEGIES: Final = frozenset({"fsdp", "deepspeed", "device_map"})


class SplitSpec(Block):
    """`federation.split`: partition of the rows over the workers. A plain string is short for `by`."""

    by: Literal["iid", "column", "dirichlet"] = "iid"
    """`iid`: shuffled and distributed evenly; `column`: all rows with the same value go to one worker; `dirichlet`:
    equal numbers of rows with an uneven mix of values (Hsu et al. 2019)."""
    column: Text | None = None
    """Column for `column` and `dirichlet`, with strings, numbers or booleans."""
    alpha: Annotated[float, Field(ge=1e-3, le=1e6), NotBool] | None = None
    """Concentration of `dirichlet`: 100 is nearly iid; with 0.1 most workers have one or two values."""

    @model_validator(mode="after")
    def _complete(self) -> SplitSpec:
        for name, kinds in (("column", {"column", "dirichlet"}), ("alpha", {"dirichlet"})):
            given = getattr(self, name) is not None
            if given and self.by not in kinds:
                raise wrong(f"has no effect with by: {self.by}", f"set by: {min(kinds)}, or remove it", at=name)
            if not given and self.by in kinds:
                raise wrong(f"is required with by: {self.by}", f"add {name}", at=name)
        return self


def _named(value: Any) -> Any:
    return {"by": value} if isinstance(value, str) else value


class FederatedTrainingSpec(Block):
    """`spec.federation`: federated training of the adapter over the fleet."""

    workers: Annotated[int, Field(ge=2, le=MAX_SHARDS), NotBool]
    """Number of parts; each trains on its own rows, on any worker with free capacity."""
    split: Annotated[SplitSpec, BeforeValidator(_named)] = Field(default_factory=SplitSpec)
    """Partition of the rows, sampled with `training.seed`."""
    strategy: Strategy = Field(default_factory=StrategySpec)
    """Aggregation strategy."""
    min_workers: Annotated[int, Field(ge=1, le=MAX_SHARDS), NotBool] = 2
    """Minimum number of updates in a round. The task fails if fewer parts than this remain."""
    rounds: PositiveInt | None = None
    """Number of rounds; default: until the parts have finished training."""
    sync_every_steps: PositiveInt = 100
    """Optimizer steps between uploads of a part."""
    deadline_s: Annotated[float, Field(gt=0, le=7 * _DAY_S), NotBool] = 600.0
    """Seconds from a round's first update until the round closes, if it has at least `min_workers` updates."""
    wait_s: NaturalFloat | None = None
    """Maximum seconds that a part waits for the next version after an upload; with 0 it continues training. Default:
    `deadline_s`, so that all parts advance round by round together."""
    upload_dtype: Literal["fp32", "bf16", "int8"] = "fp32"
    """Data type of uploads: `bf16` halves the size, `int8` quarters it."""

    @property
    def patience_s(self) -> float:
        """How long a part waits for a version, in seconds."""
        return self.deadline_s if self.wait_s is None else self.wait_s

    @model_validator(mode="after")
    def _consistent(self) -> FederatedTrainingSpec:
        required = self.strategy.min_updates
        if self.min_workers < required:
            message = f"is too small for {self.strategy.name}, which needs {required} updates"
            raise wrong(message, f"set min_workers: {required}", at="min_workers")
        if self.min_workers > self.workers:
            raise wrong(f"is greater than workers, which is {self.workers}", "lower it", at="min_workers")
        if self.strategy.output == "residual":
            message = "leaves a residual for the base model, which is frozen in federated training"
            raise wrong(message, "set output: rank", at="strategy.output")
        return self


def federation_faults(blocks: Mapping[str, Any]) -> Faults:
    """Find options that federated training does not support.

    Args:
        blocks: As passed to `faults` of a task type.
    """
    spec: FederatedTrainingSpec | None = blocks.get("federation")
    if spec is None:
        return [("shard", "is only for parts of a federation", "remove it")] if blocks.get("shard") else []
    faults: Faults = []
    if "lora" in blocks:
        faults += _adapter_faults(blocks["lora"])
    if blocks.get("trainer", OURS) != OURS:
        faults.append(("federation", f"is not supported by trainer: {blocks['trainer']}", f"set trainer: {OURS}"))
    if getattr(blocks.get("data"), "streaming", False):
        faults.append(("federation", "cannot partition streamed rows", "remove data.streaming"))
    training: CommonTrainingSpec | None = blocks.get("training")
    if training is not None:
        faults += _training_faults(training)
    limits: LimitsSpec | None = blocks.get("limits")
    # A part that waits for the next version writes no journal records and would count as stalled.
    if limits is not None and blocks.get("on_stall", "keep") != "keep" and spec.patience_s >= limits.stall_after_s:
        message = f"lets a part wait for {spec.patience_s:g} s, but limits.stall_after_s ends it earlier"
        faults.append(("federation", message, "raise limits.stall_after_s, or lower federation.wait_s"))
    return faults


def _adapter_faults(lora: LoraSpec | None) -> Faults:
    if lora is None:
        return [("federation", "averages adapters, but this task trains none", "add a lora block")]
    # The strategies average LoRA factors or their products; DoRA's magnitudes and biases are neither.
    checks = ((lora.use_dora, "lora.use_dora"), (lora.bias != "none", "lora.bias"))
    return [(where, "cannot be averaged in a federation", "remove it") for bad, where in checks if bad]


def _training_faults(training: CommonTrainingSpec) -> Faults:
    faults: Faults = []
    parallelism = training.strategy(2)
    if parallelism in _SHARDED_STRATEGIES:
        message = f"needs the full adapter in each process, but {parallelism} shards it"
        faults.append(("federation", message, "set training.parallelism: ddp"))
    # Packing changes the number of rows per step, so the steps cannot be derived from the rows.
    if getattr(training, "packing", False) and training.max_steps is None:
        faults.append(("training.max_steps", "is required with packing in a federation", "set the number of steps"))
    return faults
