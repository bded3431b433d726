"""Uploaded checkpoints: during training the newest and the best one are kept, as artifacts `checkpoint-<step>`.

Superseded uploads are deleted immediately, with their files: checkpoints are large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts
from tunefleet.db.rows import ArtifactRow
from tunefleet.orchestrator.storage.garbage_collection import delete_files

KIND: Final = "checkpoint"


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
