"""`tunefleet serve` and `tunefleet endpoints`: models behind an OpenAI-compatible API."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, err, print_json, say, status_text, table
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.models.chat_commands import absolute, looks_like_model, spec_of_task, start, task_of
from tunefleet.cli.options import Yes, complete_task, confirm, connect
from tunefleet.client import Client
from tunefleet.errors import ConflictError, InputError
from tunefleet.schemas.api import TaskDetail
from tunefleet.schemas.endpoints import EndpointView

app = typer.Typer(help="List and stop endpoints.", invoke_without_command=True)
_POLL_S = 0.5
Endpoint = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Name of an endpoint.")]


@examples(
    "tunefleet serve task-3f9a --name support-bot",
    "tunefleet serve Qwen/Qwen3-0.6B --name qwen --adapter french=task-81c0 --adapter german=task-92d1",
)
def serve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL",
            help="A training run, or a model: Hub id, folder or builtin:NAME.",
            autocompletion=complete_task,
        ),
    ],
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the endpoint; default: the id of its run.")
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option("--adapter", metavar="NAME=RUN|PATH", help="Also serve an adapter; repeatable."),
    ] = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=100, help="Number of runs that serve it.")] = 1,
    rate: Annotated[
        int | None, typer.Option("--rate", metavar="N", min=1, help="Limit of requests per minute and API key.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the model is loaded.")] = True,
    as_json: Json = False,
) -> None:
    """Serve a model as an OpenAI-compatible endpoint.

    The endpoint runs until `tunefleet endpoints stop`. If it exists, the new model replaces the old one when it is
    loaded, without a failed request.
    """
    if replicas > 1 and name is None:
        raise InputError("--replicas needs a name.", hint="Add --name.")
    with connect() as client:
        named = None if looks_like_model(target) else task_of(client, target)
        adapters = [_adapter(client, each) for each in adapter or ()]
        options = {"name": name, "requests_per_minute": rate}
        task_id = start(client, document_for(target, named, adapters, options, replicas), named)
        name = name or task_id
        found = _ready(client, name, task_id) if wait else client.endpoints.get(name)
        url = f"{client.url}{found.url}"
    if as_json:
        print_json(found)
        return
    say(Text.assemble("Base URL  ", (url, "bold")))
    say(Text(f"Models    {', '.join(found.models) or 'still loading'}"))
    say(curl_of(url, name))
    say(f"It occupies its worker until `tunefleet endpoints stop {name}`.", style="dim")


def document_for(
    target: str,
    task: TaskDetail | None,
    adapters: list[dict[str, Any]],
    options: dict[str, Any],
    replicas: int = 1,
) -> str:
    """Return the workflow file of an endpoint; one stage for each replica."""
    plain: dict[str, Any] = {"model": {"source": {"identifier": absolute(target)}}}
    loaded = plain if task is None else spec_of_task(task)
    if adapters:
        loaded["model"] = {**loaded["model"], "adapters": [*loaded["model"].get("adapters", ()), *adapters]}
    given = {key: value for key, value in options.items() if value is not None}
    spec = {"taskType": "serve", **loaded, **({"serve": given} if given else {})}
    name = str(given.get("name") or f"serve-{task.name if task is not None else target.rsplit('/', 1)[-1]}"[:100])
    head = {"apiVersion": "tunefleet/v1", "kind": "ServeTask", "metadata": {"name": name}}
    if replicas == 1:
        return json.dumps({**head, "spec": spec})
    stages = [{"name": f"replica-{number}", "spec": spec} for number in range(1, replicas + 1)]
    return json.dumps({**head, "spec": {"stages": stages}})


def curl_of(url: str, model: str) -> Text:
    """Return a command that calls an endpoint."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]})
    command = f"curl {url}/chat/completions -H 'Authorization: Bearer KEY' -H 'Content-Type: application/json'"
    return Text(f"{command} \\\n  -d '{body}'", style="dim")


def _adapter(client: Client, text: str) -> dict[str, Any]:
    name, equals, source = text.partition("=")
    if not equals or not name or not source:
        raise InputError(f"--adapter {text!r} is not NAME=RUN or NAME=PATH.", hint="Write french=task-81c0.")
    if looks_like_model(source):
        return {"name": name, "path": absolute(source)}
    found = task_of(client, source)
    return {"name": name, "path": absolute(source)} if found is None else {"name": name, "taskId": found.id}


def _ready(client: Client, name: str, task_id: str) -> EndpointView:
    """Wait until the model of a run is loaded; shows what it waits for.

    Raises:
        ConflictError: If the run ends before.
    """
    started = time.monotonic()
    with err().status(f"Endpoint {name}: scheduling…") as shown:
        while True:
            view = client.endpoints.get(name)
            if any(each.task_id == task_id and each.ready for each in view.replicas):
                return view
            task = client.tasks.get(task_id)
            if task.status in {"failed", "cancelled", "completed", "skipped"}:
                raise ConflictError(
                    f"The run {task_id} is {task.status}: {task.error or 'it has ended'}",
                    hint=f"See `tunefleet logs {task_id}`.",
                )
            doing = "loading the model" if task.status == "running" else task.why or task.status
            shown.update(Text(f"Endpoint {name}: {doing}  {time.monotonic() - started:.0f} s"))
            time.sleep(_POLL_S)


@app.callback()
def endpoints(context: typer.Context, *, as_json: Json = False) -> None:
    """List and stop endpoints."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples("tunefleet endpoints ls")
def ls(*, as_json: Json = False) -> None:
    """List the endpoints of the project."""
    with connect() as client:
        found = client.endpoints.list().items
        base = client.url
    if as_json:
        print_json(found)
        return
    if not found:
        say("No endpoints yet. Start one: tunefleet serve RUN --name NAME")
        return
    columns = ("endpoint", "state", "replicas", "base url", "requests", "tokens", "age")
    listing = table(*columns, right=("requests", "tokens"))
    for each in found:
        ready = sum(replica.ready for replica in each.replicas)
        listing.add_row(
            Text(each.name, style="id"),
            status_text(each.state),
            f"{ready}/{len(each.replicas)}",
            f"{base}{each.url}",
            f"{each.requests:,}",
            f"{each.prompt_tokens + each.completion_tokens:,}",
            formatting.age(each.created_at),
        )
    say(listing)


@examples("tunefleet endpoints stop support-bot")
def stop(endpoint: Endpoint, *, yes: Yes = False, as_json: Json = False) -> None:
    """Stop an endpoint: its runs are cancelled."""
    confirm(f"Stop the endpoint {endpoint}?", yes=yes)
    with connect() as client:
        client.endpoints.stop(endpoint)
    if as_json:
        print_json({"stopped": [endpoint]})
    else:
        say(f"Stopped {endpoint}.")


for _function, _name in ((ls, "ls"), (stop, "stop")):
    add(app, _function, _name)
