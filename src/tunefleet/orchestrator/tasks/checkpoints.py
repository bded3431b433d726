"""Checkpoints of a task: which exist, which are uploaded, and which are kept.

During training a worker uploads the newest complete and the best checkpoint, as artifacts `checkpoint-<step>` of kind
`checkpoint`. Superseded uploads are deleted immediately, with their files: checkpoints are large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts, attempts, journal, tasks
from tunefleet.db.rows import ArtifactRow, TaskRow
from tunefleet.orchestrator.storage.file_deletion import delete_files
from tunefleet.spec.options.training_options import TrainingSpec

KIND: Final = "checkpoint"
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


def uploaded(connection: Connection, task_ids: Sequence[str]) -> dict[str, list[ArtifactRow]]:
    """Return the uploaded checkpoints of tasks, by task id, newest first."""
    found: dict[str, list[ArtifactRow]] = {}
    for upload in sorted(artifacts.of_kind(connection, task_ids, KIND), key=_saved_at, reverse=True):
        found.setdefault(str(upload.task_id), []).append(upload)
    return found


def _saved_at(upload: ArtifactRow) -> float:
    # Not the upload time: the best checkpoint may be uploaded after a newer one.
    return float(orjson.loads(upload.metadata).get("saved_at") or upload.created_at)


def newest_and_best(uploads: Sequence[ArtifactRow]) -> tuple[ArtifactRow | None, ArtifactRow | None]:
    """Return the newest upload, and the best one if it differs."""
    newest = uploads[0] if uploads else None
    best = next((upload for upload in uploads if orjson.loads(upload.metadata).get("best")), None)
    return newest, None if best is newest else best


def retire(connection: Connection, blobs: BlobStore, task_id: str, now: float) -> None:
    """Remove all uploads except the newest and the best one."""
    uploads = uploaded(connection, [task_id]).get(task_id, [])
    stay = {upload.id for upload in newest_and_best(uploads) if upload is not None}
    drop(connection, blobs, [upload for upload in uploads if upload.id not in stay], now)


def drop_beyond(connection: Connection, task_id: str, step: int) -> None:
    """Remove the uploads after a step that a task was resumed from, so that the next attempt does not use them.

    Garbage collection deletes their files.
    """
    uploads = uploaded(connection, [task_id]).get(task_id, [])
    artifacts.delete_rows(connection, [each.id for each in uploads if step_of(each) > step])


def step_of(upload: ArtifactRow) -> int:
    """Return the step of an uploaded checkpoint."""
    return int(upload.name.rpartition("-")[2])


def drop_of_completed(connection: Connection, blobs: BlobStore, task_ids: Sequence[str], now: float) -> None:
    """Remove the uploads of completed tasks, whose results are delivered."""
    found = uploaded(connection, task_ids).values()
    drop(connection, blobs, [upload for uploads in found for upload in uploads], now)


def drop(connection: Connection, blobs: BlobStore, uploads: Sequence[ArtifactRow], now: float) -> None:
    """Remove uploads and the files that nothing else references."""
    if not uploads:
        return
    digests = {digest for upload in uploads for _, digest, _ in artifacts.files(connection, upload.id)}
    artifacts.delete_rows(connection, [upload.id for upload in uploads])
    artifacts.unpin_files(connection, sorted(digests), [u.attempt_id for u in uploads if u.attempt_id])
    # Checkpoints and results may share files (equal digests): delete only what is unreferenced now.
    free = artifacts.unreferenced(connection, sorted(digests), now=now)
    artifacts.delete_blobs(connection, free, now=now)
    delete_files(connection, blobs, free)


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


def _rated(found: Mapping[int, CheckpointInfo], spec: str) -> list[CheckpointInfo]:
    ordered = [found[step] for step in sorted(found)]
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
