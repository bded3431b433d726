"""`tunefleet usage` and `tunefleet audit`: resource usage and the audit log."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from tunefleet.cli.console import Json, print_json, say, table
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import connect, parse_duration
from tunefleet.errors import InputError
from tunefleet.schemas.projects import UsageBy, UsageRow

_FIELDS: Final = ("key", "attempts", "wall_s", "cpu_s", "gpu_s", "energy_wh", "cost")
_HOUR_S: Final = 3600.0
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Date (2026-11-01), time (ISO 8601) or age (12h, 7d, 4w)."),
]


@examples("tunefleet usage", "tunefleet usage --project vision --since 30d --by day --csv")
def usage(
    *,
    project: Annotated[str | None, typer.Option("--project", metavar="PROJECT", help="Filter by project.")] = None,
    since: Since = None,
    by: Annotated[UsageBy, typer.Option("--by", help="Group by.")] = "project",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Json = False,
) -> None:
    """Show usage: GPU hours, energy, cost.

    Includes unfinished runs. Default: the current calendar month (UTC).
    """
    with connect() as client:
        view = client.usage(project=project, since=moment(since), by=by)
    if as_json:
        print_json(view)
        return
    if as_csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow((by, *_FIELDS[1:]))
        writer.writerows([getattr(row, name) for name in _FIELDS] for row in view.rows)
        typer.echo(text.getvalue(), nl=False)
        return
    listing = table(by, "attempts", "hours", "GPU hours", "energy", "cost", right=("attempts", "hours", "GPU hours"))
    for row in (*view.rows, view.total):
        listing.add_row(*_shown(row))
    say(f"Since {view.since:%Y-%m-%d %H:%M} UTC:")
    say(listing)


@examples("tunefleet audit", "tunefleet audit --actor ada --since 7d", "tunefleet audit --route /keys --json")
def audit(
    *,
    actor: Annotated[str | None, typer.Option("--actor", metavar="ACTOR", help="Filter by owner or key id.")] = None,
    route: Annotated[str | None, typer.Option("--route", metavar="TEXT", help="Filter by part of the route.")] = None,
    since: Since = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of entries.")] = 100,
    as_json: Json = False,
) -> None:
    """Show the audit log.

    Newest first; needs an admin key.
    """
    with connect() as client:
        found = client.audit(actor=actor, route=route, since=moment(since), limit=limit).items
    if as_json:
        print_json(found)
        return
    listing = table("time (UTC)", "actor", "project", "address", "request", "target", "status")
    for each in found:
        actor = f"{each.actor} ({each.role})" if each.actor else "unknown"
        request = f"{each.method} {each.route}"
        time = f"{each.at:%Y-%m-%d %H:%M:%S}"
        listing.add_row(time, actor, each.project or "", each.address, request, each.target, str(each.status))
    say(listing)


def moment(text: str | None) -> datetime | None:
    """Parse a date, an ISO time (UTC without a zone), or an age."""
    if text is None:
        return None
    try:
        # An age ends with a letter; so does an ISO time with `Z`, which has a T.
        if text[-1:].isalpha() and "T" not in text:
            return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError, InputError):
        raise InputError(
            f"--since {text!r} is not a time.",
            hint="Use a date (2026-11-01), a time (ISO 8601) or an age (12h, 7d, 4w).",
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _shown(row: UsageRow) -> tuple[str, ...]:
    energy = "" if row.energy_wh is None else f"{row.energy_wh / 1000:.2f} kWh"
    cost = "" if row.cost is None else f"{row.cost:.2f}"
    return (row.key or "-", str(row.attempts), f"{row.wall_s / _HOUR_S:.1f}", _gpus(row), energy, cost)


def _gpus(row: UsageRow) -> str:
    models = ", ".join(f"{name} {spent_s / _HOUR_S:.1f}" for name, spent_s in row.gpu_s_by_model.items())
    return f"{row.gpu_s / _HOUR_S:.1f}" + (f" ({models})" if models else "")
