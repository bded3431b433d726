"""Outputs of a task that can be used elsewhere, and merges that produce more forms of an adapter."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from tunefleet.client import Client
from tunefleet.client.submission import uploaded_base
from tunefleet.errors import ConflictError, InputError, NotFoundError, SpecError, TunefleetError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import ArtifactView, SubmitRequest, TaskDetail

Form = Literal["as-is", "merged", "gguf"]

_KINDS: Final = ("model", "adapter", "gguf")
_LONGEST_CHAIN: Final = 50
_ENDED_BADLY: Final = (TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.SKIPPED)

# Shows a task until it has ended; returns `None` if the user stopped waiting.
Wait = Callable[[TaskDetail], TaskDetail | None]


class StillRuns(TunefleetError):
    """The merge is still running, but the user stopped waiting."""

    code = "still_runs"


@dataclass(frozen=True, slots=True)
class Product:
    """An artifact of a task to publish."""

    task: TaskDetail
    artifact: ArtifactView


def find(client: Client, task_id: str, form: Form, *, gguf: str, verify: bool, wait: Wait, shown: bool) -> Product:
    """Return a task's product in the requested form; a missing one is produced by a merge task.

    Raises:
        NotFoundError: If the task has neither an adapter nor a model.
        ConflictError: If the merge failed, or no worker can run it.
        StillRuns: If the user stopped waiting.
    """
    task = client.tasks.get(task_id)
    made = {artifact.kind: artifact for artifact in reversed(list(client.artifacts.iterate(task_id=task.id)))}
    wanted = {"as-is": _KINDS, "merged": ("model",), "gguf": ("gguf",)}[form]
    present = next((made[kind] for kind in wanted if kind in made), None)
    if present is not None and not (form == "gguf" and not present.name.endswith(f"{gguf}.gguf")):
        return Product(task, present)
    if not ({"model", "adapter"} & made.keys()):
        ended = "" if TaskStatus(task.status).final else f" It is {task.status}: wait until it has ended."
        raise NotFoundError(
            f"{task.id} has neither an adapter nor a model.{ended}",
            hint="List its artifacts with `tunefleet artifacts ls`.",
        )
    body = document(task, form, adapter="model" not in made, gguf=gguf, verify=verify)
    merged = _merged(client, task, body, wait, shown=shown)
    kind = "model" if form == "merged" else "gguf"
    found = next((each for each in client.artifacts.iterate(task_id=merged.id) if each.kind == kind), None)
    if found is None:
        raise NotFoundError(f"The merge {merged.id} produced no {kind}.")
    return Product(merged, found)


def document(task: TaskDetail, form: Form, *, adapter: bool, gguf: str, verify: bool) -> dict[str, Any]:
    """Return the workflow of the merge."""
    spec = task.resolved or task.spec
    source = (spec.get("model") or {}).get("source")
    if not isinstance(source, dict):
        raise InputError(f"The workflow file of {task.id} names no base model to merge into.")
    options: dict[str, Any] = {"verify": verify}
    if form == "gguf":
        options["gguf"] = {"type": gguf}
    body: dict[str, Any] = {"taskType": "merge", "model": {"source": source}, "merge": options}
    if adapter:
        body["model"]["adapters"] = [{"taskId": task.id}]
    else:
        body["checkpoint"] = {"load": {"taskId": task.id}}
    name = f"{task.name}-{form}".replace(":", "-")
    return {"apiVersion": "tunefleet/v1", "kind": "Workflow", "metadata": {"name": name}, "spec": body}


def _merged(client: Client, task: TaskDetail, body: dict[str, Any], wait: Wait, *, shown: bool) -> TaskDetail:
    text = json.dumps(body, indent=1)
    # A stable key: repeating the command reuses the merge. A failed merge is submitted again with a new key.
    key = f"export-{uuid.uuid5(uuid.NAMESPACE_URL, task.id + text).hex}"
    merge = _submitted(client, task, body, text, key)
    if TaskStatus(merge.status) in _ENDED_BADLY:
        merge = _submitted(client, task, body, text, uuid.uuid4().hex)
    shown = shown and not TaskStatus(merge.status).final
    ended = merge if TaskStatus(merge.status).final else wait(merge)
    if ended is None:
        raise StillRuns(f"The merge continues as {merge.id}.", hint="Repeat the command to get its result.")
    if ended.status != TaskStatus.COMPLETED:
        why = "." if shown else f": {ended.error or ended.reason or 'no reason reported'}"
        raise ConflictError(
            f"The merge {ended.id} ended as {ended.status}{why}", hint=f"See `tunefleet show {ended.id}`."
        )
    return client.tasks.get(ended.id)


def _submitted(client: Client, task: TaskDetail, body: dict[str, Any], text: str, key: str) -> TaskDetail:
    """Submit the merge, with the uploaded base model of the task if it has one."""
    base = uploaded_base(task)
    inputs = {body["metadata"]["name"]: base} if base else {}
    try:
        # `strict`: if no worker can run the merge, fail now instead of waiting forever.
        workflow = client.workflows.create(SubmitRequest(document=text, inputs=inputs, strict=True), key)
    except SpecError as error:
        # The workflow is generated, so the errors concern the requested form.
        faults = "; ".join(fault.message for fault in error.faults)
        raise ConflictError(f"Cannot merge: {faults}", hint="List the workers with `tunefleet workers`.") from error
    return client.tasks.get(workflow.tasks[0].id)


def chain(client: Client, task: TaskDetail) -> Iterator[TaskDetail]:
    """Yield the tasks whose adapters and models led to a task, nearest first, skipping deleted ones."""
    seen, waiting = {task.id}, [task]
    while waiting and len(seen) < _LONGEST_CHAIN:
        spec = waiting.pop(0)
        for parent in _parents(spec.resolved or spec.spec):
            if parent in seen:
                continue
            seen.add(parent)
            try:
                found = client.tasks.get(parent)
            except NotFoundError:
                continue
            waiting.append(found)
            yield found


def _parents(spec: dict[str, Any]) -> list[str]:
    adapters = (spec.get("model") or {}).get("adapters") or ()
    load = (spec.get("checkpoint") or {}).get("load") or {}
    named = [each.get("taskId") for each in (*adapters, load) if isinstance(each, dict)]
    return [each for each in named if isinstance(each, str)]


def datasets(tasks: list[TaskDetail]) -> dict[str, str]:
    """Return the uploaded datasets of tasks: name → digest."""
    found = {}
    for task in tasks:
        for pointer, digest in task.inputs.items():
            if pointer.startswith("data."):
                block: Any = task.spec
                for key in pointer.split("."):
                    block = block.get(key) if isinstance(block, dict) else None
                found[str(block or pointer)] = digest
    return found
