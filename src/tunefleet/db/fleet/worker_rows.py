"""Rows of workers: state, load history, decisions of admins and elastic scaling, job folders to delete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, Row, bindparam, delete, exists, func, insert, literal_column, select, text, update

from tunefleet.db.engine.bulk import Bulk
from tunefleet.db.engine.writer import wake
from tunefleet.db.rows import TaskRow, WorkerRow
from tunefleet.db.tables.core import attempts, cordons, discards, tasks, workers
from tunefleet.db.tables.fleet import worker_controls, worker_loads

# The session of a worker that has left: it matches no process.
NO_SESSION: Final = ""
_WITH_CAPABILITIES = select(
    workers.c.id, workers.c.status, workers.c.session, workers.c.capabilities, workers.c.project
).order_by(workers.c.id)
_WATCHED = select(workers.c.id, workers.c.status, workers.c.session, workers.c.state_id)
_GET = select(workers).where(workers.c.id == bindparam("b_id"))
_COUNT = select(func.count()).select_from(workers).where(workers.c.key_id == bindparam("b_key"))
_SEEN = update(workers).where(workers.c.id == bindparam("b_id")).values(last_seen_at=bindparam("b_at"))
# Both databases support this clause, but SQLAlchemy only offers it in dialect-specific constructs.
_NEW_LOAD = "INSERT INTO worker_loads (worker_id, at, body) VALUES (:worker_id, :at, :body) ON CONFLICT DO NOTHING"
_INSERT_LOAD = Bulk(text(_NEW_LOAD), ["worker_id", "at", "body"])
# Number of folders sent to a worker per message.
MAX_DISCARDS = 100
_DISCARDS_OF = (
    select(discards.c.task_id)
    .where(discards.c.worker_id == bindparam("worker_id"))
    .order_by(discards.c.task_id)
    .limit(literal_column(str(MAX_DISCARDS)))
)
_DELETE_DISCARD = delete(discards).where(
    discards.c.worker_id == bindparam("b_worker"), discards.c.task_id == bindparam("b_task")
)
_CONTROLS_OF = select(worker_controls).where(worker_controls.c.worker_id == bindparam("worker_id"))
_FORGET_CONTROLS = delete(worker_controls).where(worker_controls.c.worker_id == bindparam("b_id"))


def count_of_key(connection: Connection, key_id: str) -> int:
    """Return how many workers registered with a key."""
    return int(connection.execute(_COUNT, {"b_key": key_id}).scalar_one())


def get(connection: Connection, worker_id: str) -> WorkerRow | None:
    """Return a worker."""
    row = connection.execute(_GET, {"b_id": worker_id}).first()
    return WorkerRow(*row) if row else None


def all_rows(connection: Connection) -> list[WorkerRow]:
    """Return all workers, by id."""
    return [WorkerRow(*row) for row in connection.execute(select(workers).order_by(workers.c.id))]


def with_capabilities(connection: Connection) -> Sequence[Row[str, str, str, str, str]]:
    """Return id, status, session, capabilities and project of all workers, by id."""
    # Fetch all rows in one call: there are thousands, and a fetch per row costs as much as the row.
    return connection.execute(_WITH_CAPABILITIES).all()


def watched(connection: Connection) -> Sequence[Row[str, str, str, str]]:
    """Return id, status, session and state folder of all workers, without their capabilities: polled every second."""
    return connection.execute(_WATCHED).all()


def seen_since(connection: Connection, since: float) -> set[str]:
    """Return the workers last seen since a time, as far as that is stored."""
    return set(connection.scalars(select(workers.c.id).where(workers.c.last_seen_at >= since)))


def gone_before(connection: Connection, at: float) -> set[str]:
    """Return the workers that are offline or lost and were last seen before a time."""
    seen_at = func.coalesce(workers.c.last_seen_at, workers.c.registered_at)
    return set(connection.scalars(select(workers.c.id).where(workers.c.status != "online", seen_at < at)))


def put(connection: Connection, row: WorkerRow) -> None:
    """Store a worker, new or changed, and publish the change to copies of the fleet."""
    values = row._asdict()
    if connection.execute(update(workers).where(workers.c.id == row.id).values(values)).rowcount == 0:
        connection.execute(insert(workers).values(values))
    wake(connection, "fleet", "placement")


def set_status(connection: Connection, worker_id: str, status: str) -> None:
    """Store whether a worker is `online`, `lost` or `offline`."""
    connection.execute(update(workers).where(workers.c.id == worker_id).values(status=status))
    wake(connection, "fleet", "placement")


def set_left(connection: Connection, worker_id: str) -> None:
    """Store that a worker has left: it is offline, and reports of its session are ignored."""
    connection.execute(update(workers).where(workers.c.id == worker_id).values(status="offline", session=NO_SESSION))
    wake(connection, "fleet", "placement")


def set_seen(connection: Connection, times: Iterable[tuple[str, float]]) -> None:
    """Store when workers were last seen."""
    rows = [{"b_id": worker_id, "b_at": at} for worker_id, at in times]
    if rows:
        connection.execute(_SEEN, rows)


def remove(connection: Connection, worker_id: str) -> None:
    """Delete a worker."""
    connection.execute(delete(workers).where(workers.c.id == worker_id))
    connection.execute(delete(cordons).where(cordons.c.worker_id == worker_id))
    forget_controls(connection, worker_id)
    forget_loads(connection, worker_id)
    _forget_discards(connection, worker_id)
    wake(connection, "fleet")


def add_loads(connection: Connection, rows: Sequence[tuple[str, float, str]]) -> None:
    """Store load reports of workers: id, Unix time, JSON."""
    _INSERT_LOAD.run(connection, rows)


def loads_between(connection: Connection, worker_id: str, since: float, until: float) -> list[tuple[float, str]]:
    """Return a worker's load reports in a time range, oldest first: Unix time and JSON."""
    at = worker_loads.c.at
    query = select(at, worker_loads.c.body).where(worker_loads.c.worker_id == worker_id, at >= since, at <= until)
    return [(row.at, row.body) for row in connection.execute(query.order_by(at))]


