"""Keeps an evaluation from changing the training: the random state after it is the one before it.

Evaluating draws random numbers (a data loader draws a seed). A save that is evaluated, or one more evaluation, would
give every later step other numbers, and a resumed training would not equal the one that never stopped.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class RandomStateCallback(TrainerCallback):
    """Captures before an evaluation, and puts back after it.

    It stands behind the callbacks that may ask for an evaluation. Whatever a callback behind it asks for is not seen.
    """

    def __init__(self) -> None:
        self._put_back: Callable[[], None] | None = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Capture if the step is evaluated."""
        self._put_back = capture() if control.should_evaluate else None

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Capture if the epoch is evaluated."""
        self._put_back = capture() if control.should_evaluate else None

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Put the random state back; several evaluation sets come here once each."""
        if self._put_back is not None:
            self._put_back()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget: what is evaluated from here on is somebody else's."""
        self._put_back = None

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Forget."""
        self._put_back = None


def capture() -> Callable[[], None]:
    """Return what puts the random state of this moment back: Python's, NumPy's, torch's on CPU and CUDA.

    Only libraries that are already imported have a state, and only a CUDA that is already in use.
    """
    undo: list[Callable[[], None]] = []
    ours = random.getstate()
    undo.append(lambda: random.setstate(ours))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        theirs = numpy.random.get_state()
        undo.append(lambda: numpy.random.set_state(theirs))
    torch = sys.modules.get("torch")
    if torch is not None:
        cpu = torch.get_rng_state()
        undo.append(lambda: torch.set_rng_state(cpu))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            devices = torch.cuda.get_rng_state_all()
            undo.append(lambda: torch.cuda.set_rng_state_all(devices))

    def put_back() -> None:
        for step in undo:
            step()

    return put_back
