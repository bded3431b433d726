"""Counts what a transaction has changed, after its commit; used only by the writer thread.

The transaction passes its changed rows and events, so that nothing is read. Rolled-back changes are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from prometheus_client import Histogram

from tunefleet.db import Connection, after_commit
from tunefleet.db.engine.writer import BeforeCommit
from tunefleet.db.repositories.events import Event
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.orchestrator.counters import Meters
from tunefleet.orchestrator.observability.task_spans import TaskSpans

# Number of queued tasks whose ready time is remembered, to bound memory; the oldest ones are dropped.
_MOST_WAITING: Final = 200_000
_CYCLES: Final = {
    "campaign.cycle": "begun",
    "campaign.cycle_completed": "completed",
    "campaign.abandoned": "abandoned",
}
_ROUNDS: Final = {"federation.version": "published", "federation.round_failed": "failed"}
_TROUBLE: Final = {"campaign.retrying": "retrying", "campaign.failed": "failed", "campaign.budget": "budget"}


class Commits:
    """Hook that observes the changes of each transaction.

    Args:
        spans: Receiver of task spans; None if tracing is off.
    """

    def __init__(self, meters: Meters | None, spans: TaskSpans | None, then: BeforeCommit) -> None:
        self._meters = meters
        self._spans = spans
        self._then = then
        self._ready_at: dict[str, float] = {}

    def __call__(self, connection: Connection, noted: Sequence[object]) -> None:
        """Call `then`, and count after the transaction is committed."""
        self._then(connection, noted)
        if self._spans is not None:
            self._spans.note(connection, noted)
        if self._meters is not None:
            after_commit(connection, partial(self._count, self._meters, tuple(noted)))

    def _count(self, meters: Meters, noted: Sequence[object]) -> None:
        moved: Counter[tuple[str, str, str]] = Counter()
        rows = {thing.id: thing for thing in noted if isinstance(thing, TaskRow)}
        for thing in noted:
            if isinstance(thing, TaskRow):
                moved[thing.status, thing.reason or "none", thing.kind] += 1
                if thing.status == "queued":
                    self._wait(thing)
            elif isinstance(thing, AttemptRow) and not thing.member:
                self._attempt(meters, thing, rows.get(thing.task_id))
            elif isinstance(thing, Event):
                _event(meters, thing)
        for (status, reason, kind), how_many in moved.items():
            meters.moves.labels(status, reason, meters.kind(kind)).inc(how_many)

    def _wait(self, row: TaskRow) -> None:
        if len(self._ready_at) >= _MOST_WAITING:
            self._ready_at.pop(next(iter(self._ready_at)))
        # The first wait started at `queued_at`; a retry starts waiting now, or when its backoff ends.
        began = row.queued_at if row.attempts == 0 else None
        self._ready_at[row.id] = max(began or self._now(), row.ready_at)

    def _now(self) -> float:
        return self._meters.wall() if self._meters is not None else 0.0

    def _attempt(self, meters: Meters, row: AttemptRow, task: TaskRow | None) -> None:
        kind = meters.kind(row.kind)
        # A claim of a polling agent is offer and accept in one.
        claimed = row.state == "accepted" and row.accepted_at == row.offered_at
        if row.state == "offered" or claimed:
            ready_at = self._ready_at.pop(row.task_id, None) or _ready_elsewhere(row, task)
            if ready_at is not None:
                meters.placement.labels(kind).observe(max(0.0, row.offered_at - ready_at))
            return
        if row.state == "accepted" and row.accepted_at is not None:
            meters.accept.labels(kind).observe(max(0.0, row.accepted_at - row.offered_at))
        elif row.finished_at is not None and row.accepted_at is not None:
            meters.run.labels(kind, row.state).observe(max(0.0, row.finished_at - row.accepted_at))
            if row.reason == "worker_lost":
                meters.leases_lost.inc()
        elif row.reason == "not_accepted":
            meters.offers_void.inc()


def _ready_elsewhere(row: AttemptRow, task: TaskRow | None) -> float | None:
    """Return the ready time of a task that another server, or this one before a restart, has queued."""
    if task is None or task.queued_at is None:
        return None
    if row.number == 1:
        return max(task.queued_at, task.ready_at)
    return task.ready_at or None  # the row does not tell when a retry without backoff became ready


def _event(meters: Meters, event: Event) -> None:
    if event.kind == "worker.lost":
        meters.workers_lost.inc()
    elif event.kind in _CYCLES:
        meters.cycles.labels(_CYCLES[event.kind]).inc()
        _took(meters.cycle_s, _CYCLES[event.kind], event)
    elif event.kind in _TROUBLE:
        meters.campaign_trouble.labels(_TROUBLE[event.kind]).inc()
    elif event.kind.startswith("federation."):
        meters.federation_events.labels(event.kind.removeprefix("federation.")).inc()
        if event.kind in _ROUNDS:
            _took(meters.round_s, _ROUNDS[event.kind], event)


def _took(family: Histogram, outcome: str, event: Event) -> None:
    """Observe the duration in an event, if it has one."""
    took_s = event.data.get("took_s")
    if took_s is not None:
        family.labels(outcome).observe(max(0.0, took_s))
