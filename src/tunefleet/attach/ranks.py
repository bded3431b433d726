"""Which commands act at the end of which step, so that all ranks of a training do the same.

One process decides for itself. Several agree one horizon ahead (see `agree`): what is decided for a step is carried out
at that step by every rank, or by none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .board import Command, CommandBoard


class Decider(Protocol):
    """Tells each rank what to carry out at the end of a step."""

    @property
    def leader(self) -> bool:
        """Whether this process takes commands and reports; exactly one of the ranks does."""

    def due(self, step: int) -> Sequence[Command]:
        """Return what acts at the end of this optimizer step, in order; called once a step by every rank."""


class Solo:
    """A training of one process: what waits is due.

    Args:
        board: Where commands wait.
    """

    leader = True

    def __init__(self, board: CommandBoard) -> None:
        self._board = board

    def due(self, step: int) -> Sequence[Command]:
        """Return what waits; without anything it costs one attribute read."""
        return self._board.take() if self._board.armed else ()


def decider_for(board: CommandBoard) -> Decider:
    """Return the decider that fits this process; called when a training begins, when process groups exist."""
    return Solo(board)
