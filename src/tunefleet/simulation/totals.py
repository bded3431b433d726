"""From what workers and server say to the report: latencies, rates, and whether anything was lost or counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from tunefleet.schemas.api import TaskView
from tunefleet.simulation.held_attempt import Trace
from tunefleet.simulation.load_report import CrowdEnd, Generator, Report, ServerCost, rate, spread
from tunefleet.simulation.plan import Plan

_LATE_MS: Final = 50.0
_BUSY_SHARE: Final = 0.85
_CLOCKS_S: Final = 1.0
"""By so much may the clocks of server and workers differ."""
_FINAL: Final = frozenset({"completed", "failed", "cancelled", "skipped"})


@dataclass(frozen=True, slots=True)
class Found:
    """All that is known of a load.

    Args:
        given_up: Task and number of an attempt whose worker was taken for lost → when that was, on the monotonic clock.
            What such an attempt has run to its end after that counts for nothing, by the rules. Of `questions` alone.
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


def questions(tasks: Iterable[TaskView], ends: Iterable[CrowdEnd]) -> list[str]:
    """Return the tasks whose attempts have to be looked at: run to the end more than once, or so and not completed."""
    completed = {task.id for task in tasks if task.status == "completed"}
    runs = Counter(trace.task_id for end in ends for trace in end.traces if trace.outcome == "completed")
    return sorted(task_id for task_id, count in runs.items() if count > 1 or task_id not in completed)


def report(found: Found) -> Report:
    """Sum up a load; the server's cost is put in by who has measured it."""
    traces = [trace for end in found.ends for trace in end.traces]
    submitted_at = {task.id: found.called_at[task.workflow_id] for task in found.tasks}
    by_status = Counter(task.status for task in found.tasks)
    early = found.ended in {"time", "interrupted"}
    completed = {task.id for task in found.tasks if task.status == "completed"}
    open_ = {task.id for task in found.tasks if task.status not in _FINAL}
    well = [trace for trace in traces if trace.outcome == "completed"]
    idle = [trace for trace in well if _for_nothing(trace, found.given_up)]
    runs = Counter(trace.task_id for trace in well if trace not in idle)
    # What a worker was told is stored must be there; what ran when the load was ended early is only left.
    vanished = {task_id for task_id in runs if task_id not in completed}
    failed = {task.id for task in found.tasks if task.status == "failed"}
    lost = vanished | failed | (set() if early else open_)
    generator = _generator(found.ends)
    exchanges = sum(end.exchanges for end in found.ends)
    firsts = _firsts(traces)
    return Report(
        run_id=found.plan.run_id,
        workers=found.plan.workers,
        tasks=found.plan.tasks,
        link=found.link,
        renewals=found.renewals,
        ended=found.ended,
        took_s=round(found.took_s, 3),
        submitted=len(found.tasks),
        completed=by_status["completed"],
        failed=by_status["failed"],
        cancelled=by_status["cancelled"],
        lost=len(lost) + (0 if early else found.plan.tasks - len(found.tasks)),
        doubled=sum(count > 1 for count in runs.values()),
        for_nothing=len({trace.task_id for trace in idle}),
        left=len(open_ - lost),
        retried=sum(max(0, task.attempts - 1) for task in found.tasks),
        decisions_per_s=rate([trace.offered_at for trace in traces]),
        finished_per_s=rate([trace.finished_at for trace in traces if trace.finished_at is not None]),
        submit_per_s=_submit_rate(found),
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
        exchange=spread([took_s for end in found.ends for took_s in end.spoken_s]),
        exchanges_per_s=round(exchanges / max(1e-9, found.took_s), 2),
        renewals_per_s=round(sum(end.renewals for end in found.ends) / max(1e-9, found.took_s), 2),
        link_up_bytes=sum(end.up_bytes for end in found.ends),
        link_down_bytes=sum(end.down_bytes for end in found.ends),
        server=ServerCost(),
        generator=generator,
        faults=sum(end.faults for end in found.ends),
        warnings=tuple(_warnings(found, generator)),
    )


def _for_nothing(trace: Trace, given_up: Mapping[tuple[str, int], float]) -> bool:
    """Whether an end was said of an attempt that had been given up; one that was given up after it is a fault."""
    at = given_up.get((trace.task_id, trace.attempt))
    return at is not None and trace.finished_at is not None and at <= trace.finished_at + _CLOCKS_S


def _firsts(traces: Iterable[Trace]) -> list[Trace]:
    """Return the first attempt of each task: what comes later waits for something else than placement."""
    first: dict[str, Trace] = {}
    for trace in sorted(traces, key=lambda each: each.offered_at):
        first.setdefault(trace.task_id, trace)
    return list(first.values())


def _submit_rate(found: Found) -> float | None:
    if not found.answered_at:
        return None
    took_s = max(found.answered_at.values()) - min(found.called_at.values())
    return round(len(found.tasks) / took_s, 2) if took_s > 0 else None


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


def _warnings(found: Found, generator: Generator) -> Iterable[str]:
    if generator.bottleneck:
        late = generator.lag.p95_ms or 0.0
        yield (
            f"The simulated workers were a bottleneck themselves (late by {late:.0f} ms at the 95th percentile, the "
            f"busiest process {generator.cpu_share:.0%} of a core): the server can do more than this says. Use "
            "--processes, or a larger machine."
        )
    foreign = [task_id for end in found.ends for task_id in end.foreign]
    if foreign:
        yield (
            f"The server offered {len(foreign)} tasks that are not of this run, such as {foreign[0]}; they were given "
            "back untouched. It does not know workers that are for one run only: is it an older version?"
        )
    faults = [end.last_fault for end in found.ends if end.last_fault]
    if faults:
        count = sum(end.faults for end in found.ends)
        yield f"{count} calls of workers did not work and were repeated; the last: {faults[-1]}"
    if found.ended == "stalled":
        yield "Nothing happened any more; `tunefleet why` says what the tasks wait for."
