"""Checkpoints of a task: which exist, which are uploaded, and which are kept.

During training a worker uploads the newest complete and the best checkpoint, as artifacts `checkpoint-<step>` of kind
`checkpoint`. Superseded uploads are deleted immediately, with their files: checkpoints are large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import attempts, journal, tasks
from tunefleet.db.rows import ArtifactRow, TaskRow
from tunefleet.orchestrator.storage.checkpoint_retention import KIND, uploaded
from tunefleet.spec.options.training_options import TrainingSpec

_DEFAULT_LIMIT: Final[int | None] = TrainingSpec.model_fields["save_total_limit"].default


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A reported or uploaded checkpoint."""

    record: dict[str, Any]
    worker_id: str | None
    artifact: ArtifactRow | None
    eval_loss: float | None
    best: bool = False
    local: bool = False

    @property
    def step(self) -> int:
        """The optimizer step."""
        return int(self.record["step"])

    @property
    def resumable(self) -> bool:
        """Whether a run can resume from it."""
        return self.artifact is not None or self.local


def known(connection: Connection, row: TaskRow) -> list[CheckpointInfo]:
    """Return the checkpoints of a task in step order, without those that a later launch superseded."""
    uploads = {upload.name: upload for upload in reversed(uploaded(connection, [row.id]).get(row.id, []))}
    holders = {attempt.id: attempt.worker_id for attempt in attempts.of_task(connection, row)}
    losses = _eval_losses(connection, row.id)
    found: dict[int, CheckpointInfo] = {}
    recorded = set()
    for record, attempt_id, hidden in _records(connection, row.id):
        recorded.add(str(record["name"]))
        if hidden:
            continue
        step, name = int(record["step"]), str(record["name"])
        upload = uploads.get(name)
        if upload is not None and orjson.loads(upload.metadata).get("digest") != record["digest"]:
            upload = None
        found[step] = CheckpointInfo(record, holders.get(attempt_id), upload, losses.get(step))
    for upload in uploads.values():
        # A task that was resumed from another one has the upload, but no journal record.
        about = orjson.loads(upload.metadata)
        step = int(about.get("step", -1))
        if step >= 0 and upload.name not in recorded:
            found[step] = CheckpointInfo(_record_of(upload, about), None, upload, about.get("eval_loss"))
    return _rated(found, tasks.document(connection, row).as_run)


def _records(connection: Connection, task_id: str) -> list[tuple[dict[str, Any], str, bool]]:
    """Return checkpoint records, oldest first, each with its attempt and whether a later launch superseded it."""
    launches = {launch.number: launch for launch in journal.launches_of(connection, task_id)}
    found = []
    for number, body in journal.records_of(connection, task_id, KIND):
        record: dict[str, Any] = orjson.loads(body)
        if "step" in record and "name" in record:
            beyond = launches[number].hidden_after
            hidden = beyond is not None and int(record["step"]) > beyond
            found.append((record, launches[number].attempt_id, hidden))
    return found


def _eval_losses(connection: Connection, task_id: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for point in journal.visible_points(connection, task_id, series="train", name="eval_loss"):
        value = orjson.loads(point.values_json)["eval_loss"]
        if isinstance(value, int | float):
            found[point.step] = float(value)
    return found


def _record_of(upload: ArtifactRow, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": about["step"], "name": upload.name, "digest": about.get("digest", upload.digest),
        "size_bytes": upload.size_bytes, "at": upload.created_at,
    }  # fmt: skip


def _rated(checkpoints: Mapping[int, CheckpointInfo], spec: str) -> list[CheckpointInfo]:
    ordered = [checkpoints[step] for step in sorted(checkpoints)]
    best = _best(ordered)
    asked = (orjson.loads(spec).get("training") or {}).get("save_total_limit", _DEFAULT_LIMIT)
    limit = _DEFAULT_LIMIT if isinstance(asked, str) else asked  # an unresolved reference while the task is pending
    kept = {each.step for each in (ordered[-limit:] if limit else ordered)} | ({best} if best is not None else set())
    return [
        CheckpointInfo(
            each.record, each.worker_id, each.artifact, each.eval_loss, best=each.step == best,
            local=each.worker_id is not None and each.step in kept,
        )
        for each in ordered
    ]  # fmt: skip


def _best(ordered: Sequence[CheckpointInfo]) -> int | None:
    marked_best = [each for each in ordered if each.artifact and orjson.loads(each.artifact.metadata).get("best")]
    if marked_best:
        return marked_best[-1].step
    measured = [(each.eval_loss, each.step) for each in ordered if each.eval_loss is not None]
    return min(measured)[1] if measured else None
