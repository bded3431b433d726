"""Projects: their quotas and current usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, case, func, insert, select, text, update

from tunefleet.db.engine.writer import wake
from tunefleet.db.tables.core import attempts, blobs, tasks
from tunefleet.db.tables.operations import projects

_OPEN = text("attempts.state IN ('offered', 'accepted')")
_QUEUED = text("tasks.status = 'queued'")
_ALL = select(projects).order_by(projects.c.name)
# The UUIDs are comma-separated; GPUs that a worker chooses itself are counted when the attempt has ended.
_GPUS = case(
    (func.coalesce(attempts.c.gpus, "") == "", 0),
    else_=func.length(attempts.c.gpus) - func.length(func.replace(attempts.c.gpus, ",", "")) + 1,
)
# A task on several workers counts once, not once per node.
_COUNTS = case((attempts.c.gang_of.is_not(None) & (attempts.c.gang_of != attempts.c.id), 0), else_=1)


class ProjectRow(NamedTuple):
    """A project."""

    name: str
    description: str | None
    weight: float
    max_running: int | None
    gpu_hours: float | None
    storage_bytes: int | None
    created_by: str
    created_at: float
    archived_at: float | None = None
    document_bytes: int = 0

    @property
    def limited(self) -> bool:
        """Whether its tasks may have to wait for another reason than a lack of workers."""
        return self.max_running is not None or self.gpu_hours is not None or self.archived_at is not None


class RunningRow(NamedTuple):
    """Totals of a project's open attempts."""

    tasks: int
    gpus: int
    bare: int
    gpu_s: float
    bare_s: float


def all_rows(connection: Connection) -> list[ProjectRow]:
    """Return all projects by name."""
    return [ProjectRow(*row) for row in connection.execute(_ALL).all()]


def get(connection: Connection, name: str, *, lock: bool = False) -> ProjectRow | None:
    """Return a project."""
    query = select(projects).where(projects.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).first()
    return ProjectRow(*row) if row else None


def lock(connection: Connection, names: Sequence[str]) -> None:
    """Lock projects until the commit, so that concurrent transactions cannot exceed a quota together."""
    # Locked in the order of their names: two transactions that lock the same projects cannot deadlock.
    query = select(projects.c.name).where(projects.c.name.in_(list(names))).order_by(projects.c.name)
    connection.execute(query.with_for_update()).all()


def insert_one(connection: Connection, row: ProjectRow) -> None:
    """Store a project."""
    connection.execute(insert(projects).values(row._asdict()))


def change(connection: Connection, name: str, values: Mapping[str, Any]) -> None:
    """Change a project; triggers placement, because its quotas may have changed."""
    connection.execute(update(projects).where(projects.c.name == name).values(dict(values)))
    wake(connection, "placement")


def running(connection: Connection, now: float, names: Sequence[str] | None = None) -> dict[str, RunningRow]:
    """Return the totals of projects' open attempts, by name; projects without any are omitted."""
    ran_s = case((attempts.c.accepted_at.is_(None), 0.0), else_=now - attempts.c.accepted_at)
    alone = case((attempts.c.merged_into.is_(None), case((_GPUS == 0, 1), else_=0)), else_=0)
    query = (
        select(
            tasks.c.project, func.sum(_COUNTS), func.sum(_GPUS), func.sum(alone), func.sum(_GPUS * ran_s),
            func.sum(alone * ran_s),
        )
        .join(attempts, attempts.c.task_seq == tasks.c.seq)
        .where(_OPEN)
        .group_by(tasks.c.project)
    )  # fmt: skip
    if names is not None:
        query = query.where(tasks.c.project.in_(list(names)))
    return {name: RunningRow(*map(_number, sums)) for name, *sums in connection.execute(query)}


def waiting(connection: Connection) -> dict[str, int]:
    """Return how many tasks of each project are queued."""
    query = select(tasks.c.project, func.count()).where(_QUEUED).group_by(tasks.c.project)
    return {name: count for name, count in connection.execute(query)}


def stored_bytes(connection: Connection, names: Sequence[str] | None = None) -> dict[str, int]:
    """Return the stored bytes of projects, by name; a file that two projects store counts for both."""
    files = select(func.sum(blobs.c.size_bytes)).where(blobs.c.project == projects.c.name).scalar_subquery()
    query = select(projects.c.name, projects.c.document_bytes + func.coalesce(files, 0))
    if names is not None:
        query = query.where(projects.c.name.in_(list(names)))
    return {name: int(size) for name, size in connection.execute(query)}


def _number(value: Any) -> Any:
    # PostgreSQL sums integers as decimals.
    return value if isinstance(value, int | float) else float(value)
