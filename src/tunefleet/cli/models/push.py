"""`tunefleet push`: publish what a task has made, with where it comes from."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.id_lookup import one_task
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.models.export import Force, Gguf, GgufType, Merged, Task, Verify, form_of, obtain
from tunefleet.cli.options import connect
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client import Client
from tunefleet.client.transfer import OnProgress, Progress
from tunefleet.integrations.publishing import card, products
from tunefleet.integrations.publishing.targets import Target, Wishes, target
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
