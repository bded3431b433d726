"""A server's view of the leader, and fencing of the leader's writes; `leader_election` elects one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from tunefleet.db.fleet.servers import LeaderRow

# A context variable, so that asyncio tasks started by a leader's loop inherit the epoch.
_fence: ContextVar[int | None] = ContextVar("tunefleet_epoch", default=None)


def fence() -> int | None:
    """Return the epoch that the current asyncio task writes under; None if its writes are not fenced."""
    return _fence.get()


@contextmanager
def fenced(epoch: int | None) -> Iterator[None]:
    """Fence the writes of this block, and of tasks started in it: they fail once the epoch has ended."""
    token = _fence.set(epoch)
    try:
        yield
    finally:
        _fence.reset(token)


@dataclass(slots=True)
class Leadership:
    """A server's view of the leader.

    Args:
        epoch: The epoch that this server leads in; None while it follows.
    """

    shared: bool = False
    server_id: str | None = None
    epoch: int | None = None
    until: float = 0.0
    row: LeaderRow = field(default_factory=lambda: LeaderRow(0))
    seen: dict[str, tuple[int, float]] = field(default_factory=dict)

    def leads(self, now: float) -> bool:
        """Whether this server leads; `now` is the monotonic clock."""
        return not self.shared or (self.epoch is not None and now < self.until)
