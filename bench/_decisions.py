"""The third series of scale.py: what a decision costs at each size of the fleet with each length of the queue.

It is bench/placement.py's measurement through the store, and no worker asks for anything: a pass reads, decides, writes
and commits as in the server, and of what runs a part ends before the next one. The queue has its full length at each
pass. So the figures are what the server can do, and no demand.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import placement

from tunefleet.db import DEFAULT_PROJECT
from tunefleet.db.repositories import task_list
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import ServerContext
from tunefleet.settings import ServerSettings

FLEETS: Final = (10, 100, 1_000, 5_000)
QUEUES: Final = (1_000, 10_000, 100_000)
QUICK_FLEETS: Final = (10, 100)
QUICK_QUEUES: Final = (100, 1_000)
FLAT: Final = 2.0
"""A decision may take so many times as long with the longest queue as with any shorter one, in the largest fleet: the
queues are ten times as long each, so that a cost in proportion would be ten."""
_PASSES: Final = 12
_BOUND_S: Final = 30.0
"""No further pass begins at one point after so long."""
_ENDS: Final = 0.5
"""The part of what runs that ends between two passes, within `placement.MOST_ENDS`."""


@dataclass(frozen=True)
class Point:
    """What was measured at one size of the fleet with one length of the queue; seconds are of passes alone."""

    workers: int
    queued: int
    decisions: int
    wall_s: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        """How many decisions a second."""
        return self.decisions / self.wall_s

    @property
    def ms(self) -> float:
        """Time of one."""
        return 1e3 * self.wall_s / self.decisions

    @property
    def cpu_ms(self) -> float:
        """Time of the processor that one takes; a machine that is busy otherwise does not lengthen it much."""
        return 1e3 * self.cpu_s / self.decisions


async def measure(fleets: Sequence[int], queues: Sequence[int], tell: Callable[[str], None]) -> list[Point]:
    """Measure each fleet with each queue, the shortest first; `tell` gets a line as soon as it is known."""
    found = []
    for count in fleets:
        with tempfile.TemporaryDirectory() as folder:
            core = open_context(ServerSettings(data=Path(folder)))
            try:
                await api_keys.ensure_first(core)
                placement.fill_fleet(core, count)
                await _occupy(core, count)
                for length in queues:
                    found.append(await _point(core, count, length))
                    tell(_line(found[-1]))
            finally:
                core.close()
    return found


async def _occupy(core: ServerContext, count: int) -> None:
    """Give most workers something to run, so that it is ends that make room."""
    placement.fill_queue(core, 2 * count)
    while await placement.Watch().place(core):
        pass


async def _point(core: ServerContext, count: int, length: int) -> Point:
    chance, watch, decisions = random.Random(7), placement.Watch(), 0
    _lengthen(core, length)
    # What the longer queue offers to places that were free before is no part of it.
    await placement.Watch().place(core)
    began = time.monotonic()
    for times in range(_PASSES):
        ended = placement.end_some(core, _ENDS, placement.MOST_ENDS, chance)
        placement.tell_some(core, ended, chance, times)
        _lengthen(core, length)
        decisions += await watch.place(core)
        if time.monotonic() - began > _BOUND_S:
            break
    return Point(count, length, decisions, watch.wall_s, watch.cpu_s)


def _lengthen(core: ServerContext, length: int) -> None:
    now = core.clock.wall()
    waiting = core.db.read(lambda connection: task_list.queued_by_need(connection, DEFAULT_PROJECT, now)).result()
    if (missing := length - sum(waiting.values())) > 0:
        placement.fill_queue(core, missing)


def _line(point: Point) -> str:
    return (
        f"  {point.workers:>6,} workers {point.queued:>8,} queued: {point.per_s:>7,.0f} decisions/s, "
        f"{point.ms:>7.3f} ms a decision ({point.cpu_ms:.3f} of the processor), {point.decisions:,} decided"
    )


def slopes(points: Sequence[Point]) -> list[str]:
    """Say how the time of a decision grows with the queue, in each fleet, and with the fleet, at each length."""
    told = []
    for count in sorted({point.workers for point in points}):
        mine = [point for point in points if point.workers == count]
        told.append(f"  {count:>6,} workers, over the queue: {_grows([point.queued for point in mine], mine)}")
    for length in sorted({point.queued for point in points}):
        mine = [point for point in points if point.queued == length]
        told.append(f"  {length:>7,} queued, over the fleet: {_grows([point.workers for point in mine], mine)}")
    return told


def _grows(sizes: Sequence[int], points: Sequence[Point]) -> str:
    costs = [point.ms for point in points]
    per_1000 = 1e3 * float(np.polyfit(sizes, costs, 1)[0])
    power = float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])
    return (
        f"{per_1000:+.4f} ms for each 1,000 more, power {power:+.2f}, largest to smallest {costs[-1] / costs[0]:.2f} "
        f"({points[-1].cpu_ms / points[0].cpu_ms:.2f} of the processor)"
    )


def faults(points: Sequence[Point]) -> list[str]:
    """Return what breaks the budget: decisions a second in the case that it names, and how flat their time is.

    Flat is judged in the largest fleet, where what a pass costs by itself hides nothing, and by the processor's time:
    what else a machine does falls on one point and not on the other.
    """
    largest = max(point.workers for point in points)
    mine = [point for point in points if point.workers == largest]
    # In a short queue few tasks are left that somebody can run, so that each bears much of its pass.
    last, least = mine[-1], min(mine[:-1], key=lambda point: point.cpu_ms)
    ratio = last.cpu_ms / least.cpu_ms
    named = (last.workers, last.queued) == (FLEETS[-1], QUEUES[-1])
    found = {
        f"{last.per_s:,.0f} decisions/s with {last.queued:,} queued tasks and {largest:,} workers, fewer than "
        f"{placement.BUDGET:,}": named and last.per_s < placement.BUDGET,
        f"a decision takes {ratio:.2f} times as long with {last.queued:,} queued tasks as with {least.queued:,}, "
        f"more than {FLAT}": ratio > FLAT,
    }
    return [what for what, is_so in found.items() if is_so]
