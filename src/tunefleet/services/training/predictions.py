"""Texts that a model writes for samples while it trains: reported, or out of the journal, and read back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any, Final

import orjson

from tunefleet.lifecycle.task import TaskStatus
from tunefleet.services import metrics
from tunefleet.services.core import Core
from tunefleet.services.identity import Actor, AttemptActor, may_read
from tunefleet.services.tasks import find
from tunefleet.services.training import agents
from tunefleet.services.training import held as holding
from tunefleet.store import Connection, journal, training, wake
from tunefleet.wire.training_reports import Done, PredictionEpochs, PredictionItem, PredictionPage, PredictionTrends

_OURS: Final = {"sample_index": "index", "prediction": "output", "ground_truth": "reference"}
"""Field of a reported prediction → field of a journal record."""
_NOT_KEPT: Final = frozenset({"job_id", "user_id", "type", "seq", "at"})
_NOT_MEASURES: Final = frozenset({"step", "epoch", "sample_index"})
Mark = tuple[int, int]
"""Launch number and sequence number."""


async def report(core: Core, who: AttemptActor, reported: Sequence[PredictionItem]) -> Done:
    """Store predictions of a job; those that are there already are passed over.

    Raises:
        ConflictError: If the job is no longer held with this token.
    """
    await agents.touch(core, who)
    await core.write(partial(_store, who=who, reported=reported, now=core.clock.wall()))
    return Done(count=len(reported))


def _store(connection: Connection, *, who: AttemptActor, reported: Sequence[PredictionItem], now: float) -> None:
    held = holding.of_reporter(connection, who, now)
    launch = holding.launch_of(connection, held, now)
    known = {
        _identity(orjson.loads(body))
        for number, _, body in training.predictions(connection, held.task.id)
        if number == launch.number
    }
    rows: list[tuple[Any, ...]] = []
    for item in reported:
        record = _record(item)
        if _identity(record) in known:
            continue
        known.add(_identity(record))
        seq = launch.cursor + len(rows)
        body = orjson.dumps({**record, "type": "prediction", "seq": seq, "at": now}).decode()
        rows.append((launch.task_id, launch.number, seq, "prediction", body))
    count, characters = journal.records_kept(connection, held.task.id)
    if metrics.is_full(count, characters):
        return
    if metrics.is_full(count + len(rows), characters + sum(len(row[-1]) for row in rows)):
        metrics.tell_full(connection, held.task.id, now)
    journal.add_records(connection, [], rows)
    journal.advance(connection, launch, cursor=launch.cursor + len(rows), progress=None)
    wake(connection, f"task:{held.task.id}")


def _record(item: PredictionItem) -> dict[str, Any]:
    said: dict[str, Any] = orjson.loads(item.model_dump_json(exclude_none=True, exclude=set(_NOT_KEPT)))
    return {_OURS.get(name, name): value for name, value in said.items()}


def _identity(record: dict[str, Any]) -> tuple[Any, ...]:
    return record.get("step"), record.get("index"), record.get("prompt"), record.get("output")


async def page(
    core: Core, actor: Actor, task_id: str, *, epoch: float | None, limit: int, offset: int
) -> PredictionPage:
    """Return predictions of a job in the order in which they were made.

    Args:
        core: The server.
        actor: Who reads.
        task_id: The job.
        epoch: Only of this epoch.
        limit: How many at most.
        offset: How many to pass over.

    Raises:
        NotFoundError: If there is no such job.
    """
    job_id, found = await _all(core, actor, task_id)
    epochs = {each["epoch"] for each in found}
    wanted = [each for each in found if epoch is None or each["epoch"] == epoch]
    return PredictionPage(
        job_id=job_id, predictions=wanted[offset : offset + limit], total_count=len(wanted), epoch_count=len(epochs),
        limit=limit, offset=offset,
    )  # fmt: skip


async def epochs(core: Core, actor: Actor, task_id: str) -> PredictionEpochs:
    """Return at which epochs and steps a job made predictions, and how many.

    Raises:
        NotFoundError: If there is no such job.
    """
    job_id, found = await _all(core, actor, task_id)
    counts: dict[tuple[float | None, int], int] = {}
    for each in found:
        key = (each["epoch"], each["step"])
        counts[key] = counts.get(key, 0) + 1
    listed = [{"epoch": epoch, "step": step, "prediction_count": count} for (epoch, step), count in counts.items()]
    return PredictionEpochs(job_id=job_id, epochs=listed)


async def trends(core: Core, actor: Actor, task_id: str) -> PredictionTrends:
    """Return the means of all measures of a job's predictions, a step each.

    Raises:
        NotFoundError: If there is no such job.
    """
    job_id, found = await _all(core, actor, task_id)
    steps: dict[int, list[dict[str, Any]]] = {}
    for each in found:
        steps.setdefault(each["step"], []).append(each)
    return PredictionTrends(job_id=job_id, trends=[_trend(step, rows) for step, rows in steps.items()])


def _trend(step: int, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, bool | int | float) and name not in _NOT_MEASURES:
                values.setdefault(name, []).append(float(value))
    means = {f"avg_{name}": fmean(found) for name, found in values.items()}
    return {"step": step, "epoch": rows[0]["epoch"], "sample_count": len(rows), **means}


async def after(
    core: Core, actor: Actor, task_id: str, mark: Mark | None
) -> tuple[str, list[tuple[Mark, dict[str, Any]]], bool]:
    """Return the job's id, its predictions behind a mark, each with its own, and whether no more will come.

    Raises:
        NotFoundError: If there is no such job.
    """
    may_read(actor)

    def operation(connection: Connection) -> tuple[str, list[tuple[Mark, dict[str, Any]]], bool]:
        row = find(connection, actor, task_id)
        found = training.predictions(connection, row.id, after=mark)
        views = [((launch, seq), _view(row.id, row.owner, orjson.loads(body))) for launch, seq, body in found]
        return row.id, views, TaskStatus(row.status).final

    return await core.read(operation)


async def _all(core: Core, actor: Actor, task_id: str) -> tuple[str, list[dict[str, Any]]]:
    job_id, found, _ = await after(core, actor, task_id, None)
    return job_id, [view for _, view in found]


def _view(task_id: str, owner: str, record: dict[str, Any]) -> dict[str, Any]:
    theirs = {ours: name for name, ours in _OURS.items()}
    said = {theirs.get(name, name): value for name, value in record.items() if name not in _NOT_KEPT}
    view = {"job_id": task_id, "user_id": owner, "epoch": None, "step": 0, **said}
    truth = view.get("ground_truth")
    if isinstance(truth, str) and "exact_match" not in view:
        view["exact_match"] = str(view.get("prediction", "")).strip() == truth.strip()
    return view
