"""What every process of the proof is told; imports nothing, so that any of them can read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Regime:
    """How everybody trains, alone or together.

    Args:
        steps: Optimizer steps of a worker.
        sync_every_steps: Steps between two averages.
        batch_size: Rows of a step.
        learning_rate: At its highest.
        rank: Of the adapter.
    """

    steps: int = 64
    sync_every_steps: int = 16
    batch_size: int = 2
    learning_rate: float = 5e-3
    rank: int = 16

    @property
    def rounds(self) -> int:
        """How many averages there are."""
        return self.steps // self.sync_every_steps


@dataclass(frozen=True, slots=True)
class Address:
    """Where a federation is, and the token that lets workers in."""

    url: str
    federation: str
    token: str
