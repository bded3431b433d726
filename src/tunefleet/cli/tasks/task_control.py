"""`tunefleet pause`, `resume`, `stop`, `save`, `evaluate`, `set`, `checkpoints`: control tasks on a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, next_block, print_json, say, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.options import TaskId, TaskIds, Timeout, connect, one_task, parse_pairs
from tunefleet.client import Client
from tunefleet.errors import InputError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import CommandView

T = TypeVar("T")
NoWait = Annotated[bool, typer.Option("--no-wait", help="Send the command without waiting for the outcome.")]


@examples("tunefleet pause task-3f9a", "tunefleet pause task-3f9a --no-wait")
def pause(tasks: TaskIds, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Pause runs: save a checkpoint and free the GPU.

    Returns once they are paused. `tunefleet resume` continues from the checkpoint.
    """
    with connect() as client:
        # All are requested before the first one is awaited: they pause in parallel.
        done = [client.tasks.pause(one_task(client, task)) for task in tasks]
        if not no_wait:
            done = [_in_time(client.tasks.pause_and_wait, task.id, timeout_s=timeout) for task in done]
    if as_json:
        print_json(done)
        return
    for task in done:
        paused = task.status == TaskStatus.PAUSED
        say(f"{task.id} is paused." if paused else f"Pausing {task.id}; it saves at the end of its step.")
    say(f"Resume: tunefleet resume {done[-1].id}", style="dim")


@examples(
    "tunefleet resume task-3f9a", "tunefleet resume task-3f9a --from best", "tunefleet resume task-3f9a --from 400"
)
def resume(
    tasks: TaskIds,
    *,
    start: Annotated[
        str | None, typer.Option("--from", metavar="STEP|best", help="Checkpoint to resume from; default: the newest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Resume paused runs; an ended run resumes as a new one.

    A paused run returns to the queue; if it is still pausing, the pause is cancelled. A run that failed, was
    cancelled or was stopped early resumes from its checkpoint as a new, linked run. A run that finished all its
    steps can only resume from an earlier checkpoint.
    """
    from_step = _step(start)
    with connect() as client:
        requested = [client.tasks.get(one_task(client, task)) for task in tasks]
        done = [client.tasks.resume(task.id, from_step) for task in requested]
    if as_json:
        print_json(done)
        return
    for before, task in zip(requested, done, strict=True):
        new = task.id != before.id
        say(f"{task.id} ({task.name}) resumes {before.id}." if new else f"{task.id} is {task.status}.")
    say(f"Follow: tunefleet follow {done[-1].id}", style="dim")


def _step(start: str | None) -> int | Literal["best"] | None:
    if start is None or start == "best":
        return start  # type: ignore[return-value]
    if not start.isdecimal():
        raise InputError(f"--from {start} is not a step.", hint="Use a step or best; see `tunefleet checkpoints`.")
    return int(start)


@examples("tunefleet stop task-3f9a", "tunefleet stop task-3f9a --no-save")
def stop(
    task: TaskId,
    *,
    no_save: Annotated[bool, typer.Option("--no-save", help="Do not save a checkpoint first.")] = False,
    no_wait: NoWait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Stop a training run early and keep its result.

    Returns once training has stopped. The run then evaluates and saves its artifacts; it counts as completed, so
    its dependents run.
    """
    with connect() as client:
        command = client.tasks.stop(one_task(client, task), save=not no_save)
        _report(client, command, no_wait=no_wait, timeout_s=timeout, as_json=as_json)
    if not as_json:
        say("Artifacts are available once the run has completed.", style="dim")
        say(next_block([("Follow", f"tunefleet follow {command.task_id}")]))


@examples("tunefleet save task-3f9a")
def save(task: TaskId, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Save a checkpoint now, while the run trains.

    Returns once the checkpoint is durable.
    """
    _command(task, "save_checkpoint", None, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


@examples("tunefleet evaluate task-3f9a")
def evaluate(task: TaskId, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Evaluate now, while the run trains."""
    _command(task, "evaluate", None, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


@examples("tunefleet set task-3f9a learning_rate=1e-5 save_steps=200")
def set_(
    task: TaskId,
    pairs: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE…", help="learning_rate, logging_steps, save_steps, eval_steps or max_steps."),
    ],
    *,
    no_wait: NoWait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Change settings while the run trains; they also apply after a resume."""
    _command(task, "set", parse_pairs(pairs), no_wait=no_wait, timeout_s=timeout, as_json=as_json)


@examples("tunefleet checkpoints task-3f9a", "tunefleet checkpoints task-3f9a --json | jq '.[].step'")
def checkpoints(task: TaskId, *, as_json: Json = False) -> None:
    """List the checkpoints of a run."""
    with connect() as client:
        found = client.tasks.checkpoints(one_task(client, task))
    if as_json:
        print_json(list(found))
        return
    if not found:
        say("No checkpoints yet.")
        return
    listing = table(
        "step", "size", "age", "eval loss", "best", "location", "save time", right=("step", "size", "age", "save time")
    )
    for each in found:
        location = "worker" if each.resumable else "deleted"
        listing.add_row(
            str(each.step),
            formatting.size(each.size_bytes),
            formatting.age(each.at),
            formatting.number(each.eval_loss) if each.eval_loss is not None else "",
            Text("best", style="good") if each.best else "",
            "server" if each.artifact else Text(location, style="" if each.resumable else "dim"),
            formatting.step_time(each.stall_s),
        )
    say(listing)


def _command(
    task: str, name: str, data: dict[str, Any] | None, *, no_wait: bool, timeout_s: float | None, as_json: bool
) -> None:
    with connect() as client:
        command = client.tasks.command(one_task(client, task), name, data)
        _report(client, command, no_wait=no_wait, timeout_s=timeout_s, as_json=as_json)


def _report(client: Client, command: CommandView, *, no_wait: bool, timeout_s: float | None, as_json: bool) -> None:
    if not no_wait:
        command = _in_time(client.tasks.wait_for_command, command.task_id, command.id, timeout_s=timeout_s)
    if as_json:
        print_json(command)
    else:
        say(_sentence(command), style="bad" if command.state == "failed" else None)
    if command.state == "failed":
        raise typer.Exit(ExitCode.FAILED)


def _sentence(command: CommandView) -> str:
    name = command.command
    if command.state == "failed":
        return f"{command.task_id}: {name} failed: {command.message or 'no reason given'}"
    if not command.settled:
        return f"{command.task_id}: {name} requested; see `tunefleet show {command.task_id}`."
    where = f" at step {command.step}" if command.step is not None else ""
    saved = f", saved as {command.checkpoint}" if command.checkpoint else ""
    note = f" ({command.message})" if command.message else ""
    return f"{command.task_id}: {name} done{where}{saved}.{note}"


def _in_time(wait: Callable[..., T], *arguments: str, timeout_s: float | None) -> T:
    try:
        return wait(*arguments, timeout_s=timeout_s)
    except TimeoutError as error:
        say(str(error), style="warn")
        raise typer.Exit(ExitCode.TIMED_OUT) from None
