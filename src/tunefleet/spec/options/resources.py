"""`spec.resources`: what a worker must have, and the memory grammar."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from tunefleet.spec.base import Block, Label, NaturalInt, NotBool, PositiveInt, Text, as_list, wrong
from tunefleet.spec.value_preview import show

_UNITS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_MEMORY = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgtp]?)i?b?\s*", re.IGNORECASE | re.ASCII)
_MAX_TEXT: Final = 40
"""Characters; reading a number takes time by the square of its digits."""
_MAX_MEMORY_BYTES: Final = 1 << 60
_NODES = re.compile(r"(\d{1,5})(?:\s*:\s*(\d{1,5}))?", re.ASCII)
MAX_NODES: Final = 1024
"""Of one training."""
# More shards than this cost more than they gain.
MAX_SHARDS: Final = 1024
_MEMORY_HINT: Final = "write for example 32Gi, 1.5Gi or 512M; all units are binary"


def parse_memory(value: Any) -> int:
    """Read an amount of memory.

    Args:
        value: A number of bytes, or a number with a unit K, M, G, T or P, with or without `i` and `B`, in any case.
            All units are binary: `1K` is 1,024 bytes. Decimals are understood and rounded to whole bytes.

    Returns:
        Bytes, at least 1.

    Raises:
        ValueError: If it cannot be understood; a requirement is never dropped silently.
    """
    text = value if isinstance(value, str) else ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = format(Decimal(str(value)), "f")
    match = _MEMORY.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise ValueError(f"{show(value)} is not an amount of memory")
    size = int((Decimal(match[1]) * 1024 ** _UNITS[match[2].lower()]).to_integral_value())
    if not 1 <= size <= _MAX_MEMORY_BYTES:
        raise ValueError(f"{show(value)} is out of range: memory is between 1 byte and 1Ei")
    return size


def format_memory(size_bytes: int) -> str | int:
    """Write an amount of memory in the largest unit that it is a whole number of; `parse_memory` reads it back."""
    for power, unit in enumerate("PTGMK"):
        divisor = 1024 ** (5 - power)
        if size_bytes >= divisor and size_bytes % divisor == 0:
            return f"{size_bytes // divisor}{unit}i"
    return size_bytes


def _memory(value: Any) -> int:
    try:
        return parse_memory(value)
    except ValueError as error:
        raise wrong(str(error), _MEMORY_HINT) from None


# Bytes; written with a unit.
Memory = Annotated[
    int,
    BeforeValidator(_memory),
    PlainSerializer(format_memory),
    WithJsonSchema({"type": ["string", "number"], "examples": ["32Gi", "1.5Gi", "512M", 1073741824]}),
]


def _cores(value: Any) -> Any:
    whole = value.strip().isdecimal() if isinstance(value, str) else not isinstance(value, float) or value.is_integer()
    if not whole:
        raise wrong(f"{show(value)} is not a number of cores", "write a whole number of logical cores, such as 8")
    return value


def _gpu_type(value: Any) -> Any:
    return "any" if isinstance(value, str) and value.strip().lower() in {"", "*", "auto", "any"} else value


class GpuSpec(Block):
    """`resources.hardware.gpu`: every one of `count` devices must have the type *and* the memory."""

    count: NaturalInt = 1
    """How many, all of one worker: a training on several has one process for each. 0 runs without a GPU even where
    there is one. Not given: one, or what `training.allow_multi_gpu` and `training.visible_devices` say."""
    type: Annotated[Text, BeforeValidator(_gpu_type)] = "any"
    """Part of the product name, in any case, such as `A100`; `any` for every GPU."""
    memory_bytes: Memory | None = Field(default=None, alias="memory")
    """Memory of each device."""


class HardwareSpec(Block):
    """`resources.hardware`."""

    cpu: Annotated[PositiveInt, BeforeValidator(_cores)] | None = None
    """Logical cores."""
    memory_bytes: Memory | None = Field(default=None, alias="memory")
    """Main memory."""
    disk_bytes: Memory | None = Field(default=None, alias="disk")
    """Free space on the worker's disk."""
    gpu: GpuSpec | None = None
    """GPUs. Without this block the task runs on any worker, and on its GPU if it has one."""


def _nodes(value: Any) -> Any:
    text = value.strip() if isinstance(value, str) else str(value)
    match = _NODES.fullmatch(text)
    hint = "write a number such as 2, or the least and the most such as 2:4"
    if isinstance(value, bool) or match is None:
        raise wrong(f"{show(value)} is not a number of nodes", hint)
    least, most = int(match[1]), int(match[2] or match[1])
    if not 1 <= least <= most <= MAX_NODES:
        raise wrong(f"{show(value)} is out of range: from 1 to {MAX_NODES}, and the least comes first", hint)
    return least if least == most else f"{least}:{most}"


# A number, or `least:most`.
Nodes = Annotated[
    int | str,
    BeforeValidator(_nodes),
    WithJsonSchema({"type": ["integer", "string"], "examples": [2, "2:4"]}),
]


class ResourcesSpec(Block):
    """`spec.resources`: what a worker must have."""

    replicas: Annotated[int, Field(ge=1, le=MAX_SHARDS), NotBool] = 1
    """More than one: the items are split into as many shards at most, on several workers, and the results are put
    together in order; the same as `parallel.max_shards`, for the kinds that have it. Other kinds run once."""
    processes: PositiveInt = 1
    """Ranks of the training on one worker, started by torchrun; with GPUs, as many as `hardware.gpu.count`, which is
    the default. Each has its own batches, so an optimizer step takes as many rows more."""
    nodes: Nodes = 1
    """Workers that the training runs on at the same time, each with all that `hardware` asks for and `processes` ranks;
    `2:4` takes at least 2, and up to 4 if they are free. All of them begin together or none; when one is lost, all go
    on from the newest uploaded checkpoint."""
    estimated_load: NaturalInt = Field(default=0, alias="estimatedLoad")
    """How heavy the task is, in any unit: of tasks of one workflow that became ready together the heavier goes first,
    so that the long ones do not come last."""
    hardware: HardwareSpec = Field(default_factory=HardwareSpec)
    """Cores, memory and GPUs."""
    tags: Annotated[tuple[Label, ...], BeforeValidator(as_list)] = ()
    """The worker must have all of these tags (`WORKER_TAGS`); its id counts as one."""

    @property
    def least_nodes(self) -> int:
        """On how many workers it runs at least."""
        return int(str(self.nodes).partition(":")[0])

    @property
    def most_nodes(self) -> int:
        """On how many workers it runs at most."""
        return int(str(self.nodes).rpartition(":")[2])
