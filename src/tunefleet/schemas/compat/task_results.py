"""Bodies and views of `/api/v1/results`: what a task has left, under the names of the Worker Guide."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from tunefleet.schemas.base import Message, ProcessBody

# Key of an artifact's metadata: it was pushed as a file, not as a folder with one file.
SINGLE_FILE: Final = "single_file"
# Kind of an artifact that is one uploaded file of a task.
FILE_KIND: Final = "file"
# Kind of the `.tar.gz` of what was trained.
ARCHIVE_KIND: Final = "archive"
# Files of a task that hold its result envelope.
RESULT_NAMES: Final = ("responses.json", "results.json")
ENVELOPE_NAME: Final = "results.json"
MANIFEST_NAME: Final = "manifest.json"
OWN_NAMES: Final = frozenset({*RESULT_NAMES, MANIFEST_NAME})
"""Files of a task that the server makes; who gives a task files may not take these names."""
# Entries that every manifest has.
ALWAYS_REQUIRED: Final = ("responses.json", "logs", "artifacts")


class ResultEnvelope(ProcessBody):
    """A task's result with where it comes from: what is stored, and what references are resolved from."""

    task_id: str
    result: dict[str, Any] = Field(default_factory=dict)
    worker_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    received_at: datetime | None = None


class ResultStored(Message):
    """An envelope or a file was stored.

    Args:
        path: Where it is now, below the server's address.
        url: Of a file: a link that needs no key until it expires.
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
        name: Its name below `…/files/`; a file of a folder is named with its folder.
        url: A link that needs no key until it expires.
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
    """What a task was to leave, or has left.

    Args:
        size: In bytes, of all its files together.
        sha256: Of a single file.
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
