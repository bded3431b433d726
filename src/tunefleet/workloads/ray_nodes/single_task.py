"""The nodes of one task: they start together, and the task is done when all have ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError

from tunefleet.integrations.clusters.base import NodeRequest
from tunefleet.integrations.clusters.ray_order import AGAIN, FAILED, HOPELESS
from tunefleet.workloads.ray_nodes.placement_group import NodeGroup

_LOOK_S: Final = 0.5
_KILL_S: Final = 5.0
"""By this time after the grace period, the remaining processes have been killed."""


@dataclass
class Ended:
    """The result of the nodes."""

    codes: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    hopeless: bool = False

    @property
    def code(self) -> int:
        """The job's exit code."""
        if self.hopeless:
            return HOPELESS
        if AGAIN in self.codes:
            return AGAIN
        return FAILED if self.faults or any(self.codes) else 0

    def add(self, name: str, ref: Any, *, stopped: bool) -> bool:
        """Read the result of a node; return whether it ran."""
        try:
            code, fault = ray.get(ref)
        except RayError as error:
            self._lost(name, error)
            return False
        self.codes.append(code)
        if fault:
            self.faults.append(f"Ray node {name} could not start the command: {fault}.")
            self.hopeless = True
        elif code and not stopped:
            self.faults.append(f"The command ended with exit code {code} on Ray node {name}.")
        return not fault

    def _lost(self, name: str, error: RayError) -> None:
        if "No module named 'tunefleet" in str(error):
            self.faults.append(f"Ray node {name} has no Tunefleet: install it in Ray's environment on all nodes.")
            self.hopeless = True
        elif isinstance(error, RayActorError):
            self.faults.append(f"Ray node {name} was lost: {_last(error)}.")
        else:
            self.faults.append(f"Ray node {name} failed: {_last(error)}.")


def run(ask: NodeRequest, group: NodeGroup, stopped: Callable[[], bool]) -> Ended:
    """Run the command on all nodes; return when no process of it is left."""
    names = group.names()
    started = [group.start(number, number) for number in range(group.nodes)]
    waited = {ref: number for number, (_, ref) in enumerate(started)}
    ended = Ended()
    deadline: float | None = None
    while waited and (deadline is None or time.monotonic() < deadline):
        ready, _ = ray.wait(list(waited), num_returns=1, timeout=_LOOK_S)
        alone = [ended.add(names[waited.pop(ref)], ref, stopped=deadline is not None) for ref in ready]
        # One failed node is enough to stop the others: the task needs all of them.
        if deadline is None and (stopped() or not all(alone)):
            deadline = time.monotonic() + ask.grace_s + _KILL_S
            for number in waited.values():
                started[number][0].stop.remote()
    ended.faults += [f"Ray node {names[number]} did not end within the grace period." for number in waited.values()]
    return ended


def _last(error: RayError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
