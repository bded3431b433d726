"""Asynchronous checkpoints: training pauses only while the state is copied to main memory.

The copy is made at the end of the step, so the checkpoint holds the state of that step. A second save waits until the
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
    """Writes checkpoints one after another in a background thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tunefleet-writer")
        # Saves whose errors have not been raised yet, oldest first; `settle` removes them.
        self._saves: deque[list[Future[None]]] = deque()
        self.saving = False

    def begin(self) -> None:
        """Start a save; waits until the previous one is written."""
        for save in list(self._saves):
            for future in save:
                # Waits without raising: `settle` raises the error at the checkpoint that it belongs to.
                future.exception()
        self._saves.append([])
        self.saving = True

    def end(self) -> None:
        """End the save: every part of it has been submitted."""
        self.saving = False

    def submit(self, work: Work) -> None:
        """Submit one part of the current save."""
        self._saves[-1].append(self._thread.submit(work))

    def wait(self) -> None:
        """Wait until everything submitted is written or has failed."""
        # One thread runs the queue in order, so an empty task ends after all that came before it.
        self._thread.submit(lambda: None).result()

    def settle(self) -> None:
        """Wait for the oldest save that has not been settled.

        Raises:
            OSError: If a part could not be written.
        """
        for future in self._saves.popleft() if self._saves else ():
            error = future.exception()
            if error is not None:
                raise error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")


def copied(state: Any, copies: dict[Any, torch.Tensor] | None = None) -> Any:
    """Copy a nested state to main memory; tensors that share memory still share it in the copy."""
    copies = {} if copies is None else copies
    if isinstance(state, torch.Tensor):
        key = (state.data_ptr(), state.shape, state.stride(), state.dtype)
        # Empty tensors have no memory of their own, so their address identifies nothing.
        if state.numel() == 0 or key not in copies:
            copies[key] = state.detach().to("cpu", copy=True)
        return copies[key]
    if isinstance(state, dict):
        return type(state)((name, copied(value, copies)) for name, value in state.items())
    if isinstance(state, list | tuple):
        return type(state)(copied(value, copies) for value in state)
    return copy.deepcopy(state)


def checkpoint_weights(model: nn.Module, *, adapter: bool) -> dict[str, Any]:
    """Return the weights of a checkpoint: all, or only those of the adapter."""
    state: dict[str, Any] = model.state_dict()
    if not adapter:
        return state
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    # PEFT looks up a module of `modules_to_save` under all of its names, so all of them are kept.
    saved_modules = {name.partition(".modules_to_save.")[0] for name in state if ".modules_to_save." in name}
    return {
        name: value
        for name, value in state.items()
        if "lora_" in name or name not in frozen or any(name.startswith(f"{prefix}.") for prefix in saved_modules)
    }


def write_optimizer(folder: str, optimizer: dict[str, Any], scheduler: dict[str, Any]) -> None:
    """Write optimizer and scheduler states in the files that the Trainer reads."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(optimizer, os.path.join(folder, OPTIMIZER_NAME))  # noqa: PTH118 - as the Trainer names it
    torch.save(scheduler, os.path.join(folder, SCHEDULER_NAME))  # noqa: PTH118
