"""`tunefleet workers`: the machines that run tasks."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli import words, worker_verbs
from tunefleet.cli.console import Json, cut, facts, print_json, say, status_text, table
from tunefleet.cli.lazy import add, examples
from tunefleet.cli.options import Yes, complete_worker, confirm
from tunefleet.cli.session import connect
from tunefleet.wire.fleet import WorkerView
from tunefleet.wire.link import Gpu

app = typer.Typer(help="List the machines that run tasks.", invoke_without_command=True)
WorkerId = Annotated[
    str, typer.Argument(metavar="WORKER", help="Id of a worker, or its start.", autocompletion=complete_worker)
]


@app.callback()
def workers(context: typer.Context, *, as_json: Json = False) -> None:
    """List the machines that run tasks."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples("tunefleet workers ls --json")
def ls(*, as_json: Json = False) -> None:
    """List workers."""
    with connect() as client:
        found = client.workers.list(limit=1000).items
    if as_json:
        print_json(found)
        return
    if not found:
        say("No worker has registered. Start one with `tunefleet up` or `tunefleet worker`.")
        return
    listing = table("worker", "status", "runs", "gpu", "cpu", "memory", "disk", "seen", right=("cpu",), wide="gpu")
    for worker in found:
        has = worker.capabilities
        listing.add_row(
            Text(worker.id, style="id"),
            status_text(worker.status),
            ", ".join(worker.running) or "–",
            cut(_gpus(worker) or "–"),
            str(has.cpu_count),
            f"{words.size(has.memory_free_bytes)} free",
            f"{words.size(has.disk_free_bytes)} free",
            f"{words.age(worker.last_seen_at)} ago" if worker.last_seen_at else "–",
        )
    say(listing)


def _gpus(worker: WorkerView) -> str:
    names = [gpu.name for gpu in worker.capabilities.gpus]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _gpu_words(gpu: Gpu) -> str:
    used = f"; not claimed: in use by {gpu.in_use_by}" if gpu.in_use_by else ""
    return f"{gpu.name}, {words.size(gpu.memory_total_bytes)}{used}"


@examples("tunefleet workers show worker-1")
def show(worker: WorkerId, *, as_json: Json = False) -> None:
    """Show a worker: hardware, task kinds, and why it cannot run one."""
    with connect() as client:
        view = client.workers.get(worker)
    if as_json:
        print_json(view)
        return
    has = view.capabilities
    say(Text.assemble((view.id, "head"), "  ", status_text(view.status)))
    say(
        facts(
            [
                ("host", has.hostname),
                ("platform", has.platform),
                ("version", has.version),
                ("cpu", str(has.cpu_count)),
                ("memory", f"{words.size(has.memory_free_bytes)} free of {words.size(has.memory_total_bytes)}"),
                ("disk", f"{words.size(has.disk_free_bytes)} free"),
                ("tags", ", ".join(has.tags)),
                ("runs", ", ".join(view.running)),
                *[(f"gpu {gpu.index}", _gpu_words(gpu)) for gpu in has.gpus],
            ]
        )
    )
    say()
    listing = table("kind", "can run", "why not", wide="why not")
    for executor in has.executors:
        listing.add_row(executor.kind, "yes" if executor.available else "no", cut(executor.reason or ""))
    say(listing)


@examples("tunefleet workers rm worker-1")
def rm(worker: WorkerId, *, yes: Yes = False, as_json: Json = False) -> None:
    """Forget a worker that is gone."""
    with connect() as client:
        view = client.workers.get(worker)
        confirm(f"Forget worker {view.id}, seen {words.age(view.last_seen_at)} ago?", yes=yes)
        client.workers.remove(view.id)
    if as_json:
        print_json({"removed": [view.id]})
    else:
        say(f"Forgot {view.id}.")


for _function, _name in ((ls, "ls"), (show, "show"), (rm, "rm")):
    add(app, _function, _name)
worker_verbs.attach(app)
