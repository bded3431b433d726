"""`manifest.json` of a task: required and existing results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from tunefleet.db.rows import ArtifactRow
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.compat.worker_guide import (
    ALWAYS_REQUIRED,
    RESULT_NAMES,
    SINGLE_FILE,
    ManifestEntry,
    TaskManifest,
)


def manifest(
    task_id: str,
    spec: Mapping[str, Any],
    rows: Sequence[ArtifactRow],
    digests: Mapping[str, str],
    *,
    has_result: bool,
    at: float,
) -> TaskManifest:
    """Return the manifest of a task."""
    named = [str(name).rstrip("/") for name in (spec.get("output") or {}).get("artifacts") or ()]
    required = dict.fromkeys([*ALWAYS_REQUIRED, *named])
    entries: dict[str, ManifestEntry] = {}
    for row in rows:
        entries.setdefault(row.name, _entry(row, digests, required=row.name in required))
    for name in required:
        # The server itself writes the log, so it always exists.
        present = name == "logs" or (name in RESULT_NAMES and has_result) or (name == "artifacts" and bool(rows))
        entries.setdefault(
            name,
            ManifestEntry(
                name=name, path=name, type=_type(name), required=True, status="present" if present else "missing",
                updated_at=to_datetime(at) if present else None,
                file_count=len(rows) if name == "artifacts" and present else None,
            ),
        )  # fmt: skip
    made = tuple(entries[name] for name in sorted(entries))
    return TaskManifest(task_id=task_id, generated_at=to_datetime(at), entries=made)


def _entry(row: ArtifactRow, digests: Mapping[str, str], *, required: bool) -> ManifestEntry:
    single = bool(orjson.loads(row.metadata).get(SINGLE_FILE))
    return ManifestEntry(
        name=row.name,
        path=row.name,
        type="artifact" if single else "directory",
        required=required,
        status="present",
        updated_at=to_datetime(row.created_at),
        size=row.size_bytes,
        sha256=digests.get(row.name) if single else None,
        file_count=None if single else row.file_count,
    )


def _type(name: str) -> Literal["result", "logs", "artifact", "directory"]:
    if name in RESULT_NAMES:
        return "result"
    if name == "logs":
        return "logs"
    return "directory" if name == "artifacts" or "." not in name else "artifact"
