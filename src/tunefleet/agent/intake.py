"""Turns a request into a job record: translates the config, resolves names, and validates everything."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefleet.agent import path_resolution
from tunefleet.agent.jobs.records import AgentRecord
from tunefleet.agent.translate import Defaults, translate
from tunefleet.errors import Fault, ForbiddenError, SpecError
from tunefleet.schemas.training_protocol.training import PolledJob, TrainingJobRequest
from tunefleet.settings import AgentSettings
from tunefleet.spec import load_task_spec
from tunefleet.trainer_control.control.discovery import safe_job_id

_CHECKPOINT = re.compile(r"checkpoint-\d+")


def from_request(request: TrainingJobRequest, settings: AgentSettings, defaults: Defaults) -> AgentRecord:
    """Build the record of a job that was posted to the agent."""
    config = request.config.model_dump(mode="json", exclude_unset=True)
    return _record(
        request.execution_id,
        request.name,
        config,
        request.dataset_path,
        settings,
        defaults,
        user_id=request.user_id,
        token=request.job_token or None,
    )


def from_poll(job: PolledJob, token: str, settings: AgentSettings, defaults: Defaults) -> AgentRecord:
    """Build the record of a claimed job, from its spec if the backend sends one. Raises as `from_request` does."""
    name = job.name or job.model_name
    if job.spec is None:
        config = {**job.config, "model": {"name": job.model_name, **_block(job.config, "model")}}
        return _record(job.id, name, config, job.dataset_path, settings, defaults, token=token, polled=True)
    spec = load_task_spec(job.spec)
    return AgentRecord(
        job_id=_checked_id(job.id),
        name=name,
        kind=job.kind or spec.task_type,
        spec=job.spec,
        digests=job.inputs,
        resume=job.resume,
        attempt=job.attempt or 1,
        order=time.time(),
        backend=settings.backend,
        token=token,
        polled=True,
        delivers=True,
        traceparent=job.traceparent,
    )


def _record(
    job_id: str,
    name: str,
    config: dict[str, Any],
    dataset_path: str,
    settings: AgentSettings,
    defaults: Defaults,
    **more: Any,
) -> AgentRecord:
    rows = path_resolution.dataset(dataset_path, settings.datasets_dir)
    model_name = _block(config, "model").get("name")
    model = None
    if isinstance(model_name, str) and model_name:
        model = path_resolution.model(model_name, settings.models_dir)
    translation = translate(config, rows.source, defaults, model=model, splits=rows.splits)
    return AgentRecord(
        job_id=_checked_id(job_id),
        name=name or job_id,
        kind=translation.kind,
        spec=translation.spec,
        inputs=rows.inputs,
        addresses=rows.addresses,
        order=time.time(),
        warnings=translation.warnings,
        checkpoint=_checkpoint(translation.checkpoint, settings.checkpoints_dir),
        backend=settings.backend,
        **more,
    )


def _block(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = config.get(name) or {}
    if not isinstance(block, Mapping):
        raise SpecError([Fault(f"config.{name}", f"must be an object, not {block!r:.40}")], filename="the config")
    return block


def _checked_id(job_id: str) -> str:
    try:
        return safe_job_id(job_id)
    except ValueError as error:
        raise SpecError([Fault("execution_id", str(error))], filename="the request") from None


def _checkpoint(path: str | None, checkpoints_dir: Path) -> str | None:
    if path is None:
        return None
    field = "config.training.checkpoint_resume"
    try:
        folder = path_resolution.local(path, checkpoints_dir, "TUNEFLEET_CHECKPOINTS_DIR")
    except ForbiddenError as error:
        raise SpecError([Fault(field, str(error))], filename="the config") from None
    # The manifest is written last: a folder without one is incomplete.
    if folder is None or not _CHECKPOINT.fullmatch(folder.name) or not (folder / "manifest.json").is_file():
        hint = "use a checkpoint-<step> folder of a job of this agent"
        raise SpecError([Fault(field, f"{path} is not a complete checkpoint", hint=hint)], filename="the config")
    return str(folder)
