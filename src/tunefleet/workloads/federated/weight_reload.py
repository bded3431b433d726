"""Hot reload: copies an aggregated adapter into the adapter being trained, between two optimizer steps.

Loading it as a new adapter would give the model parameters that the optimizer does not hold: the loss would still be
printed, but nothing would be trained. Here values are copied in place.

The parameter objects stay the same, so the optimizer works without changes. Its moments come from the previous values,
though, and whether they still help is the user's choice.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from tunefleet.errors import InputError, ModelError
from tunefleet.federation import read_config, refit, update_in
from tunefleet.workloads.federated.live_adapter import LiveAdapter, read_adapter

_FORM = re.compile(r"replace|mix\((\d*\.?\d+)\)")
logger = logging.getLogger("tunefleet.federation")
# First moments, as torch and bitsandbytes name them.
_DIRECTIONS = ("exp_avg", "momentum_buffer", "state1")
_DEFAULT_FACTOR = 0.5
_MOMENTS_FORM = re.compile(r"(keep|reset|scale)(?:\((\d*\.?\d+)\))?")


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
        raise InputError(f"reload is {text!r}.", hint="Use replace, or mix(A) with A above 0 and up to 1.")
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


def read_converted(live: LiveAdapter, folder: Path | str) -> Mapping[str, torch.Tensor]:
    """Read an adapter in the shape of the adapter being trained.

    An adapter of another rank or scale is converted: a smaller rank gets the best approximation, a larger one all of
    it.
    """
    place = Path(folder).expanduser()
    values, config = read_adapter(place)
    # Copied out of the memory-mapped file, whose pages may have been evicted when a training step needs them.
    converted = {name: value.clone() for name, value in values.items()}
    if live.differs_in(config) is not None:
        converted = _refitted(live, place)
    live.check(converted, None)
    return converted


def _refitted(live: LiveAdapter, place: Path) -> dict[str, torch.Tensor]:
    like = read_config(json.dumps(live.described()).encode())
    with tempfile.TemporaryDirectory(prefix="tunefleet-fitted-") as scratch:
        report = refit(update_in(place), like, Path(scratch))
        values, _ = read_adapter(scratch)
        if report.error:
            logger.warning(
                "%s cannot be represented exactly with rank %d of the local adapter: %.1f %% of it is lost.",
                place.name,
                like.rank,
                100 * report.error,
            )
        return {name: value.clone() for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class MomentPolicy:
    """`keep`, `reset`, or `scale` by a factor.

    Args:
        name: `keep` changes nothing; `reset` deletes moments and step counts of the adapter's parameters; `scale`
            scales the first moments, whose direction belongs to the previous values, and keeps second moments and
            step counts, which describe the size of gradients.
    """

    name: Literal["keep", "reset", "scale"] = "keep"
    factor: float = 1.0

    @classmethod
    def parse(cls, text: str) -> MomentPolicy:
        """Parse `keep`, `reset`, `scale` (by 0.5) or `scale(0.3)`."""
        form = _MOMENTS_FORM.fullmatch(text.replace(" ", ""))
        factor = float(form[2]) if form is not None and form[2] is not None else _DEFAULT_FACTOR
        match form[1] if form is not None else None:
            case "keep" | "reset" as name if form is not None and form[2] is None:
                return cls(name)
            case "scale" if 0 < factor < 1:
                return cls("scale", factor)
        raise InputError(f"optimizer_state is {text!r}.", hint="Use keep, reset, or scale(F) with F between 0 and 1.")

    def apply(self, optimizer: Any, parameters: Mapping[str, nn.Parameter]) -> None:
        """Change the optimizer state of these parameters only.

        Raises:
            InputError: If the optimizer state has no first moment to scale.
        """
        if self.name == "keep":
            return
        state = optimizer.state
        for name, parameter in parameters.items():
            if self.name == "reset":
                state.pop(parameter, None)
            elif state.get(parameter):
                self._scale(optimizer, name, state[parameter])

    def _scale(self, optimizer: Any, name: str, moments: dict[str, Any]) -> None:
        found = [moments[key] for key in _DIRECTIONS if isinstance(moments.get(key), torch.Tensor)]
        if not found:
            raise InputError(
                f"{type(getattr(optimizer, 'optimizer', optimizer)).__name__} keeps {', '.join(map(str, moments))} for "
                f"{name}, and none of these is a first moment that can be scaled.",
                hint="Use optimizer_state='keep' or 'reset'.",
            )
        for direction in found:
            if direction.is_floating_point():
                direction.mul_(self.factor)
            else:
                # 8-bit optimizers store values relative to the maximum of each block, so the maximum is scaled.
                moments["absmax1"].mul_(self.factor)


def check_held(optimizer: Any, parameters: Mapping[str, nn.Parameter], adapter: str) -> None:
    """Check that the optimizer holds all trainable tensors of the adapter."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    lost = [name for name, parameter in parameters.items() if id(parameter) not in held]
    if lost or not parameters:
        raise ModelError(
            f"The optimizer updates {len(parameters) - len(lost)} of the {len(parameters)} trainable tensors of the "
            f"adapter {adapter!r}; the others would not be trained.",
            hint="The optimizer does not see an adapter that is loaded under a new name later. Copy its values into "
            "the adapter being trained, as `hot_reload` does, and keep that one active.",
        )
