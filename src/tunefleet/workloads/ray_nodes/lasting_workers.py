"""Long-running workers: a minimum number, and more while tasks wait.

Each has its own placement group. A pending group is demand, to which Ray's autoscaler reacts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import ray
from ray.exceptions import RayError

from tunefleet.integrations.clusters.base import NodeRequest
from tunefleet.integrations.clusters.ray_order import RUNNING, WAITING
from tunefleet.workloads.ray_nodes.demand import Demand
from tunefleet.workloads.ray_nodes.placement_group import NodeGroup, look

_LOOK_S: Final = 1.0
_BACKOFF_S: Final = (1.0, 2.0, 5.0, 15.0, 60.0)
_STEADY_S: Final = 60.0
"""A worker that ran this long restarts without a pause."""
# A worker this young still counts against the waiting tasks.
_NEW_S: Final = 60.0
_KILL_S: Final = 5.0
_IDLE_S: Final = 300.0


class Slot:
    """One worker: its pending or reserved node, and the time of its next start."""

    def __init__(self, ask: NodeRequest, number: int) -> None:
        self._ask = ask
        self.number = number
        self._group: NodeGroup | None = None
        self._actor: Any = None
        self._run: Any = None
        self._since = 0.0
        self._failures = 0
        self._not_before = 0.0

    @property
    def taken(self) -> bool:
        """Whether it has a pending or reserved node."""
        return self._group is not None

    @property
    def running(self) -> bool:
        """Whether its command is running."""
        return self._run is not None

    @property
    def fresh(self) -> bool:
        """Whether it can soon take a task that waits now."""
        return self.taken and (not self.running or time.monotonic() - self._since < _NEW_S)

    def want(self) -> None:
        """Request a node from Ray, unless it has one or failed recently."""
        if self._group is None and time.monotonic() >= self._not_before:
            self._group = NodeGroup(self._ask, 1)

    def drop(self) -> None:
        """Cancel the pending node."""
        if self._group is not None and not self.running:
            self._group.leave()
            self._group = None

    def step(self) -> str | None:
        """Advance: start on a ready node, clean up after an end; return a message about it."""
        if self._group is None:
            return None
        if self._run is None:
            if not self._group.ready(0):
                return None
            self._actor, self._run = self._group.start(0, self.number)
            self._since = time.monotonic()
            return f"Worker {self.number} starts on Ray node {self._group.names()[0]}."
        ready, _ = ray.wait([self._run], timeout=0)
        return self._end(self._run) if ready else None

    def stop(self) -> None:
        """Stop its command."""
        if self._run is not None:
            self._actor.stop.remote()

    def _end(self, ref: Any) -> str:
        try:
            code, fault = ray.get(ref)
            how = fault or f"ended with exit code {code}"
        except RayError as error:
            how = f"was lost with its node ({type(error).__name__})"
        assert self._group is not None, "it ran there"
        self._group.leave()
        self._group = self._actor = self._run = None
        lasted = time.monotonic() - self._since
        self._failures = 0 if lasted > _STEADY_S else self._failures + 1
        pause = _BACKOFF_S[min(self._failures, len(_BACKOFF_S)) - 1] if self._failures else 0.0
        self._not_before = time.monotonic() + pause
        return f"Worker {self.number} {how}."


def keep(ask: NodeRequest, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    """Keep `ask.nodes` workers, and up to `ask.nodes_max` while tasks wait; return on a stop request."""
    one = replace(ask, nodes=1, nodes_max=1)
    # Workers beyond the minimum end automatically when they are idle for a while.
    further = replace(one, environment={**one.environment, "TUNEFLEET_NODES_IDLE_S": f"{_IDLE_S:g}"})
    slots = [Slot(one if number < ask.nodes else further, number) for number in range(ask.nodes_max)]
    demand, last_status = Demand(ask), ""
    while not stopped():
        _want(slots, ask.nodes, demand.waiting())
        for event in [slot.step() for slot in slots]:
            if event is not None:
                say(event)
        now = _status(slots, ask, one)
        if now != last_status:
            say(now)
            last_status = now
        time.sleep(_LOOK_S)
    _end(slots, ask.grace_s)


def _want(slots: list[Slot], least: int, waiting: int) -> None:
    for slot in slots[:least]:
        slot.want()
    further = slots[least:]
    missing = waiting - sum(slot.fresh for slot in slots)
    for slot in further:
        if waiting == 0:
            slot.drop()
        elif missing > 0 and not slot.taken:
            slot.want()
            missing -= 1


def _status(slots: list[Slot], ask: NodeRequest, one: NodeRequest) -> str:
    running = sum(slot.running for slot in slots)
    if running or not any(slot.taken for slot in slots):
        return f"{RUNNING}{running} of {ask.nodes} to {ask.nodes_max} workers"
    return f"{WAITING}{look(one).why(ask.patience_s)}"


def _end(slots: list[Slot], grace_s: float) -> None:
    for slot in slots:
        slot.drop()
        slot.stop()
    deadline = time.monotonic() + grace_s + _KILL_S
    while any(slot.running for slot in slots) and time.monotonic() < deadline:
        time.sleep(_LOOK_S / 4)
        for slot in slots:
            slot.step()
