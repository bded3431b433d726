"""`tunefleet control`: control the training runs of this machine, or of a machine at HOST:PORT."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, err, out, print_json, say
from tunefleet.cli.control import views as view
from tunefleet.cli.control.job_lookup import (
    JobId,
    Remote,
    Token,
    curl_line,
    endpoints_dir,
    open_job,
    remote_host,
)
from tunefleet.cli.control.watch import watch
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Timeout, confirm, parse_pairs
from tunefleet.errors import ConflictError, InputError, UnreachableError
from tunefleet.runtime.control import JobController, is_settled, list_jobs, paused_jobs, wait_for
from tunefleet.runtime.control.discovery import StaleEndpoint, find_stale_endpoints, remove_stale_endpoint
from tunefleet.schemas.control import CommandState, ControlCommand

app = typer.Typer(help="Control the training runs on this machine.", no_args_is_help=True)

NoWait = Annotated[bool, typer.Option("--no-wait", help="Send the command without waiting for the outcome.")]
Force = Annotated[bool, typer.Option("--force", "-f", "--yes", "-y", help="Skip the confirmation.")]
# Command on the command line → command of the control protocol.
COMMANDS = {
    "save": ControlCommand.SAVE_CHECKPOINT,
    "stop": ControlCommand.GRACEFUL_STOP,
    "save-stop": ControlCommand.SAVE_AND_STOP,
    "abort": ControlCommand.ABORT,
    "pause": ControlCommand.PAUSE,
    "evaluate": ControlCommand.EVALUATE,
    "set": ControlCommand.SET,
}
# The process ends after these.
_ENDING = frozenset({"pause", "abort"})
# A process that frees GPU memory may take a while to exit.
_EXIT_TIMEOUT_S = 30.0


@examples("tunefleet control list", "tunefleet control list --remote gpu-box:41235 --token TOKEN")
def list_(*, remote: Remote = None, token: Token = None, as_json: Json = False) -> None:
    """List controlled jobs: live, ended and paused."""
    paused = paused_jobs(endpoints_dir())
    rows = [view.row_of(job) for job in list_jobs(endpoints_dir())]
    if remote is not None:
        local = {(row["job_id"], row["pid"], row["started_at"]) for row in rows}
        found = [view.row_of_remote(item) for item in remote_host(remote, token).jobs()]
        # HOST:PORT may be a job of this machine: list it once.
        rows += [row for row in found if (row["job_id"], row["pid"], row["started_at"]) not in local]
        # Both lists are sorted; merged, they need it again.
        rows.sort(key=lambda row: (row["live"] is not True, -row["started_at"]))
    if as_json:
        print_json({"jobs": rows, "paused": [job.job_id for job in paused]})
    else:
        view.print_list(rows)
        view.print_paused(paused)


@examples("tunefleet control status my-run", "tunefleet control status my-run --json | jq .loss")
def status(job: JobId, *, remote: Remote = None, token: Token = None, as_json: Json = False) -> None:
    """Show the progress of a job, or how it ended.

    The exit code is 1 if the job failed or was killed.
    """
    control = open_job(job, remote, token)
    fields = control.status()
    if as_json:
        print_json(fields)
    else:
        view.print_status(control.job_id, fields)
    if fields["status"] in {"failed", "killed"} and not fields["live"]:
        raise typer.Exit(ExitCode.FAILED)


def _ask(
    control: JobController, operation: str, data: dict[str, Any] | None, timeout_s: float | None, wait: bool
) -> Any:
    reply = control.send(COMMANDS[operation].value, data)
    if not wait:
        return reply
    with view.waiting(f"{operation}: sent to {control.job_id}; it takes effect at the end of the step") as on_state:
        state = wait_for(lambda: _outcome(control, reply.command_id), timeout_s, on_state)
        # The reply may come before the process has freed its GPU, which the next command may need.
        if operation in _ENDING and state.state != "failed" and is_settled(state):
            control.await_end(_EXIT_TIMEOUT_S if timeout_s is None else min(timeout_s, _EXIT_TIMEOUT_S))
        return state


def _outcome(control: JobController, command_id: str) -> CommandState:
    try:
        return control.outcome(command_id)
    except UnreachableError as error:
        raise UnreachableError(
            f"Job {control.job_id} accepted the command and no longer responds.",
            hint="It may have ended as requested; check on its machine.",
            detail=error.detail,
        ) from error


def _command(
    operation: str, job: str, remote: str | None, token: str | None, options: tuple[bool, float | None, bool],
    data: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    no_wait, timeout_s, as_json = options
    control = open_job(job, remote, token)
    found = _ask(control, operation, data, timeout_s, not no_wait)
    if as_json:
        print_json(found)
    else:
        view.print_outcome(control.job_id, operation, found)
    if isinstance(found, CommandState):
        _exit(found)


def _exit(state: CommandState) -> None:
    if state.state == "failed":
        raise typer.Exit(ExitCode.FAILED)
    if not is_settled(state):
        raise typer.Exit(ExitCode.TIMED_OUT)


@examples("tunefleet control save my-run", "tunefleet control save my-run --no-wait")
def save(
    job: JobId, *, remote: Remote = None, token: Token = None, no_wait: NoWait = False, timeout: Timeout = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Save a checkpoint now; evaluates first if the best model is tracked.

    Returns once the checkpoint is durable.
    """
    _command("save", job, remote, token, (no_wait, timeout, as_json))


