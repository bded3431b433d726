"""What `tunefleet campaign run` and `logs -f` show: the lines of the log, and how far each campaign is.

In a terminal a bar for each campaign stays below the lines; elsewhere a line says now and then how far it is; with
`--json` there are the lines of the log only, as objects on standard output.
"""

from __future__ import annotations

import time
from datetime import datetime
from types import TracebackType
from typing import Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tunefleet.cli.campaigns import views as view
from tunefleet.cli.console import err, json_text, out, plain
from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus
from tunefleet.schemas.campaign import ActivityView, CampaignLine, CampaignView, CycleView

# Between two plain lines about the same work.
_PLAIN_S: Final = 30.0
_FRAMES_S: Final = 4.0


class Board:
    """Plain lines on standard error, for pipes and log files; a context manager."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def line(self, line: CampaignLine) -> None:
        """Show a line of a campaign's log."""
        self.say(view.log_line(line))

    def say(self, text: str) -> None:
        """Show a line of our own; it is not broken, whatever the width is."""
        typer.echo(text, err=True)

    def show(self, found: CampaignView) -> None:
        """Say how far a campaign is: at once when other work has begun, else now and then."""
        doing = _activity(found)
        if doing is None:
            return
        cycle, activity = doing
        work, now = f"{cycle.number}/{cycle.step.value}/{activity.what}/{activity.of}", time.monotonic()
        before, told_at = self._told.get(found.name, ("", 0.0))
        if work != before or now - told_at >= _PLAIN_S:
            self._told[found.name] = (work, now)
            at = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
            where = f"[cycle {cycle.number}, {cycle.step.value}]"
            self.say(f"{at} - {found.name} - INFO {where} {view.activity_text(activity)}")


class JsonBoard(Board):
    """The lines of the log as JSON objects on standard output; nothing about progress."""

    def line(self, line: CampaignLine) -> None:
        """Print a line of a campaign's log."""
        typer.echo(json_text(line.model_dump(mode="json")))

    def show(self, found: CampaignView) -> None:
        """Say nothing: whoever reads JSON asks for a campaign when it wants to know."""


class LogBoard(Board):
    """The lines of the log alone, on standard output."""

    def line(self, line: CampaignLine) -> None:
        """Print a line of a campaign's log; it is not broken, whatever the width is."""
        typer.echo(view.log_line(line))

    def show(self, found: CampaignView) -> None:
        """Say nothing: a log has lines."""


class LiveBoard(Board):
    """Lines, and below them a bar for each campaign, on a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=_FRAMES_S,
        )
        self._rows: dict[str, TaskID] = {}
        self._work: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """Show a line above the bars."""
        self._bars.console.print(text, markup=False, soft_wrap=True)

    def show(self, found: CampaignView) -> None:
        """Draw how far a campaign is; without a total the bar only says that something goes on."""
        doing = _activity(found)
        if doing is None:
            rests = found.status is not CampaignStatus.ACTIVE or found.next_at is not None
            work, activity = view.doing(found), None
            text = work if rests or found.cycle is None else f"cycle {found.cycle.number}, {work}"
        else:
            cycle, activity = doing
            work = f"{cycle.number}/{cycle.step.value}/{activity.what}/{activity.of}"
            rests, text = False, f"cycle {cycle.number}, {cycle.step.value}: {activity.what}"
        self._draw(found.name, work, plain(f"{found.name}  {text}"), activity, rests=rests)

    def _draw(self, name: str, work: str, text: str, activity: ActivityView | None, *, rests: bool) -> None:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = self._bars.add_task(text, total=None, amount="")
        elif work != self._work[name]:
            self._bars.reset(row)
        self._work[name] = work
        self._bars.update(
            row,
            description=text,
            completed=1 if rests else 0 if activity is None else activity.done,
            amount="" if activity is None else view.amount_text(activity),
        )
        # To `update` no total means the one before; a bar whose total nobody knows any more has none.
        shown = next(each for each in self._bars.tasks if each.id == row)
        shown.total = 1 if rests else None if activity is None else activity.total


def board(*, as_json: bool) -> Board:
    """Return what fits where the output of a command that runs campaigns goes."""
    if as_json:
        return JsonBoard()
    return LiveBoard(err()) if err().is_terminal else Board()


def log_board(*, as_json: bool) -> Board:
    """Return what fits where a log goes: it is printed on standard output."""
    if as_json:
        return JsonBoard()
    return LiveBoard(out()) if out().is_terminal else LogBoard()


def _activity(found: CampaignView) -> tuple[CycleView, ActivityView] | None:
    cycle = found.cycle
    if found.status is not CampaignStatus.ACTIVE or cycle is None or cycle.status is not CycleStatus.RUNNING:
        return None
    return None if cycle.activity is None else (cycle, cycle.activity)
