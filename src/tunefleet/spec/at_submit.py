"""What is refused at the submit alone: tasks that were stored before a release refused it run on as they did."""

from __future__ import annotations

from collections.abc import Iterable

from tunefleet.errors import Fault
from tunefleet.spec.base_task import BaseTaskSpec
from tunefleet.spec.nodes import TaskNode


def new_faults(told: Iterable[tuple[TaskNode, BaseTaskSpec | None]]) -> list[Fault]:
    """Find what no new task may say.

    Args:
        told: Tasks, each with what is known of its spec.
    """
    return [
        node.fault(
            "resources.nodes",
            "on_lost: wait keeps a lost worker's place, and the other nodes of a training end without it",
            "leave on_lost out: all nodes go on from the newest uploaded checkpoint, at no cost to the task's tries",
        )
        for node, spec in told
        if spec is not None and spec.on_lost == "wait" and spec.resources.most_nodes > 1
    ]
