"""`tunefleet artifacts`: outputs of tasks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.id_lookup import one_task
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.models import deliver as delivery
from tunefleet.cli.options import Artifact, complete_task, connect
from tunefleet.cli.tasks.show import artifact_table
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client import Client
from tunefleet.errors import NotFoundError
from tunefleet.schemas.api import ArtifactDetail

app = typer.Typer(help="List and download the outputs of tasks.", no_args_is_help=True)


@examples("tunefleet artifacts ls", "tunefleet artifacts ls task-3f9a")
def ls(
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Filter by task.", autocompletion=complete_task)
    ] = None,
    *,
    kind: Annotated[str | None, typer.Option("--kind", help="Filter by kind, such as adapter.")] = None,
    as_json: Json = False,
) -> None:
    """List artifacts, newest first."""
    with connect() as client:
        task_id = client.tasks.get(one_task(client, task)).id if task else None
        found = tuple(client.artifacts.iterate(task_id=task_id, kind=kind))
    if as_json:
        print_json(found)
    elif found:
        say(artifact_table(found))
    else:
        say("No artifacts yet.")


@examples(
    "tunefleet artifacts get final_lora --task task-3f9a",
    "tunefleet artifacts get final_lora ./my-adapter --task task-3f9a",
    "tunefleet artifacts get art-81c2",
)
def get(
    artifact: Artifact,
    dest: Annotated[Path | None, typer.Argument(metavar="FOLDER", help="Target folder; default: ./NAME.")] = None,
    *,
    task: Annotated[
        str | None, typer.Option("--task", help="Task that produced the artifact.", autocompletion=complete_task)
    ] = None,
    as_json: Json = False,
) -> None:
    """Download an artifact; files that already exist are verified and kept.

    `tunefleet artifacts ls TASK` lists the names of a task's artifacts; `TASK/NAME` is short for NAME --task TASK.

    An existing file with other content is replaced only if you give FOLDER.
    """
    if task is None and artifact.startswith("task-"):
        task, _, artifact = artifact.partition("/")
    with connect(patience_s=10.0, refused_s=None) as client, transfer_bar() as on_progress:
        named = dest is not None
        if task:
            folder = dest or _folder_for(artifact, "artifact")
            task_id = client.tasks.get(one_task(client, task)).id  # the route for outputs takes no id prefix
            where = client.tasks.fetch_output(task_id, artifact, folder, overwrite=named, on_progress=on_progress)
        else:
            detail = _named(client, artifact)
            folder = dest or _folder_for(detail.name, detail.id)
            where = client.artifacts.fetch(detail.id, folder, overwrite=named, on_progress=on_progress)
    if as_json:
        print_json({"path": str(where.resolve())})
    else:
        say(f"Downloaded {artifact} to {where}.")


def _named(client: Client, artifact: str) -> ArtifactDetail:
    try:
        return client.artifacts.get(artifact)
    except NotFoundError as error:
        names = ", ".join(dict.fromkeys(each.name for each in client.artifacts.list().items)) or "none"
        raise NotFoundError(error.message, hint=f"Newest artifacts: {names}. {error.hint or ''}".strip()) from None


def _folder_for(name: str, otherwise: str) -> Path:
    """Return the default folder for an artifact; its name must not lead to `.git` or another path."""
    # The name comes from the server: only its last part, and no hidden folder.
    last = Path(name).name
    return Path(last if last[:1].isalnum() else otherwise)


@examples(
    "tunefleet artifacts deliver task-3f9a",
    "tunefleet artifacts deliver task-3f9a --to https://example.org/results --header 'Authorization: Bearer KEY'",
)
def deliver(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="Task whose result is sent.", autocompletion=complete_task)
    ],
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Target; default: the destination in the task's spec.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="HTTP header (NAME: VALUE) of each request.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Deliver a task's result and files from the server to a URL or bucket, without running it again."""
    with connect(patience_s=10.0, refused_s=None) as client, transfer_bar() as on_progress:
        task_id = one_task(client, task)
        sent = delivery.deliver(client, task_id, to=to, headers=header or (), on_progress=on_progress)
    if as_json:
        print_json(asdict(sent))
    else:
        say(f"Sent the result of {sent.task_id} and {formatting.plural(len(sent.files), 'file')} to {sent.url}.")


for _function, _name in ((ls, "ls"), (get, "get"), (deliver, "deliver")):
    add(app, _function, _name)
