"""One forward pass: the weights load completely, and return finite values that differ."""

from __future__ import annotations

import logging
from pickle import UnpicklingError
from typing import Any, Final

import psutil
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from tunefleet.errors import MachineError, ModelError
from tunefleet.workloads.common.base_model import Source, loading_error
from tunefleet.workloads.training.model.hardware import Hardware, choose, inspect
from tunefleet.workloads.verification.model_files import Files

logger = logging.getLogger(__name__)

_TEXTS: Final = 2
_LENGTH: Final = 16
_SEED: Final = 20
_LOADING_FACTOR: Final = 1.3
"""Memory of a model while it is loaded, relative to its weights."""
_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_FILES_ONLY: Final = "check the files only (model.verify: files of a campaign, verify.forward: false of a task)"


def run(source: Source, weights: Files, highest: int, *, on_cpu: bool) -> dict[str, Any]:
    """Load a model, and run it on a few tokens.

    Raises:
        ModelError: If the weights are incomplete, or the output is not finite, or constant.
        MachineError: If there is not enough memory; it never falls back to another device.
    """
    hardware = Hardware("cpu") if on_cpu else inspect()
    kernels = choose(hardware)
    _require_memory(weights, hardware, kernels.compute)
    try:
        model = _loaded(source, hardware, kernels.compute)
        logits = _logits(model, highest)
    except torch.cuda.OutOfMemoryError as error:
        raise MachineError(
            f"{source.identifier} does not fit into the memory of the GPU.",
            hint=f"Set TUNEFLEET_CAMPAIGN_CPU=true to use the CPU, use a larger GPU, or {_FILES_ONLY}.",
        ) from error
    if not bool(torch.isfinite(logits).all()):
        raise ModelError(
            f"{source.identifier} returns values that are not finite.",
            hint="Its weights are damaged; download it again.",
        )
    # Weights of zeros load without an error.
    if float(logits.std()) == 0:
        raise ModelError(f"{source.identifier} returns constant logits.", hint="Its weights are damaged.")
    logger.info("%s ran in %s on %s", source.identifier, kernels.compute, hardware.device)
    return {"positions": logits[..., 0].numel(), "device": hardware.device, "dtype": kernels.compute}


def _require_memory(weights: Files, hardware: Hardware, compute: str) -> None:
    needed = int(weights.parameters * _BYTES[compute] * _LOADING_FACTOR)
    available, where = psutil.virtual_memory().available, "memory"
    if hardware.device == "cuda":
        available = sum(torch.cuda.mem_get_info(each)[0] for each in range(torch.cuda.device_count()))
        where = "memory of the GPU"
    if needed > available:
        way = (
            "Use a worker with more"
            if hardware.device == "cpu"
            else "Set TUNEFLEET_CAMPAIGN_CPU=true, use a larger GPU"
        )
        raise MachineError(
            f"The forward pass needs about {needed / 1e9:.1f} GB of {where}, but {available / 1e9:.1f} GB are free.",
            hint=f"{way}, or {_FILES_ONLY}.",
        )


def _loaded(source: Source, hardware: Hardware, compute: str) -> Any:
    several = hardware.device == "cuda" and torch.cuda.device_count() > 1
    places = {"device_map": "auto" if several else {"": 0}} if hardware.device == "cuda" else {}
    try:
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            source.path,
            revision=source.revision,
            trust_remote_code=source.trust_remote_code,
            dtype=getattr(torch, compute),
            output_loading_info=True,
            **places,
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError, UnpicklingError) as error:
        raise loading_error("model", source, error) from error
    for name in ("missing_keys", "mismatched_keys"):
        wrong = sorted(map(str, loading_info.get(name) or ()))
        if wrong:
            what = "lack" if name == "missing_keys" else "have in another shape"
            raise ModelError(
                f"The files of {source.identifier} {what} {wrong[0]}"
                + (f" and {len(wrong) - 1} more." if wrong[1:] else "."),
                hint="They are incomplete, or belong to another config.json.",
            )
    return model.to("mps") if hardware.device == "mps" else model


@torch.no_grad()
def _logits(model: Any, highest: int) -> torch.Tensor:
    model.eval()
    generator = torch.Generator().manual_seed(_SEED)
    tokens = torch.randint(0, highest + 1, (_TEXTS, _LENGTH), generator=generator)
    found: torch.Tensor = model(input_ids=tokens.to(model.device)).logits.float()
    return found
