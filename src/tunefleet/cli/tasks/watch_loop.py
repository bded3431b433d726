"""State of a watched task, and one poll of the server to update it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tunefleet.client import Client
from tunefleet.errors import UnreachableError
from tunefleet.lifecycle.task import TaskReason as R
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import EventView, MetricPoint, ProgressView, TaskDetail

_CURVE_POINTS = 400
_EVENTS_KEPT = 50
_EVENTS_A_LOOK = 200
_OFFERED = "task.offered"
_FAILED = "task.failed"
_LAUNCH_FAILED = "launch.failed"
_ON_A_WORKER = {_OFFERED: "to", "task.started": "on"}
# Reasons that only repeat the kind of the event.
PLAIN_REASONS = frozenset({None, *(reason.value for reason in (R.READY, R.OFFERED, R.STARTED, R.FINISHED))})


@dataclass(slots=True)
class Watched:
    """A task as of the last poll.

    Args:
        silent_since: When the server stopped answering (monotonic seconds); `None` while it answers.
    """

    task: TaskDetail
    points: tuple[MetricPoint, ...] = ()
    events: deque[EventView] = field(default_factory=lambda: deque(maxlen=_EVENTS_KEPT))
    silent_since: float | None = None
    _measured_at: tuple[int, str] | None = None
    _last_event: int = 0

    @property
    def final(self) -> bool:
        """Whether the task has ended."""
        return TaskStatus(self.task.status).final

    @property
    def progress(self) -> ProgressView | None:
        """Progress of a running task."""
        return self.task.progress

    def latest(self, name: str) -> float | str | None:
        """Return the newest value of a name."""
        return next((point.values[name] for point in reversed(self.points) if name in point.values), None)

    def look(self, client: Client) -> list[EventView]:
        """Poll the server and return new events; an unreachable server sets `silent_since` instead of raising."""
        try:
            self.task = client.tasks.get(self.task.id)
            step = self.progress.step if self.progress else 0
            # The curve is the largest part: fetched only after a new step or status.
            if self._measured_at != (step, self.task.status):
                self.points = client.tasks.metrics(self.task.id, max_points=_CURVE_POINTS).points
                self._measured_at = (step, self.task.status)
            new = list(client.events.list(after=self._last_event, task_id=self.task.id, limit=_EVENTS_A_LOOK))
        except UnreachableError:
            self.silent_since = self.silent_since or time.monotonic()
            return []
        self.silent_since = None
        self._last_event = new[-1].id if new else self._last_event
        # The end of the attempt has the same error.
        new = [event for event in new if event.data.get("name") != _LAUNCH_FAILED]
        self.events.extend(new)
        return new


def watch(client: Client, task_id: str, *, every_s: float) -> Iterator[tuple[Watched, list[EventView]]]:
    """Yield the task after each poll, with its new events, until it is final.

    Raises:
        NotFoundError: If the task is removed in the meantime.
    """
    watched = Watched(client.tasks.get(task_id))
    while True:
        yield watched, watched.look(client)
        if watched.final:
            return
        time.sleep(every_s)


def sentence(event: EventView) -> str:
    """Return an event as a sentence."""
    data = event.data
    if message := data.get("message"):
        return str(message)
    words = event.kind.removeprefix("task.").replace(".", " ").replace("_", " ").capitalize()
    if data.get("command"):
        words = words.replace("Command", str(data["command"]).capitalize())
    if event.worker_id and event.kind in _ON_A_WORKER:
        words += f" {_ON_A_WORKER[event.kind]} {event.worker_id}"
    details = [str(data["name"])] if data.get("name") else []
    if data.get("step") is not None:
        details.append(f"step {data['step']}")
    if data.get("attempt", 1) > 1:
        details.append(f"attempt {data['attempt']}")
    reason = str(data.get("reason")).replace("_", " ")
    if data.get("reason") not in PLAIN_REASONS and reason != words.lower():
        details.append(reason)
    # An offer repeats why the previous attempt ended, which an earlier event has shown; the error of a failed task
    # is shown once, after its last event.
    error = data.get("error") if event.kind not in {_OFFERED, _FAILED} else None
    if error:
        return f"{words} ({', '.join(details)}): {error}" if details else f"{words}: {error}"
    return f"{words}: {', '.join(details)}" if details else words
