"""Fair share between projects.

The next task comes from the project with the lowest decayed usage for its weight. Tasks placed in a cycle count
immediately, so that one cycle does not give everything to one project. Free capacity that only one project can use is
given to it. Within a project, and with a single project, the queue order decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tunefleet.placement.model import Candidate, Requirement

# Assumed run time of a task that has just been placed.
QUANTUM_S: Final = 300.0
# Weight of a task without a GPU, relative to one GPU.
CPU_ONLY_SHARE: Final = 0.1


@dataclass(slots=True)
class Share:
    """A project's share of the fleet.

    Args:
        used_s: Decayed usage, in share seconds.
        places: How many more tasks it may run; None for no limit.
        gpus: Whether its quota leaves GPU hours.
    """

    weight: float = 1.0
    used_s: float = 0.0
    remaining: int | None = None
    gpus: bool = True

    @property
    def level(self) -> float:
        """Usage for its weight; the lowest comes first."""
        return self.used_s / self.weight


@dataclass(slots=True)
class DecayedUsage:
    """Usage of projects with exponential decay."""

    half_life_s: float
    _used: dict[str, tuple[float, float]] = field(default_factory=dict)

    def copy(self) -> DecayedUsage:
        """Return an independent copy."""
        return DecayedUsage(self.half_life_s, dict(self._used))

    def add(self, project: str, share_s: float, at: float) -> None:
        """Add usage that ended at a time, in any order."""
        used_s, since = self._used.get(project, (0.0, at))
        newest = max(at, since)
        total = used_s * self._left(newest - since) + share_s * self._left(newest - at)
        self._used[project] = (total, newest)

    def used_s(self, project: str, now: float) -> float:
        """Return a project's decayed usage."""
        used_s, since = self._used.get(project, (0.0, now))
        return used_s * self._left(max(0.0, now - since))

    def _left(self, age_s: float) -> float:
        return math.pow(2.0, -age_s / self.half_life_s)


def units(need: Requirement) -> float:
    """Return a task's share units: what one second of it counts."""
    return (float(need.gpu_count) or CPU_ONLY_SHARE) * need.nodes


def fair_order(
    lanes: Mapping[str, Iterator[Candidate]],
    shares: Mapping[str, Share],
    placed: Callable[[Candidate], bool],
) -> Iterator[Candidate]:
    """Yield the candidates of several projects, the project with the lowest usage for its weight first.

    Args:
        lanes: Project → its candidates in queue order, without those that its quotas forbid.
        shares: Project → its share; updated here.
        placed: Whether the candidate yielded last was placed.
    """
    heads: dict[str, Candidate] = {}
    for project, lane in lanes.items():
        _advance(heads, project, lane, shares[project])
    while heads:
        # On equal levels the task that waits longest comes first.
        project = min(heads, key=lambda each: (shares[each].level, heads[each].rank))
        candidate, share = heads[project], shares[project]
        yield candidate
        if placed(candidate):
            share.used_s += units(candidate.requirement) * QUANTUM_S
            if share.remaining is not None:
                share.remaining -= 1
        _advance(heads, project, lanes[project], share)


def _advance(heads: dict[str, Candidate], project: str, lane: Iterator[Candidate], share: Share) -> None:
    found = None if share.remaining is not None and share.remaining <= 0 else next(lane, None)
    if found is None:
        heads.pop(project, None)
    else:
        heads[project] = found
