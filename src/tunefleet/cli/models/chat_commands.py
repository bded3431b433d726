"""`tunefleet chat`: chat with a model, or with the result of a training task, on a worker."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tunefleet.cli.console import Json, err
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.models import terminal_chat
from tunefleet.cli.options import complete_task, connect
from tunefleet.cli.tasks import results
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client import Client
from tunefleet.errors import ConflictError, InputError, NotFoundError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import SubmitRequest, TaskDetail
from tunefleet.schemas.chat import BASE, TUNED, ChatView
from tunefleet.spec import BUILTIN_PREFIX, TrainingData

_POLL_S = 0.5
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
            metavar="RUN|MODEL",
            help="A training run, a running chat, or a model: Hub id, folder or builtin:NAME.",
            autocompletion=complete_task,
        ),
    ],
    *,
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Send one message, print the answer, and exit.")
    ] = None,
    base: Annotated[bool, typer.Option("--base", help="Show the base model's answers side by side.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Model to answer, if the chat has several.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")] = None,
    chat_template: Annotated[
        bool | None,
        typer.Option(
            "--chat-template/--no-chat-template",
            help="Apply the model's chat template; default: apply it if there is one.",
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, max=100, help="Sampling temperature; 0 = greedy.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Maximum number of tokens per answer.")] = 512,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Sampling seed, for reproducible answers.")] = None,
    idle_s: Annotated[
        float, typer.Option("--idle", metavar="SECONDS", min=1, help="End the chat after this time without a message.")
    ] = 600.0,
    as_json: Json = False,
) -> None:
    """Chat with a model, or with the result of a training run.

    The model stays loaded until you exit; if you join a chat that is already running, it continues after you leave.
    Type /help to list the commands and /quit to exit. Ctrl-C stops an answer.
    """
    if base and model is not None:
        raise InputError("--base and --model cannot be combined.", hint="Omit one of them.")
    if as_json and message is None:
        raise InputError("--json needs a message.", hint="Add --message.")
    options = Options(system=system, chat_template=chat_template, idle_s=idle_s)
    with connect() as client:
        separator = None if chat_template else _separator(client, target)
        if separator is not None:
            options = replace(options, chat_template=False)
            err().print("This run was trained on plain text: messages are sent without the chat template.", style="dim")
        with _session(client, target, options) as view:
            names = _names(view, base=base, model=model)
            sampling = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
            conversation = terminal_chat.Conversation(
                client, view.task_id, names, sampling, system=system, suffix=separator or ""
            )
            if message is not None:
                terminal_chat.ask_once(conversation, message, as_json=as_json)
            else:
                terminal_chat.converse(conversation)


def _separator(client: Client, target: str) -> str | None:
    """Return what stood between prompt and response if a run was trained on plain text; None for all others."""
    task = None if looks_like_model(target) else task_of(client, target)
    if task is None or (results.executor_result(task).get("data") or {}).get("shape") != "pair":
        return None
    data = (task.resolved or task.spec).get("data") or {}
    return str(data.get("separator", TrainingData.model_fields["separator"].default))


def _names(view: ChatView, *, base: bool, model: str | None) -> list[str]:
    if model is not None and model not in view.models:
        raise InputError(f"The chat has no model {model!r}.", hint=f"Available: {', '.join(view.models)}.")
    if base and TUNED not in view.models:
        raise InputError("--base needs a fine-tuned model to compare with.", hint="Use a training run as RUN.")
    if base and BASE not in view.models:
        raise InputError(
            "The GPU does not have enough memory for both models.",
            hint=f"Omit --base; see `tunefleet logs {view.task_id}`.",
        )
    if base:
        return [BASE, TUNED]
    return [model or (TUNED if TUNED in view.models else BASE)]


@contextmanager
def _session(client: Client, target: str, options: Options) -> Iterator[ChatView]:
    """Find or start the chat; a chat started here is ended afterwards."""
    # A lookup on the server is not needed for a path or Hub id.
    named = None if looks_like_model(target) else task_of(client, target)
    if named is not None and named.kind == _KIND:
        if options.chat_template is not None:
            raise InputError(
                f"Chat {named.id} is already running; its chat template cannot be changed.", hint="Start a new chat."
            )
        # Not ended at the end: someone else started it.
        yield _ready(client, named.id)
        return
    task_id = start(client, document_for(target, named, options), named)
    try:
        yield _ready(client, task_id)
    finally:
        _end(client, task_id)


def start(client: Client, text: str, named: TaskDetail | None) -> str:
    """Submit a chat; a base model that was uploaded for the run is on the server, and needs no folder here."""
    from tunefleet.client.submission import uploaded_base

    base = {} if named is None else uploaded_base(named)
    if not base:
        with transfer_bar() as on_progress:
            return client.submit(text, on_progress=on_progress).task_id
    inputs = {json.loads(text)["metadata"]["name"]: base}
    made = client.workflows.create(SubmitRequest(document=text, inputs=inputs), uuid.uuid4().hex)
    return made.tasks[0].id


def task_of(client: Client, target: str) -> TaskDetail | None:
    """Return a run; None for a model folder of that name.

    Raises:
        NotFoundError: If there is neither.
    """
    try:
        return client.tasks.get(target)
    except NotFoundError:
        if Path(target).exists():
            return None
        raise NotFoundError(
            f"No run and no model folder {target} found.",
            hint="Write a Hub model as owner/name; list runs with `tunefleet ls`.",
        ) from None


def _ready(client: Client, task_id: str) -> ChatView:
    """Wait until the chat is ready; shows what is being loaded, and for how long.

    Raises:
        ConflictError: If it ends before that.
    """
    started = time.monotonic()
    model = ""
    with err().status(f"Chat {task_id}: scheduling…") as shown:
        while True:
            view = client.tasks.get_chat(task_id)
            if view.ready:
                break
            if TaskStatus(view.status).final:
                raise ConflictError(
                    f"Chat {task_id} is {view.status}: {view.error or 'it has ended'}",
                    hint=f"See `tunefleet logs {task_id}`.",
                )
            task = client.tasks.get(task_id)
            if view.status == TaskStatus.RUNNING and not task.why:
                started = started if model else time.monotonic()
                model = _model_name(task)
            doing = f"Loading {model}" if model else f"Chat {task_id}: {task.why or view.status}"
            shown.update(Text(f"{doing}  {time.monotonic() - started:.0f} s"))
            time.sleep(_POLL_S)
    # A chat that was ready already has loaded nothing.
    if model:
        err().print(Text(f"Loaded {model} in {time.monotonic() - started:.1f} s.", style="dim"))
    return view


def _model_name(task: TaskDetail) -> str:
    """Return the name of the model that a chat loads, with the task whose result is added to it."""
    spec = task.resolved or task.spec
    name = results.at(spec, "model", "source", "identifier") or "the model"
    tuned = results.at(spec, "checkpoint", "load", "taskId")
    return f"{name} with the result of {tuned}" if tuned else name


def _end(client: Client, task_id: str) -> None:
    try:
        client.tasks.end_chat(task_id)
    except ConflictError:
        # Not running yet: only a running chat can be ended.
        _cancel(client, task_id)


def _cancel(client: Client, task_id: str) -> None:
    try:
        client.tasks.cancel(task_id)
    except ConflictError as error:
        err().print(str(error), style="dim", markup=False)


def looks_like_model(target: str) -> bool:
    """Whether a name can only be a model: a path, a Hub id, or a built-in model."""
    return "/" in target or target.startswith((BUILTIN_PREFIX, "~", "."))


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the chat.

    Args:
        chat_template: Whether to use the model's chat template; `None` lets the model decide.
    """

    system: str | None = None
    chat_template: bool | None = None
    idle_s: float = 600.0


