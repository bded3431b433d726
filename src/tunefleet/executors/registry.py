"""Finds the executors that are installed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from tunefleet.executors.base import Executor
from tunefleet.wire.link import ExecutorOffer

logger = logging.getLogger(__name__)

GROUP = "tunefleet.executors"


class Registry:
    """The kinds that a worker knows.

    Args:
        executors: One per kind; of two with the same kind the later one counts.
        broken: Kind → why its executor could not be loaded.
    """

    def __init__(self, executors: Iterable[Executor], *, broken: dict[str, str] | None = None) -> None:
        self._executors = {executor.kind: executor for executor in executors}
        self._broken = dict(broken or {})

    def find(self, kind: str) -> Executor | None:
        """Return the executor of a kind, or `None`."""
        return self._executors.get(kind)

    def offers(self) -> tuple[ExecutorOffer, ...]:
        """Return what the server is to know: each kind, and why it cannot run here if it cannot."""
        known = [
            ExecutorOffer(
                kind=kind,
                slot_class=executor.slot_class,
                available=reason is None,
                reason=reason,
                merges=executor.merges,
            )
            for kind, executor in sorted(self._executors.items())
            for reason in (executor.unavailable_reason(),)
        ]
        lost = [
            ExecutorOffer(kind=kind, available=False, reason=reason) for kind, reason in sorted(self._broken.items())
        ]
        return tuple(known + lost)


def installed(points: Iterable[EntryPoint] | None = None) -> Registry:
    """Load the executors of the entry point group; one that cannot be loaded is named, the others still work.

    Args:
        points: Entry points to load; the installed ones by default.
    """
    executors: list[Executor] = []
    broken: dict[str, str] = {}
    for point in entry_points(group=GROUP) if points is None else points:
        try:
            executors.append(point.load()())
        except Exception as error:
            logger.warning("The executor %s cannot be loaded.", point.name, exc_info=True)
            broken[point.name] = f"Its executor ({point.value}) cannot be loaded: {error}"
    return Registry(executors, broken=broken)
