"""`tunefleet chat`: talk with a model, or with what a task has trained, on a worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tunefleet.cli.console import Json, err
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.models import terminal_chat
from tunefleet.cli.options import complete_task, connect
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client import Client
from tunefleet.errors import ConflictError, InputError, NotFoundError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import TaskDetail
from tunefleet.schemas.chat import BASE, TUNED, ChatView
from tunefleet.spec import BUILTIN_PREFIX

_LOOK_S = 0.5
_KIND = "chat"


@examples(
    "tunefleet chat task-3f9a --base",
    "tunefleet chat Qwen/Qwen3-0.6B",
    'tunefleet chat task-3f9a -m "How many are 2 dozen eggs?" --json',
)
def chat(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TASK|MODEL",
            help="A task that has trained something, a chat that runs, or a model: hub id, folder or builtin:NAME.",
            autocompletion=complete_task,
        ),
    ],
    *,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Ask this, print the answer, and end.")] = None,
    base: Annotated[bool, typer.Option("--base", help="Ask the model as it was, too, side by side.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Which of the chat's models answers.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")] = None,
    chat_template: Annotated[
        bool | None,
        typer.Option(
            "--chat-template/--no-chat-template", help="Ask through the model's chat template; default: if it has one."
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, max=100, help="How freely is drawn; 0: not at all.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")] = 512,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Draw the same answers again.")] = None,
    idle_s: Annotated[
        float, typer.Option("--idle", metavar="SECONDS", min=1, help="The chat ends after so long without a turn.")
    ] = 600.0,
    as_json: Json = False,
) -> None:
    """Talk with a model on a worker, or with what a task has trained.

    The model is held ready by a task of its own, which ends with the conversation; a chat that runs already goes on.
    In the conversation /help lists what can be done beside asking; /quit ends it, Ctrl-C ends an answer.
    """
    if base and model is not None:
        raise InputError("--base and --model exclude each other.", hint="Leave one of them out.")
    if as_json and message is None:
        raise InputError("--json needs a question.", hint="Add --message.")
    options = Options(system=system, chat_template=chat_template, idle_s=idle_s)
    with connect() as client, _session(client, target, options) as view:
        names = _names(view, base=base, model=model)
        drawn = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
        talk = terminal_chat.Conversation(client, view.task_id, names, drawn, system=system)
        if message is not None:
            terminal_chat.once(talk, message, as_json=as_json)
        else:
            terminal_chat.converse(talk)


def _names(view: ChatView, *, base: bool, model: str | None) -> list[str]:
    if model is not None and model not in view.models:
        raise InputError(f"The chat has no model {model!r}.", hint=f"It has: {', '.join(view.models)}.")
    if base and TUNED not in view.models:
        raise InputError("--base needs a tuned model beside it.", hint="Name a task that has trained one.")
    if base and BASE not in view.models:
        raise InputError(
            "The GPU has no room for both models at once.",
            hint=f"Leave --base out; see `tunefleet logs {view.task_id}`.",
        )
    if base:
        return [BASE, TUNED]
    return [model or (TUNED if TUNED in view.models else BASE)]


@contextmanager
def _session(client: Client, target: str, options: Options) -> Iterator[ChatView]:
    """Find or begin the chat, and end it afterwards if it was begun."""
    named = None if looks_like_model(target) else _task(client, target)
    if named is not None and named.kind == _KIND:
        if options.chat_template is not None:
            raise InputError(
                f"The chat {named.id} runs already: its chat template stays as it is.", hint="Begin one of its own."
            )
        yield _ready(client, named.id)
        return
    text = document_for(target, named, options)
    with transfer_bar() as on_progress:
        run = client.submit(text, on_progress=on_progress)
    try:
        yield _ready(client, run.task_id)
    finally:
        _end(client, run.task_id)


def _task(client: Client, target: str) -> TaskDetail | None:
    try:
        return client.tasks.get(target)
    except NotFoundError:
        if Path(target).exists():
            return None
        raise NotFoundError(
            f"There is no task {target}, and no model folder of that name.",
            hint="A model of the hub is written as owner/name; `tunefleet ls` lists tasks.",
        ) from None


def _ready(client: Client, task_id: str) -> ChatView:
    """Wait until the chat answers.

    Raises:
        ConflictError: If it ends before.
    """
    with err().status(f"The chat {task_id} is placed…") as shown:
        while True:
            view = client.tasks.get_chat(task_id)
            if view.ready:
                return view
            if TaskStatus(view.status).final:
                raise ConflictError(
                    f"The chat {task_id} is {view.status}: {view.error or 'it has ended'}",
                    hint=f"See `tunefleet logs {task_id}`.",
                )
            if view.status == TaskStatus.RUNNING:
                shown.update("The worker loads the model…")
            else:
                why = client.tasks.get(task_id).why
                shown.update(Text(f"The chat {task_id}: {why or view.status}"))
            time.sleep(_LOOK_S)


def _end(client: Client, task_id: str) -> None:
    try:
        client.tasks.end_chat(task_id)
    except ConflictError:
        # It does not run yet.
        _cancel(client, task_id)


def _cancel(client: Client, task_id: str) -> None:
    try:
        client.tasks.cancel(task_id)
    except ConflictError as error:
        err().print(str(error), style="dim", markup=False)


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
