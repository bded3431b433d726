"""`tunefleet control watch`: a training live, without a server."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, out, print_json, say, status_text
from tunefleet.cli.control.job_lookup import JobId, Remote, Token, steer
from tunefleet.cli.control.views import ending
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.errors import NotFoundError, UnreachableError
from tunefleet.runtime.control import JobSteering
from tunefleet.trainer_control.journal.status import FINAL_STATES

_LINE_EVERY_S = 5.0
_WIDEST = 100
_ENDS = {"failed": ExitCode.FAILED, "aborted": ExitCode.CANCELLED}


@examples("tunefleet control watch my-run", "tunefleet control watch my-run --interval 5")
def watch(
    job: JobId,
    *,
    remote: Remote = None,
    token: Token = None,
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="Between two looks.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Show a training live until it ends; Ctrl-C leaves it running.

    With --json it waits for the end and prints the last status.
    """
    steering = steer(job, remote, token)
    if as_json:
        last = _look_until_the_end(steering, interval, lambda _: None)
        print_json(last)
    elif out().is_terminal:
        with Live(console=out(), auto_refresh=False, vertical_overflow="crop") as live:
            last = _look_until_the_end(steering, interval, lambda seen: live.update(screen(seen), refresh=True))
        say(ending(steering.job_id, last))
    else:
        last = _look_until_the_end(steering, interval, _Lines().told)
        say(ending(steering.job_id, last))
    raise typer.Exit(
        _ENDS.get(str(last.get("status")), ExitCode.OK if last.get("status") in FINAL_STATES else ExitCode.FAILED)
    )


def _look_until_the_end(steering: JobSteering, interval_s: float, tell: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {"job_id": steering.job_id}
    while True:
        try:
            seen = steering.status()
        except (UnreachableError, NotFoundError):
            if "status" not in seen:
                raise
            # A job elsewhere that was there a moment ago: what it said last is all there is.
            return {**seen, "live": False}
        tell(seen)
        if seen["live"] is False or (steering.found is None and seen.get("status") in FINAL_STATES):
            return seen
        time.sleep(interval_s)


class _Lines:
    """Prints a line every few seconds, and at each change of the phase."""

    def __init__(self) -> None:
        self._due = 0.0
        self._phase: tuple[Any, Any] | None = None

    def told(self, seen: dict[str, Any]) -> None:
        phase = (seen.get("status"), seen.get("phase"))
        if time.monotonic() < self._due and phase == self._phase:
            return
        self._due, self._phase = time.monotonic() + _LINE_EVERY_S, phase
        parts = [f"{datetime.now().astimezone():%H:%M:%S} ", str(seen.get("status")), str(seen.get("phase") or "")]
        parts += [f"{seen.get('global_step')}/{seen['max_steps']}"] if seen.get("max_steps") else []
        parts += [f" {name} {value}" for name, value in _values(seen)]
        say(Text(" ".join(parts)))


def screen(seen: dict[str, Any]) -> RenderableType:
    """Return the whole view of a status."""
    width = min(out().width, _WIDEST)
    head = Text.assemble((str(seen.get("job_id")), "head"), "  ", status_text(str(seen.get("status"))))
    if seen.get("phase"):
        head.append(f"  {seen['phase']}", style="dim")
    parts: list[RenderableType] = [head]
    if seen.get("max_steps"):
        step, last = int(seen.get("global_step") or 0), int(seen["max_steps"])
        grid = Table.grid(expand=True, padding=(0, 1))
        for ratio in (1, None):
            grid.add_column(no_wrap=True, ratio=ratio)
        grid.add_row(ProgressBar(total=last, completed=step), Text(f"{step}/{last}  {100 * step / last:.0f} %"))
        grid.width = width
        parts.append(grid)
    shown = Text()
    for name, value in _values(seen):
        shown.append(f"{name} ", style="dim")
        shown.append(f"{value}   ")
    return Group(*parts, shown, Text("Ctrl-C leaves the training running.", style="dim"))


def _values(seen: dict[str, Any]) -> list[tuple[str, str]]:
    values = seen.get("values") or {}
    first = [name for name in ("loss", "eval_loss", "learning_rate", "grad_norm", "epoch") if name in values]
    rest = [name for name in values if name not in first]
    return [(name, formatting.number(values[name])) for name in [*first, *rest][:8]]
