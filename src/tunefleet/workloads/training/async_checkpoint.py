"""Checkpoints that are written in the background, from a copy in main memory: a save stops the training for the copy.

The copy is made at the end of the step, so what is written is what was trained then. A second save waits until the
first is written: there is one copy at most.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

Work = Callable[[], None]


class BackgroundWriter:
    """Writes one checkpoint after the other in a thread of its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tunefleet-writer")
        self._saves: deque[list[Future[None]]] = deque()
        self.saving = False

    def begin(self) -> None:
        """Begin a save; waits until the one before is written."""
        for save in list(self._saves):
            for future in save:
                future.exception()
        self._saves.append([])
        self.saving = True

    def end(self) -> None:
        """Say that everything of the save was handed over."""
        self.saving = False

    def submit(self, work: Work) -> None:
        """Hand over a part of the save that has begun."""
        self._saves[-1].append(self._thread.submit(work))

    def wait(self) -> None:
        """Wait until everything that was handed over is written, or has failed."""
        self._thread.submit(lambda: None).result()

    def settle(self) -> None:
        """Wait for the oldest save that nobody has asked about.

        Raises:
            OSError: If a part of it could not be written.
        """
        for future in self._saves.popleft() if self._saves else ():
            error = future.exception()
            if error is not None:
                raise error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")


def copied(state: Any, made: dict[Any, torch.Tensor] | None = None) -> Any:
    """Copy a nested state into main memory; tensors that share their memory still do in the copy."""
    made = {} if made is None else made
    if isinstance(state, torch.Tensor):
        key = (state.data_ptr(), state.shape, state.stride(), state.dtype)
        if state.numel() == 0 or key not in made:
            made[key] = state.detach().to("cpu", copy=True)
        return made[key]
    if isinstance(state, dict):
        return type(state)((name, copied(value, made)) for name, value in state.items())
    if isinstance(state, list | tuple):
        return type(state)(copied(value, made) for value in state)
    return copy.deepcopy(state)


def weights_of(model: nn.Module, *, adapter: bool) -> dict[str, Any]:
    """Return the weights that a checkpoint holds: all, or what belongs to the adapter."""
    state: dict[str, Any] = model.state_dict()
    if not adapter:
        return state
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    # A module that is saved whole is found by all of its names.
    whole = {name.partition(".modules_to_save.")[0] for name in state if ".modules_to_save." in name}
    return {
        name: value
        for name, value in state.items()
        if "lora_" in name or name not in frozen or any(name.startswith(f"{prefix}.") for prefix in whole)
    }


def write_optimizer(folder: str, optimizer: dict[str, Any], scheduler: dict[str, Any]) -> None:
    """Write the states as the Trainer reads them."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(optimizer, os.path.join(folder, OPTIMIZER_NAME))  # noqa: PTH118 - as the Trainer names it
    torch.save(scheduler, os.path.join(folder, SCHEDULER_NAME))  # noqa: PTH118
