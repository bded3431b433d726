"""`tunefleet workers`: list and manage workers."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, cut, facts, print_json, say, status_text, table
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import WorkerId, Yes, confirm, connect, one_worker, parse_duration
from tunefleet.cli.workers import administration
from tunefleet.schemas.fleet import WorkerView
from tunefleet.schemas.worker_link import Gpu, GpuLoad, Load

app = typer.Typer(help="List and manage workers.", invoke_without_command=True)
_STYLES = {"open": "good", "used": "", "expired": "dim", "withdrawn": "bad"}


@app.callback()
def workers(context: typer.Context, *, as_json: Json = False) -> None:
    """List and manage workers."""
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
        say("No workers yet. Start one with `tunefleet up` or `tunefleet worker`.")
        return
    listing = table(
        "worker",
        "status",
        "running",
        "gpu",
        "cpu",
        "load",
        "memory",
        "disk",
        "last seen",
        right=("cpu", "load"),
        wide="gpu",
    )
    for worker in found:
        has, load = worker.capabilities, worker.load
        listing.add_row(
            Text(worker.id, style="id"),
            _status(worker),
            ", ".join(worker.running) or "–",
            cut(_gpus(worker) or "–"),
            str(has.cpu_count),
            f"{load.load_1m:.1f}" if load is not None and load.load_1m is not None else "–",
            f"{formatting.size((load or has).memory_free_bytes)} free",
            f"{formatting.size((load or has).disk_free_bytes)} free",
            f"{formatting.age(worker.last_seen_at)} ago" if worker.last_seen_at else "–",
        )
    say(listing)


def _status(worker: WorkerView) -> Text:
    decided = "draining" if worker.draining else "cordoned" if worker.cordoned else ""
    decided = decided or ("standby" if worker.elastic_disabled else "")
    clock = _clock_words(worker)
    suffix = "".join(f", {each}" for each in (decided, f"clock {clock}" if clock else "") if each)
    return Text.assemble(status_text(worker.status), (suffix, "warn"))


def _clock_words(worker: WorkerView) -> str | None:
    ahead_s = worker.capabilities.clock_ahead_s
    return None if ahead_s is None else f"{abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}"


def _gpus(worker: WorkerView) -> str:
    names = [gpu.name for gpu in worker.capabilities.gpus]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _gpu_words(gpu: Gpu, load: GpuLoad | None) -> str:
    user = load.in_use_by if load is not None else gpu.in_use_by
    free = load.memory_free_bytes if load is not None else None
    parts = [gpu.name, formatting.size(gpu.memory_total_bytes)]
    parts += [f"{formatting.size(free)} free"] if free is not None else []
    parts += [f"{load.utilisation_percent:.0f}% busy"] if load and load.utilisation_percent is not None else []
    return ", ".join(parts) + (f"; unavailable: in use by {user}" if user else "")


def _load_words(load: Load | None) -> str | None:
    if load is None:
        return None
    figures = [load.load_1m, load.load_5m, load.load_15m]
    return " ".join(f"{figure:.2f}" for figure in figures if figure is not None) or None


@examples("tunefleet workers show worker-1")
def show(worker: WorkerId, *, as_json: Json = False) -> None:
    """Show a worker's hardware, task kinds and missing requirements."""
    with connect() as client:
        view = client.workers.get(one_worker(client, worker))
    if as_json:
        print_json(view)
        return
    has, load = view.capabilities, view.load
    busy = {gpu.uuid: gpu for gpu in load.gpus} if load is not None else {}
    say(Text.assemble((view.id, "head"), "  ", _status(view)))
    say(
        facts(
            [
                ("host", has.hostname),
                ("platform", has.platform),
                ("version", has.version),
                ("cpu", str(has.cpu_count)),
                (
                    "memory",
                    f"{formatting.size((load or has).memory_free_bytes)} free "
                    f"of {formatting.size(has.memory_total_bytes)}",
                ),
                ("disk", f"{formatting.size((load or has).disk_free_bytes)} free"),
                ("load", _load_words(load)),
                ("cost", f"{has.cost_per_hour:g} per hour" if has.cost_per_hour != 1.0 else None),
                ("tags", ", ".join(has.tags)),
                ("secrets", ", ".join(has.secrets)),
                ("environments", ", ".join(has.environments or ())),
                ("cached", cut(", ".join((*has.cached_models, *has.cached_datasets)))),
                ("running", ", ".join(view.running)),
                *[(f"gpu {gpu.index}", _gpu_words(gpu, busy.get(gpu.uuid))) for gpu in has.gpus],
            ]
        )
    )
    say()
    listing = table("kind", "available", "reason", wide="reason")
    for executor in has.executors:
        # Not truncated: the reason ends with the fix.
        listing.add_row(executor.kind, "yes" if executor.available else "no", Text(executor.reason or ""))
    say(listing)


