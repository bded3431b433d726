"""The hardware of this process, and the kernels chosen for it.

Detection and choice are separate functions, so that the choice can be tested without the hardware.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal

import torch
from transformers.utils import is_flash_attn_2_available

from tunefleet.errors import InputError, MachineError

DtypeName = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """The detected hardware.

    Args:
        bf16: The device has native bfloat16 arithmetic (detected on GPUs only).
        flash_attention: FlashAttention 2 is installed and the device supports it.
    """

    device: Literal["cpu", "cuda", "mps"]
    name: str = ""
    bf16: bool = False
    flash_attention: bool = False
    liger: bool = False


@dataclass(frozen=True, slots=True)
class Kernels:
    """The chosen kernels and dtype.

    Args:
        compute: The compute dtype; `bfloat16` and `float16` use autocast over float32 weights where needed.
    """

    compute: DtypeName
    attention: str
    liger: bool
    varlen: bool


def inspect() -> Hardware:
    """Detect the hardware; creates no CUDA context unless there is a GPU."""
    if torch.cuda.is_available():
        modern = torch.cuda.get_device_capability() >= (8, 0)
        return Hardware(
            device="cuda",
            name=torch.cuda.get_device_name(),
            bf16=torch.cuda.is_bf16_supported(including_emulation=False),
            flash_attention=modern and is_flash_attn_2_available(),
            liger=modern and importlib.util.find_spec("liger_kernel") is not None,
        )
    return Hardware(device="mps" if torch.backends.mps.is_available() else "cpu")


def choose(
    hardware: Hardware,
    *,
    bf16: bool | None = None,
    fp16: bool | None = None,
    attention: str | None = None,
    liger: bool | None = None,
) -> Kernels:
    """Choose the fastest kernels that the hardware supports and the options allow.

    Args:
        bf16: The user's option; `None` means automatic: on GPUs that support it, never on a CPU.

    Raises:
        InputError: If options contradict each other.
        MachineError: If this machine does not support an option.
    """
    compute = _compute(hardware, bf16=bf16, fp16=fp16)
    if liger and not hardware.liger:
        raise MachineError(
            "The spec requests Liger kernels, which need an NVIDIA GPU and the package liger-kernel.",
            hint="Install it on the worker, or remove `training.liger`.",
        )
    if attention == "flash_attention_2" and not hardware.flash_attention:
        raise MachineError(
            "The spec requests FlashAttention 2, which needs an NVIDIA GPU from Ampere on and the package flash-attn.",
            hint="Install it on the worker, or remove `attn_implementation`.",
        )
    if attention is None:
        # FlashAttention has no float32 kernels.
        attention = "flash_attention_2" if hardware.flash_attention and compute != "float32" else "sdpa"
    return Kernels(
        compute=compute,
        attention=attention,
        liger=hardware.liger if liger is None else liger,
        varlen=attention.startswith("flash_attention"),
    )


def _compute(hardware: Hardware, *, bf16: bool | None, fp16: bool | None) -> DtypeName:
    if bf16 and fp16:
        raise InputError("The spec requests both bf16 and fp16.", hint="Choose one of them.")
    if fp16:
        if hardware.device == "cpu":
            raise MachineError("The spec requests fp16, which a CPU cannot train in.", hint="Use bf16 or remove it.")
        return "float16"
    if bf16 and hardware.device == "cuda" and not hardware.bf16:
        raise MachineError(f"The spec requests bf16, which {hardware.name} does not have.", hint="Use fp16.")
    automatic = hardware.device == "cuda" and hardware.bf16
    return "bfloat16" if (automatic if bf16 is None else bf16) else "float32"
