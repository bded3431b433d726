"""Notices that something on this machine has changed, so that the server hears of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

FoundT = TypeVar("FoundT")


class Noticed(Generic[FoundT]):
    """Notices what was fetched, made or removed, from its making on.

    Args:
        look: Says what is there now.
    """

    def __init__(self, look: Callable[[], FoundT]) -> None:
        self._look = look
        self._seen = look()

    def changed(self) -> bool:
        """Whether there is something else than at the last look."""
        before, self._seen = self._seen, self._look()
        return self._seen != before
