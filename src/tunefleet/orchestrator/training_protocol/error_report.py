"""Error report of a job, from its task, traceback and journal."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, tasks, training_protocol
from tunefleet.db.repositories.training_protocol import JobRow
from tunefleet.db.rows import AttemptRow, DocumentRow, TaskRow
from tunefleet.errors import InputError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.orchestrator.access.permissions import Actor, may_read
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.tasks.tasks import find
from tunefleet.orchestrator.training_protocol import failure_analysis
from tunefleet.orchestrator.training_protocol.job_status import settings_of, state_of
from tunefleet.orchestrator.views import to_optional_datetime
from tunefleet.schemas.training_protocol.jobs import ErrorItem, FailureAnalysis, JobErrors

_REPORTED_LEVELS = frozenset({"warning", "error"})
_JobRows = tuple[TaskRow, DocumentRow, list[AttemptRow], list[str], JobRow | None]


async def errors(core: ServerContext, actor: Actor, task_id: str) -> JobErrors:
    """Return the errors of a job, with identical ones grouped."""
    task, document, tries, records, _ = await _load(core, actor, task_id)
    raw: list[tuple[float | None, str, str]] = [
        (row.finished_at, "error", row.error) for row in tries if row.error is not None
    ]
    if task.error is not None and all(task.error != message for _, _, message in raw):
        raw.append((task.finished_at, "error", task.error))
    for text in records:
        record: dict[str, Any] = orjson.loads(text)
        if record.get("level") in _REPORTED_LEVELS:
            raw.append((record.get("at"), str(record["level"]), str(record.get("message", ""))))
    items = _grouped(raw)
    return JobErrors(
        job_id=task.id,
        error_summary=task.error,
        errors=items,
        traceback=failure_analysis.traceback_of(document.detail),
        error_count=len(raw),
        unique_error_count=len(items),
    )


def _grouped(raw: list[tuple[float | None, str, str]]) -> list[ErrorItem]:
    found: dict[str, ErrorItem] = {}
    for at, level, message in raw:
        key = hashlib.sha256(f"{level}:{message}".encode()).hexdigest()[:16]
        if key in found:
            found[key] = found[key].model_copy(update={"count": found[key].count + 1})
        else:
            found[key] = ErrorItem(
                timestamp=to_optional_datetime(at), level=level, phase=failure_analysis.phase_of(message),
            message=message,
                dedupe_key=key,
            )  # fmt: skip
    return list(found.values())


async def analyze(core: ServerContext, actor: Actor, task_id: str) -> FailureAnalysis:
    """Analyze why a job failed, and suggest changes.

    Raises:
        InputError: If the job has neither failed nor been cancelled.
    """
    task, document, _, _, job = await _load(core, actor, task_id)
    if task.status not in {TaskStatus.FAILED, TaskStatus.CANCELLED}:
        raise InputError(f"Job {task.id} is {state_of(task.status)}; it did not fail.")
    config = _config(orjson.loads(document.as_run), orjson.loads(job.body) if job else {})
    analysis = failure_analysis.analyze(reason=task.reason, error=task.error, detail=document.detail, config=config)
    return FailureAnalysis(analysis=analysis, job_config=config)


def _config(spec: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    limits = spec.get("limits") or {}
    return {**(spec.get("training") or {}), **settings_of(body), "max_runtime_s": limits.get("max_runtime_s")}


async def _load(core: ServerContext, actor: Actor, task_id: str) -> _JobRows:
    may_read(actor)

    def operation(connection: Connection) -> _JobRows:
        row = find(connection, actor, task_id)
        return (
            row,
            tasks.document(connection, row),
            attempts.of_task(connection, row),
            training_protocol.records(connection, row.id, "event"),
            training_protocol.job(connection, row.id),
        )

    return await core.read(operation)
