"""All task types, also of installed plugins, and the validation of a task's spec against the model of its type.

A plugin registers the spec of a task type under the entry point group `tunefleet.kinds`. It must be installed wherever
workflows are validated: on the server and on the submitting machine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, cast

from pydantic import ValidationError

from tunefleet.errors import Fault
from tunefleet.spec.base import Block, known_keys
from tunefleet.spec.documents.fault_messages import Unknown, below_path, explain, fault_at, refusal_of
from tunefleet.spec.documents.refused_keys import REFUSED, REFUSED_KINDS, says_nothing
from tunefleet.spec.tasks.base_task import BaseTaskSpec
from tunefleet.spec.tasks.task_types import TASK_KINDS, TaskSpec, across
from tunefleet.spec.text import Path, Source
from tunefleet.spec.value_preview import nearest
from tunefleet.validation_errors import UNKNOWN_KEY, show

SPEC: Final[Path] = ("spec",)
# Keys among which a misspelled `taskType` is searched.
_MAX_KEYS: Final = 100
logger = logging.getLogger(__name__)
GROUP: Final = "tunefleet.kinds"


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
    unknown = unknown or Unknown()
    wrong: list[Fault] = []
    name = _kind(data, source, wrong)
    if wrong:
        faults.extend(wrong)
        faults.extend(_faults_of_unknown(name, data, source, unknown))
        return None
    kind = cast(type[TaskSpec], task_kinds()[str(name)])
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


def _faults_of_unknown(name: str | None, data: dict[str, Any], source: Source, unknown: Unknown) -> Iterator[Fault]:
    """Find the errors of a task whose type is unknown: with the type that was probably meant, or in common keys."""
    if name is not None:
        read = source.part({"spec": {**data, "taskType": name}}, source.origins)
        found: list[Fault] = []
        read_spec(read, found, unknown)
        yield from found
        return
    if data.get("taskType") in list(REFUSED_KINDS):  # of another system, with keys of its own
        return
    everywhere = known_keys(BaseTaskSpec)
    try:
        common = {key: value for key, value in data.items() if key in everywhere}
        BaseTaskSpec.model_validate({**common, "taskType": ""}, by_alias=True, by_name=False)
    except ValidationError as error:
        yield from explain(error, BaseTaskSpec, source, SPEC, unknown)
    known = everywhere.union(*(known_keys(kind) for kind in task_kinds().values()))
    for key in islice((key for key in data if key not in known), _MAX_KEYS):
        guess = nearest(key, known)
        if guess != "taskType":  # reported as the missing task type
            hint = f"did you mean {guess}?" if guess else None
            if key == "spec":  # below a list entry it must have the column of the entry's other keys
                hint = "indent it like the name of its stage, after the `- `"
            yield fault_at((*SPEC, key), UNKNOWN_KEY, source, hint=hint, key=True)


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


def _kind(data: dict[str, Any], source: Source, faults: list[Fault]) -> str | None:
    """Return the task type; if it is wrong, which is reported, the one that was probably meant."""
    name, kinds = data.get("taskType"), task_kinds()
    if isinstance(name, str) and name in kinds:
        return name
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
        guess = nearest_kind(name)
        plugin = "; or install its plugin, here and on the server" if isinstance(name, str) else ""
        hint = f"did you mean {guess}?" if guess else f"use one of {known}{plugin}"
        faults.append(fault_at(path, f"{show(name)} is not a known task type", source, hint=hint))
        return guess
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


@cache
def task_kinds() -> Mapping[str, type[BaseTaskSpec]]:
    """Return task type → its spec class. Cached: plugins that are installed later require a restart."""
    # Not at import: a plugin's spec imports this package, which would then be only partially initialized.
    return MappingProxyType({**TASK_KINDS, **_plugin_kinds()})


def nearest_kind(name: object) -> str | None:
    """Return the task type that was probably meant; `None` if no single one is close."""
    if not isinstance(name, str):
        return None
    guess = name if name in task_kinds() else nearest(name, [*task_kinds(), *REFUSED_KINDS])
    return guess if guess in task_kinds() else None


def _plugin_kinds() -> dict[str, type[BaseTaskSpec]]:
    found: dict[str, type[BaseTaskSpec]] = {}
    for point in entry_points(group=GROUP):
        try:
            found[point.name] = _checked(point.name, point.load())
        except Exception as error:  # noqa: BLE001 -- a faulty plugin must not stop the server
            logger.warning("The task type %s (%s) is not available: %s", point.name, point.value, error)
    return found


def _checked(name: str, spec: object) -> type[BaseTaskSpec]:
    # A plugin must not change the meaning of an existing task type.
    if name in TASK_KINDS or name in REFUSED_KINDS:
        raise ValueError(f"{name} is already in use")
    if not (isinstance(spec, type) and issubclass(spec, BaseTaskSpec)):
        raise TypeError("it is not a subclass of tunefleet.spec.BaseTaskSpec")
    if spec.model_fields["task_type"].default != name:
        raise ValueError(f"the default of its task_type is not {name!r}")
    return spec
