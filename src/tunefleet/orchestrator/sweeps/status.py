"""Lookup, status changes and views of sweeps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import events, sweeps
from tunefleet.db.repositories.events import Event
from tunefleet.db.repositories.sweeps import SweepRow, TrialRow
from tunefleet.db.rows import TaskRow
from tunefleet.errors import NotFoundError
from tunefleet.lifecycle import sweep as lifecycle
from tunefleet.lifecycle.sweep import SweepStatus, TrialState
from tunefleet.orchestrator import redaction
from tunefleet.orchestrator.access.permissions import Actor
from tunefleet.orchestrator.ids import only_match
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.schemas.sweep import SweepDetail, SweepView, TrialView
from tunefleet.spec.options.sweep import SweepSpec

# Published when the controller of sweeps has something to do.
TOPIC: Final = "sweeps"
_HOUR_S: Final = 3600.0
_FIRST: Final = (TrialState.COMPLETED, TrialState.RUNNING, TrialState.PRUNING, TrialState.STOPPING)
_MIDDLE: Final = (TrialState.PRUNED, TrialState.STOPPED)


@lru_cache(maxsize=256)
def _parsed(spec: str) -> SweepSpec:
    return SweepSpec.model_validate_json(spec)


def spec_of(row: SweepRow) -> SweepSpec:
    """Return the parsed spec of a sweep."""
    return _parsed(row.spec)


def find(connection: Connection, actor: Actor, reference: str) -> SweepRow:
    """Return a sweep of the actor's project by its id or a unique prefix of it.

    Raises:
        ConflictError: If several ids have the prefix.
        NotFoundError: If none has it.
    """
    prefix = reference if reference.startswith("sweep-") else f"sweep-{reference}"
    found = only_match("sweeps", reference, partial(sweeps.by_prefix, connection, prefix, actor.project))
    if found is None:
        raise NotFoundError(f"Sweep {reference} not found.", hint="List them with `tunefleet sweeps`.")
    return found


def move(
    connection: Connection,
    row: SweepRow,
    target: SweepStatus,
    now: float,
    *,
    reason: str | None = None,
    outcome: SweepStatus | None = None,
) -> SweepRow:
    """Change the status of a sweep, and append its event.

    Args:
        outcome: With `stopping`: the status that follows.

    Raises:
        IllegalTransition: If the lifecycle does not allow the change.
    """
    status = lifecycle.move(SweepStatus(row.status), target)
    values: dict[str, Any] = {"status": status.value, "reason": reason or row.reason, "outcome": outcome}
    if status.final:
        values["finished_at"] = now
    data = {"sweep": row.id, "name": row.name, "reason": values["reason"]}
    events.append(connection, [Event(f"sweep.{status.value}", now, data=data, project=row.project)])
    wake(connection, TOPIC)
    return sweeps.change(connection, row, values)


def best_of(spec: SweepSpec, rows: Sequence[TrialRow]) -> TrialRow | None:
    """Return the complete trial with the best value; the first one of equal ones."""
    found = [row for row in rows if row.state == TrialState.COMPLETED and row.value is not None]
    return min(found, key=lambda row: _rank(spec, row), default=None)


def ranked(spec: SweepSpec, rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return trials as a leaderboard: complete ones by value, then open, pruned and failed ones."""
    return sorted(rows, key=lambda row: (_group(row), _rank(spec, row), row.number))


def _group(row: TrialRow) -> int:
    if row.state in _MIDDLE:
        return 2
    return _FIRST.index(TrialState(row.state)) and 1 if row.state in _FIRST else 3


def _rank(spec: SweepSpec, row: TrialRow) -> float:
    if row.value is None:
        return math.inf
    return row.value if spec.objective.minimized else -row.value


def sweep_view(row: SweepRow, trials: Sequence[TrialRow]) -> SweepView:
    """Return a sweep as a list item."""
    return SweepView(**_fields(row, trials))


def sweep_detail(row: SweepRow, trials: Sequence[TrialRow], runs: Mapping[str, TaskRow]) -> SweepDetail:
    """Return a sweep with its trials.

    Args:
        runs: The existing runs of its trials, by id.
    """
    spec = spec_of(row)
    return SweepDetail(
        **_fields(row, trials),
        trial_list=tuple(_trial_view(each, runs) for each in ranked(spec, trials)),
        document=redaction.text(row.document),
        spec=spec.model_dump(mode="json", exclude_none=True),
    )


def _fields(row: SweepRow, trials: Sequence[TrialRow]) -> dict[str, Any]:
    spec = spec_of(row)
    best = best_of(spec, trials)
    return {
        "id": row.id,
        "name": row.name,
        "owner": row.owner,
        "status": row.status,
        "reason": row.reason,
        "sampler": spec.sampler,
        "pruner": None if spec.pruner is None else spec.pruner.name,
        "metric": spec.objective.metric,
        "direction": "minimize" if spec.objective.minimized else "maximize",
        "trials": spec.total,
        "parallel": spec.parallel,
        "states": dict(Counter(TrialState(each.state) for each in trials)),
        "best": None if best is None else _trial_view(best, None),
        "steps": sum(each.steps or 0 for each in trials),
        "gpu_hours": sum(each.gpu_s for each in trials) / _HOUR_S,
        "created_at": to_datetime(row.created_at),
        "finished_at": to_optional_datetime(row.finished_at),
    }


def _trial_view(row: TrialRow, runs: Mapping[str, TaskRow] | None) -> TrialView:
    run = None if runs is None or row.task_id is None else runs.get(row.task_id)
    is_open = not TrialState(row.state).final
    return TrialView(
        number=row.number,
        state=TrialState(row.state),
        task_id=row.task_id if runs is None or run is not None else None,
        parameters=orjson.loads(row.parameters),
        value=row.value,
        steps=row.steps,
        evaluations=len(orjson.loads(row.evaluations)),
        run_status=run.status if run is not None and is_open else None,
        gpu_hours=row.gpu_s / _HOUR_S,
        error=row.error,
        created_at=to_datetime(row.created_at),
        finished_at=to_optional_datetime(row.finished_at),
    )
