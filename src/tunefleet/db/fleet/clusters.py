"""Tasks that name a cluster engine, and the cluster jobs created for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from sqlalchemy import Connection, delete, exists, func, insert, select, true, tuple_, update

from tunefleet.db.engine.writer import wake
from tunefleet.db.rows import TaskRow
from tunefleet.db.tables.core import attempts, tasks, workers
from tunefleet.db.tables.operations import cluster_jobs, task_engines

TOPIC = "clusters"
JobState = Literal["submitting", "waiting", "running", "leaving", "ended"]
_PAGE: Final = 200
_TASK = [tasks.c[name] for name in TaskRow._fields]


class ClusterJobRow(NamedTuple):
    """A cluster job of a task; the table documents its columns."""

    name: str
    task_seq: int
    task_id: str
    engine: str
    number: int
    nodes: int
    state: JobState
    key_id: str
    made_at: float
    job_id: str | None = None
    told: str | None = None
    used: int = 0
    barren: int = 0
    running_at: float | None = None
    leaving_at: float | None = None
    ended_at: float | None = None

    @property
    def live(self) -> bool:
        """Whether the cluster may still know the job."""
        return self.state != "ended"


_JOB = [cluster_jobs.c[name] for name in ClusterJobRow._fields]


def name_engines(connection: Connection, rows: Iterable[tuple[TaskRow, str]]) -> None:
    """Store which tasks get nodes from which engine, replacing earlier rows."""
    named = [{"task_seq": row.seq, "task_id": row.id, "engine": engine} for row, engine in rows]
    if not named:
        return
    connection.execute(delete(task_engines).where(task_engines.c.task_seq.in_([each["task_seq"] for each in named])))
    connection.execute(insert(task_engines), named)
    wake(connection, TOPIC)


def engines_of(connection: Connection, task_seqs: Sequence[int]) -> dict[int, str]:
    """Return the engines of tasks, by the task's `seq`; most tasks have none."""
    if not task_seqs:
        return {}
    query = select(task_engines.c.task_seq, task_engines.c.engine).where(task_engines.c.task_seq.in_(list(task_seqs)))
    return {seq: engine for seq, engine in connection.execute(query)}


def waiting(connection: Connection, engines: Iterable[str], *, now: float) -> Iterator[tuple[TaskRow, str]]:
    """Yield the queued tasks of some engines that have no live job, in queue order.

    Tasks that wait for a retry are skipped until it is due.
    """
    live = exists().where(cluster_jobs.c.task_seq == task_engines.c.task_seq, cluster_jobs.c.state != "ended")
    query = (
        select(*_TASK, task_engines.c.engine)
        .join(task_engines, task_engines.c.task_seq == tasks.c.seq)
        .where(tasks.c.status == "queued", tasks.c.ready_at <= now, task_engines.c.engine.in_(list(engines)), ~live)
        .order_by(tasks.c.rank, tasks.c.seq)
        .limit(_PAGE)
    )
    last: TaskRow | None = None
    while True:
        # Keyset pagination: an offset would scan all earlier pages again.
        after = true() if last is None else tuple_(tasks.c.rank, tasks.c.seq) > tuple_(last.rank, last.seq)
        page = [(TaskRow(*row[:-1]), row[-1]) for row in connection.execute(query.where(after))]
        yield from page
        if len(page) < _PAGE:
            return
        last = page[-1][0]


def live(connection: Connection) -> list[ClusterJobRow]:
    """Return the live jobs, oldest first."""
    query = select(*_JOB).where(cluster_jobs.c.state != "ended").order_by(cluster_jobs.c.seq)
    return [ClusterJobRow(*row) for row in connection.execute(query)]


def count_live(connection: Connection) -> int:
    """Return the number of live jobs."""
    query = select(func.count()).select_from(cluster_jobs).where(cluster_jobs.c.state != "ended")
    return int(connection.execute(query).scalar_one())


def of_task(connection: Connection, task_seq: int) -> list[ClusterJobRow]:
    """Return the jobs of a task, oldest first."""
    query = select(*_JOB).where(cluster_jobs.c.task_seq == task_seq).order_by(cluster_jobs.c.seq)
    return [ClusterJobRow(*row) for row in connection.execute(query)]


def newest(connection: Connection, task_seqs: Sequence[int]) -> dict[int, ClusterJobRow]:
    """Return the newest job of each of some tasks, by the task's `seq`."""
    if not task_seqs:
        return {}
    last = (
        select(func.max(cluster_jobs.c.seq))
        .where(cluster_jobs.c.task_seq.in_(list(task_seqs)))
        .group_by(cluster_jobs.c.task_seq)
    )
    query = select(*_JOB).where(cluster_jobs.c.seq.in_(last))
    return {row.task_seq: ClusterJobRow(*row) for row in connection.execute(query)}


def by_key(connection: Connection, key_id: str) -> ClusterJobRow | None:
    """Return the job whose workers have a key."""
    row = connection.execute(select(*_JOB).where(cluster_jobs.c.key_id == key_id)).first()
    return ClusterJobRow(*row) if row else None


def workers_by_key(connection: Connection, key_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the workers that registered with each of these keys."""
    query = select(workers.c.key_id, workers.c.id).where(workers.c.key_id.in_(list(key_ids))).order_by(workers.c.id)
    found: dict[str, list[str]] = {}
    for key_id, worker_id in connection.execute(query):
        found.setdefault(key_id, []).append(worker_id)
    return found


def arrivals(connection: Connection, key_ids: Sequence[str]) -> dict[str, list[float]]:
    """Return when the online workers of these keys first registered."""
    query = select(workers.c.key_id, workers.c.registered_at).where(
        workers.c.key_id.in_(list(key_ids)), workers.c.status == "online"
    )
    found: dict[str, list[float]] = {}
    for key_id, registered_at in connection.execute(query):
        found.setdefault(key_id, []).append(registered_at)
    return found


def served(connection: Connection, worker_ids: Iterable[str]) -> dict[str, float | None]:
    """Return which of these workers have accepted an attempt, and when their last one ended; `None` before that."""
    query = select(attempts.c.worker_id, func.max(attempts.c.finished_at)).where(
        attempts.c.worker_id.in_(list(worker_ids)), attempts.c.accepted_at.is_not(None)
    )
    return {worker_id: ended for worker_id, ended in connection.execute(query.group_by(attempts.c.worker_id))}


def online(connection: Connection, worker_ids: Iterable[str]) -> frozenset[str]:
    """Return which of these workers are online."""
    query = select(workers.c.id).where(workers.c.id.in_(list(worker_ids)), workers.c.status == "online")
    return frozenset(connection.execute(query).scalars())


def insert_one(connection: Connection, row: ClusterJobRow) -> None:
    """Store a job before it is submitted."""
    connection.execute(insert(cluster_jobs).values(row._asdict()))


def change(connection: Connection, name: str, **values: object) -> None:
    """Change columns of a job."""
    connection.execute(update(cluster_jobs).where(cluster_jobs.c.name == name).values(**values))


def delete_one(connection: Connection, name: str) -> None:
    """Delete a job whose task was deleted."""
    connection.execute(delete(cluster_jobs).where(cluster_jobs.c.name == name))


def delete_of_tasks(connection: Connection, rows: Sequence[TaskRow]) -> None:
    """Delete the jobs of tasks, except live ones: they end first."""
    seqs = [row.seq for row in rows]
    over = cluster_jobs.c.state == "ended"
    connection.execute(delete(cluster_jobs).where(cluster_jobs.c.task_seq.in_(seqs), over))
    connection.execute(delete(task_engines).where(task_engines.c.task_seq.in_(seqs)))
