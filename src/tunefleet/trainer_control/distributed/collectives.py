"""How ranks without a common store agree: in collectives on the CPU, as seldom as their steps allow."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ..control.command_queue import Command, CommandBoard
from . import world
from .tcp_store import horizon_of

logger = logging.getLogger(__name__)

_NOTHING: tuple[Command, ...] = ()


class Collective:
    """Ranks without a common store: now and then all of them say what they were asked for, in one collective.

    Args:
        board: Where this rank's commands wait.
        group: A process group on the CPU.
    """

    def __init__(self, board: CommandBoard, group: object) -> None:
        self._board = board
        self._group = group
        self.leader = world.rank() == 0
        self._step = self._at = -1
        self._asked_at = time.monotonic()

    def due(self, step: int) -> Sequence[Command]:
        """Ask all ranks if this is a step for it; every rank asks at the same ones."""
        if step == self._step or step < self._at:
            return _NOTHING
        steps = max(step - self._step, 1) if self._step >= 0 else 1
        now = time.monotonic()
        step_s, self._asked_at, self._step = (now - self._asked_at) / steps, now, step
        torch, group = world.modules()
        every = horizon_of(step_s) if self.leader else 0
        facts = torch.tensor([int(self._board.armed), every], dtype=torch.int64)
        group.all_reduce(facts, op=group.ReduceOp.MAX, group=self._group)
        self._at = step + int(facts[1])
        return self._gather(group) if int(facts[0]) else _NOTHING

    def broken(self) -> bool:
        """Not known: without a common store nobody says which processes there are."""
        return False

    def _gather(self, group: object) -> list[Command]:
        mine = [(item.command_id, item.command, item.data) for item in self._board.take()]
        everybody: list[list[tuple[str, str, dict[str, object]]]] = [[] for _ in range(world.size())]
        group.all_gather_object(everybody, mine, group=self._group)  # type: ignore[attr-defined]
        return [self._board.adopt(Command(*fields)) for each in everybody for fields in each]


def cpu_group() -> object:
    """Return a process group whose collectives wait for no device; every rank makes it at the same time."""
    _, group = world.modules()
    try:
        return group.new_group(backend="gloo")
    except (RuntimeError, ValueError) as error:
        logger.info("There is no gloo group (%s); the default one is used", error)
        return group.group.WORLD


class Meeting:
    """Collectives of all ranks around a save; made by every rank at the same time."""

    def __init__(self) -> None:
        self._group = cpu_group()

    def wait(self) -> None:
        """Return when every rank is here."""
        torch, group = world.modules()
        # Not a barrier: that of a backend for GPUs would wait for the device.
        group.all_reduce(torch.zeros(1, dtype=torch.int64), group=self._group)

    def tell(self, *, whole: bool) -> bool:
        """Return what rank 0 says, on every rank."""
        torch, group = world.modules()
        said = torch.tensor([int(whole)], dtype=torch.int64)
        group.broadcast(said, src=0, group=self._group)
        return bool(said[0])
