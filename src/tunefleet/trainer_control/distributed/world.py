"""Rank and world size of this process, from the environment or from a torch that is already imported.

A launcher such as torchrun sets each rank's number before any library is imported; `torch.distributed` knows it once
the process group exists. Nothing here imports torch.
"""

from __future__ import annotations

import sys
from typing import Any

from ..process_identity import variable

# Number of this node among those of a training run, from 0; not set if all processes share one job folder.
NODE = "TUNEFLEET_NODE"
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def distributed() -> Any | None:
    """Return `torch.distributed` if its default process group exists, else None."""
    torch = sys.modules.get("torch")
    found = getattr(torch, "distributed", None)
    return found if found is not None and found.is_available() and found.is_initialized() else None


def modules() -> tuple[Any, Any]:
    """Return torch and `torch.distributed`; only for a process whose process group exists."""
    torch = sys.modules["torch"]
    return torch, torch.distributed


def rank() -> int:
    """Return this process's rank; 0 if it is the only one."""
    group = distributed()
    if group is not None:
        return int(group.get_rank())
    return _number(_RANKS, 0) if _number(_SIZES, 1) > 1 else 0


def size() -> int:
    """Return how many processes train together."""
    group = distributed()
    return int(group.get_world_size()) if group is not None else max(_number(_SIZES, 1), 1)


def node() -> int | None:
    """Return the number of this node among those with a job folder of their own; None if all share one."""
    text = variable(NODE)
    return int(text) if text and text.isdecimal() else None


def leads_folder() -> bool:
    """Return whether this process is the first of those that share its job folder."""
    return rank() == 0 if node() is None else _number(("LOCAL_RANK",), 0) == 0


def _number(names: tuple[str, ...], default: int) -> int:
    text = next((text for name in names if (text := variable(name))), "")
    return int(text) if text.isdecimal() else default
