"""Hot reload: copies an aggregated adapter into the adapter being trained, between two optimizer steps.

Loading it as a new adapter would give the model parameters that the optimizer does not hold: the loss would still be
printed, but nothing would be trained. Here values are copied in place.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tunefleet.errors import InputError
from tunefleet.workloads.federated.compatibility import read_converted
from tunefleet.workloads.federated.live_adapter import LiveAdapter
from tunefleet.workloads.federated.optimizer_moments import MomentPolicy, check_held

_FORM = re.compile(r"replace|mix\((\d*\.?\d+)\)")


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The size and duration of a hot reload."""

    tensors: int
    size_bytes: int
    seconds: float


def parse_share(text: str) -> float:
    """Return the weight of the aggregated adapter: 1 for `replace`, A for `mix(A)`."""
    form = _FORM.fullmatch(text.replace(" ", ""))
    share = float(form[1]) if form is not None and form[1] is not None else 1.0
    if form is None or not 0 < share <= 1:
        raise InputError(f"reload is {text!r}.", hint="Write replace, or mix(A) with A above 0 and up to 1.")
    return share


def hot_reload(
    model: Any,
    source: Path | str | Mapping[str, torch.Tensor],
    optimizer: Any = None,
    *,
    adapter: str | None = None,
    reload: str = "replace",
    optimizer_state: str = "keep",
    keep_as: str | None = None,
) -> Reloaded:
    """Copy an aggregated adapter into the adapter being trained; for custom loops, between two optimizer steps.

    The parameters stay the same objects, so the optimizer and DDP keep working. Each keeps its dtype, whatever the file
    holds. With several ranks, every rank must call it at the same step.

    Args:
        reload: `replace` uses the aggregated values, `mix(0.5)` the mean of them and the current values.
    """
    share, policy = parse_share(reload), MomentPolicy.parse(optimizer_state)
    live = LiveAdapter(model, adapter)
    values = source if isinstance(source, Mapping) else read_converted(live, source)
    live.check(values, None)
    if optimizer is not None:
        check_held(optimizer, live.trained, live.name)
    began = time.perf_counter()
    blend(live, values, share)
    if optimizer is not None:
        policy.apply(optimizer, live.trained)
    if keep_as is not None:
        keep_frozen_copy(live, values, keep_as)
    size_bytes = sum(tensor.nbytes for tensor in live.tensors.values())
    return Reloaded(len(live.tensors), size_bytes, time.perf_counter() - began)


@torch.no_grad()
def blend(live: LiveAdapter, values: Mapping[str, torch.Tensor], share: float = 1.0) -> None:
    """Copy checked values into an adapter, in place."""
    for name, tensor in live.tensors.items():
        value = values[name]
        if share < 1 and tensor.is_floating_point():
            # In float32, so that small weights are not rounded away.
            value = torch.lerp(tensor.float(), value.to(tensor.device, torch.float32), share)
        tensor.copy_(value)


def keep_frozen_copy(live: LiveAdapter, values: Mapping[str, torch.Tensor], name: str) -> None:
    """Keep values as a second, frozen adapter, which is not active, not trained and not uploaded.

    Args:
        name: Name of the second adapter; created at the first call.
    """
    if name == live.name:
        raise InputError(
            f"keep_as is {name!r}, which is the adapter being trained.", hint="Choose another name for the frozen copy."
        )
    model = live.model
    if name not in model.peft_config:
        _add(model, live, name)
    frozen = LiveAdapter(model, name)
    blend(frozen, values)
    for tensor in frozen.tensors.values():
        tensor.requires_grad_(requires_grad=False)


def _add(model: Any, live: LiveAdapter, name: str) -> None:
    """Add a second adapter to the model without changing trainable parameters or the random state."""
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    config = copy.deepcopy(live.config)
    config.inference_mode = True
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        model.add_adapter(name, config)
    for parameter in model.parameters():
        wanted = id(parameter) in trained
        if parameter.requires_grad != wanted:
            parameter.requires_grad_(requires_grad=wanted)
