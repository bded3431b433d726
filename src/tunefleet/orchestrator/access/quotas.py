"""Quotas of projects: concurrent tasks, GPU hours per calendar month (UTC), stored bytes.

A quota is checked in the transaction that would use it. The project's row is locked where two servers could count
concurrently.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tunefleet.db import Connection
from tunefleet.db.access import project_rows, usage
from tunefleet.db.access.project_rows import ProjectRow, RunningRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import artifacts, workflows
from tunefleet.errors import QuotaError

if TYPE_CHECKING:
    from tunefleet.placement import Requirement

_HOUR_S = 3600.0


def month_start(now: float) -> float:
    """Return the start of a time's calendar month in UTC, as Unix time."""
    at = datetime.fromtimestamp(now, UTC)
    return datetime(at.year, at.month, 1, tzinfo=UTC).timestamp()


def gpu_hours(connection: Connection, project: str, running: RunningRow | None, now: float) -> float:
    """Return the GPU hours of a project in this calendar month, including running tasks."""
    start = month_start(now)
    live_s = running.gpu_s if running is not None else 0.0
    if running is not None and running.gpus:
        # The part of a running task before this month counts for the last month.
        live_s = min(live_s, running.gpus * (now - start))
    return (usage.gpu_seconds(connection, project, start) + live_s) / _HOUR_S


def why(connection: Connection, row: ProjectRow, need: Requirement, now: float) -> str | None:
    """Return which quota holds a task back, as a sentence with a fix; None if none does."""
    raised = f"an admin can raise it: tunefleet projects set {row.name}"
    if row.archived_at is not None:
        return f"waiting: project {row.name} is archived (restore it: tunefleet projects restore {row.name})."
    running = project_rows.running(connection, now, [row.name]).get(row.name)
    count = running.tasks if running is not None else 0
    if row.max_running is not None and count >= row.max_running:
        return (
            f"waiting: {count} runs of project {row.name} are active, and its quota is {row.max_running}; this run "
            f"starts when one ends ({raised} --max-running N)."
        )
    if row.gpu_hours is not None and need.gpu_count:
        spent = gpu_hours(connection, row.name, running, now)
        if spent >= row.gpu_hours:
            return (
                f"waiting: project {row.name} has used {spent:.1f} of its {row.gpu_hours:g} GPU hours this month; "
                f"this run starts when the next month begins, UTC ({raised} --gpu-hours N)."
            )
    return None


class QuotaChecks:
    """Quota checks of a scheduling cycle, with results cached between tasks."""

    def __init__(self, connection: Connection, now: float) -> None:
        self._connection = connection
        self._now = now
        self._rows: dict[str, ProjectRow] | None = None
        self._reasons: dict[tuple[str, bool], str | None] = {}
        self._remaining: dict[str, int | None] = {}

    def why(self, project: str, need: Requirement) -> str | None:
        """Return which quota holds a task of a project back; None if none does."""
        row = self._limited(project)
        if row is None:
            return None
        key = project, need.gpu_count > 0
        if key not in self._reasons:
            self._reasons[key] = why(self._connection, row, need, self._now)
        return self._reasons[key]

    def room(self, project: str) -> int | None:
        """Return how many more tasks of a project may run concurrently; None if unlimited."""
        row = self._limited(project)
        if row is None or row.max_running is None:
            return None
        running = project_rows.running(self._connection, self._now, [project]).get(project)
        return max(0, row.max_running - (0 if running is None else running.tasks))

    def within(self, project: str, need: Requirement, count: int) -> int:
        """Return how many of the queued tasks the quotas allow to run, and reserve that number."""
        if count == 0 or self.why(project, need) is not None:
            return 0
        if project not in self._remaining:
            self._remaining[project] = self.room(project)
        remaining = self._remaining[project]
        if remaining is None:
            return count
        allowed = min(count, remaining)
        self._remaining[project] = remaining - allowed
        return allowed

    def _limited(self, project: str) -> ProjectRow | None:
        """Return the row of a project that has a quota or is archived; None if it is unlimited."""
        if self._rows is None:
            self._rows = {row.name: row for row in project_rows.all_rows(self._connection)}
        row = self._rows.get(project)
        return row if row is not None and row.limited else None


def limits_storage(connection: Connection, project: str) -> bool:
    """Whether a project has a storage quota."""
    row = project_rows.get(connection, project)
    return row is not None and row.storage_bytes is not None


def refuse_storing(
    connection: Connection, project: str, size_bytes: int, *, reserved_bytes: int = 0, lock: bool = True
) -> None:
    """Raise if a file or workflow file would exceed a project's storage quota."""
    # Locked, because two servers could store files concurrently, each within the quota.
    row = project_rows.get(connection, project, lock=lock) if size_bytes else None
    if row is None or row.storage_bytes is None:
        return
    kept = project_rows.stored_bytes(connection, [project]).get(project, 0)
    if kept + reserved_bytes + size_bytes > row.storage_bytes:
        reserved = f", {reserved_bytes:,} more are reserved by unfinished uploads" if reserved_bytes else ""
        raise QuotaError(
            f"Project {project} uses {kept:,} of the {row.storage_bytes:,} bytes of its storage quota{reserved}; "
            f"{size_bytes:,} more would exceed it.",
            hint=f"Remove artifacts or workflows, or ask an admin to raise it: "
            f"tunefleet projects set {project} --storage N.",
        )


def store_document(connection: Connection, project: str, grown_bytes: int) -> None:
    """Count a workflow file, or a change of its size, for a project; a decrease is never refused."""
    refuse_storing(connection, project, max(0, grown_bytes))
    workflows.count_documents(connection, project, grown_bytes)


def room_for(connection: Connection, project: str) -> int | None:
    """Return how many more bytes a project may store; None if it has no storage quota."""
    row = project_rows.get(connection, project)
    if row is None or row.storage_bytes is None:
        return None
    return max(0, row.storage_bytes - project_rows.stored_bytes(connection, [project]).get(project, 0))


def refuse_update(connection: Connection, federation: FederationRow, sizes: Mapping[str, int]) -> None:
    """Raise if files uploaded to a federation exceed its quota; updates of a task's shards are not limited."""
    if federation.task_seq is None and sizes:
        known = artifacts.known(connection, federation.project, list(sizes))
        new = sum(size_bytes for digest, size_bytes in sizes.items() if digest not in known)
        refuse_storing(connection, federation.project, new)
