"""What a server knows of who leads, and the fence around what a leader writes; `leading` elects one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from tunefleet.db.fleet.servers import LeaderRow

_fence: ContextVar[int | None] = ContextVar("tunefleet_epoch", default=None)


def fence() -> int | None:
    """Return the epoch under which the current task writes; null if it writes as any server may."""
    return _fence.get()


@contextmanager
def fenced(epoch: int | None) -> Iterator[None]:
    """Let what this block writes, and every task that begins in it, be written only while the epoch lasts."""
    token = _fence.set(epoch)
    try:
        yield
    finally:
        _fence.reset(token)


@dataclass(slots=True)
class Leading:
    """What a server knows of who leads.

    Args:
        epoch: The epoch that this server leads in; null while it follows.
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
