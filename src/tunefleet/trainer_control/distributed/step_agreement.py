"""Which commands act at the end of which step, so that all ranks of a training run do the same.

A single process decides alone. Several ranks agree one horizon ahead: rank 0 publishes the last step that is decided
and what acts where; a rank passes the end of a step only if that step is decided. Ranks whose CPUs run ahead of their
devices therefore still act together, and no rank waits for one that is behind. A command is decided for the first open
step, so it is at most one horizon late.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import time
from collections.abc import Sequence
from typing import Protocol

from ..control.command_queue import ClosedError, Command, CommandQueue
from . import world
from .shared_memory import Entry, Publisher, Subscriber
from .tcp_store import LONG_STEP_S, StoreConnection, horizon_of, open_connection

logger = logging.getLogger(__name__)
_SMOOTHING = 0.2
# After so many steps, the mean is that of these steps alone.
_FORGOTTEN_AFTER = 1 / _SMOOTHING
_NOTHING: tuple[Command, ...] = ()


class StepCoordinator(Protocol):
    """Returns to each rank what to carry out at the end of a step."""

    @property
    def leader(self) -> bool:
        """Whether this process takes commands and reports; exactly one rank does."""

    def due(self, step: int) -> Sequence[Command]:
        """Return the commands that act at the end of this optimizer step, in order; call it once per step and rank."""

    def broken(self) -> bool:
        """Return whether another rank is known to be lost, so that nothing can be decided any more; from any thread."""


class Solo:
    """A training run of one process: queued commands are due immediately.

    Args:
        board: The command queue.
    """

    leader = True

    def __init__(self, board: CommandQueue) -> None:
        self._board = board

    def due(self, step: int) -> Sequence[Command]:
        """Return the queued commands; costs one attribute read without one."""
        return self._board.take() if self._board.armed else _NOTHING

    def broken(self) -> bool:
        """Return False: there is no other rank."""
        return False


class Leader:
    """Rank 0 of several: decides, and publishes its decisions before another rank can need them.

    A step that is queried a second time is one whose evaluation is running: only an abort is due then. It ends the
    other ranks as well, since they cannot be reached during an evaluation.

    Args:
        board: The command queue.
        connection: The connection to the other ranks.
    """

    leader = True

    def __init__(self, board: CommandQueue, connection: StoreConnection) -> None:
        self._board = board
        self._connection = connection
        self._step = self._until = -1
        # Before this step only the queue has to be checked.
        self._look_at = 0
        self._planned: dict[int, list[Command]] = {}
        self._held: list[Command] = []
        self._looked_at = time.monotonic()
        self._looked_step = 0
        self._step_s = 1.0
        self._publisher = Publisher(connection)

    def due(self, step: int) -> Sequence[Command]:
        """Publish if the others need it, and return what was decided for this step.

        Without commands, the first check is all that the end of a step needs. It is inlined because the processor has
        computed meanwhile, so that each further function call is a cache miss.
        """
        if self._step < step < self._look_at and not self._board.armed:
            self._step = step
            return _NOTHING
        if step == self._step:
            return self._urgent()
        now = time.monotonic()
        if self._step < 0:
            self._until = step  # the first step is decided by convention: nothing acts
            self._looked_step = step - 1
        steps = step - self._looked_step if step > self._looked_step else 1
        share = _SMOOTHING * steps if steps < _FORGOTTEN_AFTER else 1.0
        self._step_s += share * ((now - self._looked_at) / steps - self._step_s)
        self._step = self._looked_step = step
        self._looked_at = now
        horizon = 1 if self._step_s > LONG_STEP_S else horizon_of(self._step_s)
        ahead, until = horizon // 2 or 1, step + horizon
        # A decision stays, even if the horizon has become shorter: other ranks may have reached it already.
        far = self._until >= step + ahead
        if far or self._board.armed or self._held or self._planned or not self._publisher.publish_free(until):
            return self._look_closely(step, horizon, ahead)
        self._until, self._look_at = until, until - ahead + 1
        return _NOTHING

    def broken(self) -> bool:
        """Return whether another rank is lost."""
        return self._connection.any_lost()

    def _look_closely(self, step: int, horizon: int, ahead: int) -> Sequence[Command]:
        self._receive()
        if self._board.armed or self._held:
            self._decide(step, horizon)
        elif self._until < step + ahead:
            self._until = step + horizon
            self._publisher.say(Entry(self._until, -1, ()))
        due = _ready(self._planned, step) if self._planned else _NOTHING
        self._look_at = step + 1 if self._planned else self._until - ahead + 1
        return due

    def _decide(self, step: int, horizon: int) -> None:
        commands, self._held = [*self._held, *self._board.take()], []
        # The first step that no rank may have passed yet.
        at = self._until + 1
        self._planned[at] = commands
        self._until = max(at, step + horizon)
        self._publisher.say(Entry(self._until, at, commands))

    def _receive(self) -> None:
        """Take commands that other ranks received, for example by a signal."""
        for item in self._publisher.hear():
            try:
                self._board.submit(item.command, item.data, item.command_id)
            except ClosedError as closed:
                logger.warning("%s from another rank is not executed: %s", item.command, closed)

    def _urgent(self) -> Sequence[Command]:
        if not self._board.armed:
            return _NOTHING
        waiting = self._board.take()
        self._look_at = self._step + 1
        self._held += [item for item in waiting if item.command != "abort"]
        aborts = [item for item in waiting if item.command == "abort"]
        if aborts:
            # Only after this process has recorded its end: a launcher ends all ranks when one exits.
            atexit.register(_end, self._connection)
        return aborts


class Follower:
    """Any other rank: carries out rank 0's decisions when it reaches their step.

    Args:
        board: Commands that only this rank received, for example by a signal; they are sent to rank 0.
        connection: The connection to the other ranks.
    """

    leader = False

    def __init__(self, board: CommandQueue, connection: StoreConnection) -> None:
        self._board = board
        self._connection = connection
        self._subscriber = Subscriber(connection)
        self._step = self._until = -1
        # Nothing acts up to this step.
        self._free_until = -1
        self._planned: dict[int, list[Command]] = {}

    def due(self, step: int) -> Sequence[Command]:
        """Wait until this step is decided, and return what acts at its end."""
        if step == self._step:
            return _NOTHING
        if self._step < step <= self._free_until and not self._board.armed:
            self._step = step
            return _NOTHING
        if self._step < 0:
            self._until = step
        self._step = step
        if self._board.armed:
            for item in self._board.take():
                self._subscriber.send(item)
        while step > self._until:
            free = self._subscriber.receive_free()
            if free is None:
                self._read(step)
            else:
                self._until = free
        due = _ready(self._planned, step) if self._planned else _NOTHING
        self._free_until = step if self._planned else self._until
        return due

    def broken(self) -> bool:
        """Return whether another rank is lost."""
        return self._connection.any_lost()

    def _read(self, step: int) -> None:
        entry = self._subscriber.hear(step)
        self._until = entry.until
        if entry.commands:
            self._planned[entry.at] = [self._board.adopt(item) for item in entry.commands]


def coordinator_for(board: CommandQueue) -> StepCoordinator:
    """Return the coordinator for this process; called when a training run begins, after the process groups exist."""
    if world.size() < 2 or world.distributed() is None:
        return Solo(board)
    connection = open_connection("control")
    if connection is not None:
        return Leader(board, connection) if connection.rank == 0 else Follower(board, connection)
    return Collective(board, cpu_group())


def _ready(planned: dict[int, list[Command]], step: int) -> list[Command]:
    """Remove and return what acts by now: a hand-written loop need not call at every step."""
    return [item for at in sorted(planned) if at <= step for item in planned.pop(at)]


def _end(connection: StoreConnection) -> None:
    # SIGTERM and not a key in the store: a rank in an evaluation reads no keys.
    for pid in connection.local_peers():
        try:
            # Only peers on this machine can be signalled.
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            logger.debug("Process %d is gone already", pid)


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
