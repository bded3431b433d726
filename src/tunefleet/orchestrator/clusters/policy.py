"""What to do next about one job of a cluster. Pure: knows rows and what was seen, neither store nor clock.

submitting ─▶ waiting ⇄ running ─▶ leaving ─▶ ended
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tunefleet.db.fleet.clusters import ClusterJobRow
from tunefleet.integrations.clusters import Seen
from tunefleet.lifecycle.task import TaskStatus

Act = Literal["none", "waits", "runs", "leave", "cancel", "end", "fail"]
# So long after it was asked for, a job that the cluster does not know is gone, or was never taken.
VANISHED_S: Final = 30.0
# How long the workers of a job may take to leave by themselves.
LEAVE_S: Final = 60.0
# So many jobs in a row of which no worker took the task, and the task fails.
BARREN: Final = 3
_WANTED: Final = frozenset({TaskStatus.QUEUED, TaskStatus.DISPATCHED, TaskStatus.RUNNING})


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of a job.

    Args:
        hindrance: Why the task cannot run on them, ever, as a sentence without its full stop; null if it can.
        held: Why the task gets no workers now, whoever is there; null if it gets them.
        over_at: When the last try of the task on them was over; null if none was.
    """

    ids: tuple[str, ...] = ()
    hindrance: str | None = None
    complete: bool = True
    held: str | None = None
    standing: int = 0
    over_at: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about a job.

    Args:
        act: `waits` and `runs` only write down where it stands; `leave` sends its workers away, `cancel` ends it in the
            cluster, `end` writes down that it is over, `fail` ends it and the task with it.
    """

    act: Act
    told: str | None = None
    barren: bool = False


def needs_nodes(status: str) -> bool:
    """Whether a task in a status needs its nodes."""
    return status in _WANTED


def next_step(
    job: ClusterJobRow,
    status: str | None,
    seen: Seen | None,
    crew: Crew,
    *,
    now: float,
    patience_s: float,
    lost_after_s: float,
) -> Step:
    """Decide about a job.

    Args:
        seen: What the cluster says; null if it does not know it.
    """
    wanted = status is not None and needs_nodes(status)
    if seen is None:
        young = now - job.made_at < VANISHED_S
        return Step("none") if young else Step("end", "the cluster does not know it")
    if seen.stage == "ended":
        return _ended(job, wanted, seen)
    if job.state == "leaving":
        overdue = job.leaving_at is not None and now - job.leaving_at > LEAVE_S
        return Step("cancel") if overdue or seen.stage == "waiting" else Step("none")
    if not wanted:
        return Step("leave" if crew.ids and seen.stage == "running" else "cancel")
    if seen.stage == "waiting":
        return Step("fail" if seen.hopeless else "waits", seen.told or "no reason told")
    if seen.ending:
        return Step("none")  # it ends by itself, or is requeued, which a cancel would undo
    if status == TaskStatus.QUEUED and job.used and job.running_at is not None:
        return _short(job, crew, now - job.running_at, now=now, patience_s=patience_s, lost_after_s=lost_after_s)
    return _running(job, status, crew, now=now, patience_s=patience_s)


def _ended(job: ClusterJobRow, wanted: bool, seen: Seen) -> Step:
    over = seen.told or "ended"
    if job.barren and job.told:
        over = f"{job.told} ({over})"
    if wanted and job.state != "leaving" and (seen.withdrawn or seen.hopeless):
        return Step("fail", f"somebody has ended its job there ({over})" if seen.withdrawn else over)
    return Step("end", over)


def _running(job: ClusterJobRow, status: str | None, crew: Crew, *, now: float, patience_s: float) -> Step:
    if job.running_at is None:
        return Step("runs")
    if status != TaskStatus.QUEUED:
        return Step("none")
    if crew.hindrance is not None and crew.complete:
        return Step("fail", crew.hindrance)
    if now - job.running_at <= patience_s:
        return Step("none")
    if crew.hindrance is None and crew.held is not None:
        return Step("cancel", f"{patience_s:g} s after the nodes came the task could not start: {crew.held}")
    return Step("cancel", crew.hindrance or _idle(job, crew, patience_s), barren=True)


def _short(
    job: ClusterJobRow, crew: Crew, runs_s: float, *, now: float, patience_s: float, lost_after_s: float
) -> Step:
    """Decide about a job that has served its task, which waits: a worker that died comes not again by itself."""
    if crew.standing >= job.nodes or crew.over_at is None:
        return Step("none")
    waits_s = now - crew.over_at
    requeued = waits_s >= runs_s  # since its last try: its workers start anew, which takes its time
    if (runs_s <= patience_s) if requeued else (waits_s <= lost_after_s):
        return Step("none")
    return Step("leave" if crew.ids else "cancel", f"workers of {crew.standing} of its {job.nodes} nodes are left")


def _idle(job: ClusterJobRow, crew: Crew, patience_s: float) -> str:
    """Say what became of nodes on which the task did not start in time."""
    if len(crew.ids) < job.nodes:
        return f"workers of {len(crew.ids)} of its {job.nodes} nodes came within {patience_s:g} s"
    return f"none of its workers took the task within {patience_s:g} s"