def forget_loads_before(connection: Connection, at: float) -> None:
    """Delete older load reports."""
    connection.execute(delete(worker_loads).where(worker_loads.c.at < at))


def forget_loads(connection: Connection, worker_id: str) -> None:
    """Delete the load reports of a deleted worker."""
    connection.execute(delete(worker_loads).where(worker_loads.c.worker_id == worker_id))


def note_discards(connection: Connection, rows: Sequence[TaskRow], *, strangers: str) -> None:
    """Record which workers have folders of tasks that are about to be deleted; their attempts must still exist.

    A row may exist already: a job with a fixed id can run twice.
    """
    known = exists().where(discards.c.worker_id == attempts.c.worker_id, discards.c.task_id == tasks.c.id)
    # Including unregistered workers: a deleted worker may come back with its folder.
    found = connection.execute(
        select(attempts.c.worker_id, tasks.c.id)
        .join(tasks, tasks.c.seq == attempts.c.task_seq)
        .where(attempts.c.task_seq.in_([row.seq for row in rows]), attempts.c.slot_class == "job", ~known)
        .distinct()
    )
    values = [
        {"worker_id": worker_id, "task_id": task_id}
        for worker_id, task_id in found
        if not worker_id.startswith(strangers)
    ]
    if values:
        connection.execute(insert(discards), values)
        wake(connection, *{f"worker:{value['worker_id']}" for value in values})


def discards_of(connection: Connection, worker_id: str) -> list[str]:
    """Return the next tasks whose folders a worker must delete."""
    return list(connection.scalars(_DISCARDS_OF, {"worker_id": worker_id}))


def finish_discards(connection: Connection, worker_id: str, task_ids: Iterable[str]) -> None:
    """Record that a worker has deleted folders."""
    rows = [{"b_worker": worker_id, "b_task": task_id} for task_id in task_ids]
    if rows:
        connection.execute(_DELETE_DISCARD, rows)


def _forget_discards(connection: Connection, worker_id: str) -> None:
    """Delete the rows of a deleted worker."""
    connection.execute(delete(discards).where(discards.c.worker_id == worker_id))


class ControlRow(NamedTuple):
    """Decisions about one worker.

    Args:
        cordoned_at: Unix time of the cordon; `None` if it is not cordoned.
        elastic_disabled_at: Unix time since when elastic scaling keeps it on standby; `None` if it does not.
    """

    worker_id: str
    cordoned_at: float | None = None
    drains: int = 0
    elastic_disabled_at: float | None = None

    @property
    def decides(self) -> bool:
        """Whether any decision is set."""
        return self.cordoned_at is not None or bool(self.drains) or self.elastic_disabled_at is not None


def controls_of(connection: Connection, worker_id: str) -> ControlRow:
    """Return the decisions about a worker; an empty row if there are none."""
    row = connection.execute(_CONTROLS_OF, {"worker_id": worker_id}).first()
    return ControlRow(*row) if row else ControlRow(worker_id)


def all_controls(connection: Connection) -> dict[str, ControlRow]:
    """Return the decisions by worker; workers without any are omitted."""
    return {row.worker_id: ControlRow(*row) for row in connection.execute(select(worker_controls))}


def put_controls(connection: Connection, row: ControlRow) -> None:
    """Store decisions, and notify placement and the worker."""
    forget_controls(connection, row.worker_id)
    if row.decides:
        connection.execute(insert(worker_controls).values(row._asdict()))
    wake(connection, "placement", f"worker:{row.worker_id}")


def put_standby(connection: Connection, rows: Sequence[ControlRow]) -> None:
    """Store which workers elastic scaling keeps on standby; the workers are not notified."""
    if not rows:
        return
    connection.execute(_FORGET_CONTROLS, [{"b_id": row.worker_id} for row in rows])
    kept = [row._asdict() for row in rows if row.decides]
    if kept:
        connection.execute(insert(worker_controls), kept)
    wake(connection, "placement")


def forget_controls(connection: Connection, worker_id: str) -> None:
    """Delete the decisions about a worker."""
    connection.execute(delete(worker_controls).where(worker_controls.c.worker_id == worker_id))


def elastic_disabled(connection: Connection) -> frozenset[str]:
    """Return the workers that elastic scaling keeps on standby."""
    rows = connection.execute(
        select(worker_controls.c.worker_id).where(worker_controls.c.elastic_disabled_at.is_not(None))
    )
    return frozenset(row.worker_id for row in rows)
