"""A whole document: text → workflow, and a task's spec ↔ JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from tunefleet.errors import Fault, SpecError
from tunefleet.spec.base import Block, Text, wrong
from tunefleet.spec.condition import ConditionSpec
from tunefleet.spec.explain import explain, fault_at, nearest
from tunefleet.spec.refused import REFUSED_KINDS
from tunefleet.spec.tasks import TASK_KINDS, BaseTaskSpec, TaskSpec, across
from tunefleet.spec.text import Path, Source, read_text

_SPEC: Final[Path] = ("spec",)
_MAX_NAME: Final = 200


def _name(value: str) -> str:
    if not value.strip() or len(value) > _MAX_NAME or not value.isprintable() or "/" in value or "\\" in value:
        raise wrong(f"must be one line of 1 to {_MAX_NAME} characters without slashes")
    return value.strip()


def _no_hints(value: dict[str, Any]) -> dict[str, Any]:
    if "schedule_hint" in value:
        raise wrong("is not available in this version", "use spec.priority and spec.resources.tags", at="schedule_hint")
    return value


class Metadata(Block):
    """`metadata`: what people call it."""

    name: Annotated[str, AfterValidator(_name)] = "task"
    """Name of the workflow, and of its task."""
    owner: Text | None = None
    """A note; rights follow the key that submits."""
    annotations: Annotated[dict[str, Any], AfterValidator(_no_hints)] = Field(default_factory=dict)
    """Free; `description` is shown."""


class Document(Block):
    """The outermost keys of a document."""

    api_version: Literal["tunefleet/v1", "mloc/v1", "flowmesh/v1"] = Field(alias="apiVersion")
    """Version of the format; all three are the same here."""
    kind: str | None = None
    """Free text; the task kind is `spec.taskType`."""
    metadata: Metadata = Metadata()
    """What people call it."""
    spec: dict[str, Any]
    """The task."""


@dataclass(frozen=True, slots=True)
class TaskNode:
    """A task of a workflow.

    Args:
        name: Its name, unique in the workflow: of the stage or node, or `metadata.name` of a single task.
        spec: What it does; None if it has references, which are replaced once the tasks before it have ended.
        raw: The mapping below `spec`, merged with what all stages share, as written: references are left in.
        common: The blocks that every kind has, as far as they are known without references; `spec` if that is known.
        depends_on: Names of the tasks in this document that must be completed before.
        external: Ids of tasks submitted before that must be completed before, as written.
        condition: Whether it runs at all, judged by the result of one of `depends_on` or `external`.
    """

    name: str
    spec: TaskSpec | None
    raw: dict[str, Any]
    common: BaseTaskSpec
    depends_on: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    condition: ConditionSpec | None = None


@dataclass(frozen=True, slots=True)
class Workflow:
    """What a user submits.

    Args:
        api_version: As written.
        kind: As written; means nothing.
        name: `metadata.name`.
        owner: `metadata.owner`, a note.
        description: `metadata.annotations.description`.
        tasks: In the order of the document.
    """

    api_version: str
    kind: str | None
    name: str
    owner: str | None
    description: str | None
    tasks: tuple[TaskNode, ...]


def parse_workflow(text: str, *, filename: str | None = None) -> Workflow:
    """Read a workflow document.

    Args:
        text: YAML or JSON.
        filename: Its name, for messages.

    Raises:
        SpecError: If anything is wrong; lists every fault, in the order of the text, with line and column.
    """
    source = read_text(text, filename=filename)
    faults: list[Fault] = []
    document = _read_document(source, faults)
    spec = _read_spec(source, faults)
    if document is None or spec is None or faults:
        raise SpecError(sorted(faults, key=lambda fault: (fault.line, fault.column)), filename=filename)
    meta = document.metadata
    description = meta.annotations.get("description")
    return Workflow(
        api_version=document.api_version,
        kind=document.kind,
        name=meta.name,
        owner=meta.owner,
        description=None if description is None else str(description),
        tasks=(TaskNode(name=meta.name, spec=spec, raw=document.spec, common=spec),),
    )


def load_task_spec(data: Mapping[str, Any]) -> TaskSpec:
    """Validate a stored spec again.

    Args:
        data: What `dump_task_spec` gave, or the `spec` mapping of a document.

    Raises:
        SpecError: If it is not valid in this version; without lines, since there is no text.
    """
    source = Source({"spec": dict(data)})
    faults: list[Fault] = []
    spec = _read_spec(source, faults)
    if spec is None or faults:
        raise SpecError([Fault(fault.path, fault.message, hint=fault.hint) for fault in faults], filename="the task")
    return spec


def dump_task_spec(spec: TaskSpec) -> dict[str, Any]:
    """Return a spec as JSON-able data, spelled as in a document; what was not given stays out."""
    data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {"taskType": spec.task_type, **data}


def _read_document(source: Source, faults: list[Fault]) -> Document | None:
    data = source.data
    if not isinstance(data, dict):
        found = "is empty" if data is None else "is not a mapping (`key: value` lines)"
        faults.append(Fault("", f"the document {found}", 1, 1, "it needs apiVersion, metadata and spec"))
        return None
    try:
        return Document.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        faults.extend(explain(error, Document, source))
        return None


def _read_spec(source: Source, faults: list[Fault]) -> TaskSpec | None:
    data = source.data.get("spec") if isinstance(source.data, dict) else None
    if not isinstance(data, dict):
        return None
    kind = _kind(data, source, faults)
    if kind is None:
        return None
    try:
        return kind.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        found = explain(error, kind, source, _SPEC)
    for below, message, hint in across(kind, _good_blocks(kind, data)):
        found.append(fault_at((*_SPEC, *below.split(".")), message, source, hint=hint))
    faults.extend(dict.fromkeys(found))  # a fault between good blocks may have been found already
    return None


def _kind(data: dict[str, Any], source: Source, faults: list[Fault]) -> type[TaskSpec] | None:
    name = data.get("taskType")
    if isinstance(name, str) and name in TASK_KINDS:
        return TASK_KINDS[name]
    known = ", ".join(TASK_KINDS)
    path = (*_SPEC, "taskType")
    if name is None:
        guess = next((key for key in data if key != "taskType" and nearest(key, ["taskType"])), None)
        hint = f"instead of {guess}; one of {known}" if guess else f"one of {known}"
        faults.append(fault_at(path, "is required", source, hint=hint))
    elif name in REFUSED_KINDS:
        faults.append(fault_at(path, f"{name!r} tasks are not available in this version", source, hint=f"use {known}"))
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
