"""Equal prompts of tasks that run together are computed once, and everybody gets the answer.

Pure, and the same for every program that heeds `merge_children`: it computes `Batch.unique` and calls `Batch.spread`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)
A = TypeVar("A")


@dataclass(frozen=True)
class Batch(Generic[P]):
    """The prompts of several tasks, each distinct one once; `batch` makes it.

    Args:
        places: Task → for each of its prompts, in order, which of `unique` it is.
    """

    unique: tuple[P, ...]
    places: Mapping[str, tuple[int, ...]]

    def spread(self, answers: Sequence[A]) -> dict[str, list[A]]:
        """Return each task's answers, in the order of its prompts.

        Raises:
            ValueError: If there are more or fewer.
        """
        if len(answers) != len(self.unique):
            raise ValueError(f"There are {len(answers)} answers to {len(self.unique)} prompts.")
        return {task_id: [answers[place] for place in places] for task_id, places in self.places.items()}


def batch(prompts: Mapping[str, Sequence[P]]) -> Batch[P]:
    """Join the prompts of tasks.

    Args:
        prompts: Task → its prompts; whatever tells two of them apart (such as a system prompt) belongs into them.
    """
    known: dict[P, int] = {}
    places = {
        task_id: tuple(known.setdefault(prompt, len(known)) for prompt in mine) for task_id, mine in prompts.items()
    }
    return Batch(tuple(known), places)
