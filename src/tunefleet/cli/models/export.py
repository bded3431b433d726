"""`tunefleet export`: a task's adapter or model on this machine, merged or as a GGUF file if that is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli.console import Json, err, print_json, say
from tunefleet.cli.id_lookup import one_task
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import complete_task, connect
from tunefleet.cli.tasks import task_view
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client import Client
from tunefleet.errors import InputError
from tunefleet.integrations.publishing import products
from tunefleet.integrations.publishing.products import Form, Product, Wait
from tunefleet.integrations.publishing.targets import refuse_to_overwrite
from tunefleet.schemas.api import TaskDetail

Task = Annotated[str, typer.Argument(metavar="TASK", help="Whose adapter or model.", autocompletion=complete_task)]
Merged = Annotated[bool, typer.Option("--merged", help="The whole model: an adapter is merged into its base.")]
Gguf = Annotated[bool, typer.Option("--gguf", help="One file for llama.cpp; the worker needs its converter.")]
GgufType = Annotated[str, typer.Option("--type", metavar="TYPE", help="Of the GGUF file's weights, such as f16.")]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Prove a merge by a forward pass on the worker (default).")
]
Force = Annotated[bool, typer.Option("--force", help="Write over what is there.")]


@examples(
    "tunefleet export task-3f9a",
    "tunefleet export task-3f9a --merged --out ./my-model",
    "tunefleet export task-3f9a --gguf --type f16",
)
def export(
    task: Task,
    *,
    merged: Merged = False,
    gguf: Gguf = False,
    type_: GgufType = "q8_0",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Where to; default: ./NAME-OF-THE-TASK, with -merged or -gguf."
        ),
    ] = None,
    verify: Verify = True,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Download a task's adapter or model, merged or as GGUF.

    What is not there yet is made first, by a merge that a worker of the fleet runs; asked for again, it is not made
    again.
    """
    with connect(patience_s=10.0, refused_s=None) as client:
        meant = client.tasks.get(one_task(client, task))
        form = form_of(merged=merged, gguf=gguf)
        folder = out or folder_of(meant.name, form)
        refuse_to_overwrite(folder, force=force)
        product = obtain(client, meant.id, form, type_, verify=verify, shown=not as_json)
        with transfer_bar() as on_progress:
            where = client.artifacts.fetch(product.artifact.id, folder, on_progress=on_progress)
    if as_json:
        made = product.artifact
        print_json({"path": str(where.resolve()), "task_id": product.task.id, "kind": made.kind,
                    "digest": made.digest, "size_bytes": made.size_bytes})  # fmt: skip
    else:
        say(f"Fetched {product.artifact.name} of {product.task.id} to {where}.")


def folder_of(name: str, form: Form) -> Path:
    """Return where a product goes if nobody says: each form of one task to a folder of its own."""
    plain = name.replace("/", "-").replace(":", "-")
    return Path(plain if form == "as-is" else f"{plain}-{form}")


def form_of(*, merged: bool, gguf: bool) -> Form:
    """Return the form that two switches mean."""
    if merged and gguf:
        raise InputError("--merged and --gguf contradict each other.", hint="A GGUF file is made of the merged model.")
    return "merged" if merged else "gguf" if gguf else "as-is"


def obtain(client: Client, task_id: str, form: Form, gguf: str, *, verify: bool, shown: bool) -> Product:
    """Return a task's product, and show the merge that makes it if there is one."""
    wait = _wait(client, shown=shown)
    return products.find(client, task_id, form, gguf=gguf, verify=verify, wait=wait, shown=shown)


def _wait(client: Client, *, shown: bool) -> Wait:
    def wait(merge: TaskDetail) -> TaskDetail | None:
        if not shown:
            return client.tasks.wait(merge.id)
        err().print(f"A worker makes it first: {merge.id}.", style="dim")
        return task_view.follow_or_leave(client, merge.id)

    return wait
