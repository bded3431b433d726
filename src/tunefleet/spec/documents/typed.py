"""Validates a task's spec against the model of its type: all errors in one pass, with or without references."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, cast

from pydantic import ValidationError

from tunefleet.errors import Fault
from tunefleet.spec.base import Block
from tunefleet.spec.documents.fault_messages import Unknown, below_path, explain, fault_at, refusal_of
from tunefleet.spec.documents.kinds import task_kinds
from tunefleet.spec.documents.refused_keys import REFUSED, REFUSED_KINDS, says_nothing
from tunefleet.spec.tasks.task_types import BaseTaskSpec, TaskSpec, across
from tunefleet.spec.text import Path, Source
from tunefleet.spec.value_preview import nearest
from tunefleet.validation_errors import UNKNOWN_KEY, show

SPEC: Final[Path] = ("spec",)
# Keys among which a misspelled `taskType` is searched.
_MAX_KEYS: Final = 100


def read_spec(source: Source, faults: list[Fault], unknown: Unknown | None = None) -> TaskSpec | None:
    """Validate a task's spec.

    Args:
        faults: Receives the errors.
        unknown: Paths of references, whose values are not validated.

    Returns:
        The spec; `None` if it is invalid or has references.
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
    # pydantic skips a block's own validators if a field is invalid, so the cross-block checks are repeated below.
    except ValidationError as error:
        absent = _absent(error)
        if absent:
            source.data["spec"] = _without(data, absent)
            return read_spec(source, faults, unknown)
        found = explain(error, kind, source, SPEC, unknown)
    for below, message, hint in across(kind, _valid_blocks(kind, data)):
        where = below_path(SPEC, below)
        if not unknown.covers(where):
            found.append(fault_at(where, message, source, hint=hint))
    faults.extend(dict.fromkeys(found))  # errors across valid blocks may be duplicates
    return None


def _absent(error: ValidationError) -> set[Path]:
    """Return the paths below `spec` of keys that can be dropped."""
    # Null keys of other task types, with which a stage removes a shared key; and unsupported keys with a no-op value.
    found = [each for each in error.errors(include_url=False) if each["type"] == "extra_forbidden"]
    unknown = [(tuple(each["loc"]), each["input"]) for each in found]
    return {
        path
        for path, value in unknown
        if (says_nothing(value) if _words(path) in REFUSED else value is None and int not in map(type, path))
        and refusal_of(path) is not None
    }


def _words(path: Path) -> str:
    return ".".join(str(part) for part in path if not isinstance(part, int))


def _without(value: Any, absent: set[Path]) -> Any:
    """Return a copy of a value without the keys at some paths; shared parts are not modified."""
    here = {path[0] for path in absent if len(path) == 1}
    below = {path[0] for path in absent} - here

    def inner(key: Any, each: Any) -> Any:
        return _without(each, {path[1:] for path in absent if path[0] == key}) if key in below else each

    if isinstance(value, list):
        return [inner(index, each) for index, each in enumerate(value)]
    return {key: inner(key, each) for key, each in value.items() if key not in here}


def _kind(data: dict[str, Any], source: Source, faults: list[Fault]) -> type[TaskSpec] | None:
    name, kinds = data.get("taskType"), task_kinds()
    if isinstance(name, str) and name in kinds:
        return cast(type[TaskSpec], kinds[name])
    known = ", ".join(kinds)
    path = (*SPEC, "taskType")
    if name is None:
        guess = next((key for key in islice(data, _MAX_KEYS) if key != "taskType" and nearest(key, ["taskType"])), None)
        if guess is None:
            faults.append(fault_at(path, "is required", source, hint=f"one of {known}"))
        else:
            faults.append(fault_at((*SPEC, guess), UNKNOWN_KEY, source, hint="did you mean taskType?", key=True))
    elif isinstance(name, str) and name in REFUSED_KINDS:
        refusal = REFUSED_KINDS[name]
        message = f"{show(name)} tasks are not available: {refusal.reason}"
        faults.append(fault_at(path, message, source, hint=refusal.instead))
    else:
        guess = nearest(name, [*kinds, *REFUSED_KINDS]) if isinstance(name, str) else None
        plugin = "; or install its plugin, here and on the server" if isinstance(name, str) else ""
        hint = f"did you mean {guess}?" if guess in kinds else f"use one of {known}{plugin}"
        faults.append(fault_at(path, f"{show(name)} is not a known task type", source, hint=hint))
    return None


def _valid_blocks(kind: type[BaseTaskSpec], data: dict[str, Any]) -> dict[str, Any]:
    """Validate each block separately, so that errors across valid blocks are reported despite an invalid one."""
    valid: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        key = field.alias or name
        block = field.annotation
        if data.get(key) is None or not (isinstance(block, type) and issubclass(block, Block)):
            continue
        try:
            valid[name] = block.model_validate(data[key], by_alias=True, by_name=False)
        except ValidationError:
            continue  # already reported
    return valid
