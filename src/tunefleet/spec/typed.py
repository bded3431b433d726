"""One task's spec against the models of its kind: all faults in one pass, with or without references in it."""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from tunefleet.errors import Fault
from tunefleet.spec.base import Block
from tunefleet.spec.explain import Unknown, below_path, explain, fault_at
from tunefleet.spec.refused import REFUSED_KINDS
from tunefleet.spec.tasks import TASK_KINDS, BaseTaskSpec, TaskSpec, across
from tunefleet.spec.text import Path, Source
from tunefleet.spec.words import nearest

SPEC: Final[Path] = ("spec",)


def read_spec(source: Source, faults: list[Fault], unknown: Unknown | None = None) -> TaskSpec | None:
    """Validate a task's spec.

    Args:
        source: `{"spec": …}`.
        faults: Gets what is wrong.
        unknown: Where references stand; what they will be is not judged.

    Returns:
        The spec; None if it is wrong, or has references.
    """
    data = source.data.get("spec") if isinstance(source.data, dict) else None
    if not isinstance(data, dict):
        return None
    kind = _kind(data, source, faults)
    if kind is None:
        return None
    unknown = unknown or Unknown()
    try:
        return kind.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        found = explain(error, kind, source, SPEC, unknown)
    for below, message, hint in across(kind, _good_blocks(kind, data)):
        where = below_path(SPEC, below)
        if not unknown.covers(where):
            found.append(fault_at(where, message, source, hint=hint))
    faults.extend(dict.fromkeys(found))  # a fault between good blocks may have been found already
    return None


def _kind(data: dict[str, Any], source: Source, faults: list[Fault]) -> type[TaskSpec] | None:
    name = data.get("taskType")
    if isinstance(name, str) and name in TASK_KINDS:
        return TASK_KINDS[name]
    known = ", ".join(TASK_KINDS)
    path = (*SPEC, "taskType")
    if name is None:
        guess = next((key for key in data if key != "taskType" and nearest(key, ["taskType"])), None)
        hint = f"instead of {guess}; one of {known}" if guess else f"one of {known}"
        faults.append(fault_at(path, "is required", source, hint=hint))
    elif isinstance(name, str) and name in REFUSED_KINDS:
        refusal = REFUSED_KINDS[name]
        message = f"{name!r} tasks are not available: {refusal.reason}"
        faults.append(fault_at(path, message, source, hint=refusal.instead))
    else:
        guess = nearest(name, [*TASK_KINDS, *REFUSED_KINDS]) if isinstance(name, str) else None
        hint = f"did you mean {guess}?" if guess in TASK_KINDS else f"use {known}"
        faults.append(fault_at(path, f"{name!r} is not a known task kind", source, hint=hint))
    return None


def _good_blocks(kind: type[BaseTaskSpec], data: dict[str, Any]) -> dict[str, Any]:
    """Validate each block by itself, so that faults between good blocks are reported beside a bad one."""
    good: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        key = field.alias or name
        block = field.annotation
        if data.get(key) is None or not (isinstance(block, type) and issubclass(block, Block)):
            continue
        try:
            good[name] = block.model_validate(data[key], by_alias=True, by_name=False)
        except ValidationError:
            continue  # explained already
    return good
