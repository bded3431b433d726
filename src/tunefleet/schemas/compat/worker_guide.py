"""Workers and metrics in the format of the Worker Guide: `/workers`, `/metrics`, `/healthz`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tunefleet.schemas.base import Message


class GuideWorker(Message):
    """A worker, in the format of the Worker Guide.

    Args:
        status: `RUNNING` if it has tasks, else `IDLE`; for a stale worker, its last known status.
        env: Host name, platform and version; no environment variables.
        stale: Whether it does not respond.
        elastic_disabled: Whether it is on standby.
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
    """The server is alive."""

    ok: bool = True


class Timing(Message):
    """Queue time, execution time and total time of completed tasks, in seconds."""

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
    """A recently ended task."""

    task_id: str
    task_type: str
    status: str
    worker_id: str | None
    started_at: datetime | None
    finished_at: datetime


class Snapshot(Message):
    """Metrics of the server over all its tasks.

    Args:
        counters: `tasks_submitted`, `tasks_succeeded`, `tasks_failed`, `tasks_requeued`, `workers_registered`,
            `workers_unregistered`, and `worker_heartbeats` since the server's start.
        task_timings: `overall`, `inference`, `training` and `other`.
        workers: `totals` over all responding workers, and each of them in `workers`. Energy is
            that of the GPUs since the worker's start; null if no GPU reports its power.
        active_workers_count: Number of responding workers that are not on standby.
        elastic_disabled_workers: Workers on standby.
    """

    generated_at: datetime
    counters: dict[str, int]
    task_timings: dict[str, Timing]
    workers: dict[str, Any]
    active_workers_count: int
    elastic_disabled_workers: tuple[str, ...]
    completed_tasks: tuple[EndedTask, ...]
