"""In which order the tasks of a workflow are shown, and which of them where not all have room."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.schemas.api import TaskView

# Reasons of an end for another task's sake.
FOLLOWED: Final = frozenset({TaskReason.UPSTREAM_FAILED, TaskReason.UPSTREAM_CANCELLED, TaskReason.UPSTREAM_SKIPPED})
_AT_WORK: Final = frozenset({TaskStatus.DISPATCHED, TaskStatus.RUNNING, TaskStatus.PAUSED})
_TO_COME: Final = frozenset({TaskStatus.QUEUED, TaskStatus.PENDING})


def in_order(tasks: Sequence[TaskView]) -> list[TaskView]:
    """Return tasks as they run: each behind those that it waits for, parts behind their whole, else as they stand."""
    place = {task.id: at for at, task in enumerate(tasks)}
    # Parts are stored behind everything else, and belong to their whole.
    whole_of = {task.id: task.shard_of for task in tasks if task.shard_of in place}
    parts, below = defaultdict(list), defaultdict(list)
    missing: dict[str, int] = {}
    for task in tasks:
        whole = whole_of.get(task.id)
        if whole is not None:
            parts[whole].append(task)
            continue
        above = {whole_of.get(id_) or id_ for id_ in task.depends_on if id_ in place} - {task.id}
        missing[task.id] = len(above)
        for id_ in above:
            below[id_].append(task.id)
    ready = [place[id_] for id_, count in missing.items() if count == 0]
    found: list[TaskView] = []
    while ready:
        first = tasks[heapq.heappop(ready)]
        found += [first, *parts[first.id]]
        for id_ in below[first.id]:
            missing[id_] -= 1
            if missing[id_] == 0:
                heapq.heappush(ready, place[id_])
    if len(found) < len(tasks):  # a circle, which no document may have
        known = {task.id for task in found}
        found += [task for task in tasks if task.id not in known]
    return found


def telling(tasks: Sequence[TaskView], room: int) -> list[TaskView]:
    """Return those of ordered tasks that say most, in the same order: at work or failed, then to come, then ended."""
    best = heapq.nsmallest(room, enumerate(tasks), key=lambda each: (_rank(each[1]), each[0]))
    return [task for _, task in sorted(best, key=lambda each: each[0])]


def _rank(task: TaskView) -> int:
    if task.status in _AT_WORK or (task.status == TaskStatus.FAILED and task.reason not in FOLLOWED):
        return 0
    return 1 if task.status in _TO_COME else 2
