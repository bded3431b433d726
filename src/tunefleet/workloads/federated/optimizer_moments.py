"""Optimizer state after new values have been copied into the parameters.

The parameter objects stay the same, so the optimizer works without changes. Its moments come from the previous values,
though, and whether they still help is the user's choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from tunefleet.errors import InputError, ModelError

# First moments, as torch and bitsandbytes name them.
_DIRECTIONS = ("exp_avg", "momentum_buffer", "state1")
_DEFAULT_FACTOR = 0.5
_FORM = re.compile(r"(keep|reset|scale)(?:\((\d*\.?\d+)\))?")


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
        form = _FORM.fullmatch(text.replace(" ", ""))
        factor = float(form[2]) if form is not None and form[2] is not None else _DEFAULT_FACTOR
        match form[1] if form is not None else None:
            case "keep" | "reset" as name if form is not None and form[2] is None:
                return cls(name)
            case "scale" if 0 < factor < 1:
                return cls("scale", factor)
        raise InputError(f"optimizer_state is {text!r}.", hint="Write keep, reset, or scale(F) with F between 0 and 1.")

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
