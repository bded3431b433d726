"""Fully sharded training (FSDP2), also on processors without an accelerator.

Accelerate leaves FSDP out without a word where the processes compute on the CPU, and trains with whole copies. Torch
itself shards there, too, over gloo.
"""

from __future__ import annotations

from typing import Any

from accelerate.state import PartialState
from accelerate.utils import DistributedType


def allow_sharding_on_cpu() -> None:
    """Have the next `Accelerator` shard although it computes on the CPU; called when the process group exists.

    Accelerate asks for the kind of the processes, and only those with accelerators are looked at for FSDP; once it has
    decided for FSDP the kind is of no further use.
    """
    state: dict[str, Any] = PartialState._shared_state
    if state.get("distributed_type") == DistributedType.MULTI_CPU:
        state["distributed_type"] = DistributedType.MULTI_XPU
