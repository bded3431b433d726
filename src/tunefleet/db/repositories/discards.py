"""Job folders of deleted tasks that workers have not deleted yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, bindparam, delete, exists, insert, literal_column, select

from tunefleet.db.engine.writer import wake
from tunefleet.db.rows import TaskRow
from tunefleet.db.tables.core import attempts, discards, tasks

# Number of folders sent to a worker per message.
MAX_TOLD = 100
_OF_WORKER = (
    select(discards.c.task_id)
    .where(discards.c.worker_id == bindparam("worker_id"))
    .order_by(discards.c.task_id)
    .limit(literal_column(str(MAX_TOLD)))
)
_DELETE = delete(discards).where(
    discards.c.worker_id == bindparam("b_worker"), discards.c.task_id == bindparam("b_task")
)


def note(connection: Connection, rows: Sequence[TaskRow], *, strangers: str) -> None:
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


def of_worker(connection: Connection, worker_id: str) -> list[str]:
    """Return the next tasks whose folders a worker must delete."""
    return list(connection.scalars(_OF_WORKER, {"worker_id": worker_id}))


def done(connection: Connection, worker_id: str, task_ids: Iterable[str]) -> None:
    """Record that a worker has deleted folders."""
    rows = [{"b_worker": worker_id, "b_task": task_id} for task_id in task_ids]
    if rows:
        connection.execute(_DELETE, rows)


def forget_worker(connection: Connection, worker_id: str) -> None:
    """Delete the rows of a deleted worker."""
    connection.execute(delete(discards).where(discards.c.worker_id == worker_id))
