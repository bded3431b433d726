"""Output of `tunefleet campaign run` and `logs -f`: log lines and the progress of each campaign.

A terminal has a progress bar per campaign below the lines; elsewhere a progress line appears every 30 s; with `--json`
only the log lines are printed, as objects on standard output.
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
from tunefleet.cli.program import as_called
from tunefleet.lifecycle.cycle import CampaignStatus, CycleStatus
from tunefleet.schemas.campaign import ActivityView, CampaignLine, CampaignView, CycleView

# Between two plain progress lines about the same activity.
_PLAIN_S: Final = 30.0
_FRAMES_S: Final = 4.0


class CampaignOutput:
    """Plain lines on standard error, for pipes and log files; a context manager."""

    def __init__(self) -> None:
        self._printed: dict[str, tuple[str, float]] = {}

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
        """Print a line without wrapping it."""
        typer.echo(as_called(text), err=True)

    def show(self, found: CampaignView) -> None:
        """Print the progress of a campaign: immediately for a new activity, else every `_PLAIN_S`."""
        doing = _activity(found)
        if doing is None:
            return
        cycle, activity = doing
        work, now = f"{cycle.number}/{cycle.step.value}/{activity.what}/{activity.of}", time.monotonic()
        before, printed_at = self._printed.get(found.name, ("", 0.0))
        if work != before or now - printed_at >= _PLAIN_S:
            self._printed[found.name] = (work, now)
            at = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
            where = f"[cycle {cycle.number}, {cycle.step.value}]"
            self.say(f"{at} - {found.name} - INFO {where} {view.activity_text(activity)}")


class JsonOutput(CampaignOutput):
    """Log lines as JSON objects on standard output, without progress."""

    def line(self, line: CampaignLine) -> None:
        """Print a line of a campaign's log."""
        typer.echo(json_text(line.model_dump(mode="json")))

    def show(self, found: CampaignView) -> None:
        """Print nothing: a program reads the progress from the API."""


class LogOutput(CampaignOutput):
    """Log lines only, on standard output."""

    def line(self, line: CampaignLine) -> None:
        """Print a line of a campaign's log without wrapping it."""
        typer.echo(as_called(view.log_line(line)))

    def show(self, found: CampaignView) -> None:
        """Print nothing: a log has no progress lines."""


class LiveOutput(CampaignOutput):
    """Log lines with a progress bar per campaign below them, on a terminal."""

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
        """Update the bar of a campaign; without a total it only shows activity."""
        doing = _activity(found)
        if doing is None:
            idle = found.status is not CampaignStatus.ACTIVE or found.next_at is not None
            work, activity = view.doing(found), None
            text = work if idle or found.cycle is None else f"cycle {found.cycle.number}, {work}"
        else:
            cycle, activity = doing
            work = f"{cycle.number}/{cycle.step.value}/{activity.what}/{activity.of}"
            idle, text = False, f"cycle {cycle.number}, {cycle.step.value}: {activity.what}"
        self._draw(found.name, work, plain(f"{found.name}  {text}"), activity, idle=idle)

    def _draw(self, name: str, work: str, text: str, activity: ActivityView | None, *, idle: bool) -> None:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = self._bars.add_task(text, total=None, amount="")
        elif work != self._work[name]:
            self._bars.reset(row)
        self._work[name] = work
        self._bars.update(
            row,
            description=text,
            completed=1 if idle else 0 if activity is None else activity.done,
            amount="" if activity is None else view.amount_text(activity),
        )
        # `update(total=None)` keeps the previous total: set it on the bar itself.
        shown = next(each for each in self._bars.tasks if each.id == row)
        shown.total = 1 if idle else None if activity is None else activity.total


def campaign_output(*, as_json: bool) -> CampaignOutput:
    """Return the output of a command that runs campaigns."""
    if as_json:
        return JsonOutput()
    return LiveOutput(err()) if err().is_terminal else CampaignOutput()


def log_output(*, as_json: bool) -> CampaignOutput:
    """Return the output of a log command: standard output."""
    if as_json:
        return JsonOutput()
    return LiveOutput(out()) if out().is_terminal else LogOutput()


def _activity(found: CampaignView) -> tuple[CycleView, ActivityView] | None:
    cycle = found.cycle
    if found.status is not CampaignStatus.ACTIVE or cycle is None or cycle.status is not CycleStatus.RUNNING:
        return None
    return None if cycle.activity is None else (cycle, cycle.activity)
