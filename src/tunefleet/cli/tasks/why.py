"""`tunefleet why`: the pending reason of a task; and the output of `submit --dry-run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, cut, print_json, say, show_warnings, status_text, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import TaskId, connect, one_task
from tunefleet.schemas.api import ValidateReply
from tunefleet.schemas.fleet import TaskForecast, WhyView, WorkerVerdict

# Running tasks listed per worker.
_NAMED: Final = 3
# Workers listed; eligible ones come first.
_SHOWN: Final = 20
# The server's reason for a silent worker.
_GONE: Final = "does not respond"
_STYLES: Final = {"fits": "good", "waits": "warn", "never": "dim"}
# The API's verdict → the STATUS column.
_STATUSES: Final = {"fits": "eligible", "waits": "busy", "never": "not eligible"}


@examples("tunefleet why task-3f9a", "tunefleet why task-3f9a --json | jq '.workers[] | select(.verdict==\"fits\")'")
def why(task: TaskId, *, as_json: Json = False) -> None:
    """Explain why a run is pending, worker by worker.

    Lists eligible workers with their placement score first, then busy workers, then workers that do not meet the
    requirements. Also shows how many runs are ahead in the queue, and earlier attempts. For a run that is not
    pending, shows the status or the result.
    """
    with connect() as client:
        view = client.tasks.why(client.tasks.get(one_task(client, task)).id)
    if as_json:
        print_json(view)
        return
    say(Text.assemble((view.task_id, "id"), "  ", status_text(view.status)))
    say(_sentence(view))
    for upstream_id, name in view.waits_for:
        say(Text.assemble("Depends on ", (name, "head"), " (", (upstream_id, "id"), ")."))
    if view.ahead:
        say(f"{formatting.plural(view.ahead, 'run')} ahead in the queue.")
    for attempt in view.attempts:
        say(attempt, style="dim")
    if view.workers:
        say()
        _workers(view.workers)


def _sentence(view: WhyView) -> str:
    return view.why[:1].upper() + view.why[1:] if view.why else "No pending reason."


def _workers(workers: Sequence[WorkerVerdict]) -> None:
    listing = table("worker", "status", "score", "reason", right=("score",), wide="reason")
    for each in workers[:_SHOWN]:
        listing.add_row(
            Text(each.worker_id, style="id"),
            Text(_STATUSES[each.verdict], style=_STYLES[each.verdict]),
            "" if each.score is None else f"{each.score:.3f}",
            cut((each.reason or "") + _running(each)),
        )
    say(listing)
    if len(workers) > _SHOWN:
        say(f"{formatting.plural(len(workers) - _SHOWN, 'more worker')}; --json lists all.", style="dim")
    gone = [each.worker_id for each in workers if each.reason == _GONE]
    if gone:
        named = gone[0] if len(gone) == 1 else "such a worker"
        start = f"Restart {named} with its results folder"
        say(f"{start}, or remove it: tunefleet workers rm {gone[0] if len(gone) == 1 else 'WORKER'}", style="dim")


def _running(worker: WorkerVerdict) -> str:
    named, more = worker.runs[:_NAMED], len(worker.runs) - _NAMED
    return f"; running {', '.join(named)}{f' and {more} more' if more > 0 else ''}" if named else ""


def show_dry_run(reply: ValidateReply, *, as_json: bool) -> ExitCode:
    """Print where the tasks of a valid workflow file would run."""
    if as_json:
        print_json(reply)
    else:
        show_warnings(reply.warnings)
        for forecast in reply.forecasts:
            _forecast(forecast)
        if reply.concurrency is not None:
            say(reply.concurrency.summary)
        say("Nothing was submitted.", style="dim")
    stuck = any(each.why is not None and each.why.startswith("unschedulable") for each in reply.forecasts)
    return ExitCode.INVALID if stuck else ExitCode.OK


def _forecast(forecast: TaskForecast) -> None:
    where = f"runs on {_selected(forecast)}" if forecast.worker_id else (forecast.why or "waits")
    after = f", after {', '.join(forecast.after)}" if forecast.after else ""
    say(Text.assemble((forecast.name, "head"), f" ({forecast.kind}) {where}{after}"))
    if forecast.workers:
        _workers(forecast.workers)
    say()


def _selected(forecast: TaskForecast) -> str:
    """Return the workers of a task; of several parts or nodes, also how many start."""
    if forecast.max_workers == 1:
        return str(forecast.worker_id)
    several = ", ".join(dict.fromkeys(forecast.worker_ids))
    return f"{several}: {len(forecast.worker_ids)} of {forecast.max_workers} at the same time"
