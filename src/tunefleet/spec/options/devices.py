"""Which GPUs of its worker a training task uses, and how the work is distributed over them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BeforeValidator, model_validator

from tunefleet.spec.base import Block, FreeMapping, NaturalInt, NotBool, PositiveInt, Text, wrong
from tunefleet.validation_errors import show

Parallelism = Literal["ddp", "fsdp", "deepspeed", "device_map"]
_STAGES: Final = (1, 3)
_MAX_CONFIG: Final = 65_536
# 18 digits always fit into 64 bits.
_MAX_DIGITS: Final = 18


def _device_list(value: Any) -> Any:
    numbers = value
    if isinstance(value, str):
        numbers = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, int) and not isinstance(value, bool):
        numbers = [value]
    if not isinstance(numbers, list | tuple) or not numbers or not all(_is_index(number) for number in numbers):
        raise wrong("must be a list of device indices", 'write for example "0,1", or [0, 1]')
    found = tuple(int(number) for number in numbers)
    if len(set(found)) < len(found):
        raise wrong("lists a device twice", "list each device once")
    return found


def _is_index(value: Any) -> bool:
    if isinstance(value, str):
        return value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _clamped(value: Any) -> Any:
    # Python reads a number in time quadratic to its digits, so the length is checked first.
    if isinstance(value, str) and value.strip().isdecimal():
        if len(value) > _MAX_DIGITS:
            raise wrong(f"{show(value)} is not a ZeRO stage", "use 1, 2 or 3")
        value = int(value)
    return min(max(value, _STAGES[0]), _STAGES[1]) if isinstance(value, int) and not isinstance(value, bool) else value


def _deepspeed(value: Any) -> Any:
    """Parse a mapping, JSON in a string, or a path."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        # Bounds the time for parsing a configuration that is embedded in a workflow file.
        if len(value) > _MAX_CONFIG:
            raise wrong(f"has more than {_MAX_CONFIG:,} characters", "write it to a file and give its path")
        try:
            return orjson.loads(value)
        except ValueError as error:
            raise wrong(f"is not valid JSON: {error}", "write a mapping, or the path of a file") from None
    if isinstance(value, dict) and not value:
        raise wrong("is empty", "set parallelism: deepspeed for a generated configuration")
    if not isinstance(value, str | dict):
        raise wrong("must be a mapping, JSON in quotes, or the path of a file")
    return value


Stage = Annotated[int, BeforeValidator(_clamped), NotBool]


class DevicesSpec(Block):
    """The keys of `spec.training` that select GPUs and parallelism."""

    allow_multi_gpu: bool | None = None
    """`true` without `resources.hardware.gpu.count`: use all suitable GPUs of the worker. `false`: use at most one.
    Default: one GPU."""
    visible_devices: Annotated[tuple[NaturalInt, ...], BeforeValidator(_device_list)] | None = None
    """Restrict the task to these GPUs, by their index on the worker: `"0,1"` or a list. Without a count all of them are
    used."""
    primary_gpu: NaturalInt | None = None
    """Index of the GPU for single-GPU training, or of the first process otherwise."""
    nproc_per_node: PositiveInt | None = None
    """Alias of `resources.processes`."""
    parallelism: Parallelism | None = None
    """Parallelism over several GPUs. `ddp`: each process has the full model. `fsdp`, or `deepspeed`, which must be
    installed on the worker: each process has a shard of weights, gradients and optimizer state. `device_map`: one
    process with the layers spread over the GPUs. Default: `deepspeed` if one of its keys is set, else `ddp`."""
    deepspeed: Annotated[FreeMapping | Text, BeforeValidator(_deepspeed)] | None = None
    """DeepSpeed configuration: a mapping, JSON in a string, or a file on the submitting machine, which is uploaded with
    the workflow."""
    auto_deepspeed: bool = False
    """With several GPUs: use DeepSpeed with a generated configuration."""
    auto_deepspeed_stage: Stage | None = None
    """ZeRO stage of the generated configuration, clamped to 1 to 3; default: 2. Setting it enables `auto_deepspeed`."""
    zero_stage: Stage | None = None
    """Alias of `auto_deepspeed_stage`."""
    ddp_find_unused_parameters: bool = False
    """With `ddp`: search in each step for parameters that did not contribute to the loss; slower."""

    @model_validator(mode="after")
    def _devices_consistent(self) -> DevicesSpec:
        leave = "remove one of them"
        if self.auto_deepspeed_stage is not None and self.zero_stage is not None:
            raise wrong("is an alias of auto_deepspeed_stage", leave, at="zero_stage")
        if self.visible_devices is not None and self.primary_gpu not in {None, *self.visible_devices}:
            raise wrong("is not one of visible_devices", leave, at="primary_gpu")
        if self.deepspeed is not None and self.stage_given:
            raise wrong("already sets the stage (zero_optimization.stage)", "remove the stage", at="deepspeed")
        # Any DeepSpeed key selects DeepSpeed, so it must not contradict `parallelism`.
        asked = self.deepspeed is not None or self.auto_deepspeed or self.stage_given
        if asked and self.parallelism not in {None, "deepspeed"}:
            raise wrong("contradicts the DeepSpeed keys", leave, at="parallelism")
        if self.ddp_find_unused_parameters and (asked or self.parallelism not in {None, "ddp"}):
            raise wrong("is only for ddp", leave, at="ddp_find_unused_parameters")
        return self

    @property
    def stage_given(self) -> bool:
        """Whether a ZeRO stage is set."""
        return self.auto_deepspeed_stage is not None or self.zero_stage is not None

    @property
    def stage(self) -> int:
        """The ZeRO stage of the generated configuration."""
        return self.auto_deepspeed_stage or self.zero_stage or 2

    def strategy(self, processes: int) -> Parallelism:
        """Return the parallelism to use.

        Args:
            processes: Number of processes that train together.
        """
        if self.parallelism is not None:
            # `allow_multi_gpu` on a worker with a single GPU gives one process: FSDP would have nothing to shard.
            return "ddp" if self.parallelism == "fsdp" and processes == 1 else self.parallelism
        if self.deepspeed is not None or (processes > 1 and (self.auto_deepspeed or self.stage_given)):
            return "deepspeed"
        return "ddp"
