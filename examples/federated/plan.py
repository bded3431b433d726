"""The settings shared by all processes of the proof; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Regime:
    """The settings of every training, alone or together.

    Args:
        steps: Optimizer steps per worker.
        sync_every_steps: Steps between two averages.
        batch_size: Rows per step.
        learning_rate: The peak.
        rank: Of the adapter.
    """

    steps: int = 64
    sync_every_steps: int = 16
    batch_size: int = 2
    learning_rate: float = 5e-3
    rank: int = 16

    @property
    def rounds(self) -> int:
        """The number of averages."""
        return self.steps // self.sync_every_steps


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a federation, and the token for its workers."""

    url: str
    federation: str
    token: str