@examples("tunefleet workers rm worker-1")
def rm(worker: WorkerId, *, yes: Yes = False, as_json: Json = False) -> None:
    """Remove a worker that no longer exists."""
    with connect() as client:
        view = client.workers.get(one_worker(client, worker))
        confirm(f"Remove worker {view.id}, last seen {formatting.age(view.last_seen_at)} ago?", yes=yes)
        client.workers.remove(view.id)
    if as_json:
        print_json({"removed": [view.id]})
    else:
        say(f"Removed {view.id}.")


@examples("tunefleet workers invite", "tunefleet workers invite gpu-3 --tags a100,lab --expires 1d")
def invite(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Worker name; default: chosen by the machine.")
    ] = None,
    *,
    tags: Annotated[
        str | None, typer.Option("--tags", help="Comma-separated tags; default: chosen by the machine.")
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Owner of the worker; default: NAME, or you.")] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="TIME", help="How long the token is valid.")] = "1h",
    as_json: Json = False,
) -> None:
    """Create a single-use join token and print the command for the new machine."""
    wanted = None if tags is None else [tag.strip() for tag in tags.split(",") if tag.strip()]
    with connect() as client:
        made = client.workers.invite(name, tags=wanted, owner=owner, expires_s=parse_duration(expires))
    if as_json:
        print_json(made)
        return
    typer.echo(made.command)  # not through Rich, which would wrap it: the command is to be copied
    server = made.command.split()[2]
    say(f'Install Tunefleet first: pip install "$(curl -fsS {server}/install)"', style="dim")
    say(
        f"Single-use, valid until {made.expires_at:%Y-%m-%d %H:%M} UTC. Copy it now; it is not shown again.",
        style="dim",
    )


@examples("tunefleet workers invitations")
def invitations(*, as_json: Json = False) -> None:
    """List invitations without their tokens."""
    with connect() as client:
        found = client.workers.invitations(limit=1000).items
    if as_json:
        print_json(found)
        return
    listing = table("invitation", "state", "worker", "tags", "owner", "created by", "expires", "key")
    for each in found:
        listing.add_row(
            Text(each.id, style="id"),
            Text(each.state, style=_STYLES[each.state]),
            each.worker_id or "any",
            "any" if each.tags is None else ", ".join(each.tags) or "none",
            each.owner,
            f"{each.created_by}, {formatting.age(each.created_at)} ago",
            f"{each.expires_at:%Y-%m-%d %H:%M}",
            each.key_id or "–",
        )
    say(listing)


@examples("tunefleet workers withdraw inv-7d21")
def withdraw(
    invitation: Annotated[str, typer.Argument(metavar="INVITATION", help="Id of an invitation.")],
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Withdraw an unused invitation."""
    confirm(f"Withdraw the invitation {invitation}?", yes=yes)
    with connect() as client:
        client.workers.withdraw(invitation)
    if as_json:
        print_json({"withdrawn": [invitation]})
    else:
        say(f"Withdrew {invitation}.")


def attach(app: typer.Typer) -> None:
    """Add the invitation commands to the `workers` group."""
    for name, function in (("invite", invite), ("invitations", invitations), ("withdraw", withdraw)):
        add(app, function, name)


for _function, _name in ((ls, "ls"), (show, "show"), (rm, "rm")):
    add(app, _function, _name)
attach(app)
administration.attach(app)
