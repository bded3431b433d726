"""The server's spans in a task's trace: task, submission, and each scheduling, offer and attempt.

Spans are sent after the commit that ended them, from the rows that it has written. A task belongs to a trace if its
submission had one or this server sends spans; the trace is stored, so that any server can offer or end the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tunefleet.db import Connection, after_commit
from tunefleet.db.engine.writer import note
from tunefleet.db.repositories import attempts, tasks
from tunefleet.db.repositories.tasks import TraceRow
from tunefleet.db.rows import AttemptRow, TaskRow
from tunefleet.lifecycle.task import FINAL
from tunefleet.observability import context
from tunefleet.observability.context import SpanContext
from tunefleet.observability.spans import FinishedSpan, Spans, Value

_FINAL: Final = frozenset(status.value for status in FINAL)


def attempt_place(task: SpanContext, attempt_id: str) -> SpanContext:
    """Return the span of an attempt, the parent of the worker's spans."""
    return task.span(f"attempt {attempt_id}")


def attempt_traceparent(task: str | None, attempt_id: str) -> str | None:
    """Return the `traceparent` of an attempt for its worker; None if its task belongs to no trace."""
    place = context.read_traceparent(task)
    return None if place is None else attempt_place(place, attempt_id).traceparent


class TaskSpans:
    """Derives spans from the changes of each transaction."""

    def __init__(self, spans: Spans, wall: Callable[[], float]) -> None:
        self._spans = spans
        self._wall = wall

    def note(self, connection: Connection, noted: Sequence[object]) -> None:
        """Add new tasks to a trace, and send the ended spans after the commit."""
        rows = [thing for thing in noted if isinstance(thing, TaskRow)]
        tries = [thing for thing in noted if isinstance(thing, AttemptRow)]
        if not rows and not tries:
            return
        heads = _heads(connection, tries)
        ids = {row.id for row in rows} | {row.task_id for row in (*tries, *heads.values())}
        ids |= {row.parent_task_id for row in rows if row.status in _FINAL and row.parent_task_id is not None}
        known = tasks.traces_of(connection, sorted(ids))
        fresh = [row.id for row in rows if row.version == 0 and row.id not in known]
        new = _begun(fresh, known, {each.task_id: each.origin for each in noted if isinstance(each, Descends)})
        tasks.add_traces(connection, new.values())
        after_commit(connection, partial(self._tell, {**known, **new}, rows, tries, heads))

    def _tell(
        self,
        known: Mapping[str, TraceRow],
        rows: Sequence[TaskRow],
        tries: Sequence[AttemptRow],
        heads: Mapping[str, AttemptRow],
    ) -> None:
        began = {row.id: row for row in rows}
        for row in rows:
            place = _place(known, row.id)
            if place is None:
                continue
            if row.version == 0:
                self._say("submit", place.span("submit"), place, (row.created_at, self._wall()), _of_task(row))
            if row.status in _FINAL and row.finished_at is not None:
                parent = context.read_traceparent(known[row.id].parent)
                error = row.error or row.reason if row.status == "failed" else None
                older = _place(known, row.parent_task_id or "")
                # A repetition in another trace links to the task that it repeats.
                links = [older] if older is not None and older.trace_id != place.trace_id else []
                self._say("task", place, parent, (row.created_at, row.finished_at), _of_task(row), error, links)
        for each in tries:
            place = _place(known, each.task_id)
            if place is not None:
                head = heads.get(each.merged_into or "")
                with_ = None if head is None else _place(known, head.task_id)
                links = [] if head is None or with_ is None else [attempt_place(with_, head.id)]
                self._attempt(place, each, began.get(each.task_id), links)

    def _attempt(self, task: SpanContext, row: AttemptRow, moved: TaskRow | None, links: Sequence[SpanContext]) -> None:
        place = attempt_place(task, row.id)
        about: dict[str, Value] = {"tunefleet.attempt": row.number, "tunefleet.worker": row.worker_id}
        claimed = row.state == "accepted" and row.accepted_at == row.offered_at
        if row.state == "offered" or claimed:
            since = moved.queued_at if moved is not None and moved.queued_at is not None else row.offered_at
            self._say("place", task.span(f"place {row.id}"), task, (since, row.offered_at), about)
        elif row.state == "accepted" and row.accepted_at is not None:
            self._say("offer", place.span(f"offer {row.id}"), place, (row.offered_at, row.accepted_at), about)
        elif row.finished_at is not None:
            error = row.error or row.reason if row.state in {"void", "failed"} else None
            about |= {"tunefleet.state": row.state, "tunefleet.reason": row.reason or ""}
            self._say("attempt", place, task, (row.offered_at, row.finished_at), about, error, links)

    def _say(
        self,
        name: str,
        place: SpanContext,
        parent: SpanContext | None,
        times: tuple[float, float],
        about: Mapping[str, Value],
        error: str | None = None,
        links: Sequence[SpanContext] = (),
    ) -> None:
        self._spans.tell(FinishedSpan(name, place, parent, *times, about, error, links))


def _begun(fresh: Sequence[str], known: Mapping[str, TraceRow], origins: Mapping[str, str]) -> dict[str, TraceRow]:
    """Return the trace of new tasks: below the task that they come from if that has a trace, else a new one."""
    new: dict[str, TraceRow] = {}
    # In order: a task's origin may be an earlier task of the same list.
    for id_ in fresh:
        origin = origins.get(id_, "")
        place = _place(new, origin) or _place(known, origin)
        new[id_] = TraceRow(id_, context.of_task(id_).traceparent) if place is None else below(id_, place)
    return new


def _heads(connection: Connection, tries: Sequence[AttemptRow]) -> dict[str, AttemptRow]:
    """Return the attempts that others of these were coalesced into, by id: spans of shared work belong to them."""
    wanted = {row.merged_into for row in tries if row.merged_into is not None}
    here = {row.id: row for row in tries if row.id in wanted}
    return here | attempts.by_ids(connection, sorted(wanted - here.keys()))


def _place(known: Mapping[str, TraceRow], task_id: str) -> SpanContext | None:
    row = known.get(task_id)
    return None if row is None else context.read_traceparent(row.traceparent)


def _of_task(row: TaskRow) -> dict[str, Value]:
    return {
        "tunefleet.task": row.id,
        "tunefleet.workflow": row.workflow_id,
        "tunefleet.kind": row.kind,
        "tunefleet.status": row.status,
    }


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
