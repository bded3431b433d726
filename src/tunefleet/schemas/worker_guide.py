"""Workers, metrics, and results of tasks in the format of the Worker Guide."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from tunefleet.schemas.base import Message, ProcessBody

# Metadata key of an artifact that was pushed as a file, not as a folder with one file.
SINGLE_FILE: Final = "single_file"
# Kind of an artifact that is a single uploaded file of a task.
FILE_KIND: Final = "file"
# Kind of the `.tar.gz` of a trained model or adapter.
ARCHIVE_KIND: Final = "archive"
# Files of a task with its result envelope.
RESULT_NAMES: Final = ("responses.json", "results.json")
ENVELOPE_NAME: Final = "results.json"
MANIFEST_NAME: Final = "manifest.json"
# Files of a task that the server creates; uploads must not use these names.
OWN_NAMES: Final = frozenset({*RESULT_NAMES, MANIFEST_NAME})
# Entries that every manifest has.
ALWAYS_REQUIRED: Final = ("responses.json", "logs", "artifacts")


class GuideWorker(Message):
    """A worker, in the format of the Worker Guide.

    Args:
        status: `RUNNING` if it has tasks, else `IDLE`; for a stale worker, its last known status.
        env: Host name, platform and version; no environment variables.
        stale: Whether it does not respond.
        elastic_disabled: Whether it is on standby.
    """

    worker_id: str
    status: str
    started_at: datetime | None = None
    pid: int | None = None
    env: dict[str, str]
    hardware: dict[str, Any]
    tags: tuple[str, ...] = ()
    last_seen: datetime | None = None
    cached_models: tuple[str, ...] = ()
    cached_datasets: tuple[str, ...] = ()
    cache_updated_ts: datetime | None = None
    cost_per_hour: float
    stale: bool
    elastic_disabled: bool


class Health(Message):
    """The server is alive."""

    ok: bool = True


class Timing(Message):
    """Queue time, execution time and total time of completed tasks, in seconds."""

    queue_avg_sec: float | None = None
    queue_count: int = 0
    queue_total_sec: float = 0.0
    execution_avg_sec: float | None = None
    execution_count: int = 0
    execution_total_sec: float = 0.0
    total_avg_sec: float | None = None
    total_count: int = 0
    total_total_sec: float = 0.0


class EndedTask(Message):
    """A recently ended task."""

    task_id: str
    task_type: str
    status: str
    worker_id: str | None
    started_at: datetime | None
    finished_at: datetime


class Snapshot(Message):
    """Metrics of the server over all its tasks.

    Args:
        counters: `tasks_submitted`, `tasks_succeeded`, `tasks_failed`, `tasks_requeued`, `workers_registered`,
            `workers_unregistered`, and `worker_heartbeats` since the server's start.
        task_timings: `overall`, `inference`, `training` and `other`.
        workers: `totals` over all responding workers, and each of them in `workers`. Energy is
            that of the GPUs since the worker's start; null if no GPU reports its power.
        active_workers_count: Number of responding workers that are not on standby.
        elastic_disabled_workers: Workers on standby.
    """

    generated_at: datetime
    counters: dict[str, int]
    task_timings: dict[str, Timing]
    workers: dict[str, Any]
    active_workers_count: int
    elastic_disabled_workers: tuple[str, ...]
    completed_tasks: tuple[EndedTask, ...]


class ResultEnvelope(ProcessBody):
    """A task's result with its origin, as stored and as used to resolve references."""

    task_id: str
    result: dict[str, Any] = Field(default_factory=dict)
    worker_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    received_at: datetime | None = None


class ResultStored(Message):
    """An envelope or a file was stored.

    Args:
        path: Path below the server's URL.
        url: For a file: a signed link that needs no key until it expires.
    """

    ok: bool = True
    path: str
    name: str | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    url: str | None = None


class ResultFile(Message):
    """One file of a task.

    Args:
        name: Name below `…/files/`, including the folder.
        url: Signed link that needs no key until it expires.
    """

    name: str
    size_bytes: int
    sha256: str
    kind: str = FILE_KIND
    updated_at: datetime | None = None
    url: str


class ResultFiles(Message):
    """The files of a task."""

    task_id: str
    files: tuple[ResultFile, ...] = ()


class ManifestEntry(Message):
    """An expected or existing output of a task.

    Args:
        size: Total size of its files, in bytes.
        sha256: Digest of a single file.
    """

    name: str
    path: str
    type: Literal["result", "logs", "artifact", "directory"]
    required: bool
    status: Literal["present", "missing"]
    updated_at: datetime | None = None
    size: int | None = None
    sha256: str | None = None
    file_count: int | None = None


class TaskManifest(Message):
    """`manifest.json` of a task."""

    task_id: str
    generated_at: datetime
    entries: tuple[ManifestEntry, ...] = ()
