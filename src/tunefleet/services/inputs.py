"""Which artifacts a task reads: those that came with the submit, and those that its spec names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tunefleet.errors import NotFoundError
from tunefleet.store import Connection, artifacts
from tunefleet.store.rows import ArtifactRow

NAMED_POINTER = "data.artifact"
"""Where a spec may name a pushed artifact."""


@dataclass(frozen=True, slots=True)
class Input:
    """An artifact that a task reads."""

    artifact_id: str
    digest: str
    name: str


def given(connection: Connection, project: str, task: str, digests: Mapping[str, str]) -> dict[str, Input]:
    """Return what was uploaded for a task, by pointer into its spec.

    Args:
        connection: To read with.
        project: Whose artifacts.
        task: Its name, for messages.
        digests: Pointer → digest.

    Raises:
        NotFoundError: If one was not uploaded.
    """
    return {pointer: _given(connection, project, task, pointer, digest) for pointer, digest in digests.items()}


def _given(connection: Connection, project: str, task: str, pointer: str, digest: str) -> Input:
    rows = artifacts.find(connection, project=project, column="digest", value=digest)
    if not rows:
        raise NotFoundError(
            f"The input {pointer} of {task} names an artifact that the server does not have ({digest[:12]}…).",
            hint="Upload it first; the tunefleet client does so by itself.",
        )
    return _of(rows[0])


def named(connection: Connection, project: str, task: str, spec: Mapping[str, Any]) -> dict[str, Input]:
    """Return the artifact that a spec names in `data.artifact`, if it names one.

    Raises:
        NotFoundError: If there is none of that name, digest or id.
    """
    data = spec.get("data")
    name = data.get("artifact") if isinstance(data, Mapping) else None
    if not isinstance(name, str) or not name or "${" in name:
        return {}
    rows = artifacts.named(connection, project=project, name=name, task_id=None)
    rows = rows or artifacts.find(connection, project=project, column="digest", value=name)
    rows = rows or artifacts.find(connection, project=project, column="id", value=name)
    if not rows:
        raise NotFoundError(
            f"There is no data named {name!r} ({NAMED_POINTER} of {task}).",
            hint="Push it with `tunefleet data push`; `tunefleet data ls` lists what is there.",
        )
    return {NAMED_POINTER: _of(rows[0])}


def dump(found: Mapping[str, Input]) -> str:
    """Return inputs as they are stored with a task."""
    return orjson.dumps({p: {"digest": each.digest, "name": each.name} for p, each in found.items()}).decode()


def _of(row: ArtifactRow) -> Input:
    return Input(row.id, row.digest, row.name)
