"""Inputs of a task: artifacts uploaded with the submission, and artifacts that the spec names."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import artifacts
from tunefleet.db.rows import ArtifactRow
from tunefleet.errors import NotFoundError
from tunefleet.spec.documents.paths import NamedTask, values_at

# The spec key that names pushed data.
NAMED_POINTER: Final = "data.artifact"
# Spec keys that may name an artifact on the server; `*` matches each entry of a list.
_NAMED_KEYS: Final = (NAMED_POINTER, "qdrant.artifact", "evaluations.*.data.artifact", "sources.*.artifact")
_NAMED: Final = re.compile("|".join(re.escape(key).replace(r"\*", r"\d+") for key in _NAMED_KEYS))


@dataclass(frozen=True, slots=True)
class Input:
    """An artifact that a task reads."""

    artifact_id: str
    digest: str
    name: str


def given(connection: Connection, project: str, task: str, digests: Mapping[str, str]) -> dict[str, Input]:
    """Return the artifacts that were uploaded for a task, by pointer into its spec.

    Raises:
        NotFoundError: If one was not uploaded.
    """
    return {pointer: _given(connection, project, task, pointer, digest) for pointer, digest in digests.items()}


def _given(connection: Connection, project: str, task: str, pointer: str, digest: str) -> Input:
    rows = artifacts.find(connection, project=project, column="digest", value=digest)
    if not rows:
        raise NotFoundError(
            f"Input {pointer} of {task} names an artifact that the server does not have ({digest[:12]}…).",
            hint="Upload it first; the Tunefleet client does so automatically.",
        )
    return _of(rows[0])


def named(
    connection: Connection, project: str, task: str, spec: Mapping[str, Any], but: Container[str] = ()
) -> dict[str, Input]:
    """Return the artifacts that a spec names, such as in `data.artifact`, by pointer into the spec."""
    found = {}
    for key in _NAMED_KEYS:
        for pointer, name, _ in values_at(spec, key):
            if pointer not in but and isinstance(name, str) and name and "${" not in name:
                found[pointer] = _named(connection, project, task, pointer, name)
    return found


def is_named(pointer: str) -> bool:
    """Whether an input is named in the spec, not a file uploaded with the submission."""
    return _NAMED.fullmatch(pointer) is not None


def _named(connection: Connection, project: str, task: str, pointer: str, name: str) -> Input:
    rows = artifacts.named(connection, project=project, name=name, task_id=None)
    rows = rows or artifacts.find(connection, project=project, column="digest", value=name)
    rows = rows or artifacts.find(connection, project=project, column="id", value=name)
    if not rows:
        raise NotFoundError(
            f"Data {name!r} not found ({pointer} of {task}).",
            hint="Push it with `tunefleet data push`; list datasets with `tunefleet data ls`.",
        )
    return _of(rows[0])


def left_by(connection: Connection, project: str, named: Sequence[NamedTask]) -> set[str]:
    """Return the ids of the artifacts of the named tasks, whose files another task loads."""
    ids = {each.task_id for each in named}
    found = (artifacts.find(connection, project=project, column="task_id", value=id_) for id_ in sorted(ids))
    return {row.id for rows in found for row in rows}


def dump(inputs: Mapping[str, Input]) -> str:
    """Return inputs as JSON, as stored with a task."""
    return orjson.dumps({p: {"digest": each.digest, "name": each.name} for p, each in inputs.items()}).decode()


def _of(row: ArtifactRow) -> Input:
    return Input(row.id, row.digest, row.name)
