"""`tunefleet projects`: who shares the fleet, and what each may use of it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Yes, confirm, connect
from tunefleet.errors import InputError
from tunefleet.schemas.projects import ProjectView
from tunefleet.spec.options.resources import parse_memory

app = typer.Typer(help="Share the fleet: projects, their quotas and weights.", invoke_without_command=True)

_NONE: Final = "none"
Name = Annotated[str, typer.Argument(metavar="PROJECT", help="A project's name.")]
Description = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What it is for.")]
MaxRunning = Annotated[
    str | None, typer.Option("--max-running", metavar="N", help="Tasks that run at once, at most; `none` for any.")
]
GpuHours = Annotated[
    str | None,
    typer.Option("--gpu-hours", metavar="HOURS", help="GPU hours a calendar month (UTC), at most; `none` for any."),
]
Storage = Annotated[
    str | None, typer.Option("--storage", metavar="SIZE", help="Files and documents, such as 500GB; `none` for any.")
]


@app.callback()
def projects(context: typer.Context, *, as_json: Json = False) -> None:
    """Share the fleet: projects, their quotas and weights."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples("tunefleet projects ls")
def ls(*, as_json: Json = False) -> None:
    """List projects, with what they use of their quotas."""
    with connect() as client:
        found = client.projects.list(limit=1000).items
    if as_json:
        print_json(found)
        return
    listing = table("project", "weight", "running", "waiting", "GPU hours", "storage", "state")
    for each in found:
        listing.add_row(
            Text(each.name, style="id"),
            f"{each.weight:g}",
            _of(str(each.uses.running), each.max_running),
            str(each.uses.waiting),
            _of(f"{each.uses.gpu_hours:.1f}", each.gpu_hours),
            _of(formatting.size(each.uses.storage_bytes), None if each.storage_bytes is None else _size(each)),
            Text("archived", style="bad") if each.archived_at else Text("open", style="good"),
        )
    say(listing)


@examples("tunefleet projects show vision")
def show(project: Name, *, as_json: Json = False) -> None:
    """Show a project, its quotas, and what it uses of them."""
    with connect() as client:
        found = client.projects.get(project)
    _told(found, as_json=as_json)


@examples("tunefleet projects create vision --weight 2 --gpu-hours 500 --storage 200GB")
def create(
    project: Name,
    *,
    description: Description = None,
    weight: Annotated[
        float, typer.Option("--weight", help="Its part of the fleet, against the other projects' weights.")
    ] = 1.0,
    max_running: MaxRunning = None,
    gpu_hours: GpuHours = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Create a project; `tunefleet keys create NAME --project PROJECT` makes keys for it."""
    given = _quotas(max_running, gpu_hours, storage)
    with connect() as client:
        made = client.projects.create(project, description=description, weight=weight, **given)
    _told(made, as_json=as_json)


@examples("tunefleet projects set vision --gpu-hours 800", "tunefleet projects set vision --max-running none")
def set_(
    project: Name,
    *,
    description: Description = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="Its part of the fleet, against the other projects' weights.")
    ] = None,
    max_running: MaxRunning = None,
    gpu_hours: GpuHours = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Change a project's quotas, weight or description; what is left out stays."""
    changes = _quotas(max_running, gpu_hours, storage)
    changes |= {name: value for name, value in (("description", description), ("weight", weight)) if value is not None}
    if not changes:
        raise InputError("Nothing is to be changed.", hint="Use --max-running, --gpu-hours, --storage or --weight.")
    with connect() as client:
        changed = client.projects.change(project, **changes)
    _told(changed, as_json=as_json)


@examples("tunefleet projects archive vision")
def archive(project: Name, *, yes: Yes = False, as_json: Json = False) -> None:
    """Let a project rest: its keys are refused and its tasks wait; what runs goes on to its end."""
    confirm(f"Archive the project {project}?", yes=yes)
    with connect() as client:
        _told(client.projects.archive(project), as_json=as_json)


@examples("tunefleet projects restore vision")
def restore(project: Name, *, as_json: Json = False) -> None:
    """Open an archived project again."""
    with connect() as client:
        _told(client.projects.restore(project), as_json=as_json)


def _told(found: ProjectView, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    listing = table("what", "used", "quota", right=("used", "quota"))
    listing.add_row("tasks running", str(found.uses.running), _quota(found.max_running))
    listing.add_row("GPU hours this month", f"{found.uses.gpu_hours:.1f}", _quota(found.gpu_hours))
    kept = "any" if found.storage_bytes is None else _size(found)
    listing.add_row("files and documents", formatting.size(found.uses.storage_bytes), kept)
    about = f" ({found.description})" if found.description else ""
    state = "archived" if found.archived_at else f"{found.uses.waiting} tasks wait"
    say(f"{found.name}{about}: weight {found.weight:g}, {state}")
    say(listing)


def _quotas(max_running: str | None, gpu_hours: str | None, storage: str | None) -> dict[str, Any]:
    """Return the quotas that were named; `none` takes one away."""
    found: dict[str, Any] = {}
    if max_running is not None:
        found["max_running"] = None if max_running == _NONE else int(_number("--max-running", max_running))
    if gpu_hours is not None:
        found["gpu_hours"] = None if gpu_hours == _NONE else _number("--gpu-hours", gpu_hours)
    if storage is not None:
        found["storage_bytes"] = None if storage == _NONE else _bytes(storage)
    return found


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text!r} is not a number.", hint="Use a number, or none.") from None


def _bytes(text: str) -> int:
    try:
        return parse_memory(text)
    except ValueError as error:
        raise InputError(f"--storage {text!r} is no size: {error}.", hint="Use one such as 500GB, or none.") from None


def _size(found: ProjectView) -> str:
    return formatting.size(found.storage_bytes or 0)


def _of(used: str, quota: object) -> str:
    return used if quota is None else f"{used} of {quota if isinstance(quota, str) else _quota(quota)}"


def _quota(value: object) -> str:
    return "any" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


for _function, _name in (
    (ls, "ls"), (show, "show"), (create, "create"), (set_, "set"), (archive, "archive"), (restore, "restore"),
):  # fmt: skip
    add(app, _function, _name)
