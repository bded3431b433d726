"""Deduplicates prompts of tasks that run together: equal ones are computed once, and each task gets the answer.

Pure, and shared by all programs that support `merge_children`: they compute `Batch.unique` and call `Batch.spread`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)
A = TypeVar("A")


@dataclass(frozen=True)
class Batch(Generic[P]):
    """The prompts of several tasks without duplicates; created by `batch`.

    Args:
        places: Task → index into `unique` for each of its prompts, in order.
    """

    unique: tuple[P, ...]
    places: Mapping[str, tuple[int, ...]]

    def spread(self, answers: Sequence[A]) -> dict[str, list[A]]:
        """Return each task's answers, in the order of its prompts.

        Raises:
            ValueError: If the number of answers differs.
        """
        if len(answers) != len(self.unique):
            raise ValueError(f"There are {len(answers)} answers to {len(self.unique)} prompts.")
        return {task_id: [answers[place] for place in places] for task_id, places in self.places.items()}


def batch(prompts: Mapping[str, Sequence[P]]) -> Batch[P]:
    """Join the prompts of several tasks.

    Args:
        prompts: Task → its prompts; anything that distinguishes two of them (such as a system prompt) must be part of
            them.
    """
    # A dict keeps the order of first occurrence.
    known: dict[P, int] = {}
    places = {
        task_id: tuple(known.setdefault(prompt, len(known)) for prompt in mine) for task_id, mine in prompts.items()
    }
    return Batch(tuple(known), places)
