"""`tunefleet projects`: projects that share the fleet, and their quotas."""

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

app = typer.Typer(help="Manage projects, their quotas and weights.", invoke_without_command=True)

_NONE: Final = "none"
Name = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of a project.")]
Description = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="Description of the project.")]
MaxRunning = Annotated[
    str | None, typer.Option("--max-running", metavar="N", help="Maximum number of active runs; `none` for no limit.")
]
GpuHours = Annotated[
    str | None,
    typer.Option(
        "--gpu-hours", metavar="HOURS", help="Maximum GPU hours per calendar month (UTC); `none` for no limit."
    ),
]
Storage = Annotated[
    str | None, typer.Option("--storage", metavar="SIZE", help="Storage quota, such as 500GB; `none` for no limit.")
]


@app.callback()
def projects(context: typer.Context, *, as_json: Json = False) -> None:
    """Manage projects, their quotas and weights."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples("tunefleet projects ls")
def ls(*, as_json: Json = False) -> None:
    """List projects with their quotas and usage."""
    with connect() as client:
        found = client.projects.list(limit=1000).items
    if as_json:
        print_json(found)
        return
    listing = table("project", "weight", "running", "pending", "GPU hours", "storage", "state")
    for each in found:
        listing.add_row(
            Text(each.name, style="id"),
            f"{each.weight:g}",
            _of(str(each.uses.running), each.max_running),
            str(each.uses.waiting),
            _of(f"{each.uses.gpu_hours:.1f}", each.gpu_hours),
            _of(formatting.size(each.uses.storage_bytes), None if each.storage_bytes is None else _size(each)),
            Text("archived", style="bad") if each.archived_at else Text("active", style="good"),
        )
    say(listing)


@examples("tunefleet projects show vision")
def show(project: Name, *, as_json: Json = False) -> None:
    """Show a project with its quotas and usage."""
    with connect() as client:
        found = client.projects.get(project)
    _print_project(found, as_json=as_json)


@examples("tunefleet projects create vision --weight 2 --gpu-hours 500 --storage 200GB")
def create(
    project: Name,
    *,
    description: Description = None,
    weight: Annotated[
        float, typer.Option("--weight", help="Share of the fleet, relative to the weights of other projects.")
    ] = 1.0,
    max_running: MaxRunning = None,
    gpu_hours: GpuHours = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Create a project; create keys for it with `tunefleet keys create NAME --project PROJECT`."""
    given = _quotas(max_running, gpu_hours, storage)
    with connect() as client:
        made = client.projects.create(project, description=description, weight=weight, **given)
    _print_project(made, as_json=as_json)


@examples("tunefleet projects set vision --gpu-hours 800", "tunefleet projects set vision --max-running none")
def set_(
    project: Name,
    *,
    description: Description = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="Share of the fleet, relative to the weights of other projects.")
    ] = None,
    max_running: MaxRunning = None,
    gpu_hours: GpuHours = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Change a project's quotas, weight or description; omitted options stay unchanged."""
    changes = _quotas(max_running, gpu_hours, storage)
    changes |= {name: value for name, value in (("description", description), ("weight", weight)) if value is not None}
    if not changes:
        raise InputError("Nothing to change.", hint="Use --max-running, --gpu-hours, --storage or --weight.")
    with connect() as client:
        changed = client.projects.change(project, **changes)
    _print_project(changed, as_json=as_json)


@examples("tunefleet projects archive vision")
def archive(project: Name, *, yes: Yes = False, as_json: Json = False) -> None:
    """Archive a project: its keys are rejected, its queued runs wait, and active runs finish."""
    confirm(f"Archive project {project}?", yes=yes)
    with connect() as client:
        _print_project(client.projects.archive(project), as_json=as_json)


@examples("tunefleet projects restore vision")
def restore(project: Name, *, as_json: Json = False) -> None:
    """Restore an archived project."""
    with connect() as client:
        _print_project(client.projects.restore(project), as_json=as_json)


def _print_project(found: ProjectView, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    listing = table("resource", "used", "quota", right=("used", "quota"))
    listing.add_row("active runs", str(found.uses.running), _quota(found.max_running))
    listing.add_row("GPU hours this month", f"{found.uses.gpu_hours:.1f}", _quota(found.gpu_hours))
    quota = "unlimited" if found.storage_bytes is None else _size(found)
    listing.add_row("storage", formatting.size(found.uses.storage_bytes), quota)
    about = f" ({found.description})" if found.description else ""
    state = "archived" if found.archived_at else formatting.plural(found.uses.waiting, "pending run")
    say(f"{found.name}{about}: weight {found.weight:g}, {state}")
    say(listing)


def _quotas(max_running: str | None, gpu_hours: str | None, storage: str | None) -> dict[str, Any]:
    """Return the given quotas; `none` removes one."""
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
        raise InputError(
            f"--storage {text!r} is not a size: {error}.", hint="Use a size such as 500GB, or none."
        ) from None


def _size(found: ProjectView) -> str:
    return formatting.size(found.storage_bytes or 0)


def _of(used: str, quota: object) -> str:
    return used if quota is None else f"{used} of {quota if isinstance(quota, str) else _quota(quota)}"


def _quota(value: object) -> str:
    return "unlimited" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


for _function, _name in (
    (ls, "ls"), (show, "show"), (create, "create"), (set_, "set"), (archive, "archive"), (restore, "restore"),
):  # fmt: skip
    add(app, _function, _name)
