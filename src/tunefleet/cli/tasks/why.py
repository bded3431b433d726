"""`tunefleet why`: why a task stands where it stands; and what a dry run of a submit shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, cut, print_json, say, show_warnings, status_text, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.id_lookup import one_task
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import TaskId, connect
from tunefleet.schemas.api import ValidateReply
from tunefleet.schemas.fleet import TaskForecast, WhyView, WorkerVerdict

# How many tasks of a worker are named.
_NAMED: Final = 3
# How many workers are listed; those that fit come first.
_SHOWN: Final = 20
_GONE: Final = "does not answer"
_STYLES: Final = {"fits": "good", "waits": "warn", "never": "dim"}


@examples("tunefleet why task-3f9a", "tunefleet why task-3f9a --json | jq '.workers[] | select(.verdict==\"fits\")'")
def why(task: TaskId, *, as_json: Json = False) -> None:
    """Say why a task waits, worker by worker.

    Of one that does not wait it says where it stands or how it ended. Workers that fit come first, with what the
    placement policy makes of them; then those that could run it later, then those that lack something. How many tasks
    go before it there, and what became of its earlier attempts, is told too.
    """
    with connect() as client:
        view = client.tasks.why(client.tasks.get(one_task(client, task)).id)
    if as_json:
        print_json(view)
        return
    say(Text.assemble((view.task_id, "id"), "  ", status_text(view.status)))
    say(_sentence(view))
    for upstream_id, name in view.waits_for:
        say(Text.assemble("It waits for ", (name, "head"), " (", (upstream_id, "id"), ")."))
    if view.ahead:
        say(f"{formatting.plural(view.ahead, 'task')} {'goes' if view.ahead == 1 else 'go'} before it.")
    for attempt in view.attempts:
        say(attempt, style="dim")
    if view.workers:
        say()
        _workers(view.workers)


def _sentence(view: WhyView) -> str:
    return view.why[:1].upper() + view.why[1:] if view.why else "Nothing stands in its way."


def _workers(verdicts: Sequence[WorkerVerdict]) -> None:
    listing = table("worker", "verdict", "score", "why not", right=("score",), wide="why not")
    for each in verdicts[:_SHOWN]:
        listing.add_row(
            Text(each.worker_id, style="id"),
            Text(each.verdict, style=_STYLES[each.verdict]),
            "" if each.score is None else f"{each.score:.3f}",
            cut((each.reason or "") + _running(each)),
        )
    say(listing)
    if len(verdicts) > _SHOWN:
        say(f"And {formatting.plural(len(verdicts) - _SHOWN, 'worker')} more: see all with --json.", style="dim")
    gone = [each.worker_id for each in verdicts if each.reason == _GONE]
    if gone:
        named = gone[0] if len(gone) == 1 else "one that does not answer"
        start = f"Start {named} again on its results folder"
        say(f"{start}, or forget it: tunefleet workers rm {gone[0] if len(gone) == 1 else 'WORKER'}", style="dim")


def _running(verdict: WorkerVerdict) -> str:
    named, more = verdict.runs[:_NAMED], len(verdict.runs) - _NAMED
    return f"; runs {', '.join(named)}{f' and {more} more' if more > 0 else ''}" if named else ""


def show_dry_run(reply: ValidateReply, *, as_json: bool) -> ExitCode:
    """Print where the tasks of a good document would go."""
    if as_json:
        print_json(reply)
    else:
        show_warnings(reply.warnings)
        for forecast in reply.forecasts:
            _forecast(forecast)
        say("Nothing was submitted.", style="dim")
    stuck = any(each.why is not None and each.why.startswith("unschedulable") for each in reply.forecasts)
    return ExitCode.INVALID if stuck else ExitCode.OK


def _forecast(forecast: TaskForecast) -> None:
    where = f"goes to {forecast.worker_id}" if forecast.worker_id else (forecast.why or "waits")
    after = f", after {', '.join(forecast.after)}" if forecast.after else ""
    say(Text.assemble((forecast.name, "head"), f" ({forecast.kind}) {where}{after}"))
    if forecast.workers:
        _workers(forecast.workers)
    say()
