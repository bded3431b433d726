"""Output of `tunefleet control`: the list, a status, an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import err, out, say
from tunefleet.runtime.control import LocalJob
from tunefleet.schemas.control import CommandState, ControlReply
from tunefleet.trainer_control import process_identity

_WIDTHS = (("Status", 6), ("Job ID", 30), ("Host", 15), ("Port", 6), ("PID", 8), ("Started", 11))
_MARKS: dict[bool | None, tuple[str, str]] = {True: ("✓", "good"), False: ("✗", "bad"), None: ("?", "dim")}
_RULE = 75
# Shown elsewhere on the screen, or only meant for programs.
_HIDDEN_FIELDS = frozenset({"values", "job_id", "traceback", "live", "at", "state", "step"})


def row_of(job: LocalJob) -> dict[str, Any]:
    """Return the list entry of a job in this machine's home folder."""
    endpoint = job.endpoint
    return {
        "job_id": job.job_id,
        "live": job.live,
        "host": (endpoint.hostname or endpoint.host) if endpoint else process_identity.hostname(),
        "port": endpoint.port if endpoint else None,
        "pid": endpoint.pid if endpoint else None,
        "started_at": endpoint.started_at if endpoint else 0.0,
        "job_folder": str(job.job_folder) if job.job_folder else None,
        "remote": False,
    }


def row_of_remote(item: dict[str, Any]) -> dict[str, Any]:
    """Return the list entry of a remote job; only its machine knows whether it is alive."""
    alive = item.get("alive")
    started_at = item.get("started_at")
    return {
        "job_id": str(item.get("job_id")),
        "live": alive if isinstance(alive, bool) else None,
        "host": str(item.get("hostname") or item.get("host")),
        "port": item.get("port"),
        "pid": item.get("pid"),
        "started_at": float(started_at) if isinstance(started_at, (int, float)) else 0.0,
        "job_folder": item.get("job_folder"),
        "remote": True,
    }


def print_list(rows: list[dict[str, Any]]) -> None:
    """Print the jobs as a table, with a hint for dead ones."""
    if not rows:
        say("No training jobs yet.")
        say("Start one with `tunefleet run -- COMMAND`, or add a TrainerControlCallback to your Trainer.", style="dim")
        return
    # Ids are copied from the table: the column grows instead of truncating them.
    longest = max(len(row["job_id"]) for row in rows)
    widths = [(name, max(width, longest) if name == "Job ID" else width) for name, width in _WIDTHS]
    lines = [Text("Training jobs:", "head"), _line([Text(name, "head") for name, _ in widths], widths)]
    lines.append(Text("-" * max(_RULE, sum(width + 1 for _, width in widths)), "dim"))
    lines += [_line(_cells(row), widths) for row in rows]
    for line in lines:
        out().print(line, soft_wrap=True)
    dead = sum(row["live"] is False for row in rows)
    if dead:
        say()
        say(
            f"{formatting.plural(dead, 'dead job')}. Remove their files with `tunefleet control cleanup`.",
            style="dim",
        )
    if any(row["live"] is None for row in rows):
        say("?: on another machine, status unknown.", style="dim")


def print_paused(jobs: list[LocalJob]) -> None:
    """Print the paused jobs and how to resume them."""
    for job in jobs:
        how = "run its script again"
        if job.job_folder is not None:
            how = f"tunefleet run --resume {job.job_id}"
        say(Text.assemble("Paused: ", (job.job_id, "id"), f". Resume: {how}"))


def _cells(row: dict[str, Any]) -> list[Text]:
    mark, style = _MARKS[row["live"]]
    started = (
        datetime.fromtimestamp(row["started_at"]).astimezone().strftime("%m/%d %H:%M") if row["started_at"] else ""
    )
    port = str(row["port"]) if row["port"] else "files"
    return [
        Text(mark, style),
        Text(row["job_id"], "id"),
        Text(row["host"]),
        Text(port),
        Text(str(row["pid"])),
        Text(started),
    ]


def _line(cells: list[Text], widths: list[tuple[str, int]]) -> Text:
    line = Text()
    for cell, (_, width) in zip(cells, widths, strict=True):
        line.append_text(cell).append(" " * (1 + max(0, width - len(cell.plain))))
    line.rstrip()
    return line


def print_status(job_id: str, fields: dict[str, Any]) -> None:
    """Print a status field by field; for an ended job also how it ended."""
    say(Text.assemble(("Status of job ", "head"), (job_id, "id")))
    for name, value in fields.items():
        if name not in _HIDDEN_FIELDS and value is not None:
            out().print(Text(f"  {name}: {_shown(name, value)}"), soft_wrap=True)
    if fields.get("live") is False:
        say(ending(job_id, fields), style="dim")


def ending(job_id: str, fields: dict[str, Any]) -> str:
    """Return how a job ended, as a sentence."""
    state, step = fields.get("status"), fields.get("global_step")
    where = f"step {step}" + (f" of {fields['max_steps']}" if fields.get("max_steps") else "")
    sentences = {
        "completed": f"Job {job_id} has completed at {where}.",
        "stopped": f"Job {job_id} was stopped at {where}.",
        "paused": f"Job {job_id} is paused at {where}.",
        "aborted": f"Job {job_id} was aborted at {where}.",
        "failed": f"Job {job_id} failed at {where}: {fields.get('error') or 'no reason given'}",
    }
    return sentences.get(str(state), f"Job {job_id} was killed at {where}.")


def _shown(name: str, value: Any) -> str:
    if name == "timestamp" and isinstance(value, (int, float)):
        return datetime.fromtimestamp(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_outcome(job_id: str, operation: str, found: CommandState | ControlReply) -> None:
    """Print the outcome of a command."""
    if isinstance(found, ControlReply):
        say(f"✓ {found.message} (command {found.command_id}).", style="good")
        return
    where = f"at step {found.step}" if found.step is not None else ""
    if found.state == "failed":
        say(f"✗ {operation} of {job_id} failed: {found.message or 'no reason given'}", style="bad")
    elif found.state == "durable":
        say(f"✓ {operation} of {job_id} {where}: saved {found.checkpoint}.", style="good")
    elif found.state == "applied":
        note = f": {found.message}" if found.message else "."
        say(f"✓ {operation} of {job_id} {where}{note}", style="good")
    else:
        say(f"… {operation} of {job_id} is still pending; it takes effect at the end of the step.", style="warn")


@contextmanager
def waiting(text: str) -> Iterator[Callable[[CommandState], None]]:
    """Show a spinner on a terminal while a command is pending; yields a callback for its states."""
    console = err()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(Text(f"{text} …")) as spinner:

        def on_state(state: CommandState) -> None:
            if state.state == "applied":
                spinner.update(Text(f"applied at step {state.step}; writing the checkpoint …"))

        yield on_state
