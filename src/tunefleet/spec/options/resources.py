"""`spec.resources`: requirements on a worker, and the memory syntax."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from tunefleet.spec.base import Block, Label, NaturalInt, NotBool, PositiveInt, Text, as_list, wrong
from tunefleet.validation_errors import show

_UNITS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_MEMORY = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgtp]?)i?b?\s*", re.IGNORECASE | re.ASCII)
# Characters of a memory amount; parsing a number takes time quadratic to its digits.
_MAX_TEXT: Final = 40
_MAX_MEMORY_BYTES: Final = 1 << 60
_NODES = re.compile(r"(\d{1,5})(?:\s*:\s*(\d{1,5}))?", re.ASCII)
# Nodes of one training task.
MAX_NODES: Final = 1024
# Beyond this the overhead per shard exceeds the gain.
MAX_SHARDS: Final = 1024
_MEMORY_HINT: Final = "write for example 32Gi, 1.5Gi or 512M; all units are binary"


def parse_memory(value: Any) -> int:
    """Parse an amount of memory.

    Args:
        value: A number of bytes, or a number with a unit K, M, G, T or P, with or without `i` and `B`, in any case.
            All units are binary: `1K` is 1,024 bytes. Decimals are rounded to whole bytes.

    Returns:
        Bytes, at least 1.

    Raises:
        ValueError: If it is invalid; a requirement is never ignored.
    """
    text = value if isinstance(value, str) else ""
    # `format(…, "f")` avoids exponents such as 1e+21, which the pattern does not match.
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = format(Decimal(str(value)), "f")
    match = _MEMORY.fullmatch(text) if len(text) <= _MAX_TEXT else None
    # Never guess: a misread requirement would place a task on the wrong worker.
    if match is None:
        raise ValueError(f"{show(value)} is not an amount of memory")
    size = int((Decimal(match[1]) * 1024 ** _UNITS[match[2].lower()]).to_integral_value())
    if not 1 <= size <= _MAX_MEMORY_BYTES:
        raise ValueError(f"{show(value)} is out of range: memory is between 1 byte and 1Ei")
    return size


def format_memory(size_bytes: int) -> str | int:
    """Format an amount of memory in the largest unit that divides it; the inverse of `parse_memory`."""
    # Largest unit first, so that the shortest exact form is used.
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


# Bytes; serialized with a unit.
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
    """`resources.hardware.gpu`: each of the `count` GPUs must match both the type and the memory."""

    # Whether it was set matters as well (`model_fields_set`): an explicit 0 forbids GPUs.
    count: NaturalInt = 1
    """Number of GPUs, all on one worker; with several, training runs one process per GPU. 0: use no GPU, even if
    the worker has one. Default: one, or as set by `training.allow_multi_gpu` and `training.visible_devices`."""
    type: Annotated[Text, BeforeValidator(_gpu_type)] = "any"
    """Part of the product name, case-insensitive, such as `A100`; `any` matches every GPU."""
    memory_bytes: Memory | None = Field(default=None, alias="memory")
    """Minimum memory per GPU."""


class HardwareSpec(Block):
    """`resources.hardware`: cores, memory, disk and GPUs."""

    cpu: Annotated[PositiveInt, BeforeValidator(_cores)] | None = None
    """Minimum number of logical cores."""
    memory_bytes: Memory | None = Field(default=None, alias="memory")
    """Minimum main memory."""
    disk_bytes: Memory | None = Field(default=None, alias="disk")
    """Minimum free space on the worker's disk."""
    gpu: GpuSpec | None = None
    """GPU requirements. Without this block the task runs on any worker, and uses its GPU if there is one."""


def _nodes(value: Any) -> Any:
    text = value.strip() if isinstance(value, str) else str(value)
    match = _NODES.fullmatch(text)
    hint = "write a number such as 2, or a range MIN:MAX such as 2:4"
    if isinstance(value, bool) or match is None:
        raise wrong(f"{show(value)} is not a number of nodes", hint)
    least, most = int(match[1]), int(match[2] or match[1])
    if not 1 <= least <= most <= MAX_NODES:
        raise wrong(f"{show(value)} is out of range: 1 to {MAX_NODES}, with the minimum first", hint)
    return least if least == most else f"{least}:{most}"


# A number, or `min:max`.
Nodes = Annotated[
    int | str,
    BeforeValidator(_nodes),
    WithJsonSchema({"type": ["integer", "string"], "examples": [2, "2:4"]}),
]


class ResourcesSpec(Block):
    """`spec.resources`: requirements on a worker."""

    replicas: Annotated[int, Field(ge=1, le=MAX_SHARDS), NotBool] = 1
    """Maximum number of shards into which the items are split across several workers; the results are joined in order.
    Same as `parallel.max_shards`, for task types that have it; other types run once."""
    processes: PositiveInt = 1
    """Ranks per worker, started by torchrun; with GPUs it must equal `hardware.gpu.count`, which is the default. Each
    rank has its own batches, so the effective batch size grows with the number of ranks."""
    nodes: Nodes = 1
    """Number of workers for multi-node training, each with the given `hardware` and `processes` ranks; `2:4` uses at
    least 2, and up to 4 if they are free. All nodes start together (gang scheduling); if one is lost, all resume from
    the newest uploaded checkpoint."""
    estimated_load: NaturalInt = Field(default=0, alias="estimatedLoad")
    """Relative cost of the task, in any unit. Among tasks of one workflow that become ready together, higher values run
    first, so that long tasks do not finish last."""
    hardware: HardwareSpec = Field(default_factory=HardwareSpec)
    """Hardware requirements."""
    tags: Annotated[tuple[Label, ...], BeforeValidator(as_list)] = ()
    """Tags that the worker must have (`TUNEFLEET_WORKER_TAGS`); its id also counts as a tag."""

    @property
    def least_nodes(self) -> int:
        """Minimum number of workers."""
        return int(str(self.nodes).partition(":")[0])

    @property
    def most_nodes(self) -> int:
        """Maximum number of workers."""
        return int(str(self.nodes).rpartition(":")[2])
