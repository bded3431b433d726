"""Bodies and views of `/api/v1/results`: outputs of tasks, in the format of the Worker Guide."""

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
