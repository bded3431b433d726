"""Which GPUs of its worker a training takes, and how it is spread over them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BeforeValidator, model_validator

from tunefleet.spec.base import Block, FreeMapping, NaturalInt, NotBool, PositiveInt, Text, wrong
from tunefleet.spec.value_preview import show

Parallelism = Literal["ddp", "fsdp", "deepspeed", "device_map"]
_STAGES: Final = (1, 3)
_MAX_CONFIG: Final = 65_536
_MAX_DIGITS: Final = 18


def _device_list(value: Any) -> Any:
    numbers = value
    if isinstance(value, str):
        numbers = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, int) and not isinstance(value, bool):
        numbers = [value]
    if not isinstance(numbers, list | tuple) or not numbers or not all(_is_index(number) for number in numbers):
        raise wrong("must be numbers of devices", 'write for example "0,1", or [0, 1]')
    found = tuple(int(number) for number in numbers)
    if len(set(found)) < len(found):
        raise wrong("names a device twice", "name each one once")
    return found


def _is_index(value: Any) -> bool:
    if isinstance(value, str):
        return value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _clamped(value: Any) -> Any:
    if isinstance(value, str) and value.strip().isdecimal():
        if len(value) > _MAX_DIGITS:
            raise wrong(f"{show(value)} is no ZeRO stage", "write 1, 2 or 3")
        value = int(value)
    return min(max(value, _STAGES[0]), _STAGES[1]) if isinstance(value, int) and not isinstance(value, bool) else value


def _deepspeed(value: Any) -> Any:
    """Take a mapping, JSON in a text, or a path."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        if len(value) > _MAX_CONFIG:
            raise wrong("is too long", "write it to a file and name the file")
        try:
            return orjson.loads(value)
        except ValueError as error:
            raise wrong(f"is not valid JSON: {error}", "write a mapping, or the path of a file") from None
    if isinstance(value, dict) and not value:
        raise wrong("is empty", "write parallelism: deepspeed for a configuration of ours")
    if not isinstance(value, str | dict):
        raise wrong("must be a mapping, JSON in quotes, or the path of a file")
    return value


Stage = Annotated[int, BeforeValidator(_clamped), NotBool]


class DevicesSpec(Block):
    """The keys of `spec.training` that say which GPUs a training takes."""

    allow_multi_gpu: bool | None = None
    """`true` without `resources.hardware.gpu.count`: all GPUs of the worker that suit; by default one. `false` forbids
    more than one."""
    visible_devices: Annotated[tuple[NaturalInt, ...], BeforeValidator(_device_list)] | None = None
    """Only these GPUs, by their number among those of the worker: `"0,1"` or a list. Without a count it takes all of
    them."""
    primary_gpu: NaturalInt | None = None
    """The number of the GPU of a training on one, or of the first process of several."""
    nproc_per_node: PositiveInt | None = None
    """The same as `resources.processes`."""
    parallelism: Parallelism | None = None
    """How several GPUs share the work: each process has the whole model (`ddp`), its share of weights, gradients and
    optimizer (`fsdp`; or `deepspeed`, which must be installed on the worker), or one process has a part of the layers
    on each GPU (`device_map`). By default `deepspeed` where its keys are given, else `ddp`."""
    deepspeed: Annotated[FreeMapping | Text, BeforeValidator(_deepspeed)] | None = None
    """DeepSpeed's configuration: a mapping, JSON in quotes, or a file on the machine that submits, which travels with
    the submit."""
    auto_deepspeed: bool = False
    """With several GPUs: train by DeepSpeed with a configuration of ours."""
    auto_deepspeed_stage: Stage | None = None
    """ZeRO stage of that configuration, 2 by default; what is below 1 or above 3 counts as 1 or 3. Turns
    `auto_deepspeed` on."""
    zero_stage: Stage | None = None
    """The same as `auto_deepspeed_stage`."""
    ddp_find_unused_parameters: bool = False
    """With `ddp`: look in each step for weights that had no part in the loss; costs time."""

    @model_validator(mode="after")
    def _devices_consistent(self) -> DevicesSpec:
        leave = "leave one of them out"
        if self.auto_deepspeed_stage is not None and self.zero_stage is not None:
            raise wrong("means the same as auto_deepspeed_stage", leave, at="zero_stage")
        if self.visible_devices is not None and self.primary_gpu not in {None, *self.visible_devices}:
            raise wrong("is not one of visible_devices", leave, at="primary_gpu")
        if self.deepspeed is not None and self.stage_given:
            raise wrong("says the stage already (zero_optimization.stage)", "leave the stage out", at="deepspeed")
        asked = self.deepspeed is not None or self.auto_deepspeed or self.stage_given
        if asked and self.parallelism not in {None, "deepspeed"}:
            raise wrong("contradicts the keys of DeepSpeed", leave, at="parallelism")
        if self.ddp_find_unused_parameters and (asked or self.parallelism not in {None, "ddp"}):
            raise wrong("belongs to ddp", leave, at="ddp_find_unused_parameters")
        return self

    @property
    def stage_given(self) -> bool:
        """Whether a ZeRO stage was named."""
        return self.auto_deepspeed_stage is not None or self.zero_stage is not None

    @property
    def stage(self) -> int:
        """The ZeRO stage of a configuration of ours."""
        return self.auto_deepspeed_stage or self.zero_stage or 2

    def strategy(self, processes: int) -> Parallelism:
        """Return how the work is shared.

        Args:
            processes: How many train together.
        """
        if self.parallelism is not None:
            # Of all GPUs of a worker there may be one only: then nothing is shared out.
            return "ddp" if self.parallelism == "fsdp" and processes == 1 else self.parallelism
        if self.deepspeed is not None or (processes > 1 and (self.auto_deepspeed or self.stage_given)):
            return "deepspeed"
        return "ddp"
