"""Agreement of ranks without a common store: collectives on the CPU, as rarely as the steps allow."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ..control.command_queue import Command, CommandQueue
from . import world
from .tcp_store import horizon_of

logger = logging.getLogger(__name__)

_NOTHING: tuple[Command, ...] = ()


class Collective:
    """Coordinates ranks without a common store: at intervals they exchange their commands in one collective.

    Args:
        board: This rank's command queue.
        group: A process group on the CPU.
    """

    def __init__(self, board: CommandQueue, group: object) -> None:
        self._board = board
        self._group = group
        self.leader = world.rank() == 0
        self._step = self._at = -1
        self._asked_at = time.monotonic()

    def due(self, step: int) -> Sequence[Command]:
        """CheckpointCommit with all ranks if this step is due; every rank does so at the same steps."""
        # Every rank computes the same schedule, so none waits in a collective alone.
        if step == self._step or step < self._at:
            return _NOTHING
        steps = max(step - self._step, 1) if self._step >= 0 else 1
        now = time.monotonic()
        step_s, self._asked_at, self._step = (now - self._asked_at) / steps, now, step
        torch, group = world.modules()
        # Rank 0 alone computes the interval, since the ranks measure different step times.
        every = horizon_of(step_s) if self.leader else 0
        facts = torch.tensor([int(self._board.armed), every], dtype=torch.int64)
        group.all_reduce(facts, op=group.ReduceOp.MAX, group=self._group)
        self._at = step + int(facts[1])
        return self._gather(group) if int(facts[0]) else _NOTHING

    def broken(self) -> bool:
        """Unknown: without a common store there is no list of processes."""
        return False

    def _gather(self, group: object) -> list[Command]:
        mine = [(item.command_id, item.command, item.data) for item in self._board.take()]
        gathered: list[list[tuple[str, str, dict[str, object]]]] = [[] for _ in range(world.size())]
        group.all_gather_object(gathered, mine, group=self._group)  # type: ignore[attr-defined]
        return [self._board.adopt(Command(*fields)) for each in gathered for fields in each]


def cpu_group() -> object:
    """Return a process group whose collectives wait for no device; all ranks create it at the same time."""
    _, group = world.modules()
    try:
        return group.new_group(backend="gloo")
    except (RuntimeError, ValueError) as error:
        logger.info("No gloo group available (%s); using the default one", error)
        return group.group.WORLD


class SaveBarrier:
    """Collectives of all ranks around a save; created by every rank at the same time."""

    def __init__(self) -> None:
        self._group = cpu_group()

    def wait(self) -> None:
        """Return when every rank has called it."""
        torch, group = world.modules()
        # Not `barrier`: a GPU backend's would wait for the device.
        group.all_reduce(torch.zeros(1, dtype=torch.int64), group=self._group)

    def tell(self, *, whole: bool) -> bool:
        """Return rank 0's answer on every rank."""
        torch, group = world.modules()
        answer = torch.tensor([int(whole)], dtype=torch.int64)
        group.broadcast(answer, src=0, group=self._group)
        return bool(answer[0])
