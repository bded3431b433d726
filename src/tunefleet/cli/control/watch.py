"""`tunefleet control watch`: a live view of a job, without a server."""

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
from tunefleet.cli.control.job_lookup import JobId, Remote, Token, open_job
from tunefleet.cli.control.views import ending
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.errors import NotFoundError, UnreachableError
from tunefleet.runtime.control import JobController
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
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="Polling interval.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Watch a job live until it ends; Ctrl-C leaves it running.

    With --json, only the final status is printed.
    """
    control = open_job(job, remote, token)
    if as_json:
        last = _poll_until_end(control, interval, lambda _: None)
        print_json(last)
    elif out().is_terminal:
        with Live(console=out(), auto_refresh=False, vertical_overflow="crop") as live:
            last = _poll_until_end(control, interval, lambda fields: live.update(screen(fields), refresh=True))
        say(ending(control.job_id, last))
    else:
        last = _poll_until_end(control, interval, _Lines().update)
        say(ending(control.job_id, last))
    raise typer.Exit(
        _ENDS.get(str(last.get("status")), ExitCode.OK if last.get("status") in FINAL_STATES else ExitCode.FAILED)
    )


def _poll_until_end(control: JobController, interval_s: float, show: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"job_id": control.job_id}
    while True:
        try:
            fields = control.status()
        except (UnreachableError, NotFoundError):
            if "status" not in fields:
                raise
            # A remote job that answered before and is gone: its last status is all there is.
            return {**fields, "live": False}
        show(fields)
        # A remote job has no process to look at: a final state is its end.
        if fields["live"] is False or (control.found is None and fields.get("status") in FINAL_STATES):
            return fields
        time.sleep(interval_s)


class _Lines:
    """Prints a line every few seconds and at each change of phase."""

    def __init__(self) -> None:
        self._due = 0.0
        self._phase: tuple[Any, Any] | None = None

    def update(self, fields: dict[str, Any]) -> None:
        phase = (fields.get("status"), fields.get("phase"))
        if time.monotonic() < self._due and phase == self._phase:
            return
        self._due, self._phase = time.monotonic() + _LINE_EVERY_S, phase
        parts = [f"{datetime.now().astimezone():%H:%M:%S} ", str(fields.get("status")), str(fields.get("phase") or "")]
        parts += [f"{fields.get('global_step')}/{fields['max_steps']}"] if fields.get("max_steps") else []
        parts += [f" {name} {value}" for name, value in _values(fields)]
        say(Text(" ".join(parts)))


def screen(fields: dict[str, Any]) -> RenderableType:
    """Return the screen for a status."""
    width = min(out().width, _WIDEST)
    head = Text.assemble((str(fields.get("job_id")), "head"), "  ", status_text(str(fields.get("status"))))
    if fields.get("phase"):
        head.append(f"  {fields['phase']}", style="dim")
    parts: list[RenderableType] = [head]
    if fields.get("max_steps"):
        step, last = int(fields.get("global_step") or 0), int(fields["max_steps"])
        grid = Table.grid(expand=True, padding=(0, 1))
        for ratio in (1, None):
            grid.add_column(no_wrap=True, ratio=ratio)
        grid.add_row(ProgressBar(total=last, completed=step), Text(f"{step}/{last}  {100 * step / last:.0f}%"))
        grid.width = width
        parts.append(grid)
    shown = Text()
    for name, value in _values(fields):
        shown.append(f"{name} ", style="dim")
        shown.append(f"{value}   ")
    return Group(*parts, shown, Text("Ctrl-C leaves the job running.", style="dim"))


def _values(fields: dict[str, Any]) -> list[tuple[str, str]]:
    values = fields.get("values") or {}
    first = [name for name in ("loss", "eval_loss", "learning_rate", "grad_norm", "epoch") if name in values]
    rest = [name for name in values if name not in first]
    return [(name, formatting.number(values[name])) for name in [*first, *rest][:8]]
