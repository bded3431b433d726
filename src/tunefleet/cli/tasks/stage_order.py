"""The display order of a workflow's tasks, and the selection if not all fit."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.schemas.api import TaskView

# The task ended because of an upstream.
FOLLOWED: Final = frozenset({TaskReason.UPSTREAM_FAILED, TaskReason.UPSTREAM_CANCELLED, TaskReason.UPSTREAM_SKIPPED})
_ACTIVE: Final = frozenset({TaskStatus.DISPATCHED, TaskStatus.RUNNING, TaskStatus.PAUSED})
_PENDING: Final = frozenset({TaskStatus.QUEUED, TaskStatus.PENDING})


def in_order(tasks: Sequence[TaskView]) -> list[TaskView]:
    """Return tasks in topological order, shards after their parent; otherwise the order is kept."""
    position = {task.id: at for at, task in enumerate(tasks)}
    # The server lists shards last; here each follows its parent.
    parent_of = {task.id: task.shard_of for task in tasks if task.shard_of in position}
    shards, below = defaultdict(list), defaultdict(list)
    missing: dict[str, int] = {}
    for task in tasks:
        parent = parent_of.get(task.id)
        if parent is not None:
            shards[parent].append(task)
            continue
        above = {parent_of.get(id_) or id_ for id_ in task.depends_on if id_ in position} - {task.id}
        missing[task.id] = len(above)
        for id_ in above:
            below[id_].append(task.id)
    # A heap of positions: among the ready tasks the order of the workflow is kept.
    ready = [position[id_] for id_, count in missing.items() if count == 0]
    found: list[TaskView] = []
    while ready:
        first = tasks[heapq.heappop(ready)]
        found += [first, *shards[first.id]]
        for id_ in below[first.id]:
            missing[id_] -= 1
            if missing[id_] == 0:
                heapq.heappush(ready, position[id_])
    if len(found) < len(tasks):  # a cycle, which validation rejects
        known = {task.id for task in found}
        found += [task for task in tasks if task.id not in known]
    return found


def most_relevant(tasks: Sequence[TaskView], limit: int) -> list[TaskView]:
    """Return the most relevant of ordered tasks, in the same order: active or failed, then pending, then ended."""
    best = heapq.nsmallest(limit, enumerate(tasks), key=lambda each: (_rank(each[1]), each[0]))
    return [task for _, task in sorted(best, key=lambda each: each[0])]


def _rank(task: TaskView) -> int:
    if task.status in _ACTIVE or (task.status == TaskStatus.FAILED and task.reason not in FOLLOWED):
        return 0
    return 1 if task.status in _PENDING else 2