def document_for(target: str, task: TaskDetail | None, options: Options) -> str:
    """Return the workflow file of a chat."""
    spec: dict[str, Any] = {"taskType": "chat", "idle_s": options.idle_s}
    fields = {"system_prompt": options.system, "chat_template": options.chat_template}
    if given := {name: value for name, value in fields.items() if value is not None}:
        spec["inference"] = given
    if task is None:
        spec["model"] = {"source": {"identifier": absolute(target)}}
    else:
        spec |= spec_of_task(task)
    name = f"chat-with-{task.name if task is not None else target.rsplit('/', 1)[-1]}"
    metadata = {"name": name[:100]}
    return json.dumps({"apiVersion": "tunefleet/v1", "kind": "ChatTask", "metadata": metadata, "spec": spec})


def absolute(target: str) -> str:
    """Return the absolute path of a model folder; other models as they are."""
    path = Path(target).expanduser()
    return str(path.absolute()) if path.exists() else target


def spec_of_task(task: TaskDetail) -> dict[str, Any]:
    """Return the keys of a spec that load the result of a run."""
    spec = task.resolved or task.spec
    model = spec.get("model")
    source = model.get("source") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(source, dict):
        raise ConflictError(f"Run {task.id} (kind {task.kind}) has no model.", hint="Use a training run.")
    if TaskStatus(task.status) in {TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.SKIPPED}:
        raise ConflictError(
            f"Run {task.id} is {task.status} and has no model.",
            hint="Use a completed or running training run.",
        )
    if task.kind == "inference":
        # The same model and adapters; other fields of the inference task do not apply to a chat.
        fields = {name: model[name] for name in ("source", "adapters", "transformers", "vllm") if name in model}
        return {"model": fields, **({"checkpoint": spec["checkpoint"]} if "checkpoint" in spec else {})}
    return {"model": {"source": source}, "checkpoint": {"load": {"taskId": task.id}}}
