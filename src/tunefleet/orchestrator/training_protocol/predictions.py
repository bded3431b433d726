"""Predictions of a model on samples during training: report, read, trends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from statistics import fmean
from typing import Any, Final

import orjson

from tunefleet.db import Connection, wake
from tunefleet.db.repositories import journal, training_protocol
from tunefleet.db.rows import TaskRow
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, AttemptActor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet import agents
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.orchestrator.telemetry.journal_limits import JournalUsage
from tunefleet.orchestrator.training_protocol import held_attempts as holding
from tunefleet.schemas.training_protocol.reports import (
    Done,
    PredictionEpochs,
    PredictionItem,
    PredictionPage,
    PredictionTrends,
)

# Field of a reported prediction → field of a journal record.
_OURS: Final = {"sample_index": "index", "prediction": "output", "ground_truth": "reference"}
_EXCLUDED: Final = frozenset({"job_id", "user_id", "type", "seq", "at"})
_NOT_METRICS: Final = frozenset({"step", "epoch", "sample_index"})
# Number of predictions per read of a follower.
PIECE: Final = 200
# Launch number and sequence number.
Mark = tuple[int, int]


async def report(core: ServerContext, actor: AttemptActor, reported: Sequence[PredictionItem]) -> Done:
    """Store predictions of a job; those that are stored already are skipped.

    Raises:
        ConflictError: If the job is no longer held with this token.
    """
    await agents.touch(core, actor)
    # In a thread: texts may be long, and the writer thread is shared.
    given = await asyncio.to_thread(_given, reported)
    keep = core.settings.series_points
    await core.write(partial(_store, actor=actor, given=given, now=core.clock.wall(), keep=keep))
    return Done(count=len(reported))


def _given(reported: Sequence[PredictionItem]) -> dict[str, dict[str, Any]]:
    """Return the records of predictions by the digest of their identity, without repetitions."""
    found: dict[str, dict[str, Any]] = {}
    for item in reported:
        fields: dict[str, Any] = orjson.loads(item.model_dump_json(exclude_none=True, exclude=set(_EXCLUDED)))
        record = {_OURS.get(name, name): value for name, value in fields.items()}
        # Reports have no sequence numbers, so a repetition is recognized by its content.
        identity = orjson.dumps([record.get(name) for name in ("step", "index", "prompt", "output")])
        found.setdefault(blake2b(identity, digest_size=16).hexdigest(), record)
    return found


def _store(
    connection: Connection, *, actor: AttemptActor, given: Mapping[str, dict[str, Any]], now: float, keep: int
) -> None:
    held = holding.of_reporter(connection, actor, now)
    launch = holding.launch_of(connection, held, now)
    known = training_protocol.reported_predictions_of(connection, launch, list(given))
    fresh = [digest for digest in given if digest not in known]
    rows = [
        (seq, "prediction", orjson.dumps({**given[digest], "type": "prediction", "seq": seq, "at": now}).decode())
        for seq, digest in enumerate(fresh, launch.cursor)
    ]
    usage = JournalUsage.of(connection, held.task.id)
    kept = usage.take_records(rows)
    journal.add_records(connection, [], [(launch.task_id, launch.number, *row) for row in kept])
    training_protocol.add_reported_predictions(connection, launch, fresh[: len(kept)])
    journal.advance(connection, launch, cursor=launch.cursor + len(kept), progress=None)
    usage.store(connection, keep, now)
    wake(connection, f"task:{held.task.id}")


async def page(
    core: ServerContext, actor: Actor, task_id: str, *, epoch: float | None, limit: int, offset: int
) -> PredictionPage:
    """Return predictions of a job, oldest first."""
    may_read(actor)

    def operation(connection: Connection) -> PredictionPage:
        row = find(connection, actor, task_id)
        epochs, wanted, total = set(), [], 0
        for _, view in _views(connection, row):
            epochs.add(view["epoch"])
            if epoch is None or view["epoch"] == epoch:
                if offset <= total < offset + limit:
                    wanted.append(view)
                total += 1
        return PredictionPage(
            job_id=row.id, predictions=wanted, total_count=total, epoch_count=len(epochs), limit=limit, offset=offset
        )

    return await core.read(operation)


async def epochs(core: ServerContext, actor: Actor, task_id: str) -> PredictionEpochs:
    """Return the epochs and steps of a job's predictions, with counts."""
    may_read(actor)

    def operation(connection: Connection) -> PredictionEpochs:
        row = find(connection, actor, task_id)
        counts = Counter((view["epoch"], view["step"]) for _, view in _views(connection, row))
        listed = [{"epoch": epoch, "step": step, "prediction_count": count} for (epoch, step), count in counts.items()]
        return PredictionEpochs(job_id=row.id, epochs=listed)

    return await core.read(operation)


async def trends(core: ServerContext, actor: Actor, task_id: str) -> PredictionTrends:
    """Return the means of all metrics of a job's predictions, per step."""
    may_read(actor)

    def operation(connection: Connection) -> PredictionTrends:
        row = find(connection, actor, task_id)
        steps: dict[int, _Trend] = {}
        for _, view in _views(connection, row):
            steps.setdefault(view["step"], _Trend(view["step"], view["epoch"])).add(view)
        return PredictionTrends(job_id=row.id, trends=[trend.view() for trend in steps.values()])

    return await core.read(operation)


@dataclass(slots=True)
class _Trend:
    """Accumulated metrics of a step's predictions."""

    step: int
    epoch: float | None
    count: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, view: Mapping[str, Any]) -> None:
        """Add a prediction."""
        self.count += 1
        for name, value in view.items():
            if isinstance(value, bool | int | float) and name not in _NOT_METRICS:
                self.values.setdefault(name, []).append(float(value))

    def view(self) -> dict[str, Any]:
        """Return the means."""
        means = {f"avg_{name}": fmean(found) for name, found in self.values.items()}
        return {"step": self.step, "epoch": self.epoch, "sample_count": self.count, **means}


async def after(
    core: ServerContext, actor: Actor, task_id: str, mark: Mark | None
) -> tuple[str, list[tuple[Mark, dict[str, Any]]], bool]:
    """Return the job's id, up to `PIECE` predictions after a mark with their marks, and whether the job has no more."""
    may_read(actor)

    def operation(connection: Connection) -> tuple[str, list[tuple[Mark, dict[str, Any]]], bool]:
        row = find(connection, actor, task_id)
        found = list(_views(connection, row, after=mark, limit=PIECE))
        return row.id, found, TaskStatus(row.status).final and len(found) < PIECE

    return await core.read(operation)


def _views(
    connection: Connection, row: TaskRow, *, after: Mark | None = None, limit: int | None = None
) -> Iterator[tuple[Mark, dict[str, Any]]]:
    """Yield predictions one by one, to bound memory."""
    for launch, seq, body in training_protocol.predictions(connection, row.id, after=after, limit=limit):
        yield (launch, seq), _view(row.id, row.owner, orjson.loads(body))


def _view(task_id: str, owner: str, record: dict[str, Any]) -> dict[str, Any]:
    theirs = {ours: name for name, ours in _OURS.items()}
    fields = {theirs.get(name, name): value for name, value in record.items() if name not in _EXCLUDED}
    view = {"job_id": task_id, "user_id": owner, "epoch": None, "step": 0, **fields}
    truth = view.get("ground_truth")
    if isinstance(truth, str) and "exact_match" not in view:
        view["exact_match"] = str(view.get("prediction", "")).strip() == truth.strip()
    return view
