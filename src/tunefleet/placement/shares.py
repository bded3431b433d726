"""Whose turn it is when several projects want the same fleet.

Each project has used so much lately, and older use counts less. The next task is taken of the project that has used the
least for its weight; what is placed in a pass counts at once, so that one pass does not give all to one. Nobody is
passed by who alone can use what is free. Within a project the queue decides, and with one project nothing else does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tunefleet.placement.model import Candidate, Requirement

# What a task counts as long as nothing is known of how long it runs.
QUANTUM_S: Final = 300.0
# What a task without a GPU counts, where one with a GPU counts 1.
BARE_SHARE: Final = 0.1


@dataclass(slots=True)
class Share:
    """How a project stands.

    Args:
        used_s: What it has used lately, in share seconds.
        places: How many more tasks it may have running; null for any number.
    """

    weight: float = 1.0
    used_s: float = 0.0
    places: int | None = None
    gpus: bool = True

    @property
    def level(self) -> float:
        """What it has used for its weight; who is lowest comes first."""
        return self.used_s / self.weight


@dataclass(slots=True)
class Decayed:
    """What projects have used, with older use counting less and less."""

    half_life_s: float
    _used: dict[str, tuple[float, float]] = field(default_factory=dict)

    def copy(self) -> Decayed:
        """Return the same, to be added to apart from this one."""
        return Decayed(self.half_life_s, dict(self._used))

    def add(self, project: str, share_s: float, at: float) -> None:
        """Count a use that ended at a time; they may come in any order."""
        used_s, since = self._used.get(project, (0.0, at))
        newest = max(at, since)
        total = used_s * self._left(newest - since) + share_s * self._left(newest - at)
        self._used[project] = (total, newest)

    def used_s(self, project: str, now: float) -> float:
        """Return what a project's use counts now."""
        used_s, since = self._used.get(project, (0.0, now))
        return used_s * self._left(max(0.0, now - since))

    def _left(self, age_s: float) -> float:
        return math.pow(2.0, -age_s / self.half_life_s)


def units(need: Requirement) -> float:
    """Return what a task counts while it runs."""
    return (float(need.gpu_count) or BARE_SHARE) * need.nodes


def take_turns(
    lanes: Mapping[str, Iterator[Candidate]],
    shares: Mapping[str, Share],
    placed: Callable[[Candidate], bool],
) -> Iterator[Candidate]:
    """Hand out the candidates of several projects, the one that has used the least for its weight first.

    Args:
        lanes: Project → its candidates, in the order of its queue; what its quotas forbid is left out already.
        shares: Project → how it stands; it is counted up here.
    """
    heads: dict[str, Candidate] = {}
    for project, lane in lanes.items():
        _advance(heads, project, lane, shares[project])
    while heads:
        # Equal levels: who waits the longest.
        project = min(heads, key=lambda each: (shares[each].level, heads[each].rank))
        candidate, share = heads[project], shares[project]
        yield candidate
        if placed(candidate):
            share.used_s += units(candidate.requirement) * QUANTUM_S
            if share.places is not None:
                share.places -= 1
        _advance(heads, project, lanes[project], share)


def _advance(heads: dict[str, Candidate], project: str, lane: Iterator[Candidate], share: Share) -> None:
    found = None if share.places is not None and share.places <= 0 else next(lane, None)
    if found is None:
        heads.pop(project, None)
    else:
        heads[project] = found
