"""The trace of a task that comes from another one: a repetition or a shard of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunefleet.db import Connection
from tunefleet.db.engine.writer import note
from tunefleet.db.repositories import tasks
from tunefleet.db.repositories.tasks import TraceRow
from tunefleet.observability import context
from tunefleet.observability.context import SpanContext


@dataclass(frozen=True, slots=True)
class Descends:
    """Passed to the commit hook for a task whose origin has no trace yet; the same transaction may give it one."""

    task_id: str
    origin: str


def below(task_id: str, parent: SpanContext) -> TraceRow:
    """Return the trace of a task below a parent span."""
    return TraceRow(task_id, context.of_task(task_id, parent).traceparent, parent.traceparent)


def inherit(connection: Connection, origins: Mapping[str, str]) -> None:
    """Add new tasks to the traces of their origins, below the origins' spans.

    Args:
        origins: New task → the task that it repeats or is a shard of.
    """
    if not origins:
        return
    known = tasks.traces_of(connection, sorted(set(origins.values())))
    places = {id_: context.read_traceparent(row.traceparent) for id_, row in known.items()}
    found = [(task_id, place) for task_id, origin in origins.items() if (place := places.get(origin)) is not None]
    tasks.add_traces(connection, [below(*each) for each in found])
    note(connection, [Descends(*each) for each in origins.items() if each[1] not in places])
