"""What becomes of an optimizer's state when other values are copied into its parameters.

The parameters stay its own, so nothing has to be done. Its moments were gathered at the values before, though, and
whether they still help is for the user to say.
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
        name: `keep` leaves all as it is; `reset` forgets moments and step counts of the adapter's parameters, as if
            they were new; `scale` shortens the first moments, whose direction belongs to the values before, and keeps
            the second ones and the step counts, which say how large gradients are.
    """

    name: Literal["keep", "reset", "scale"] = "keep"
    factor: float = 1.0

    @classmethod
    def parse(cls, text: str) -> MomentPolicy:
        """Read `keep`, `reset`, `scale` (by a half) or `scale(0.3)`."""
        form = _FORM.fullmatch(text.replace(" ", ""))
        factor = float(form[2]) if form is not None and form[2] is not None else _DEFAULT_FACTOR
        match form[1] if form is not None else None:
            case "keep" | "reset" as name if form is not None and form[2] is None:
                return cls(name)
            case "scale" if 0 < factor < 1:
                return cls("scale", factor)
        raise InputError(f"optimizer_state is {text!r}.", hint="Write keep, reset, or scale(F) with F between 0 and 1.")

    def apply(self, optimizer: Any, parameters: Mapping[str, nn.Parameter]) -> None:
        """Change the state of these parameters, and of no others.

        Raises:
            InputError: If the optimizer keeps a state in which there is nothing to scale.
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
                f"{type(getattr(optimizer, 'optimizer', optimizer)).__name__} keeps {', '.join(map(str, moments))} of "
                f"{name}, and none of that is a first moment that could be scaled.",
                hint="Use optimizer_state='keep' or 'reset'.",
            )
        for direction in found:
            if direction.is_floating_point():
                direction.mul_(self.factor)
            else:
                # In 8 bits: the numbers are shares of each block's largest.
                moments["absmax1"].mul_(self.factor)


def check_held(optimizer: Any, parameters: Mapping[str, nn.Parameter], adapter: str) -> None:
    """Refuse an optimizer that does not hold what is to be trained: nothing would ever change."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    lost = [name for name, parameter in parameters.items() if id(parameter) not in held]
    if lost or not parameters:
        raise ModelError(
            f"The optimizer holds {len(parameters) - len(lost)} of the {len(parameters)} trainable tensors of the "
            f"adapter {adapter!r}; the others would never change.",
            hint="An adapter that is loaded under a new name comes too late for the optimizer. Copy its values into "
            "the one that trains, as `hot_reload` does, and keep that one active.",
        )
