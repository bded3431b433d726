"""Messages of the worker processes, and the report of a load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from tunefleet.schemas.base import Message
from tunefleet.simulation.held_attempt import Trace


class CrowdTick(Message):
    """Progress of a worker process."""

    type: Literal["tick"] = "tick"
    offers: int
    ended: int
    exchanges: int
    faults: int


class CrowdReady(Message):
    """All workers of a process have registered."""

    type: Literal["ready"] = "ready"
    workers: int


class CrowdFailed(Message):
    """A worker process failed."""

    type: Literal["failed"] = "failed"
    message: str
    hint: str | None = None


class CrowdEnd(Message):
    """Final message of a worker process.

    Args:
        spoken_s: Durations of exchanges that reported on a task, which the server answers immediately; a uniform
            sample if there are many.
    """

    type: Literal["end"] = "end"
    traces: tuple[Trace, ...]
    exchanges: int
    renewals: int
    spoken_s: tuple[float, ...]
    lags_s: tuple[float, ...]
    cpu_share: float
    rss_bytes: int
    up_bytes: int
    down_bytes: int
    faults: int
    last_fault: str | None
    foreign: tuple[str, ...]


class Spread(Message):
    """Durations in milliseconds; None where nothing was measured."""

    count: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


class Sample(Message):
    """Resource use of the server at one time; None where it cannot be measured."""

    at_s: float
    rss_bytes: int | None = None
    cpu_share: float | None = None
    database_bytes: int | None = None
    ended: int = 0


class ServerCost(Message):
    """Resource use of the server during a load.

    Args:
        written_bytes: Bytes written to disk by its process; None if the system does not report them, or the data folder
            is in memory.
    """

    rss_start_bytes: int | None = None
    rss_end_bytes: int | None = None
    rss_max_bytes: int | None = None
    cpu_share: float | None = None
    cpu_per_task_ms: float | None = None
    written_bytes: int | None = None
    database_start_bytes: int | None = None
    database_bytes: int | None = None


class RedisCost(Message):
    """Traffic of Redis."""

    commands: int
    input_bytes: int
    output_bytes: int
    memory_bytes: int
    clients: int


class Generator(Message):
    """Whether the simulated workers themselves were fast enough."""

    processes: int
    lag: Spread
    cpu_share: float
    rss_bytes: int
    bottleneck: bool


class Report(Message):
    """One load.

    Args:
        for_nothing: Tasks that a worker finished after the server had declared it lost: it was silent for too long, or
            the server too busy to process its messages.
        decisions_per_s: Offers per second, from the first to the last.
    """

    run_id: str
    workers: int
    tasks: int
    link: str
    renewals: bool
    ended: Literal["done", "time", "interrupted", "stalled"]
    took_s: float
    submitted: int
    completed: int
    failed: int
    cancelled: int
    lost: int
    doubled: int
    for_nothing: int = 0
    left: int
    retried: int
    decisions_per_s: float | None
    finished_per_s: float | None
    submit_per_s: float | None
    submit_to_offer: Spread
    offer_to_accept: Spread
    submit_to_finish: Spread
    exchange: Spread
    exchanges_per_s: float
    renewals_per_s: float
    link_up_bytes: int
    link_down_bytes: int
    server: ServerCost
    redis: RedisCost | None = None
    generator: Generator
    samples: tuple[Sample, ...] = ()
    faults: int = 0
    warnings: tuple[str, ...] = Field(default=())

    @property
    def whole(self) -> bool:
        """Whether the load ended normally, without lost or doubled tasks."""
        return not self.lost and not self.doubled and self.ended in {"done", "time"}


def spread(seconds: Sequence[float]) -> Spread:
    """Return count and percentiles of durations."""
    ordered = sorted(seconds)
    if not ordered:
        return Spread()

    def at(share: float) -> float:
        return round(1e3 * ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)], 3)

    return Spread(count=len(ordered), p50_ms=at(0.5), p95_ms=at(0.95), p99_ms=at(0.99), max_ms=at(1.0))


def rate(moments: Sequence[float]) -> float | None:
    """Return events per second between the first and the last; None for fewer than two times."""
    if len(moments) < 2 or max(moments) == min(moments):
        return None
    return round((len(moments) - 1) / (max(moments) - min(moments)), 2)
