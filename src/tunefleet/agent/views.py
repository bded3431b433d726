"""A job in the format of the protocol: status, checkpoints, errors. Read-only."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tunefleet.agent.jobs.job import AgentJob
from tunefleet.agent.jobs.journal import GIB, JournalState
from tunefleet.runtime.exit_classification import last_traceback, log_tail
from tunefleet.schemas.training_protocol.training import JobState, TrainingJobStatus

_FRAME: Final = re.compile(r'^  File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)$')


class JobStatusView(TrainingJobStatus):
    """The protocol's status, with additional fields."""

    name: str = ""
    warnings: tuple[str, ...] = ()
    reporting: str | None = None


def status(job: AgentJob, *, position: int | None = None, load: float | None = None) -> JobStatusView:
    """Return the status of a job.

    Args:
        position: Its position in the queue, from 1, if it is queued.
        load: Utilization of its GPU in percent.
    """
    record, journal, trainer = job.record, job.journal(), job.status()
    progress = journal.progress
    step = max(trainer.step if trainer else 0, journal.points[-1].step if journal.points else 0)
    total = (trainer.max_steps if trainer else 0) or int(progress.get("max_steps") or 0)
    allocated = progress.get("gpu_allocated_bytes")
    running = record.state is JobState.RUNNING
    return JobStatusView(
        job_id=record.job_id,
        name=record.name,
        status=record.state,
        current_step=step,
        total_steps=total,
        current_epoch=int(journal.points[-1].epoch) if journal.points else 0,
        total_epochs=_epochs(record.spec),
        progress=_progress(record.state, step, total),
        loss=journal.last("train_loss"),
        eval_loss=journal.last("eval_loss"),
        learning_rate=journal.last("learning_rate"),
        gpu_memory_allocated_gb=round(allocated / GIB, 2) if allocated else None,
        gpu_utilization_percent=load if running else None,
        started_at=_instant(record.started_at),
        completed_at=_instant(record.completed_at),
        error=record.error,
        phase=(job.phase or (trainer.phase if trainer else "starting")) if running else None,
        queue_position=position,
        resumable=bool(job.checkpoints()),
        step_time_s=progress.get("step_time_s"),
        tokens_per_s=progress.get("tokens_per_s"),
        eta_s=progress.get("eta_s") if running else None,
        warnings=record.warnings,
        reporting=record.muted,
    )


def row(job: AgentJob) -> dict[str, Any]:
    """Return a job as an entry of the list."""
    shown = status(job).model_dump(mode="json")
    return {name: shown[name] for name in ("job_id", "status", "started_at", "current_step", "total_steps", "name")}


def checkpoints(job: AgentJob) -> dict[str, Any]:
    """Return the complete checkpoints, newest last, and the best one by its eval loss."""
    journal, found = job.journal(), job.checkpoints()
    rows = [_checkpoint(path, step, journal) for step, path in found.items()]
    measured = [one for one in rows if one["eval_loss"] is not None]
    best = min(measured, key=lambda one: one["eval_loss"], default=None)
    for one in rows:
        one["is_latest"] = one["step"] == max(found)
        one["is_best"] = one is best
    return {"job_id": job.job_id, "checkpoints": rows, "best_checkpoint": best}


def errors(job: AgentJob) -> dict[str, Any]:
    """Return the errors and warnings, in the format of the protocol."""
    record = job.record
    found: dict[str, dict[str, Any]] = {}
    for event in job.journal().errors:
        _count(found, float(event["at"]), event["level"], str(event["message"]))
    if record.error and not any(entry["message"] == record.error for entry in found.values()):
        _count(found, record.completed_at or record.order, "error", record.error)
    rows = list(found.values())
    count = sum(entry["count"] for entry in rows)
    traceback = record.detail or last_traceback(log_tail(job.folder))
    return {
        "job_id": job.job_id,
        "error_summary": record.error,
        "errors": rows,
        "traceback": _traceback(traceback) if traceback and record.error else None,
        "error_count": count,
        "unique_error_count": len(rows),
    }


def _count(found: dict[str, dict[str, Any]], at: float, level: str, message: str) -> None:
    # Messages that differ only in numbers, such as a step, count as the same error.
    key = re.sub(r"\d+", "#", message)[:200]
    if key in found:
        found[key]["count"] += 1
        return
    moment = datetime.fromtimestamp(at, UTC).isoformat()
    found[key] = {
        "timestamp": moment, "level": level, "phase": "training", "message": message, "dedupe_key": key, "count": 1,
    }  # fmt: skip


def _traceback(text: str) -> dict[str, Any]:
    lines = text.strip().splitlines()
    kind, _, message = lines[-1].partition(": ")
    frames = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        match = _FRAME.match(line)
        if match is not None:
            code = below.strip() if below.startswith("    ") else None
            frames.append({**match.groupdict(), "line": int(match["line"]), "code": code})
    return {"raw": text, "frames": frames, "exception_type": kind, "exception_message": message}


def _checkpoint(path: Path, step: int, journal: JournalState) -> dict[str, Any]:
    record = journal.checkpoints.get(step)
    at = float(record["at"]) if record else (path / "manifest.json").stat().st_mtime
    size = record["size_bytes"] if record else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    point = next((p for p in reversed(journal.points) if p.step <= step), None)
    return {
        "path": str(path),
        "epoch": point.epoch if point else None,
        "step": step,
        "eval_loss": journal.near("eval_loss", step),
        "train_loss": journal.near("train_loss", step),
        "size_bytes": size,
        "created_at": datetime.fromtimestamp(at, UTC).isoformat(),
    }


def _epochs(spec: dict[str, Any]) -> int:
    return math.ceil((spec.get("training") or {}).get("num_train_epochs") or 1)


def _progress(state: JobState, step: int, total: int) -> float:
    if state is JobState.COMPLETED:
        return 100.0
    return round(min(100.0, 100.0 * step / total), 2) if total else 0.0


def _instant(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
