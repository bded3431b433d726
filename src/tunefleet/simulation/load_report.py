"""Messages of the worker processes, and the report of a load."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import Field

from tunefleet.schemas.api import TaskView
from tunefleet.schemas.base import Message
from tunefleet.simulation.held_attempt import Trace
from tunefleet.simulation.plan import Plan

_LATE_MS: Final = 50.0
_BUSY_SHARE: Final = 0.85
# Tolerated difference between the clocks of server and workers.
_CLOCKS_S: Final = 1.0
_FINAL: Final = frozenset({"completed", "failed", "cancelled", "skipped"})


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


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The raw results of a load.

    Args:
        given_up: Task and number of an attempt whose worker was declared lost → when, on the monotonic clock. A later
            completion of such an attempt does not count. Only for tasks of `tasks_to_inspect`.
    """

    plan: Plan
    link: str
    renewals: bool
    ended: Literal["done", "time", "interrupted", "stalled"]
    took_s: float
    tasks: list[TaskView]
    ends: list[CrowdEnd]
    called_at: Mapping[str, float]
    answered_at: Mapping[str, float]
    given_up: Mapping[tuple[str, int], float] = field(default_factory=dict)


def tasks_to_inspect(tasks: Iterable[TaskView], ends: Iterable[CrowdEnd]) -> list[str]:
    """Return the tasks whose attempts must be inspected: finished more than once, or finished and not completed."""
    completed = {task.id for task in tasks if task.status == "completed"}
    runs = Counter(trace.task_id for end in ends for trace in end.traces if trace.outcome == "completed")
    return sorted(task_id for task_id, count in runs.items() if count > 1 or task_id not in completed)


def report_of(result: LoadResult) -> Report:
    """Return the report of a load; the caller adds the server's cost."""
    traces = [trace for end in result.ends for trace in end.traces]
    submitted_at = {task.id: result.called_at[task.workflow_id] for task in result.tasks}
    by_status = Counter(task.status for task in result.tasks)
    early = result.ended in {"time", "interrupted"}
    completed = {task.id for task in result.tasks if task.status == "completed"}
    open_ = {task.id for task in result.tasks if task.status not in _FINAL}
    finished = [trace for trace in traces if trace.outcome == "completed"]
    wasted = [trace for trace in finished if _for_nothing(trace, result.given_up)]
    runs = Counter(trace.task_id for trace in finished if trace not in wasted)
    # A confirmed completion must be on the server; tasks that ran at an early stop only count as left.
    vanished = {task_id for task_id in runs if task_id not in completed}
    failed = {task.id for task in result.tasks if task.status == "failed"}
    lost = vanished | failed | (set() if early else open_)
    generator = _generator(result.ends)
    exchanges = sum(end.exchanges for end in result.ends)
    firsts = _firsts(traces)
    return Report(
        run_id=result.plan.run_id,
        workers=result.plan.workers,
        tasks=result.plan.tasks,
        link=result.link,
        renewals=result.renewals,
        ended=result.ended,
        took_s=round(result.took_s, 3),
        submitted=len(result.tasks),
        completed=by_status["completed"],
        failed=by_status["failed"],
        cancelled=by_status["cancelled"],
        lost=len(lost) + (0 if early else result.plan.tasks - len(result.tasks)),
        doubled=sum(count > 1 for count in runs.values()),
        for_nothing=len({trace.task_id for trace in wasted}),
        left=len(open_ - lost),
        retried=sum(max(0, task.attempts - 1) for task in result.tasks),
        decisions_per_s=rate([trace.offered_at for trace in traces]),
        finished_per_s=rate([trace.finished_at for trace in traces if trace.finished_at is not None]),
        submit_per_s=_submit_rate(result),
        submit_to_offer=spread(
            [one.offered_at - submitted_at[one.task_id] for one in firsts if one.task_id in submitted_at]
        ),
        offer_to_accept=spread([one.accepted_at - one.offered_at for one in firsts if one.accepted_at is not None]),
        submit_to_finish=spread(
            [
                one.finished_at - submitted_at[one.task_id]
                for one in traces
                if one.finished_at is not None and one.task_id in submitted_at
            ]
        ),
        exchange=spread([took_s for end in result.ends for took_s in end.spoken_s]),
        exchanges_per_s=round(exchanges / max(1e-9, result.took_s), 2),
        renewals_per_s=round(sum(end.renewals for end in result.ends) / max(1e-9, result.took_s), 2),
        link_up_bytes=sum(end.up_bytes for end in result.ends),
        link_down_bytes=sum(end.down_bytes for end in result.ends),
        server=ServerCost(),
        generator=generator,
        faults=sum(end.faults for end in result.ends),
        warnings=tuple(_warnings(result, generator)),
    )


def _for_nothing(trace: Trace, given_up: Mapping[tuple[str, int], float]) -> bool:
    """Whether an attempt ended after its worker was declared lost; the other order is an error of the server."""
    at = given_up.get((trace.task_id, trace.attempt))
    return at is not None and trace.finished_at is not None and at <= trace.finished_at + _CLOCKS_S


def _firsts(traces: Iterable[Trace]) -> list[Trace]:
    """Return the first attempt of each task: later ones do not measure placement."""
    first: dict[str, Trace] = {}
    for trace in sorted(traces, key=lambda each: each.offered_at):
        first.setdefault(trace.task_id, trace)
    return list(first.values())


def _submit_rate(result: LoadResult) -> float | None:
    if not result.answered_at:
        return None
    took_s = max(result.answered_at.values()) - min(result.called_at.values())
    return round(len(result.tasks) / took_s, 2) if took_s > 0 else None


def _generator(ends: list[CrowdEnd]) -> Generator:
    lag = spread([lag_s for end in ends for lag_s in end.lags_s])
    busiest = max((end.cpu_share for end in ends), default=0.0)
    return Generator(
        processes=len(ends),
        lag=lag,
        cpu_share=round(busiest, 3),
        rss_bytes=sum(end.rss_bytes for end in ends),
        bottleneck=busiest > _BUSY_SHARE or (lag.p95_ms or 0.0) > _LATE_MS,
    )


def _warnings(result: LoadResult, generator: Generator) -> Iterable[str]:
    if generator.bottleneck:
        late = generator.lag.p95_ms or 0.0
        yield (
            f"The simulated workers were the bottleneck (event loop lag {late:.0f} ms at the 95th percentile, busiest "
            f"process {generator.cpu_share:.0%} of a core): the server can do more than measured. Use --processes, or "
            "a larger machine."
        )
    foreign = [task_id for end in result.ends for task_id in end.foreign]
    if foreign:
        yield (
            f"The server offered {len(foreign)} tasks of other runs, such as {foreign[0]}; they were released. An "
            "older server does not support `only:` tags: check its version."
        )
    faults = [end.last_fault for end in result.ends if end.last_fault]
    if faults:
        count = sum(end.faults for end in result.ends)
        yield f"{count} worker requests failed and were retried; last error: {faults[-1]}"
    if result.ended == "stalled":
        yield "The load stalled. See why tasks are pending with `tunefleet why`."
