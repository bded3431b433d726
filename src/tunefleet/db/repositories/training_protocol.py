"""Data of the training-agent protocol: registrations, log lines, predictions, and polling.

Points and progress are in the journal's tables, with one launch per attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, text, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.rows import LaunchRow, PointRow, TaskRow
from tunefleet.db.tables.core import (
    attempts,
    journal_records,
    launches,
    metric_points,
    reported_lines,
    tasks,
    training_jobs,
)
from tunefleet.db.tables.operations import reported_predictions

# Digests per query.
_AT_ONCE: Final = 500
_REPORTED: Final = Bulk(insert(reported_predictions), ["task_id", "launch_number", "digest"])
_QUEUED: Final = text("tasks.status = 'queued'")
_ENDED: Final = ("completed", "failed", "cancelled", "skipped")


class JobRow(NamedTuple):
    """A task's registration; `body` and `updates` are JSON."""

    task_id: str
    body: str
    resumed_from: str | None
    checkpoint: str | None
    updates: str


def job(connection: Connection, task_id: str) -> JobRow | None:
    """Return the registration of a task."""
    row = connection.execute(select(training_jobs).where(training_jobs.c.task_id == task_id)).first()
    return JobRow(*row) if row else None


def jobs(connection: Connection, task_ids: Sequence[str]) -> dict[str, JobRow]:
    """Return the registrations of tasks, by id; most tasks have none."""
    rows = connection.execute(select(training_jobs).where(training_jobs.c.task_id.in_(list(task_ids))))
    return {row.task_id: JobRow(*row) for row in rows}


def put_job(connection: Connection, row: JobRow) -> None:
    """Store the registration of a task, new or changed."""
    where = training_jobs.c.task_id == row.task_id
    if connection.execute(update(training_jobs).where(where).values(row._asdict())).rowcount == 0:
        connection.execute(insert(training_jobs).values(row._asdict()))


def lines(connection: Connection, attempt_id: str) -> int:
    """Return how many log lines an attempt has reported."""
    query = select(reported_lines.c.lines).where(reported_lines.c.attempt_id == attempt_id)
    return connection.execute(query).scalar() or 0


def set_lines(connection: Connection, *, attempt_id: str, task_id: str, count: int) -> None:
    """Store how many log lines an attempt has reported."""
    where = reported_lines.c.attempt_id == attempt_id
    if connection.execute(update(reported_lines).where(where).values(lines=count)).rowcount == 0:
        connection.execute(insert(reported_lines).values(attempt_id=attempt_id, task_id=task_id, lines=count))


def newest_points(connection: Connection, launch: LaunchRow) -> Iterator[PointRow]:
    """Yield a launch's points, newest first; stop when you have enough."""
    mine = (metric_points.c.task_id == launch.task_id) & (metric_points.c.launch_number == launch.number)
    query: Any = select(*_point_columns()).where(mine).order_by(metric_points.c.seq.desc())
    # Options of this statement: set on the connection, they would apply to every later one, including writes.
    with connection.execute(query, execution_options={"yield_per": 64}) as found:
        for row in found:
            yield PointRow(*row)


def last_points(connection: Connection, task_id: str, *, limit: int, with_value: str | None = None) -> list[PointRow]:
    """Return the last visible points of a task's training series, in step order."""
    query = _visible(select(*_point_columns()), task_id)
    if with_value is not None:
        query = query.where(metric_points.c.values_json.contains(f'"{with_value}":'))
    query = query.order_by(
        metric_points.c.step.desc(), metric_points.c.launch_number.desc(), metric_points.c.seq.desc()
    ).limit(limit)
    return [PointRow(*row) for row in connection.execute(query)][::-1]


def predictions(
    connection: Connection, task_id: str, *, after: tuple[int, int] | None = None, limit: int | None = None
) -> Iterator[tuple[int, int, str]]:
    """Yield launch number, sequence number and JSON of a task's predictions, in order of arrival."""
    columns = journal_records.c.launch_number, journal_records.c.seq, journal_records.c.body
    query = (
        select(*columns)
        .where(journal_records.c.task_id == task_id, journal_records.c.type == "prediction")
        .order_by(columns[0], columns[1])
    )
    if after is not None:
        query = query.where((columns[0] > after[0]) | ((columns[0] == after[0]) & (columns[1] > after[1])))
    if limit is not None:
        query = query.limit(limit)
    with connection.execute(query, execution_options={"yield_per": 100}) as found:
        for row in found:
            yield row[0], row[1], row[2]