@examples("tunefleet control stop my-run")
def stop(
    job: JobId, *, remote: Remote = None, token: Token = None, no_wait: NoWait = False, timeout: Timeout = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Stop training at the end of the step; the script then runs to its end.

    The script decides what it saves: nothing with `save_strategy="no"`. `save-stop` always saves a checkpoint.
    """
    _command("stop", job, remote, token, (no_wait, timeout, as_json))


@examples("tunefleet control save-stop my-run")
def save_stop(
    job: JobId, *, remote: Remote = None, token: Token = None, no_wait: NoWait = False, timeout: Timeout = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Save a checkpoint, then stop training."""
    _command("save-stop", job, remote, token, (no_wait, timeout, as_json))


@examples("tunefleet control abort my-run --force")
def abort(
    job: JobId, *, force: Force = False, remote: Remote = None, token: Token = None, no_wait: NoWait = False,
    timeout: Timeout = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Stop a job without saving.

    Existing checkpoints are kept.
    """
    if not force:
        err().print(
            Text(f"Job {job} will stop without saving; progress since its last checkpoint will be lost.", "warn")
        )
    confirm(f"Abort {job}? (--force skips this question)", yes=force, option="--force")
    _command("abort", job, remote, token, (no_wait, timeout, as_json))


@examples("tunefleet control pause my-run", "tunefleet run --resume my-run")
def pause(
    job: JobId, *, remote: Remote = None, token: Token = None, no_wait: NoWait = False, timeout: Timeout = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Save a checkpoint and end the process to free the GPU; you can resume later."""
    _command("pause", job, remote, token, (no_wait, timeout, as_json))


@examples("tunefleet control evaluate my-run")
def evaluate(
    job: JobId, *, remote: Remote = None, token: Token = None, no_wait: NoWait = False, timeout: Timeout = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Evaluate now; the random state of the run is restored afterwards."""
    _command("evaluate", job, remote, token, (no_wait, timeout, as_json))


@examples("tunefleet control set my-run learning_rate=1e-5 save_steps=200")
def set_(
    job: JobId,
    pairs: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE…", help="learning_rate, logging_steps, save_steps, eval_steps or max_steps."
        ),
    ],
    *,
    remote: Remote = None, token: Token = None, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Change settings of a running job; they also apply after a resume."""
    _command("set", job, remote, token, (no_wait, timeout, as_json), parse_pairs(pairs))


@examples("tunefleet control curl my-run", "tunefleet control curl my-run save", "tunefleet control curl my-run pause")
def curl(
    job: JobId,
    operation: Annotated[str, typer.Argument(metavar="COMMAND", help=f"status, {', '.join(COMMANDS)}.")] = "status",
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE…", help="Settings for the set command.")
    ] = None,
    *,
    remote: Remote = None,
    as_json: Json = False,
) -> None:
    """Print the equivalent curl command."""
    if operation != "status" and operation not in COMMANDS:
        raise InputError(f"Unknown command {operation}.", hint=f"Use one of status, {', '.join(COMMANDS)}.")
    control = open_job(job, None, None) if remote is None else None
    if control is not None and (control.found is None or control.found.endpoint is None or not control.live):
        raise ConflictError(f"Job {job} has ended.", hint="See the live jobs with `tunefleet control list`.")
    command = COMMANDS[operation].value if operation != "status" else None
    line = curl_line(control, job, remote_host(remote, None) if remote else None, command, parse_pairs(pairs or []))
    if as_json:
        print_json({"curl": line})
    else:
        out().print(line, markup=False, soft_wrap=True)


@examples("tunefleet control cleanup", "tunefleet control cleanup --force --json")
def cleanup(
    *,
    force: Annotated[bool, typer.Option("--force", "-f", "--yes", "-y", help="Skip the confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the files of dead jobs; job folders and checkpoints are kept.

    Removes only jobs of this machine whose process has certainly ended: the machine was rebooted, the process no
    longer exists, or its id now belongs to another process. Jobs of other machines that share the home folder are
    kept.
    """
    found = find_stale_endpoints(endpoints_dir())
    dead = [item for item in found if item.job_id is not None]
    if dead and not as_json:
        for line in _lines(dead):
            (err() if force else out()).print(line, soft_wrap=True)
    if dead:
        confirm(
            f"Remove the files of {formatting.plural(len(dead), 'dead job')}? (--force skips this question)",
            yes=force,
            option="--force",
        )
    removed = [item for item in found if remove_stale_endpoint(item)]
    named = [item.job_id for item in removed if item.job_id is not None]
    kept = [str(item.folder) for item in found if item not in removed]
    if as_json:
        print_json({"removed": named, "empty": len(removed) - len(named), "kept": kept})
        return
    for folder in kept:
        say(f"{folder} is kept: it contains other files.", style="warn")
    if not found:
        say("No dead jobs.")
    elif named or not dead:
        more = len(removed) - len(named)
        say(f"Removed {formatting.plural(len(named), 'dead job')}" + (f", {more} empty." if more else "."))


def _lines(dead: list[StaleEndpoint]) -> list[Text]:
    lines = [Text("Dead jobs:", "head")]
    for item in dead:
        when = "started" if (item.folder / "endpoint.json").exists() else "ended"
        started = datetime.fromtimestamp(item.started_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        lines.append(Text.assemble("  ", (str(item.job_id), "id"), f"  pid {item.pid}, {when} {started}"))
    return lines


_TABLE = (
    (list_, "list"), (status, "status"), (save, "save"), (stop, "stop"), (save_stop, "save-stop"), (abort, "abort"),
    (pause, "pause"), (evaluate, "evaluate"), (set_, "set"), (watch, "watch"), (curl, "curl"), (cleanup, "cleanup"),
)  # fmt: skip
for _function, _name in _TABLE:
    add(app, _function, _name)
