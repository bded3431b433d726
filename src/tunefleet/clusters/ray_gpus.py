"""Which GPUs Ray tells apart: each of its nodes has a resource that names the type of its GPUs.

Source: `ray.util.accelerators` of Ray 2.60; the resource is there on a node of which Ray has found the GPUs by itself.
"""

from __future__ import annotations

from typing import Final

TYPES: Final = (
    "A100", "A10G", "B200", "H100", "H20", "H200", "K80", "L4", "L40S", "P100", "P4", "T4", "V100",
)  # fmt: skip
SHARE: Final = 0.001
"""What is asked of such a resource: a node has 1 of it, however many GPUs it has."""
PREFIX: Final = "accelerator_type:"
HINT: Final = f"write one of {', '.join(TYPES)}, or leave it out"
_MAKERS: Final = ("NVIDIA", "TESLA")


def type_of(wanted: str) -> str | None:
    """Return Ray's name for `hardware.gpu.type`, in any case and with or without its maker; null if it has none."""
    words = [word for word in wanted.upper().split() if word not in _MAKERS]
    return words[0] if len(words) == 1 and words[0] in TYPES else None


def unknown(wanted: str) -> str:
    """Say that Ray has no name for a type."""
    return f"Ray knows no GPUs of the type {wanted}"
