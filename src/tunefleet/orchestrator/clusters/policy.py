"""Decides the next action for a cluster job. Pure: a function of rows and the cluster's report.

submitting ─▶ waiting ⇄ running ─▶ leaving ─▶ ended
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tunefleet.db.fleet.clusters import ClusterJobRow
from tunefleet.integrations.clusters import ClusterJobState
from tunefleet.lifecycle.task import TaskStatus

Act = Literal["none", "waits", "runs", "leave", "cancel", "end", "fail"]
# A job that the cluster does not know this long after its submission is gone, or was never accepted.
VANISHED_S: Final = 30.0
# How long drained workers may take to exit before the job is cancelled.
LEAVE_S: Final = 60.0
# The task fails after this many jobs in a row of which no worker took it.
BARREN: Final = 3
_NEEDS_NODES: Final = frozenset({TaskStatus.QUEUED, TaskStatus.DISPATCHED, TaskStatus.RUNNING})


@dataclass(frozen=True, slots=True)
class JobWorkers:
    """The workers of a job.

    Args:
        hindrance: Why the task can never run on them, without a full stop; None if it can.
        held: Why the task is not scheduled now, regardless of workers; None if it is.
        over_at: When the last attempt of the task on them ended; None if there was none.
    """

    ids: tuple[str, ...] = ()
    hindrance: str | None = None
    complete: bool = True
    held: str | None = None
    online: int = 0
    over_at: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The next action for a job.

    Args:
        act: `waits` and `runs` only record its status; `leave` drains its workers, `cancel` cancels it in the cluster,
            `end` records its end, `fail` ends it and fails the task.
    """

    act: Act
    reason: str | None = None
    barren: bool = False


def needs_nodes(status: str) -> bool:
    """Whether a task with this status needs its nodes."""
    return status in _NEEDS_NODES


def next_step(
    job: ClusterJobRow,
    status: str | None,
    seen: ClusterJobState | None,
    workers: JobWorkers,
    *,
    now: float,
    patience_s: float,
    lost_after_s: float,
) -> Step:
    """Return the next action for a job.

    Args:
        seen: The cluster's report; None if it does not know the job.
    """
    needed = status is not None and needs_nodes(status)
    if seen is None:
        young = now - job.made_at < VANISHED_S
        return Step("none") if young else Step("end", "the cluster does not know it")
    if seen.stage == "ended":
        return _ended(job, needed, seen)
    if job.state == "leaving":
        overdue = job.leaving_at is not None and now - job.leaving_at > LEAVE_S
        return Step("cancel") if overdue or seen.stage == "waiting" else Step("none")
    if not needed:
        return Step("leave" if workers.ids and seen.stage == "running" else "cancel")
    if seen.stage == "waiting":
        return Step("fail" if seen.hopeless else "waits", seen.reason or "no reason given")
    if seen.ending:
        return Step("none")  # it ends on its own, or is requeued, which a cancel would prevent
    if status == TaskStatus.QUEUED and job.used and job.running_at is not None:
        return _short(job, workers, now - job.running_at, now=now, patience_s=patience_s, lost_after_s=lost_after_s)
    return _running(job, status, workers, now=now, patience_s=patience_s)


def _ended(job: ClusterJobRow, needed: bool, seen: ClusterJobState) -> Step:
    over = seen.reason or "ended"
    if job.barren and job.told:
        over = f"{job.told} ({over})"
    if needed and job.state != "leaving" and (seen.withdrawn or seen.hopeless):
        return Step("fail", f"its job was cancelled in the cluster ({over})" if seen.withdrawn else over)
    return Step("end", over)


def _running(job: ClusterJobRow, status: str | None, workers: JobWorkers, *, now: float, patience_s: float) -> Step:
    if job.running_at is None:
        return Step("runs")
    if status != TaskStatus.QUEUED:
        return Step("none")
    if workers.hindrance is not None and workers.complete:
        return Step("fail", workers.hindrance)
    if now - job.running_at <= patience_s:
        return Step("none")
    if workers.hindrance is None and workers.held is not None:
        return Step(
            "cancel", f"{patience_s:g} s after its nodes were allocated the task could not start: {workers.held}"
        )
    return Step("cancel", workers.hindrance or _idle(job, workers, patience_s), barren=True)


def _short(
    job: ClusterJobRow, workers: JobWorkers, runs_s: float, *, now: float, patience_s: float, lost_after_s: float
) -> Step:
    """Return the action for a job whose task is queued again: a dead worker does not come back on its own."""
    if workers.online >= job.nodes or workers.over_at is None:
        return Step("none")
    waits_s = now - workers.over_at
    requeued = waits_s >= runs_s  # requeued since the last attempt: its workers need time to start again
    if (runs_s <= patience_s) if requeued else (waits_s <= lost_after_s):
        return Step("none")
    return Step(
        "leave" if workers.ids else "cancel", f"only {workers.online} of its {job.nodes} nodes still have a worker"
    )


def _idle(job: ClusterJobRow, workers: JobWorkers, patience_s: float) -> str:
    """Return why the task did not start on its nodes in time."""
    if len(workers.ids) < job.nodes:
        return f"only {len(workers.ids)} of its {job.nodes} nodes connected within {patience_s:g} s"
    return f"none of its workers took the task within {patience_s:g} s"
