"""`tunefleet push` and `tunefleet export`: publish or download an adapter or model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, err, print_json, say
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import complete_task, connect, one_task
from tunefleet.cli.tasks import task_view
from tunefleet.cli.tasks.results import executor_result
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client import Client
from tunefleet.client.transfer import OnProgress, Progress
from tunefleet.errors import InputError
from tunefleet.integrations.publishing import card, products
from tunefleet.integrations.publishing.products import Form, Product, Wait
from tunefleet.integrations.publishing.targets import PublishOptions, Target, refuse_to_overwrite, target
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
    revision: Annotated[str | None, typer.Option("--revision", help="Branch on the Hub; created if missing.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the Hub repository as private.")] = False,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Commit message on the Hub.")] = None,
    verify: Verify = True,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Publish an adapter or model to the Hub, a bucket or a folder.

    Adds a model card with the lineage if there is none. The Hub requires HF_TOKEN, and a bucket the AWS_*
    variables. Existing files are overwritten only with --force.
    """
    destination = target(to, PublishOptions(revision, private, message, force), load(PublishSettings))
    destination.check()  # before a merge that may take long
    with (
        connect(patience_s=10.0, refused_s=None) as client,
        tempfile.TemporaryDirectory(prefix="tunefleet-push-") as tmp,
    ):
        source = one_task(client, task)
        product = obtain(client, source, form_of(merged=merged, gguf=gguf), type_, verify=verify, shown=not as_json)
        folder = Path(tmp)
        with transfer_bar() as on_progress:
            client.artifacts.fetch(product.artifact.id, folder, on_progress=on_progress)
            card_written = _card(client, product, folder)
            _write_modelfile(product, folder)
            where = _put(destination, folder, to, on_progress)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if as_json:
        print_json({"to": to, "url": where, "task_id": product.task.id, "digest": product.artifact.digest,
                    "files": names, "card_written": card_written})  # fmt: skip
    else:
        say(f"Published {product.artifact.name} of {product.task.id}, {formatting.plural(len(names), 'file')}: {where}")
        if checked := verification_text(product.task):
            say(checked, style="dim")


def _card(client: Client, product: products.Product, folder: Path) -> bool:
    before = list(products.chain(client, product.task))
    data = products.datasets([product.task, *before])
    return card.write_card(folder, card.lineage_of(product.task, product.artifact, before, data))


def _put(destination: Target, folder: Path, name: str, on_progress: OnProgress) -> str:
    # The destination reports bytes only: the total is counted here.
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    done = 0

    def sent(count: int) -> None:
        nonlocal done
        done += count
        on_progress(Progress("uploading", name, min(done, total), total))

    sent(0)
    return destination.put(folder, sent).location


Task = Annotated[
    str, typer.Argument(metavar="RUN", help="Run that trained the adapter or model.", autocompletion=complete_task)
]
Merged = Annotated[bool, typer.Option("--merged", help="The full model, with the adapter merged into its base.")]
Gguf = Annotated[bool, typer.Option("--gguf", help="A GGUF file for llama.cpp, and a Modelfile for Ollama.")]
GgufType = Annotated[str, typer.Option("--type", metavar="TYPE", help="Weight type of the GGUF file, such as f16.")]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Verify a merge with a forward pass on the worker (default).")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


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
            "--out", "-o", metavar="FOLDER", help="Target folder; default: ./RUN-NAME, with -merged or -gguf."
        ),
    ] = None,
    verify: Verify = True,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Download a run's adapter, merged model or GGUF file.

    If a merge is needed, a worker runs it first; later exports reuse the result.
    """
    with connect(patience_s=10.0, refused_s=None) as client:
        source = client.tasks.get(one_task(client, task))
        form = form_of(merged=merged, gguf=gguf)
        folder = out or folder_of(source.name, form)
        refuse_to_overwrite(folder, force=force)
        product = obtain(client, source.id, form, type_, verify=verify, shown=not as_json)
        with transfer_bar() as on_progress:
            where = client.artifacts.fetch(product.artifact.id, folder, on_progress=on_progress)
    modelfile = _write_modelfile(product, folder)
    if as_json:
        made = product.artifact
        print_json({"path": str(where.resolve()), "task_id": product.task.id, "kind": made.kind,
                    "digest": made.digest, "size_bytes": made.size_bytes,
                    "modelfile": str(modelfile.resolve()) if modelfile else None,
                    "gguf_check": _gguf_check(product.task)})  # fmt: skip
    else:
        say(f"Downloaded {product.artifact.name} of {product.task.id} to {where}.")
        if modelfile:
            say(f"Run it with Ollama: ollama create NAME -f {modelfile}", style="dim")
        if checked := verification_text(product.task):
            say(checked, style="dim")


def _write_modelfile(product: Product, folder: Path) -> Path | None:
    """Write Ollama's file next to a GGUF file; a merge of an older worker has none."""
    text = executor_result(product.task).get("modelfile")
    if product.artifact.kind != "gguf" or not isinstance(text, str):
        return None
    path = folder / "Modelfile"
    path.write_text(text, encoding="utf-8")
    return path


def _gguf_check(task: TaskDetail) -> dict[str, Any] | None:
    made = executor_result(task).get("gguf")
    return made.get("check") if isinstance(made, dict) else None


def verification_text(task: TaskDetail) -> str:
    """Return the outcome of verifying a merge into a base, and its GGUF file; empty for other tasks."""
    checked = _gguf_check(task)
    gguf = "The answers of the GGUF file were not checked." if executor_result(task).get("gguf") else ""
    return "\n".join(line for line in (_merge_text(task), checked["summary"] if checked else gguf) if line)


def _merge_text(task: TaskDetail) -> str:
    result = executor_result(task)
    if task.kind != "merge" or "verification" not in result:
        return ""
    found = result["verification"]
    if found is None:
        return "The merged model was not verified."
    if not found.get("tolerance"):
        return ""  # a merge of adapters is run, but there is nothing to compare it with
    return (
        "Verified: the merged model's logits match those of base and adapter "
        f"(relative error {found['relative_error']:.1g}, tolerance {found['tolerance']:g})."
    )


def folder_of(name: str, form: Form) -> Path:
    """Return the default folder: each form of a task has its own."""
    plain = name.replace("/", "-").replace(":", "-")
    return Path(plain if form == "as-is" else f"{plain}-{form}")


def form_of(*, merged: bool, gguf: bool) -> Form:
    """Return the form for the two options."""
    if merged and gguf:
        raise InputError(
            "--merged and --gguf cannot be combined.", hint="A GGUF file always contains the merged model."
        )
    return "merged" if merged else "gguf" if gguf else "as-is"


def obtain(client: Client, task_id: str, form: Form, gguf: str, *, verify: bool, shown: bool) -> Product:
    """Return a task's product; shows the merge task if one is needed."""
    wait = _wait(client, shown=shown)
    return products.find(client, task_id, form, gguf=gguf, verify=verify, wait=wait, shown=shown)


def _wait(client: Client, *, shown: bool) -> Wait:
    def wait(merge: TaskDetail) -> TaskDetail | None:
        if not shown:
            return client.tasks.wait(merge.id)
        err().print(f"A worker runs the merge first: {merge.id}.", style="dim")
        return task_view.follow_or_leave(client, merge.id)

    return wait
