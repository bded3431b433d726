"""Ranks without a common store: they meet in collectives on the CPU where those with one leave each other word."""

from __future__ import annotations

from . import world
from .collective import cpu_group


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
