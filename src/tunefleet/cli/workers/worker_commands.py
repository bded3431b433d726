"""`tunefleet workers`: the machines that run tasks."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, cut, facts, print_json, say, status_text, table
from tunefleet.cli.id_lookup import one_worker
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import WorkerId, Yes, confirm, connect, parse_duration
from tunefleet.cli.workers import administration
from tunefleet.schemas.fleet import WorkerView
from tunefleet.schemas.worker_link import Gpu, GpuLoad, Load

app = typer.Typer(help="List the machines that run tasks.", invoke_without_command=True)


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
    listing = table(
        "worker", "status", "runs", "gpu", "cpu", "load", "memory", "disk", "seen", right=("cpu", "load"), wide="gpu"
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
    decided = decided or ("resting" if worker.elastic_disabled else "")
    clock = _clock_words(worker)
    told = "".join(f", {each}" for each in (decided, f"clock {clock}" if clock else "") if each)
    return Text.assemble(status_text(worker.status), (told, "warn"))


def _clock_words(worker: WorkerView) -> str | None:
    ahead_s = worker.capabilities.clock_ahead_s
    return None if ahead_s is None else f"{abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}"


def _gpus(worker: WorkerView) -> str:
    names = [gpu.name for gpu in worker.capabilities.gpus]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _gpu_words(gpu: Gpu, load: GpuLoad | None) -> str:
    who = load.in_use_by if load is not None else gpu.in_use_by
    free = load.memory_free_bytes if load is not None else None
    parts = [gpu.name, formatting.size(gpu.memory_total_bytes)]
    parts += [f"{formatting.size(free)} free"] if free is not None else []
    parts += [f"{load.utilisation_percent:.0f} % busy"] if load and load.utilisation_percent is not None else []
    return ", ".join(parts) + (f"; not claimed: in use by {who}" if who else "")


def _load_words(load: Load | None) -> str | None:
    if load is None:
        return None
    figures = [load.load_1m, load.load_5m, load.load_15m]
    return " ".join(f"{figure:.2f}" for figure in figures if figure is not None) or None


@examples("tunefleet workers show worker-1")
def show(worker: WorkerId, *, as_json: Json = False) -> None:
    """Show a worker: hardware, task kinds, and why it cannot run one."""
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
                ("costs", f"{has.cost_per_hour:g} an hour" if has.cost_per_hour != 1.0 else None),
                ("tags", ", ".join(has.tags)),
                ("secrets", ", ".join(has.secrets)),
                ("environments", ", ".join(has.environments or ())),
                ("has", cut(", ".join((*has.cached_models, *has.cached_datasets)))),
                ("runs", ", ".join(view.running)),
                *[(f"gpu {gpu.index}", _gpu_words(gpu, busy.get(gpu.uuid))) for gpu in has.gpus],
            ]
        )
    )
    say()
    listing = table("kind", "can run", "why not", wide="why not")
    for executor in has.executors:
        # Whole, over several lines if need be: its end is the way out.
        listing.add_row(executor.kind, "yes" if executor.available else "no", Text(executor.reason or ""))
    say(listing)


@examples("tunefleet workers rm worker-1")
def rm(worker: WorkerId, *, yes: Yes = False, as_json: Json = False) -> None:
    """Forget a worker that is gone."""
    with connect() as client:
        view = client.workers.get(one_worker(client, worker))
        confirm(f"Forget worker {view.id}, seen {formatting.age(view.last_seen_at)} ago?", yes=yes)
        client.workers.remove(view.id)
    if as_json:
        print_json({"removed": [view.id]})
    else:
        say(f"Forgot {view.id}.")


_STYLES = {"open": "good", "used": "", "expired": "dim", "withdrawn": "bad"}


@examples("tunefleet workers invite", "tunefleet workers invite gpu-3 --tags a100,lab --expires 1d")
def invite(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The worker's name; default: the machine chooses.")
    ] = None,
    *,
    tags: Annotated[
        str | None, typer.Option("--tags", help="The worker's tags, with commas; default: the machine chooses.")
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Whose machine it is; default: NAME, or you.")] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="TIME", help="How long it is good.")] = "1h",
    as_json: Json = False,
) -> None:
    """Make a join token and print the command to type on the new machine; it is good once."""
    wanted = None if tags is None else [tag.strip() for tag in tags.split(",") if tag.strip()]
    with connect() as client:
        made = client.workers.invite(name, tags=wanted, owner=owner, expires_s=parse_duration(expires))
    if as_json:
        print_json(made)
        return
    typer.echo(made.command)  # as it is: a terminal would break it at its width, and it is to be copied
    server = made.command.split()[2]
    say(f'Install first, if it is not there: pip install "$(curl -fsS {server}/install)"', style="dim")
    say(f"Good once, until {made.expires_at:%Y-%m-%d %H:%M} UTC. This is the only time it is shown.", style="dim")


@examples("tunefleet workers invitations")
def invitations(*, as_json: Json = False) -> None:
    """List invitations, without their tokens."""
    with connect() as client:
        found = client.workers.invitations(limit=1000).items
    if as_json:
        print_json(found)
        return
    listing = table("invitation", "state", "worker", "tags", "owner", "made by", "until", "key")
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
    """Withdraw an invitation that nobody has used."""
    confirm(f"Withdraw the invitation {invitation}?", yes=yes)
    with connect() as client:
        client.workers.withdraw(invitation)
    if as_json:
        print_json({"withdrawn": [invitation]})
    else:
        say(f"Withdrew {invitation}.")


def attach(app: typer.Typer) -> None:
    """Add the commands to the group of workers."""
    for name, function in (("invite", invite), ("invitations", invitations), ("withdraw", withdraw)):
        add(app, function, name)


for _function, _name in ((ls, "ls"), (show, "show"), (rm, "rm")):
    add(app, _function, _name)
attach(app)
administration.attach(app)
