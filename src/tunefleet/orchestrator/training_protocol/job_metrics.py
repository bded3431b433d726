"""Metric points of jobs: report and read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import journal, training_protocol
from tunefleet.db.rows import LaunchRow, PointRow
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import agents
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.orchestrator.telemetry import journal_limits
from tunefleet.orchestrator.telemetry.journal_limits import JournalUsage
from tunefleet.orchestrator.training_protocol import held_attempts as holding
from tunefleet.orchestrator.views import LAST_SECOND
from tunefleet.schemas.training_protocol.reports import Done, MetricPage, MetricRow, MetricRows, ReportedPoint

# Maximum number of points in a response.
MAX_READ: Final = 100_000
# Field of a reported point → name of the value in the journal.
_NAMES: Final = {
    "train_loss": "loss",
    "eval_loss": "eval_loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "gpu_memory_allocated_gb": "gpu_memory_allocated_gb",
    "gpu_memory_reserved_gb": "gpu_memory_reserved_gb",
    "gpu_utilization_percent": "gpu_utilization_percent",
    "samples_per_second": "samples_per_second",
    "tokens_per_second": "tokens_per_second",
    "train_perplexity": "train_perplexity",
    "eval_perplexity": "eval_perplexity",
}
# Above this, exp(loss) overflows a float.
_MAX_LOSS: Final = 700.0


async def report(core: ServerContext, actor: AttemptActor, reported: Sequence[ReportedPoint]) -> Done:
    """Store metric points of a job; the first one marks it as running.

    A point that is already stored with the same values is skipped; one with other values replaces it.

    Raises:
        ConflictError: If the job is no longer held with this token.
    """
    await agents.touch(core, actor)
    keep = core.settings.series_points
    await core.write(partial(_store, actor=actor, reported=reported, now=core.clock.wall(), keep=keep))
    return Done(count=len(reported))


def _store(
    connection: Connection, *, actor: AttemptActor, reported: Sequence[ReportedPoint], now: float, keep: int
) -> None:
    held = holding.of_reporter(connection, actor, now)
    launch = holding.launch_of(connection, held, now)
    new = _new(connection, launch, reported)
    rows = [
        (seq, "train", point.step, point.epoch, _time_of(point, now), None, None,
         journal.curve_of("train", values), orjson.dumps(values).decode())
        for seq, (point, values) in enumerate(new, launch.cursor)
    ]  # fmt: skip
    usage = JournalUsage.of(connection, held.task.id)
    kept = usage.take_points(rows, keep)
    journal.add_records(connection, [(launch.task_id, launch.number, *row) for row in kept], [])
    if launch.cursor == 0 and launch.number > 1 and new:
        # Reports do not contain the start step; steps that an earlier attempt reported beyond it are repeated by this
        # one.
        journal.resume_from(connection, launch, from_step=_begins_after(new), checkpoint=None)
    usage.summarize(connection, kept, again=launch.cursor == 0 and launch.number > 1)
    cursor = launch.cursor + len(rows)
    journal.advance(connection, launch, cursor=cursor, progress=_progress(launch, reported, now))
    usage.give_back(journal_limits.thin_points(connection, launch, cursor, keep, now))
    usage.store(connection, keep, now)
    wake(connection, f"task:{held.task.id}")


def _begins_after(new: Sequence[tuple[ReportedPoint, dict[str, Any]]]) -> int:
    """Return the start step of a launch, from its first points; an evaluation does not train a step."""
    return max(0, min(point.step - ("loss" in values) for point, values in new))


def _new(
    connection: Connection, launch: LaunchRow, reported: Sequence[ReportedPoint]
) -> list[tuple[ReportedPoint, dict[str, Any]]]:
    wanted = [(point, values) for point in reported if (values := _values_of(point))]
    if not wanted:
        return []
    first = min(point.step for point, _ in wanted)
    # Agents resend points after a lost response, without an idempotency key.
    known: set[tuple[int, str]] = set()
    for row in training_protocol.newest_points(connection, launch):
        # Points are ordered by step, except for a second evaluation or a repetition.
        if row.step < first:
            break
        known.add((row.step, row.values_json))
    fresh = []
    for point, values in wanted:
        key = (point.step, orjson.dumps(values).decode())
        if key not in known:
            known.add(key)
            fresh.append((point, values))
    return fresh


def _progress(launch: LaunchRow, reported: Sequence[ReportedPoint], now: float) -> str | None:
    if not reported:
        return None
    before: dict[str, Any] = orjson.loads(launch.progress) if launch.progress else {}
    newest = max(reported, key=lambda point: point.step)
    if newest.step < before.get("step", 0):
        return None
    total = next((point.total_steps for point in reversed(reported) if point.total_steps), before.get("max_steps", 0))
    record = {
        "type": "progress", "phase": "training", "at": now, "step": newest.step, "max_steps": total,
        "tokens_per_s": newest.tokens_per_second, "eta_s": newest.remaining_seconds,
    }  # fmt: skip
    return orjson.dumps(record).decode()


async def read(core: ServerContext, actor: Actor, task_id: str) -> MetricRows:
    """Return the points of a job in step order, at most the newest 100,000."""
    job_id, rows = await _read(core, actor, task_id)
    return MetricRows(job_id=job_id, metrics=rows[-MAX_READ:])


async def read_page(core: ServerContext, actor: Actor, task_id: str, *, limit: int, offset: int) -> MetricPage:
    """Return a page of the points of a job in step order."""
    job_id, rows = await _read(core, actor, task_id)
    return MetricPage(job_id=job_id, metrics=rows[offset : offset + limit], total=len(rows), limit=limit, offset=offset)


async def _read(core: ServerContext, actor: Actor, task_id: str) -> tuple[str, list[MetricRow]]:
    may_read(actor)

    def operation(connection: Connection) -> tuple[str, list[MetricRow]]:
        row = find(connection, actor, task_id)
        found = list(journal.visible_points(connection, row.id, series="train"))
        return row.id, merged(row.id, found)

    return await core.read(operation)


def merged(task_id: str, points: Sequence[PointRow]) -> list[MetricRow]:
    """Merge points into one per step; for each name the newest value counts."""
    values: dict[int, dict[str, Any]] = {}
    last: dict[int, PointRow] = {}
    for point in points:
        values.setdefault(point.step, {}).update(orjson.loads(point.values_json))
        last[point.step] = point
    return [_row_of(task_id, last[step], found_values) for step, found_values in values.items()]


def _values_of(point: ReportedPoint) -> dict[str, float | str]:
    """Return a reported point's values under their journal names, without missing ones."""
    found = {ours: getattr(point, theirs) for theirs, ours in _NAMES.items()}
    if found["eval_perplexity"] is None:
        found["eval_perplexity"] = point.perplexity
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _plain(value: float) -> float | str:
    """Return a JSON-compatible number; NaN and infinities become strings."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _time_of(point: ReportedPoint, now: float) -> float:
    """Return the Unix time of a point; a time without a zone is UTC, a missing one is `now`."""
    if not point.timestamp:
        return now
    try:
        read = datetime.fromisoformat(point.timestamp)
    except ValueError:
        return now
    at = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    return at if 0 <= at < LAST_SECOND else now


def _row_of(task_id: str, point: PointRow, values: Mapping[str, Any]) -> MetricRow:
    """Return a stored point under the protocol's names."""
    known = {theirs: values[ours] for theirs, ours in _NAMES.items() if ours in values}
    for perplexity, loss in (("train_perplexity", "train_loss"), ("eval_perplexity", "eval_loss")):
        if perplexity not in known and loss in known:
            known[perplexity] = perplexity_of(known[loss])
    if "eval_perplexity" in known:
        known["perplexity"] = known["eval_perplexity"]
    at = datetime.fromtimestamp(point.at, UTC)
    return MetricRow(job_id=task_id, step=point.step, epoch=point.epoch, timestamp=at, **known)


def perplexity_of(loss: float | str | None) -> float | None:
    """Return the exponential of a loss; None if it is not finite."""
    if not isinstance(loss, int | float) or math.isnan(loss) or loss > _MAX_LOSS:
        return None
    return math.exp(loss)
