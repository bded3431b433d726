"""Workers and figures under the Worker Guide's own paths and names: `/workers`, `/metrics`, `/healthz`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tunefleet.schemas.base import Message


class GuideWorker(Message):
    """A worker as the guide's clients know it.

    Args:
        status: `RUNNING` if it has tasks, else `IDLE`; of a stale one, what it was when it was heard of last.
        env: Host name, platform and version; no variables.
        stale: Whether it does not answer.
        elastic_disabled: Whether it gets nothing new, because it was idle.
    """

    worker_id: str
    status: str
    started_at: datetime | None = None
    pid: int | None = None
    env: dict[str, str]
    hardware: dict[str, Any]
    tags: tuple[str, ...] = ()
    last_seen: datetime | None = None
    cached_models: tuple[str, ...] = ()
    cached_datasets: tuple[str, ...] = ()
    cache_updated_ts: datetime | None = None
    cost_per_hour: float
    stale: bool
    elastic_disabled: bool


class Health(Message):
    """The server answers."""

    ok: bool = True


class Timing(Message):
    """Waiting, running and both together of the tasks that were completed, in seconds."""

    queue_avg_sec: float | None = None
    queue_count: int = 0
    queue_total_sec: float = 0.0
    execution_avg_sec: float | None = None
    execution_count: int = 0
    execution_total_sec: float = 0.0
    total_avg_sec: float | None = None
    total_count: int = 0
    total_total_sec: float = 0.0


class EndedTask(Message):
    """One of the tasks that ended last."""

    task_id: str
    task_type: str
    status: str
    worker_id: str | None
    started_at: datetime | None
    finished_at: datetime


class Snapshot(Message):
    """The server's figures at one moment, over all tasks that it has.

    Args:
        counters: `tasks_submitted`, `tasks_succeeded`, `tasks_failed`, `tasks_requeued`, `workers_registered`,
            `workers_unregistered`, and `worker_heartbeats` since the server's start.
        task_timings: `overall`, `inference`, `training` and `other`.
        workers: `totals` over all that answer, and each of them under `workers`. Energy is
            what GPUs have used since the worker's process began; null where none tells its power.
        active_workers_count: Those that answer and do not rest.
        elastic_disabled_workers: Those that rest.
    """

    generated_at: datetime
    counters: dict[str, int]
    task_timings: dict[str, Timing]
    workers: dict[str, Any]
    active_workers_count: int
    elastic_disabled_workers: tuple[str, ...]
    completed_tasks: tuple[EndedTask, ...]
