"""The document of a chat with a model, or with what a task has trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefleet.errors import ConflictError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import TaskDetail
from tunefleet.spec import BUILTIN_PREFIX


def looks_like_model(target: str) -> bool:
    """Whether a name is that of a model for sure: a path, a hub id, or one that ships with Tunefleet."""
    return "/" in target or target.startswith((BUILTIN_PREFIX, "~", "."))


@dataclass(frozen=True, slots=True)
class Options:
    """What the user has said of the chat.

    Args:
        chat_template: Whether messages go through the model's chat template; null if it decides.
    """

    system: str | None = None
    chat_template: bool | None = None
    idle_s: float = 600.0


def document_for(target: str, task: TaskDetail | None, options: Options) -> str:
    """Return the document of a chat."""
    spec: dict[str, Any] = {"taskType": "chat", "idle_s": options.idle_s}
    asked = {"system_prompt": options.system, "chat_template": options.chat_template}
    if given := {name: value for name, value in asked.items() if value is not None}:
        spec["inference"] = given
    if task is None:
        spec["model"] = {"source": {"identifier": _absolute(target)}}
    else:
        spec |= _of_task(task)
    name = f"chat-with-{task.name if task is not None else target.rsplit('/', 1)[-1]}"
    metadata = {"name": name[:100]}
    return json.dumps({"apiVersion": "tunefleet/v1", "kind": "ChatTask", "metadata": metadata, "spec": spec})


def _absolute(target: str) -> str:
    path = Path(target).expanduser()
    return str(path.absolute()) if path.exists() else target


def _of_task(task: TaskDetail) -> dict[str, Any]:
    spec = task.resolved or task.spec
    model = spec.get("model")
    source = model.get("source") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(source, dict):
        raise ConflictError(
            f"The task {task.id} (kind {task.kind}) names no model to talk with.", hint="Name a task that trains one."
        )
    if TaskStatus(task.status) in {TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.SKIPPED}:
        raise ConflictError(
            f"The task {task.id} is {task.status}: it has left nothing to talk with.",
            hint="Name a task that has completed, or one that trains.",
        )
    if task.kind == "inference":
        # What it answered with, and nothing of its own.
        asked = {name: model[name] for name in ("source", "adapters", "transformers", "vllm") if name in model}
        return {"model": asked, **({"checkpoint": spec["checkpoint"]} if "checkpoint" in spec else {})}
    return {"model": {"source": source}, "checkpoint": {"load": {"taskId": task.id}}}
