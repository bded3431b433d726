"""Something to be done when the training has put its model together, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

T = TypeVar("T")


class AtBegin(TrainerCallback, Generic[T]):
    """Does one thing once, at once or when the training begins, and keeps what came of it.

    Args:
        act: What is done.
    """

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self._done: list[T] = []

    @property
    def result(self) -> T:
        """What came of it."""
        return self._done[0]

    def run(self) -> None:
        """Do it now, unless it is done."""
        if not self._done:
            self._done.append(self._act())

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Do it."""
        self.run()
