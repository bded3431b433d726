"""What is struck when: a pure function of a seed and the number of a round."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

WINDOW_S: Final = 16.0
"""Strikes of a round begin within so many seconds of its start."""
QUICK_WINDOW_S: Final = 6.0
"""The same of a round of kills alone."""


class Kind(StrEnum):
    """Ways to strike."""

    KILL = "SIGKILL"
    STOP = "SIGSTOP"
    DISK = "full disk"
    FLUSH = "Redis flush"
    REDIS = "Redis restart"
    DATABASE = "database restart"
    PARTITION = "partition"
    CLOCK = "clock jump"
    CORRUPT = "corrupt checkpoint"


KILLED: Final = ("server", "worker-1", "worker-2", "far", "agent", "trainer", "trainer")
"""A trainer dies in more ways than the others: whichever runs, on whichever machine."""
VICTIMS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.STOP: ("server", "worker-1", "worker-2", "far", "agent", "trainer"),
    Kind.DISK: ("server", "worker-2"),
    Kind.FLUSH: ("redis",),
    Kind.REDIS: ("redis",),
    Kind.DATABASE: ("database",),
    Kind.PARTITION: ("worker-1", "worker-2", "far", "agent"),
    Kind.CLOCK: ("server", "worker-1", "worker-2", "far", "agent"),
    Kind.CORRUPT: ("trainer",),
}
"""Whom each kind but SIGKILL may strike."""
_JUMPS_S: Final = (-900.0, -45.0, 45.0, 900.0, 7200.0)


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow.

    Args:
        at_s: When it falls, in seconds after the round's start.
        kind: How it strikes.
        victim: Whom.
        for_s: How long it lasts, in seconds: until what was killed is started again, or what was taken is given back.
        jump_s: By how many seconds a clock jumps.
    """

    at_s: float
    kind: Kind
    victim: str
    for_s: float
    jump_s: float = 0.0

    def __str__(self) -> str:
        lasts = f"by {self.jump_s:+.0f} s" if self.kind is Kind.CLOCK else f"for {self.for_s:.1f} s"
        return f"{self.at_s:5.1f} s  {self.kind.value} of {self.victim} {lasts}"


def strikes(seed: int, number: int) -> tuple[Strike, ...]:
    """Return what strikes in a round, in order of time.

    Each round has two SIGKILLs. All other kinds are dealt out over two rounds, so that two rounds in a row that begin
    with an even number have seen every kind.

    Args:
        seed: Of the whole run.
        number: Of the round, from 0.
    """
    dealt = list(VICTIMS)
    random.Random(f"{seed}:deck:{number // 2}").shuffle(dealt)
    half = (len(dealt) + 1) // 2
    dice = random.Random(f"{seed}:round:{number}")
    mine = [Kind.KILL, Kind.KILL, *(dealt[half:] if number % 2 else dealt[:half])]
    return _in_order(_strike(dice, kind, WINDOW_S) for kind in mine)


def kills(seed: int, number: int) -> tuple[Strike, ...]:
    """Return what strikes in a round of three SIGKILLs and nothing else, in order of time.

    Args:
        seed: Of the whole run.
        number: Of the round, from 0.
    """
    dice = random.Random(f"{seed}:kills:{number}")
    return _in_order(_strike(dice, Kind.KILL, QUICK_WINDOW_S) for _ in range(3))


def drawn(found: Iterable[Strike]) -> str:
    """Return a schedule as text, a line for each strike."""
    return "\n".join(f"  {strike}" for strike in found)


def _in_order(found: Iterable[Strike]) -> tuple[Strike, ...]:
    return tuple(sorted(found, key=lambda strike: strike.at_s))


def _strike(dice: random.Random, kind: Kind, window_s: float) -> Strike:
    victim = dice.choice(KILLED if kind is Kind.KILL else VICTIMS[kind])
    # To stand still, or to be cut off, is short enough to be nothing, or long enough to be given up for dead.
    long = kind in {Kind.STOP, Kind.PARTITION} and dice.random() < 0.5
    for_s = dice.uniform(9.0, 14.0) if long else dice.uniform(0.1, 4.0)
    jump_s = dice.choice(_JUMPS_S) if kind is Kind.CLOCK else 0.0
    return Strike(round(dice.uniform(0.5, window_s), 2), kind, victim, round(for_s, 2), jump_s)