def reported_predictions_of(connection: Connection, launch: LaunchRow, digests: Sequence[str]) -> set[str]:
    """Return which of these predictions a launch has reported already."""
    at = reported_predictions.c
    mine = (at.task_id == launch.task_id) & (at.launch_number == launch.number)
    found: set[str] = set()
    for start in range(0, len(digests), _AT_ONCE):
        query = select(at.digest).where(mine, at.digest.in_(digests[start : start + _AT_ONCE]))
        found.update(connection.execute(query).scalars())
    return found


def add_reported_predictions(connection: Connection, launch: LaunchRow, digests: Sequence[str]) -> None:
    """Store that a launch has reported predictions."""
    _REPORTED.run(connection, [(launch.task_id, launch.number, digest) for digest in digests])


def records(connection: Connection, task_id: str, kind: str) -> list[str]:
    """Return a task's journal records of one type as JSON, in order of arrival."""
    query = (
        select(journal_records.c.body)
        .where(journal_records.c.task_id == task_id, journal_records.c.type == kind)
        .order_by(journal_records.c.launch_number, journal_records.c.seq)
    )
    return list(connection.execute(query).scalars())


def page(
    connection: Connection, *, project: str, owner: str | None, kinds: Sequence[str], status: str | None, limit: int,
    offset: int,
) -> tuple[list[TaskRow], int]:  # fmt: skip
    """Return training tasks, newest first, and their total number."""
    where = [tasks.c.project == project, tasks.c.kind.in_(list(kinds))]
    if owner is not None:
        where.append(tasks.c.owner == owner)
    if status is not None:
        where.append(tasks.c.status.in_(status.split(",")))
    total = connection.execute(select(func.count()).select_from(tasks).where(*where)).scalar_one()
    query = select(tasks).where(*where).order_by(tasks.c.seq.desc()).limit(limit).offset(offset)
    return [TaskRow(*row) for row in connection.execute(query)], total


def waiting(
    connection: Connection, requirement_key: str, *, project: str, owner: str | None, now: float, limit: int
) -> list[TaskRow]:
    """Return an owner's due queued tasks with one requirement, in queue order."""
    query = (
        select(tasks)
        .where(_QUEUED, tasks.c.requirement_key == requirement_key, tasks.c.ready_at <= now)
        .where(tasks.c.project == project)
        .order_by(tasks.c.rank)
        .limit(limit)
    )
    if owner is not None:
        query = query.where(tasks.c.owner == owner)
    return [TaskRow(*row) for row in connection.execute(query)]


def paused_at(connection: Connection, worker_id: str) -> list[TaskRow]:
    """Return the paused tasks of an agent."""
    query = select(tasks).where(tasks.c.worker_id == worker_id, tasks.c.status == "paused").order_by(tasks.c.seq)
    return [TaskRow(*row) for row in connection.execute(query)]


def counts(connection: Connection, worker_id: str) -> tuple[int, int, int]:
    """Return an agent's number of tasks: all, completed, current."""
    mine = select(attempts.c.task_seq).where(attempts.c.worker_id == worker_id).distinct()
    query = select(tasks.c.status, tasks.c.worker_id, func.count()).where(tasks.c.seq.in_(mine))
    found: list[Any] = list(connection.execute(query.group_by(tasks.c.status, tasks.c.worker_id)))
    where = [(status, count) for status, at, count in found if at == worker_id]
    completed = sum(count for status, count in where if status == "completed")
    running = sum(count for status, count in where if status not in _ENDED)
    return sum(count for _, _, count in found), completed, running


def delete_of_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Delete the protocol's data of deleted tasks."""
    for table in (training_jobs, reported_lines):
        connection.execute(delete(table).where(table.c.task_id.in_(list(task_ids))))


def _point_columns() -> list[Any]:
    names = ("step", "epoch", "at", "window_from", "window_to", "values_json")
    return [metric_points.c[name] for name in names]


def _visible(query: Any, task_id: str) -> Any:
    same = (launches.c.task_id == metric_points.c.task_id) & (launches.c.number == metric_points.c.launch_number)
    kept = launches.c.hidden_after.is_(None) | (metric_points.c.step <= launches.c.hidden_after)
    return query.join(launches, same).where(metric_points.c.task_id == task_id, metric_points.c.series == "train", kept)
