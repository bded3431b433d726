"""Views of workers, of why a task waits, and of a running one at a glance; part of the HTTP API under `/api/v1`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from tunefleet.schemas.base import Message, ProcessBody
from tunefleet.schemas.memory import MemoryForecast
from tunefleet.schemas.worker_link import Capabilities, Load


class WorkerView(Message):
    """A worker as the server knows it."""

    id: str
    status: Literal["online", "unreachable", "lost", "offline"]
    owner: str
    capabilities: Capabilities
    running: tuple[str, ...] = ()
    """Ids of the tasks that it holds."""
    registered_at: datetime
    last_seen_at: datetime | None = None
    cordoned: bool = False
    """It gets nothing new, because somebody said so."""
    draining: bool = False
    """It finishes what it has, then leaves."""
    elastic_disabled: bool = False
    """It gets nothing new, because it was idle and the queue was short."""
    load: Load | None = None


class LoadSample(Message):
    """How busy a worker was at one moment."""

    at: datetime
    load: Load


class WorkerHistory(Message):
    """How busy a worker was, oldest first; `total` counts the samples before they were thinned."""

    worker_id: str
    total: int
    samples: tuple[LoadSample, ...]


class ElasticView(Message):
    """Whether elastic scaling lets a worker take part."""

    worker_id: str
    enabled: bool
    elastic_disabled: bool


class ElasticRequest(ProcessBody):
    """Call a worker back, or send it to rest."""

    enabled: bool


class WorkerVerdict(Message):
    """Whether one worker could run a task.

    Args:
        verdict: `fits`, `waits` (it could, but not now) or `never` (as it is).
        reason: Why not, as a clause after the worker's name.
        score: What the placement policy makes of it, for those that fit; higher goes first.
        runs: The tasks that it has now, where one waits for it.
    """

    worker_id: str
    verdict: Literal["fits", "waits", "never"]
    reason: str | None = None
    score: float | None = None
    runs: tuple[str, ...] = ()


class TaskForecast(Message):
    """Where a task of a document would go, if it were submitted now and nothing else were waiting.

    Args:
        worker_id: The worker that would get it; null if none could take it now.
        why: Why not, in one sentence.
        after: Names of the tasks, and ids of tasks submitted before, that it waits for.
        workers: What each registered worker makes of it; those that fit first, the best at the top.
        memory: What a training would take; null for other tasks.
    """

    name: str
    kind: str
    worker_id: str | None = None
    why: str | None = None
    after: tuple[str, ...] = ()
    workers: tuple[WorkerVerdict, ...] = ()
    memory: MemoryForecast | None = None


class WhyView(Message):
    """Why a task stands where it stands.

    Args:
        why: One sentence; of a task that does not wait, where it runs or how it ended.
        ahead: How many waiting tasks go before it that a worker of those that could run it could run too.
        waits_for: Upstream tasks that have not ended: id and name.
        workers: What each registered worker makes of it.
        attempts: What became of its earlier tries, oldest first, a sentence each.
    """

    task_id: str
    status: str
    why: str | None = None
    ahead: int = 0
    waits_for: tuple[tuple[str, str], ...] = ()
    workers: tuple[WorkerVerdict, ...] = ()
    attempts: tuple[str, ...] = ()


class TaskGlance(Message):
    """The last values of a running task.

    Args:
        step: Of the newest point of the series `train`.
        latest: The newest value of each name.
        loss: The end of the loss curve: step and value, at most 60 points.
    """

    step: int | None = None
    latest: dict[str, float | str] = Field(default_factory=dict)
    loss: tuple[tuple[int, float], ...] = ()
