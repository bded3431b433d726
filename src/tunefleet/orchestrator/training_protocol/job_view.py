"""The status of a job, from its task, its metric points and its registration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, journal, tasks, training_protocol
from tunefleet.db.repositories.training_protocol import JobRow
from tunefleet.db.rows import PointRow, TaskRow
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.orchestrator.tasks.views import progress_view
from tunefleet.orchestrator.training_protocol.job_metrics import perplexity_of
from tunefleet.orchestrator.training_protocol.job_status import dataset_of, model_of, state_of
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.schemas.api import ProgressView
from tunefleet.schemas.training_protocol.jobs import JobStatus

# A running job without reports for this long gets a warning.
WARN_AFTER_S: Final = 300.0
_NEWEST: Final = 200
_MAX_EVALUATIONS: Final = 10_000
_GIB: Final = float(1 << 30)
# Values that are shown under their journal name.
_SHOWN: Final = (
    "loss", "eval_loss", "learning_rate", "grad_norm", "gpu_memory_allocated_gb", "gpu_memory_reserved_gb",
    "gpu_utilization_percent", "samples_per_second", "tokens_per_second",
)  # fmt: skip
# Number of losses in the trend.
TREND_POINTS: Final = 10
_TREND_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Known:
    """The stored data of a job."""

    task: TaskRow
    spec: dict[str, Any]
    job: JobRow | None
    newest: list[PointRow]
    trend: list[PointRow]
    evaluations: list[PointRow]
    progress: ProgressView | None
    checkpoints: dict[int, str]
    accepted_at: float | None


async def get(core: ServerContext, actor: Actor, task_id: str) -> JobStatus:
    """Return the status of a job."""
    may_read(actor)
    known = await core.read(lambda connection: _known(connection, find(connection, actor, task_id)))
    return _status(known, core.clock.wall())


def _known(connection: Connection, row: TaskRow) -> _Known:
    launches = journal.launches_of(connection, row.id)
    held = attempts.of_task(connection, row)[-1:]
    return _Known(
        task=row,
        spec=orjson.loads(tasks.document(connection, row).as_run),
        job=training_protocol.job(connection, row.id),
        newest=training_protocol.last_points(connection, row.id, limit=_NEWEST),
        trend=training_protocol.last_points(connection, row.id, limit=TREND_POINTS, with_value="loss"),
        evaluations=training_protocol.last_points(connection, row.id, limit=_MAX_EVALUATIONS, with_value="eval_loss"),
        progress=progress_view(launches),
        checkpoints={int(record["step"]): str(record["name"]) for record in _saved(connection, row.id)},
        accepted_at=held[0].accepted_at if held else None,
    )


def _saved(connection: Connection, task_id: str) -> list[dict[str, Any]]:
    """Return the journal records of complete checkpoints."""
    return [orjson.loads(text) for text in training_protocol.records(connection, task_id, "checkpoint")]


def _status(known: _Known, now: float) -> JobStatus:
    task, progress = known.task, known.progress
    body: dict[str, Any] = orjson.loads(known.job.body) if known.job else {}
    values = newest_values(known.newest)
    best_point = best(known.evaluations)
    step = max([progress.step if progress else 0, *(point.step for point in known.newest[-1:])])
    total = (progress.max_steps if progress and progress.max_steps else None) or body.get("total_steps")
    ended = task.finished_at if task.finished_at is not None else now
    elapsed = ended - task.started_at if task.started_at is not None else None
    model, dataset = body.get("model_name") or model_of(known.spec), body.get("dataset_path") or dataset_of(known.spec)
    updated_at = _updated(known)
    return JobStatus(
        job_id=task.id,
        status=state_of(task.status),
        model_name=model,
        model_display_name=model.rstrip("/").rsplit("/", 1)[-1] if model else None,
        job_name=task.name,
        dataset_name=dataset.rstrip("/").rsplit("/", 1)[-1] if dataset else None,
        dataset_path=dataset,
        current_step=step,
        current_epoch=next((p.epoch for p in reversed(known.newest) if p.epoch is not None), 0),
        total_steps=total,
        total_epochs=body.get("total_epochs") or (known.spec.get("training") or {}).get("num_train_epochs"),
        total_samples=body.get("total_samples"),
        progress=_percent(task.status, step, total),
        **{**{name: values.get(name) for name in _SHOWN}, **_derived(values, known)},
        best_eval_loss=best_point.eval_loss if best_point else None,
        best_epoch=best_point.epoch if best_point else None,
        best_step=best_point.step if best_point else None,
        best_checkpoint_path=known.checkpoints.get(best_point.step) if best_point else None,
        epochs_without_improvement=best_point.since if best_point else None,
        loss_trend=trend(losses(known.trend)),
        started_at=to_optional_datetime(task.started_at),
        completed_at=to_optional_datetime(task.finished_at),
        elapsed_seconds=elapsed,
        remaining_seconds=_remaining(task.status, progress, elapsed, step, total),
        error=task.error,
        warning=_warning(task, updated_at, now),
        resumed_from_job_id=known.job.resumed_from if known.job else task.parent_task_id,
        resume_from_checkpoint=known.job.checkpoint if known.job else None,
        updated_at=to_optional_datetime(updated_at),
        agent_id=task.worker_id,
        parameter_updates=orjson.loads(known.job.updates) if known.job else [],
    )


def _derived(values: dict[str, float], known: _Known) -> dict[str, float | None]:
    eval_perplexity = values.get("eval_perplexity") or perplexity_of(values.get("eval_loss"))
    derived = {
        "train_perplexity": values.get("train_perplexity") or perplexity_of(values.get("loss")),
        "eval_perplexity": eval_perplexity,
        "perplexity": eval_perplexity,
    }
    progress = known.progress
    if progress is not None and "tokens_per_second" not in values and progress.tokens_per_s is not None:
        derived["tokens_per_second"] = progress.tokens_per_s
    if progress is not None and "gpu_memory_reserved_gb" not in values and progress.gpu_bytes is not None:
        derived["gpu_memory_reserved_gb"] = round(progress.gpu_bytes / _GIB, 2)
    return derived


def _updated(known: _Known) -> float | None:
    times = [known.task.started_at, known.accepted_at, *(point.at for point in known.newest[-1:])]
    if known.progress is not None and known.progress.at is not None:
        times.append(known.progress.at.timestamp())
    return max((at for at in times if at is not None), default=None)


def _percent(status: str, step: int, total: int | None) -> int:
    if status == TaskStatus.COMPLETED:
        return 100
    return min(100, int(100 * step / total)) if total else 0


def _remaining(
    status: str, progress: ProgressView | None, elapsed: float | None, step: int, total: int | None
) -> float | None:
    if status != TaskStatus.RUNNING:
        return None
    if progress is not None and progress.eta_s is not None:
        return progress.eta_s
    if not elapsed or not step or not total:
        return None
    return max(0.0, elapsed / step * (total - step))


def _warning(task: TaskRow, updated_at: float | None, now: float) -> str | None:
    if task.status != TaskStatus.RUNNING or updated_at is None:
        return None
    if task.stalled_since is not None:
        return f"It has written nothing since {to_datetime(task.stalled_since).isoformat(timespec='seconds')}."
    silent_s = now - updated_at
    return f"No reports for {silent_s:.0f} s." if silent_s > WARN_AFTER_S else None


Trend = Literal["improving", "stable", "degrading"]


@dataclass(frozen=True, slots=True)
class Best:
    """The evaluation with the lowest loss."""

    eval_loss: float
    step: int
    epoch: float | None
    since: int


def number(value: Any) -> float | None:
    """Return a finite number as float; None for anything else."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def newest_values(points: Sequence[PointRow]) -> dict[str, float]:
    """Return the newest finite value of each name; points are ordered oldest first."""
    found: dict[str, float] = {}
    for point in points:
        for name, raw in orjson.loads(point.values_json).items():
            value = number(raw)
            if value is not None:
                found[name] = value
    return found


def losses(points: Sequence[PointRow]) -> list[float]:
    """Return the losses of points, oldest first."""
    raw = (orjson.loads(point.values_json).get("loss") for point in points)
    return [value for each in raw if (value := number(each)) is not None]


def trend(last: Sequence[float]) -> Trend | None:
    """Compare the later half of the last losses with the earlier half; a change of 5 % counts."""
    half = len(last) // 2
    if half == 0:
        return None
    early = sum(last[:half]) / half
    late = sum(last[-half:]) / half
    if early == 0:
        return "stable" if late == 0 else "degrading"
    change = (late - early) / abs(early)
    if change < -_TREND_SHARE:
        return "improving"
    return "degrading" if change > _TREND_SHARE else "stable"


def best(points: Sequence[PointRow]) -> Best | None:
    """Return the point with the lowest `eval_loss`; None if there is none."""
    found: Best | None = None
    for point in points:
        value = number(orjson.loads(point.values_json).get("eval_loss"))
        if value is None:
            continue
        if found is None or value < found.eval_loss:
            found = Best(value, point.step, point.epoch, 0)
        else:
            found = Best(found.eval_loss, found.step, found.epoch, found.since + 1)
    return found
