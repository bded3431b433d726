"""A sweep's trials and their runs: what is new of a run, and its effect on the trial. Functions on a connection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, journal, tasks
from tunefleet.db.repositories.sweeps import TrialRow
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.sweep import TrialState
from tunefleet.lifecycle.task import TaskReason, TaskStatus
from tunefleet.orchestrator.fleet import usage
from tunefleet.orchestrator.tasks.metric_summary import SAME, MetricSummary
from tunefleet.orchestrator.telemetry.series import values_of
from tunefleet.spec.options.sweep import SweepSpec

_SERIES: Final = "train"
_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class Observation:
    """What is new of an open trial.

    Args:
        run: Its run; None if it was removed.
        new: Step and value of its new evaluations.
        complete: Whether the run has trained to its last step.
        mistake: Whether the end of the run is a mistake of its spec, which other trials have, too.
    """

    row: TrialRow
    run: TaskRow | None
    new: tuple[tuple[int, float], ...] = ()
    complete: bool = False
    mistake: bool = False


@dataclass(slots=True)
class Observations:
    """All trials of a sweep, and what is new of the open ones.

    Args:
        gpu_s: GPU seconds of all trials so far.
    """

    rows: list[TrialRow]
    found: list[Observation] = field(default_factory=list)
    gpu_s: float = 0.0


def observe(connection: Connection, spec: SweepSpec, rows: Sequence[TrialRow], now: float) -> Observations:
    """Return what is new of the open trials of a sweep."""
    open_rows = [row for row in rows if not TrialState(row.state).final]
    runs = tasks.by_ids(connection, [row.task_id for row in open_rows if row.task_id is not None])
    result = Observations(list(rows), gpu_s=sum(row.gpu_s for row in rows))
    for row in open_rows:
        run = runs.get(row.task_id or "")
        seen = _observe_one(connection, spec, row, run, now)
        result.found.append(seen)
        if run is not None and spec.max_gpu_hours is not None:
            result.gpu_s += _gpu_s(connection, run, now)
    return result


def _observe_one(
    connection: Connection, spec: SweepSpec, row: TrialRow, run: TaskRow | None, now: float
) -> Observation:
    if run is None:
        return Observation(_ended(row, TrialState.CANCELLED, now, error="Its run was removed."), None)
    known: list[list[Any]] = orjson.loads(row.evaluations)
    points = _points(connection, spec, run.id, after_step=known[-1][0] if known else 0)
    seen = Observation(row, run, tuple(points), _is_complete(connection, run))
    if not TaskStatus(run.status).final:
        return seen
    return _settle(connection, spec, seen, run, now)


def _settle(connection: Connection, spec: SweepSpec, seen: Observation, run: TaskRow, now: float) -> Observation:
    """Return the final trial of a run that has ended."""
    summaries = journal.summaries(connection, [run.id])
    summary = MetricSummary.load(summaries.get(run.id))
    row = seen.row._replace(gpu_s=_gpu_s(connection, run, now), steps=summary.step)
    # All points: the evaluation after training has the step of the last one during it, and is that of the result.
    points = _points(connection, spec, run.id, after_step=0)
    value = points[-1][1] if points else None
    if value is not None and math.isfinite(value):
        row = row._replace(value=value)
    state, error = _end_of(spec, row, run, summary, value)
    mistake = run.status == TaskStatus.FAILED and run.reason == TaskReason.BAD_INPUT
    return Observation(_ended(row, state, now, error=error), run, seen.new, True, mistake)


def _end_of(
    spec: SweepSpec, row: TrialRow, run: TaskRow, summary: MetricSummary, value: float | None
) -> tuple[TrialState, str | None]:
    """Return the final state of a trial, and its error."""
    if run.status == TaskStatus.FAILED:
        diverged = run.reason == TaskReason.DIVERGED
        return TrialState.DIVERGED if diverged else TrialState.FAILED, run.error or run.reason
    if run.status != TaskStatus.COMPLETED:
        asked = {TrialState.PRUNING: TrialState.PRUNED, TrialState.STOPPING: TrialState.STOPPED}
        return asked.get(TrialState(row.state), TrialState.CANCELLED), None
    if run.reason == TaskReason.STOPPED_EARLY:
        return (TrialState.PRUNED if row.state == TrialState.PRUNING else TrialState.STOPPED), None
    metric = spec.objective.metric
    if value is None:
        names = ", ".join(sorted(summary.latest)[:_LISTED]) or "no metrics"
        return TrialState.FAILED, f"The run reported no {metric}; it reported {names}."
    if not math.isfinite(value):
        return TrialState.DIVERGED, f"The last {metric} is not a finite number."
    return TrialState.COMPLETED, None


def _ended(row: TrialRow, state: TrialState, now: float, *, error: str | None) -> TrialRow:
    return row._replace(state=state.value, finished_at=now, error=error)


def _points(connection: Connection, spec: SweepSpec, task_id: str, *, after_step: int) -> list[tuple[int, float]]:
    """Return step and value of the objective's points after a step; of several at one step, the last measured."""
    metric = spec.objective.metric
    found: dict[int, float] = {}
    for name in (metric, *(other for other, same in SAME.items() if same == metric)):
        # Above step 0: before training all trials are equal.
        for point in journal.visible_points(
            connection, task_id, series=_SERIES, after_step=max(0, after_step), name=name
        ):
            value = values_of(point.values_json)[name]
            found[point.step] = float(value) if isinstance(value, int | float) else math.nan
    return sorted(found.items())


def _is_complete(connection: Connection, run: TaskRow) -> bool:
    """Whether a run has reached its last step: to stop it then would only lose its result."""
    launches = journal.launches_of(connection, run.id)
    progress = orjson.loads(launches[-1].progress) if launches and launches[-1].progress else {}
    step, max_steps = int(progress.get("step", 0)), int(progress.get("max_steps", 0))
    return 0 < max_steps <= step


def _gpu_s(connection: Connection, run: TaskRow, now: float) -> float:
    rows = [row for row in attempts.of_task(connection, run) if row.accepted_at is not None]
    whose = [(row._replace(finished_at=row.finished_at or now), run.project, run.owner) for row in rows]
    return sum(each.gpu_s for each in usage.measured(connection, whose))


def with_evaluations(row: TrialRow, new: Sequence[tuple[int, float]]) -> TrialRow:
    """Return a trial with further evaluations."""
    if not new:
        return row
    known: list[list[Any]] = orjson.loads(row.evaluations)
    known += [[step, value if math.isfinite(value) else None] for step, value in new]
    step, value = new[-1]
    changes: dict[str, Any] = {"evaluations": orjson.dumps(known).decode()}
    if not TrialState(row.state).final:
        changes |= {"steps": step, "value": value if math.isfinite(value) else None}
    return row._replace(**changes)
