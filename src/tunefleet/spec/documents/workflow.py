"""Text → workflow, and a task's spec ↔ JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from tunefleet.errors import Fault, InputError, SpecError
from tunefleet.spec.base import Block, Label, is_seen, unseen, wrong
from tunefleet.spec.documents.fault_messages import explain
from tunefleet.spec.documents.nodes import TaskCheck, TaskNode, read_tasks
from tunefleet.spec.documents.sweep_checks import sweep_faults
from tunefleet.spec.documents.typed import read_spec
from tunefleet.spec.options.sweep import SweepSpec
from tunefleet.spec.tasks.task_types import BaseTaskSpec, TaskSpec
from tunefleet.spec.text import Source, read_text
from tunefleet.spec.value_preview import first_faults
from tunefleet.validation_errors import show

_MAX_NAME: Final = 200


def _name(value: str) -> str:
    if not value.strip() or len(value) > _MAX_NAME or not value.isprintable() or "/" in value or "\\" in value:
        raise wrong(f"must be one line of 1 to {_MAX_NAME} characters without slashes")
    return value.strip()


def _annotations(value: dict[str, Any]) -> dict[str, Any]:
    # A key of a compatible system that would otherwise be ignored as a free annotation.
    if "schedule_hint" in value:
        raise wrong("is not available in this version", "use spec.priority and spec.resources.tags", at="schedule_hint")
    for key, each in value.items():
        if not is_seen(key):
            raise unseen()
        if not _is_visible(each):
            raise unseen(key)
    return value


def _is_visible(value: Any) -> bool:
    if isinstance(value, str):
        return all(map(is_seen, value.replace("\t", " ").split("\n")))  # descriptions may have several lines
    if isinstance(value, Mapping):
        return all(_is_visible(key) and _is_visible(each) for key, each in value.items())
    return not isinstance(value, list) or all(map(_is_visible, value))


class Metadata(Block):
    """`metadata`: name and annotations of the workflow."""

    name: Annotated[str, AfterValidator(_name)] = "task"
    """Name of the workflow, and of its task if there is only one."""
    owner: Label | None = None
    """Informational only; permissions depend on the key that submits."""
    annotations: Annotated[dict[str, Any], AfterValidator(_annotations)] = Field(default_factory=dict)
    """Free-form; `description` is displayed."""


class Document(Block):
    """The top-level keys of a workflow file."""

    api_version: Literal["tunefleet/v1", "mloc/v1", "flowmesh/v1"] = Field(alias="apiVersion")
    """`tunefleet/v1`, the version of the format; the other two are equivalent."""
    kind: str | None = None
    """Free text; the task type is `spec.taskType`."""
    metadata: Metadata = Field(default_factory=Metadata)
    """Name and annotations of the workflow."""
    spec: dict[str, Any]
    """The task, or several: `stages` or `graph`, with their shared keys."""
    sweep: SweepSpec | None = None
    """Hyperparameter sweep over the task; submit the file with `tunefleet sweep`."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow, as submitted.

    Args:
        kind: As written; not interpreted.
        owner: `metadata.owner`, informational.
        description: `metadata.annotations.description`.
        tasks: In the order of the file.
        sweep: Its hyperparameter sweep.
    """

    api_version: str
    kind: str | None
    name: str
    owner: str | None
    description: str | None
    tasks: tuple[TaskNode, ...]
    sweep: SweepSpec | None = None

    def task(self, name: str | None = None) -> TaskNode:
        """Return a task by its name; without a name, the only one.

        Raises:
            InputError: If there is no such task, or there are several and no name is given.
        """
        names = ", ".join(task.name for task in self.tasks)
        if name is None and len(self.tasks) == 1:
            return self.tasks[0]
        if name is None:
            raise InputError(f"{self.name} has {len(self.tasks)} tasks.", hint=f"Choose one with --task: {names}.")
        for task in self.tasks:
            if task.name == name:
                return task
        raise InputError(f"{self.name} has no task {show(name)}.", hint=f"It has {names}.")


def parse_workflow(text: str, *, filename: str | None = None) -> Workflow:
    """Parse a workflow file.

    Args:
        text: YAML or JSON.
        filename: Its name, for messages.

    Raises:
        SpecError: If anything is invalid; lists every error, in the order of the text, with line and column.
    """
    workflow, faults = check_workflow(text, filename=filename)
    if workflow is None or faults:
        raise SpecError(first_faults(faults), filename=filename)
    return workflow


def check_workflow(
    text: str, *, filename: str | None = None, check: TaskCheck | None = None
) -> tuple[Workflow | None, list[Fault]]:
    """Parse a workflow file, with further checks of each task.

    Args:
        text: YAML or JSON.
        filename: Its name, for messages.
        check: Finds further errors of each task, such as missing files.

    Returns:
        The workflow, or `None` if it is invalid; and all errors, including those of `check`.

    Raises:
        SpecError: If the text is not YAML.
    """
    unread: list[Fault] = []
    source = read_text(text, filename=filename, faults=unread)
    if unread and not (isinstance(source.data, dict) and isinstance(source.data.get("spec"), dict)):
        raise SpecError(unread, filename=filename)  # whatever else is wrong follows from these
    faults = list(unread)
    document = _read_document(source, faults)
    tasks = read_tasks(source, document.metadata.name if document is not None else "task", faults, check)
    # A value that could not be read may also not fit its key; only the first error at a place is the cause.
    places = {(each.line, each.column) for each in unread}
    faults = [*unread, *(each for each in faults[len(unread) :] if (each.line, each.column) not in places)]
    if document is None or not tasks:
        return None, faults
    meta = document.metadata
    description = meta.annotations.get("description")
    workflow = Workflow(
        api_version=document.api_version,
        kind=document.kind,
        name=meta.name,
        owner=meta.owner,
        description=None if description is None else str(description),
        tasks=tasks,
        sweep=document.sweep,
    )
    if document.sweep is not None:
        faults.extend(sweep_faults(source, document.sweep, tasks))
    return workflow, faults


def load_task_spec(data: Mapping[str, Any]) -> TaskSpec:
    """Validate a stored spec.

    Args:
        data: From `dump_task_spec`, or the `spec` mapping of a workflow file.

    Raises:
        SpecError: If it is not valid in this version; without positions, since there is no text.
    """
    source = Source({"spec": dict(data)})
    faults: list[Fault] = []
    spec = read_spec(source, faults)
    if spec is None or faults:
        raise SpecError([Fault(fault.path, fault.message, hint=fault.hint) for fault in faults], filename="the task")
    return spec


def dump_task_spec(spec: BaseTaskSpec) -> dict[str, Any]:
    """Return a spec as JSON-serializable data, spelled as in a workflow file, without unset keys."""
    data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {"taskType": spec.task_type, **data}


def _read_document(source: Source, faults: list[Fault]) -> Document | None:
    data = source.data
    if not isinstance(data, dict):
        found = "is empty" if data is None else "is not a mapping (`key: value` lines)"
        faults.append(Fault("", f"the file {found}", 1, 1, "it needs apiVersion, metadata and spec"))
        return None
    try:
        return Document.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        faults.extend(explain(error, Document, source))
        return None
