"""Where the time of a run went: its phases from submission to the end, without gaps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from tunefleet.schemas.api import EventView, TaskDetail

# Status of a task → the phase that begins with it.
_PHASES: Final[Mapping[str, str]] = {
    "pending": "dependencies",
    "queued": "queue",
    "dispatched": "offer",
    "running": "fetch",
    "paused": "paused",
}
_FINAL: Final = frozenset({"completed", "failed", "cancelled", "skipped"})
_TRAINS: Final = "training.started"
# Kinds of events that `phases` reads.
_JOB: Final = frozenset({"launch.started", _TRAINS, "launch.ended", "launch.failed"})


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run's time.

    Args:
        name: `dependencies`, `queue`, `backoff`, `offer`, `fetch`, `start`, `load`, `run`, `train`, `save`, `deliver`
            or `paused`.
        start_s: Seconds since the submission.
        seconds: Duration.
        attempt: Number of the attempt; None outside of one.
        note: Why it began, if that is not obvious.
    """

    name: str
    start_s: float
    seconds: float
    attempt: int | None = None
    worker_id: str | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**asdict(self), "start_s": round(self.start_s, 3), "seconds": round(self.seconds, 3)}


def phases(task: TaskDetail, events: Iterable[EventView], now: datetime) -> tuple[Phase, ...]:
    """Return the phases of a run, in order; their durations add up to its wall time.

    Args:
        events: The run's events, by id.
        now: The end of the last phase if the run has not ended.
    """
    found = list(events)
    end = task.finished_at or now
    clock = _Clock(task.created_at, end)
    for at, event in enumerate(found):
        if event.kind == "task.message" and event.data.get("name") in _JOB:
            _add_job_phase(clock, event, found[at + 1 :])
        elif event.kind == "checkpoint.saved":
            clock.add_stall(float(event.data.get("stall_s") or 0.0))
        elif event.kind.startswith("task.") and isinstance(event.data.get("status"), str):
            _add_status(clock, event, str(event.data["status"]))
    return clock.close()


def _add_status(clock: _Clock, event: EventView, status: str) -> None:
    number, reason = event.data.get("attempt"), str(event.data.get("reason") or "")
    note = "" if reason in {"ready", "offered", "started", "paused"} else reason.replace("_", " ")
    if status in _PHASES:
        on_worker = status in {"dispatched", "running"}
        clock.begin(_PHASES[status], event.at, number, event.worker_id if on_worker else None, note)
    backoff_s = float(event.data.get("backoff_s") or 0.0)
    if status == "queued" and backoff_s > 0:
        clock.rename("backoff")
        clock.begin_later("queue", backoff_s)


def _add_job_phase(clock: _Clock, event: EventView, later: Sequence[EventView]) -> None:
    name, data = event.data["name"], event.data.get("data") or {}
    if name == _TRAINS:
        clock.begin("train", event.at)
    elif name != "launch.started":
        clock.begin("deliver", event.at, note="failed" if name == "launch.failed" else "")
    else:
        prepared_at = data.get("prepared_at")
        restarted = clock.name not in {"fetch", "offer"}
        if prepared_at is not None:
            start = datetime.fromtimestamp(float(prepared_at), event.at.tzinfo)
            clock.begin("start", start, note="process restarted" if restarted else "")
        clock.begin("load" if _will_train(later) else "run", event.at)


def _will_train(later: Sequence[EventView]) -> bool:
    for event in later:
        name = event.data.get("name") if event.kind == "task.message" else None
        if name == _TRAINS:
            return True
        if name == "launch.started":
            return False
    return False


class _Clock:
    """Collects phases without gaps or overlaps, although the clocks of server and workers may differ."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self._origin = start
        self._total_s = max(0.0, (end - start).total_seconds())
        self._phases = [Phase("queue", 0.0, 0.0)]
        self._stall_s = 0.0
        self._stalls = 0

    @property
    def name(self) -> str:
        """Name of the phase that has begun last."""
        return self._phases[-1].name

    def begin(
        self, name: str, at: datetime, attempt: int | None = None, worker_id: str | None = None, note: str = ""
    ) -> None:
        """End the current phase and begin another; by default, of the same attempt."""
        last = self._phases[-1]
        same = attempt is None and worker_id is None and name not in {"queue", "paused", "dependencies"}
        attempt, worker_id = (last.attempt, last.worker_id) if same else (attempt, worker_id)
        self._append(Phase(name, (at - self._origin).total_seconds(), 0.0, attempt, worker_id, note))

    def begin_later(self, name: str, after_s: float) -> None:
        """Let the current phase last for a time and begin another one."""
        self._append(Phase(name, self._phases[-1].start_s + after_s, 0.0))

    def rename(self, name: str) -> None:
        """Rename the current phase."""
        self._phases[-1] = replace(self._phases[-1], name=name)

    def add_stall(self, seconds: float) -> None:
        """Count time for which training stood still for a checkpoint."""
        if self.name == "train":
            self._stall_s += seconds
            self._stalls += 1

    def close(self) -> tuple[Phase, ...]:
        """End the last phase; return those that took any time."""
        self._end_at(self._total_s)
        return tuple(phase for phase in self._phases if phase.seconds > 0)

    def _append(self, phase: Phase) -> None:
        start_s = min(max(phase.start_s, self._phases[-1].start_s), self._total_s)
        self._end_at(start_s)
        self._phases.append(replace(phase, start_s=start_s))

    def _end_at(self, at_s: float) -> None:
        last = self._phases[-1]
        seconds = at_s - last.start_s
        stall_s = min(self._stall_s, seconds)
        self._phases[-1] = replace(last, seconds=seconds - stall_s)
        if self._stalls:
            noun = "checkpoint" if self._stalls == 1 else "checkpoints"
            save = replace(last, name="save", start_s=at_s - stall_s, seconds=stall_s, note=f"{self._stalls} {noun}")
            self._phases.append(save)
        self._stall_s, self._stalls = 0.0, 0
