"""`tunefleet push`: publish what a task has made, with where it comes from."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, err, print_json, say
from tunefleet.cli.id_lookup import one_task
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import complete_task, connect
from tunefleet.cli.tasks import task_view
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client import Client
from tunefleet.client.transfer import OnProgress, Progress
from tunefleet.errors import InputError
from tunefleet.integrations.publishing import card, products
from tunefleet.integrations.publishing.products import Form, Product, Wait
from tunefleet.integrations.publishing.targets import Target, Wishes, refuse_to_overwrite, target
from tunefleet.schemas.api import TaskDetail
from tunefleet.settings import PublishSettings, load


@examples(
    "tunefleet push task-3f9a hf://my-org/my-adapter --private",
    "tunefleet push task-3f9a hf://my-org/my-model --merged --message 'Second round'",
    "tunefleet push task-3f9a s3://models/my-adapter",
    "tunefleet push task-3f9a ./shared/my-model --merged",
)
def push(
    task: Task,
    to: Annotated[str, typer.Argument(metavar="TO", help="hf://ORG/NAME, s3://BUCKET/PREFIX or a folder.")],
    *,
    merged: Merged = False,
    gguf: Gguf = False,
    type_: GgufType = "q8_0",
    revision: Annotated[str | None, typer.Option("--revision", help="Branch of the hub; made if need be.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Make the hub's repository a private one.")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Of the hub's commit.")] = None,
    verify: Verify = True,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Publish what a task has made: hub, bucket or folder.

    A model card that tells the lineage goes with it, unless there is one. The hub wants HF_TOKEN, a bucket Amazon's
    variables. Nothing is written over without --force.
    """
    place = target(to, Wishes(revision, private, message, force), load(PublishSettings))
    place.check()
    with (
        connect(patience_s=10.0, refused_s=None) as client,
        tempfile.TemporaryDirectory(prefix="tunefleet-push-") as tmp,
    ):
        meant = one_task(client, task)
        product = obtain(client, meant, form_of(merged=merged, gguf=gguf), type_, verify=verify, shown=not as_json)
        folder = Path(tmp)
        with transfer_bar() as on_progress:
            client.artifacts.fetch(product.artifact.id, folder, on_progress=on_progress)
            carded = _card(client, product, folder)
            where = _put(place, folder, to, on_progress)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if as_json:
        print_json({"to": to, "url": where, "task_id": product.task.id, "digest": product.artifact.digest,
                    "files": names, "card_written": carded})  # fmt: skip
    else:
        say(f"Published {product.artifact.name} of {product.task.id}, {formatting.plural(len(names), 'file')}: {where}")


def _card(client: Client, product: products.Product, folder: Path) -> bool:
    before = list(products.chain(client, product.task))
    data = products.datasets([product.task, *before])
    return card.write_card(folder, product.task, product.artifact, before, data)


def _put(place: Target, folder: Path, name: str, on_progress: OnProgress) -> str:
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    done = 0

    def sent(count: int) -> None:
        nonlocal done
        done += count
        on_progress(Progress("uploading", name, min(done, total), total))

    sent(0)
    return place.put(folder, sent)


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
