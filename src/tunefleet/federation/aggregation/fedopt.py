"""Server optimizers: the average's change of the global adapter is used as a gradient.

They work on the factors elementwise, so they require equal ranks and that all workers start each round from the
published adapter. The moments are stored in a safetensors file next to their version: rolling back to a version
restores its moments, too. Sources: FedAdam and FedYogi, Reddi et al. 2021, https://arxiv.org/abs/2003.00295 (without
bias correction, as there); DiLoCo, Douillard et al. 2023, https://arxiv.org/abs/2311.08105 (Nesterov as in PyTorch's
SGD).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from tunefleet.errors import InputError
from tunefleet.federation.adapter import AdapterFile
from tunefleet.federation.aggregation.sources import Ingredient
from tunefleet.federation.floats import Array
from tunefleet.federation.safetensors_writer import AdapterWriter
from tunefleet.spec.options.federation_options import StrategySpec

_KEY: Final = "tunefleet.optimizer"
_ROUNDS: Final = "tunefleet.rounds"
_MOMENTS: Final = {"fedadam": ("m", "v"), "fedyogi": ("m", "v"), "diloco": ("momentum",)}


class ServerOptimizer:
    """One step of a server optimizer, processed in pieces; a context manager.

    Args:
        spec: The optimizer and its options.
        previous: The global adapter by tensor, in the scale of the updates; `None` before the first version, which is
            the plain average with zero moments.
        shapes: Shapes of the output tensors.
        state: The moments of the previous version; `None` if there are none.
        new_state: Output file of the moments.

    Attributes:
        rounds: Number of steps of the moments, including this one.
    """

    def __init__(
        self,
        spec: StrategySpec,
        previous: dict[str, Ingredient] | None,
        shapes: dict[str, tuple[int, ...]],
        state: Path | None,
        new_state: Path,
    ) -> None:
        self._spec = spec
        self._previous = previous
        self._stack = ExitStack()
        self._before = None if state is None else self._stack.enter_context(_opened(state, spec.name, shapes))
        past = int(self._before.metadata.get(_ROUNDS, "0")) if self._before is not None else 0
        self.rounds = past + (previous is not None)
        self._after = AdapterWriter(
            new_state,
            {f"{moment}/{name}": ("F32", shape) for moment in _MOMENTS[spec.name] for name, shape in shapes.items()},
            {_KEY: spec.name, _ROUNDS: str(self.rounds)},
        )

    def __enter__(self) -> Self:
        self._stack.enter_context(self._after)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def step(self, name: str, start: int, mean: Array) -> Array:
        """Return the values to publish for a piece of a tensor.

        Args:
            start: Index of the first value in the flattened tensor.
            mean: The average of the updates.
        """
        if self._previous is None:
            for moment in _MOMENTS[self._spec.name]:
                self._after.write(f"{moment}/{name}", start, np.zeros_like(mean))
            return mean
        ingredient = self._previous[name]
        old = np.empty_like(mean)
        ingredient.file.read(ingredient.tensor, start, old)
        old *= np.float32(ingredient.factor)
        change = mean - old
        if self._spec.name == "diloco":
            return old + self._nesterov(name, start, change)
        return old + self._adaptive(name, start, change)

    def _moment(self, moment: str, name: str, start: int, like: Array) -> Array:
        out = np.zeros_like(like)
        if self._before is not None:
            self._before.read(self._before.tensors[f"{moment}/{name}"], start, out)
        return out

    def _nesterov(self, name: str, start: int, change: Array) -> Array:
        momentum, rate = np.float32(self._spec.momentum or 0.0), np.float32(self._spec.server_lr or 0.0)
        moving = self._moment("momentum", name, start, change) * momentum + change
        self._after.write(f"momentum/{name}", start, moving)
        return rate * (change + momentum * moving)

    def _adaptive(self, name: str, start: int, change: Array) -> Array:
        beta1, beta2 = np.float32(self._spec.beta1 or 0.0), np.float32(self._spec.beta2 or 0.0)
        m = self._moment("m", name, start, change)
        m += (1 - beta1) * (change - m)
        v = self._moment("v", name, start, change)
        square = change * change
        # Yogi changes the second moment by a bounded amount, Adam proportionally to the difference.
        towards = np.sign(square - v) * square if self._spec.name == "fedyogi" else square - v
        v += (1 - beta2) * towards
        self._after.write(f"m/{name}", start, m)
        self._after.write(f"v/{name}", start, v)
        np.sqrt(v, out=v)
        v += np.float32(self._spec.tau or 0.0)
        np.divide(m, v, out=m)
        m *= np.float32(self._spec.server_lr or 0.0)
        return m


def _opened(state: Path, name: str, shapes: dict[str, tuple[int, ...]]) -> AdapterFile:
    file = AdapterFile(state)
    found = {key: tensor.shape for key, tensor in file.tensors.items()}
    wanted = {f"{moment}/{key}": shape for moment in _MOMENTS[name] for key, shape in shapes.items()}
    if file.metadata.get(_KEY) != name or found != wanted or not file.metadata.get(_ROUNDS, "").isdecimal():
        file.close()
        raise InputError(
            f"The optimizer state in {state.name} does not belong to {name} and these tensors.",
            hint="Start without a state: the moments start at zero.",
        )
    return file
