"""Live view of a task: a redrawn screen on a terminal, elsewhere one plain line every few seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import err, out, status_text
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.tasks import metrics
from tunefleet.cli.tasks.task_commands import run_time
from tunefleet.client import Client
from tunefleet.errors import UnreachableError
from tunefleet.lifecycle.task import TaskReason as R
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.observability.step_line import readable
from tunefleet.schemas.api import EventView, MetricPoint, ProgressView, TaskDetail

_SCREEN_EVERY_S = 0.5
_LINE_EVERY_S = 5.0
_LOOK_EVERY_S = 1.0
_CHART_ROWS = 13
_LEAST_CHART_ROWS = 7
# Metric → its label on the screen.
_FIGURES = (
    ("reward", "reward"), ("kl", "kl"), ("rewards/accuracies", "accuracy"), ("loss", "loss"),
    ("eval_loss", "eval loss"), ("learning_rate", "lr"),
)  # fmt: skip
_EVENTS_SHOWN = 4
# Rows of the screen besides the chart.
_OTHER_ROWS = 9
_WIDEST = 110
_CURVE_POINTS = 400
_EVENTS_KEPT = 50
_EVENTS_A_LOOK = 200
_OFFERED = "task.offered"
_FAILED = "task.failed"
_LAUNCH_FAILED = "launch.failed"
_ON_A_WORKER = {_OFFERED: "to", "task.started": "on"}
# Reasons that only repeat the kind of the event.
PLAIN_REASONS = frozenset({None, *(reason.value for reason in (R.READY, R.OFFERED, R.STARTED, R.FINISHED))})


def follow(client: Client, task_id: str, *, interrupt: str = "Ctrl-C leaves it running.") -> TaskDetail:
    """Show a task until it is final, and return it.

    Raises:
        KeyboardInterrupt: On Ctrl-C; the task keeps running.
    """
    if out().is_terminal:
        return _follow_on_screen(client, task_id, interrupt)
    return _follow_in_lines(client, task_id)


def follow_or_leave(client: Client, task_id: str) -> TaskDetail | None:
    """Show a task until it is final; on Ctrl-C print how to follow it again, and return `None`."""
    try:
        return follow(client, task_id)
    except KeyboardInterrupt:
        err().print(f"\nIt keeps running. Follow it again with `tunefleet follow {task_id}`,")
        err().print(f"or cancel it with `tunefleet cancel {task_id}`.")
        return None


def exit_code_for(task: TaskDetail | None) -> ExitCode:
    """Return the exit code of a command that waited for a task; `None` means Ctrl-C."""
    if task is None:
        return ExitCode.INTERRUPTED
    codes = {TaskStatus.FAILED: ExitCode.FAILED, TaskStatus.CANCELLED: ExitCode.CANCELLED}
    return codes.get(TaskStatus(task.status), ExitCode.OK)


def _follow_on_screen(client: Client, task_id: str, interrupt: str) -> TaskDetail:
    console = out()
    # Drawn after each poll only: nothing changes in between.
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for watched, _ in _watch(client, task_id, every_s=_SCREEN_EVERY_S):
            shown = screen(watched, width=console.width, height=console.height, interrupt=interrupt)
            live.update(shown, refresh=True)
    return watched.task


def _follow_in_lines(client: Client, task_id: str) -> TaskDetail:
    console = out()
    due = 0.0
    status = printed = ""
    for watched, events in _watch(client, task_id, every_s=_LOOK_EVERY_S):
        for event in events:
            console.print(event_line(event))
        if time.monotonic() >= due or watched.task.status != status:
            text = status_line(watched)
            # An unchanged line says nothing: a log file of a long queue stays short.
            if text != printed:
                console.print(Text(f"{datetime.now().astimezone():%H:%M:%S}  {text}"))
                printed = text
            due = time.monotonic() + _LINE_EVERY_S
            status = watched.task.status
    return watched.task


def screen(watched: Watched, *, width: int, height: int, interrupt: str = "") -> RenderableType:
    """Return the whole screen for a watched task."""
    width = min(width, _WIDEST)
    parts: list[RenderableType] = [_head(watched, width), _bar(watched, width)]
    drawn = _curve(watched, width, min(_CHART_ROWS, height - _OTHER_ROWS))
    if drawn is not None:
        parts += [Text(), drawn]
    parts += [Text(), _figures(watched), Text()]
    parts += [event_line(event) for event in list(watched.events)[-_EVENTS_SHOWN:]]
    if watched.silent_since is not None:
        silent = formatting.duration(time.monotonic() - watched.silent_since)
        parts.append(Text(f"The server has not responded for {silent}; the run continues.", style="warn"))
    elif not watched.final:
        parts.append(Text(interrupt, style="dim"))
    return Group(*parts)


def _head(watched: Watched, width: int) -> RenderableType:
    task = watched.task
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    left = Text.assemble((task.name, "head"), "  ", (task.id, "id"))
    if width >= 100:
        left.append(f"  {task.kind}" + (f" on {task.worker_id}" if task.worker_id else ""), style="dim")
    right = Text.assemble(status_text(task.status), f"  {run_time(task)}")
    grid.add_row(left, right)
    grid.width = width
    return grid


def _bar(watched: Watched, width: int) -> RenderableType:
    progress, task = watched.progress, watched.task
    if progress is None or not progress.max_steps:
        return Text(_before_steps(watched), style="dim")
    # The last progress report may be older than the end of the task.
    done = progress.max_steps if task.status == TaskStatus.COMPLETED else progress.step
    grid = Table.grid(expand=True, padding=(0, 1))
    for ratio in (None, 1, None):
        grid.add_column(no_wrap=True, ratio=ratio)
    share = f"{done}/{progress.max_steps}  {100 * done / progress.max_steps:.0f}%"
    left = f"  {formatting.duration(progress.eta_s)} left" if progress.eta_s is not None and not watched.final else ""
    phase = task.status if watched.final else progress.phase
    grid.add_row(Text(phase), ProgressBar(total=progress.max_steps, completed=done), Text(share + left))
    grid.width = width
    return grid


def _before_steps(watched: Watched) -> str:
    task = watched.task
    if watched.final:
        return (task.reason or "").replace("_", " ")
    if watched.progress is not None:
        return f"{watched.progress.phase} …"
    return task.why or ("starting …" if task.status == TaskStatus.RUNNING else f"{task.status} …")


def _curve(watched: Watched, width: int, height: int) -> Text | None:
    if height < _LEAST_CHART_ROWS:
        return None
    # With rewards the loss is no measure of progress: it fluctuates around zero.
    shown = "loss" if watched.latest("reward") is None else "reward"
    points = [
        (point.step, value) for point in watched.points if (value := metrics.numbers(point.values, shown)) is not None
    ]
    drawn = metrics.curve(points, title=shown, width=width, height=height)
    return drawn if drawn.plain else None


def _figures(watched: Watched) -> Text:
    shown = Text()
    for name, value in _values(watched):
        shown.append(f"{name} ", style="dim")
        shown.append(f"{value}   ")
    return shown


def _values(watched: Watched) -> list[tuple[str, str]]:
    progress = watched.progress
    found: list[tuple[str, str]] = []
    for name, label in _FIGURES:
        value = watched.latest(name)
        if value is not None:
            found.append((label, formatting.number(value)))
    if progress is not None:
        if progress.step_time_s is not None:
            found.append(("step", formatting.step_time(progress.step_time_s)))
        if progress.tokens_per_s is not None:
            found.append(("tokens/s", formatting.number(round(progress.tokens_per_s))))
        memory = progress.gpu_bytes or progress.rss_bytes
        if memory is not None:
            found.append(("GPU memory" if progress.gpu_bytes else "memory", formatting.size(memory)))
    return found


def event_line(event: EventView) -> Text:
    """Return an event with its local time."""
    return Text.assemble((_clock(event.at), "dim"), "  ", sentence(event))


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M:%S}"


def status_line(watched: Watched) -> str:
    """Return status and progress of a watched task in one line."""
    progress, task = watched.progress, watched.task
    parts: list[str] = [task.status]
    if task.why and not watched.final:
        parts.append(f"({task.why})")
    if progress is not None and not watched.final:
        parts.append(progress.phase)
        if progress.max_steps:
            parts.append(f"{progress.step}/{progress.max_steps}")
    if not watched.final or task.status == TaskStatus.COMPLETED:
        parts += [f" {name} {value}" for name, value in _values(watched)]
    if progress is not None and progress.eta_s is not None and not watched.final:
        parts.append(f" {formatting.duration(progress.eta_s)} left")
    return " ".join(parts)


def failure_screen(console: Console, client: Client, task: TaskDetail, *, log_lines: int = 20) -> None:
    """Print why a task failed and the end of its log."""
    console.print(Text(f"{task.name} {task.status}: {task.error or task.reason or 'no reason given'}", style="bad"))
    tail = client.tasks.log(task.id, tail_bytes=log_lines * 200).text.splitlines()[-log_lines:]
    # A log that only repeats the error is not worth showing.
    if any(not _repeats(row, task.error) for row in tail):
        console.print(Text("Last lines of the log:", style="dim"))
        console.print(Text("\n".join(f"  {readable(row)}" for row in tail)))


def _repeats(row: str, error: str | None) -> bool:
    """Whether a log line only repeats the error."""
    text = row.strip()
    return not text or text.startswith("--- attempt ") or (error is not None and (error in text or text in error))


@dataclass(slots=True)
class Watched:
    """A task as of the last poll.

    Args:
        silent_since: When the server stopped answering (monotonic seconds); `None` while it answers.
    """

    task: TaskDetail
    points: tuple[MetricPoint, ...] = ()
    events: deque[EventView] = field(default_factory=lambda: deque(maxlen=_EVENTS_KEPT))
    silent_since: float | None = None
    _measured_at: tuple[int, str] | None = None
    _last_event: int = 0

    @property
    def final(self) -> bool:
        """Whether the task has ended."""
        return TaskStatus(self.task.status).final

    @property
    def progress(self) -> ProgressView | None:
        """Progress of a running task."""
        return self.task.progress

    def latest(self, name: str) -> float | str | None:
        """Return the newest value of a name."""
        return next((point.values[name] for point in reversed(self.points) if name in point.values), None)

    def look(self, client: Client) -> list[EventView]:
        """Poll the server and return new events; an unreachable server sets `silent_since` instead of raising."""
        try:
            self.task = client.tasks.get(self.task.id)
            step = self.progress.step if self.progress else 0
            # The curve is the largest part: fetched only after a new step or status.
            if self._measured_at != (step, self.task.status):
                self.points = client.tasks.metrics(self.task.id, max_points=_CURVE_POINTS).points
                self._measured_at = (step, self.task.status)
            new = list(client.events.list(after=self._last_event, task_id=self.task.id, limit=_EVENTS_A_LOOK))
        except UnreachableError:
            self.silent_since = self.silent_since or time.monotonic()
            return []
        self.silent_since = None
        self._last_event = new[-1].id if new else self._last_event
        # The end of the attempt has the same error.
        new = [event for event in new if event.data.get("name") != _LAUNCH_FAILED]
        self.events.extend(new)
        return new


def _watch(client: Client, task_id: str, *, every_s: float) -> Iterator[tuple[Watched, list[EventView]]]:
    """Yield the task after each poll, with its new events, until it is final."""
    watched = Watched(client.tasks.get(task_id))
    while True:
        yield watched, watched.look(client)
        if watched.final:
            return
        time.sleep(every_s)


def sentence(event: EventView) -> str:
    """Return an event as a sentence."""
    data = event.data
    if message := data.get("message"):
        return str(message)
    words = event.kind.removeprefix("task.").replace(".", " ").replace("_", " ").capitalize()
    if data.get("command"):
        words = words.replace("Command", str(data["command"]).capitalize())
    if event.worker_id and event.kind in _ON_A_WORKER:
        words += f" {_ON_A_WORKER[event.kind]} {event.worker_id}"
    details = [str(data["name"])] if data.get("name") else []
    if data.get("step") is not None:
        details.append(f"step {data['step']}")
    if data.get("attempt", 1) > 1:
        details.append(f"attempt {data['attempt']}")
    reason = str(data.get("reason")).replace("_", " ")
    if data.get("reason") not in PLAIN_REASONS and reason != words.lower():
        details.append(reason)
    # An offer repeats why the previous attempt ended, which an earlier event has shown; the error of a failed task
    # is shown once, after its last event.
    error = data.get("error") if event.kind not in {_OFFERED, _FAILED} else None
    if error:
        return f"{words} ({', '.join(details)}): {error}" if details else f"{words}: {error}"
    return f"{words}: {', '.join(details)}" if details else words
