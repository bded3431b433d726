"""Where the next attempt of a task starts, if not at the newest available checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from tunefleet.db.rows import ResumeRow
from tunefleet.db.tables.core import attempts, resumes, tasks
from tunefleet.db.tables.fleet import task_edges

_OF_TASKS = select(resumes).where(resumes.c.task_id.in_(bindparam("ids", expanding=True)))


def put(connection: Connection, row: ResumeRow) -> None:
    """Store where the next attempt of a task starts."""
    delete_of_tasks(connection, [row.task_id])
    connection.execute(insert(resumes).values(row._asdict()))


def of_tasks(connection: Connection, task_ids: Sequence[str]) -> dict[str, ResumeRow]:
    """Return where the next attempts of tasks start, by task id; most tasks have no row."""
    if not task_ids:
        return {}
    rows = (ResumeRow(*row) for row in connection.execute(_OF_TASKS, {"ids": list(task_ids)}))
    return {row.task_id: row for row in rows}


def bound_to(connection: Connection, *, now: float) -> list[tuple[str, str, str]]:
    """Return the only workers with the checkpoint of a due task: worker, requirement key, project."""
    query = (
        select(resumes.c.worker_id, tasks.c.requirement_key, tasks.c.project)
        .join(tasks, tasks.c.id == resumes.c.task_id)
        .where(resumes.c.bound == 1, resumes.c.worker_id.is_not(None))
        .where(tasks.c.status == "queued", tasks.c.ready_at <= now)
        .distinct()
    )
    return [(worker_id, key, project) for worker_id, key, project in connection.execute(query)]


def delete_of_tasks(connection: Connection, task_ids: Sequence[str]) -> None:
    """Delete the rows of tasks."""
    connection.execute(delete(resumes).where(resumes.c.task_id.in_(list(task_ids))))


def upstream_workers(connection: Connection, task_seqs: Sequence[int]) -> dict[int, str]:
    """Return the worker that ran the last dependency of each task, by the task's `seq`."""
    if not task_seqs:
        return {}
    query = (
        select(task_edges.c.task_seq, tasks.c.worker_id)
        .join(tasks, tasks.c.seq == task_edges.c.upstream_seq)
        .where(task_edges.c.task_seq.in_(list(task_seqs)), tasks.c.worker_id.is_not(None))
        .order_by(tasks.c.finished_at)
    )
    return {seq: worker_id for seq, worker_id in connection.execute(query)}


def last_workers(connection: Connection, task_seqs: Sequence[int]) -> dict[str, str]:
    """Return the worker with the job folder of the last accepted attempt, by task id."""
    if not task_seqs:
        return {}
    mine = attempts.c.task_seq.in_(list(task_seqs)) & attempts.c.accepted_at.is_not(None)
    mine &= attempts.c.gang_of.is_(None) | (attempts.c.gang_of == attempts.c.id)
    newest = select(attempts.c.task_seq, func.max(attempts.c.number).label("number")).where(mine)
    last = newest.group_by(attempts.c.task_seq).subquery()
    query = select(attempts.c.task_id, attempts.c.worker_id).join(
        last, (last.c.task_seq == attempts.c.task_seq) & (last.c.number == attempts.c.number)
    )
    return {task_id: worker_id for task_id, worker_id in connection.execute(query)}
