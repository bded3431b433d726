"""`tunefleet sweep` and `tunefleet sweeps`: hyperparameter sweeps, their trials and leaderboards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, cut, err, facts, next_block, print_json, progress, say, status_text, table
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Set, Timeout, Yes, complete_sweep, confirm, connect, parse_sets
from tunefleet.cli.transfers import transfer_bar
from tunefleet.lifecycle.sweep import SweepStatus, TrialState
from tunefleet.schemas.sweep import SweepDetail, SweepView, TrialView

app = typer.Typer(help="List, show and stop hyperparameter sweeps.", invoke_without_command=True)

Sweep = Annotated[
    str, typer.Argument(metavar="SWEEP", help="Sweep id or a unique prefix.", autocompletion=complete_sweep)
]
_STATE_STYLES = {
    TrialState.COMPLETED: "good", TrialState.FAILED: "bad", TrialState.DIVERGED: "bad", TrialState.RUNNING: "busy",
}  # fmt: skip


@examples(
    "tunefleet sweep sweep.yaml --wait",
    "tunefleet sweep sweep.yaml --set training.max_steps=200",
)
def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Workflow file with `sweep`.")],
    *,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until the sweep ends, and show its leaderboard.")
    ] = False,
    timeout_s: Timeout = None,
    sets: Set = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Requests with the same key create only one sweep.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start a hyperparameter sweep over a workflow file.

    The file runs several times with different values. With --wait the exit code is the result of the sweep; Ctrl-C
    leaves it running.
    """
    with connect() as client:
        with transfer_bar() as on_progress:
            made = client.sweep(
                file, overrides=parse_sets(sets), idempotency_key=idempotency_key, on_progress=on_progress
            )
        if not as_json:
            count = formatting.plural(made.trials, "trial")
            say(Text.assemble("Started ", (made.name, "head"), " as ", (made.id, "id"), f" with {count}."))
        if wait:
            made = _wait(client, made.id, timeout_s)
        if as_json:
            print_json(made)
        elif wait:
            _say_all(made, client.sweeps.importance(made.id).shares)
        else:
            say(f"Show: tunefleet sweeps show {made.id}", style="dim")
    if wait and made.status is not SweepStatus.COMPLETED:
        raise typer.Exit(ExitCode.FAILED)


def _wait(client: Any, sweep_id: str, timeout_s: float | None) -> SweepDetail:
    try:
        with progress(f"Waiting for {sweep_id} …"):
            found: SweepDetail = client.sweeps.wait(sweep_id, timeout_s=timeout_s)
    except KeyboardInterrupt:
        err().print(f"\nThe sweep keeps running. Show it with `tunefleet sweeps show {sweep_id}`.")
        raise typer.Exit(ExitCode.FAILED) from None
    return found


@app.callback()
def sweeps(context: typer.Context, *, as_json: Json = False) -> None:
    """List, show and stop hyperparameter sweeps."""
    if context.invoked_subcommand is None:
        ls(as_json=as_json)


@examples("tunefleet sweeps ls", "tunefleet sweeps ls --status running")
def ls(
    *,
    status: Annotated[str | None, typer.Option("--status", help="Only these statuses, separated by commas.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of sweeps.")] = 50,
    as_json: Json = False,
) -> None:
    """List sweeps, newest first."""
    with connect() as client:
        found = client.sweeps.list(status=status, limit=limit).items
    if as_json:
        print_json(found)
    elif found:
        say(_table(found))
    else:
        say("No sweeps yet. Start one with `tunefleet sweep FILE`.")


@examples("tunefleet sweeps show sweep-3f9a", "tunefleet sweeps show sweep-3f9a --json | jq .best.parameters")
def show(sweep: Sweep, *, as_json: Json = False) -> None:
    """Show a sweep: its leaderboard, and how much each parameter matters."""
    with connect() as client:
        found = client.sweeps.get(sweep)
        if as_json:
            print_json(found)
        else:
            _say_all(found, client.sweeps.importance(found.id).shares)


@examples("tunefleet sweeps stop sweep-3f9a")
def stop(sweep: Sweep, *, as_json: Json = False) -> None:
    """Stop a sweep: no further trial starts; running trials are stopped and kept."""
    with connect() as client:
        found = client.sweeps.stop(sweep)
    if as_json:
        print_json(found)
        return
    say(f"{found.id} is {found.status.value}; running trials end at their next step.")


@examples("tunefleet sweeps rm sweep-3f9a")
def rm(sweep: Sweep, *, yes: Yes = False, as_json: Json = False) -> None:
    """Remove a sweep that has ended; its runs are kept."""
    with connect() as client:
        found = client.sweeps.get(sweep)
        confirm(f"Remove the sweep {found.name} ({found.id})?", yes=yes)
        client.sweeps.remove(found.id)
    if as_json:
        print_json(found)
        return
    say(f"Removed {found.id}.")


for _function in (ls, show, stop, rm):
    add(app, _function, _function.__name__)


def _table(found: Sequence[SweepView]) -> Table:
    made = table(
        "sweep", "name", "status", "sampler", "trials", "best", "created", right=("trials", "best"), wide="name"
    )
    for each in found:
        made.add_row(
            Text(each.id, style="id"),
            cut(each.name),
            status_text(each.status.value),
            each.sampler if each.pruner is None else f"{each.sampler} + {each.pruner}",
            f"{_done(each)}/{each.trials}",
            "–" if each.best is None else formatting.number(each.best.value),
            f"{formatting.age(each.created_at)} ago",
        )
    return made


def _done(found: SweepView) -> int:
    return sum(count for state, count in found.states.items() if state.final)


def _say_all(found: SweepDetail, shares: dict[str, float]) -> None:
    for part in _screen(found, shares):
        say(part)


def _screen(found: SweepDetail, shares: dict[str, float]) -> Iterator[RenderableType]:
    """Yield the parts of a sweep's screen."""
    yield Text.assemble((found.name, "head"), "  ", (found.id, "id"), "  ", status_text(found.status.value))
    states = ", ".join(f"{count} {state.value}" for state, count in found.states.items())
    yield facts(
        [
            ("reason", found.reason),
            ("objective", f"{found.direction} {found.metric}"),
            ("sampler", found.sampler if found.pruner is None else f"{found.sampler}, pruner {found.pruner}"),
            ("trials", f"{_done(found)} of {found.trials} ended" + (f": {states}" if states else "")),
            ("steps", formatting.number(found.steps)),
            ("GPU hours", f"{found.gpu_hours:.2f}" if found.gpu_hours else None),
            ("importance", ", ".join(f"{path} {share:.0%}" for path, share in shares.items()) or None),
        ]
    )
    if found.trial_list:
        yield ""
        yield _leaderboard(found)
    for each in found.trial_list:
        if each.error is not None:
            yield Text(f"Trial {each.number}: {each.error}", style="bad")
    if found.best is not None and found.best.task_id is not None:
        run = found.best.task_id
        yield ""
        yield next_block([("Train again", f"tunefleet clone {run}"), ("Details", f"tunefleet show {run}")])


def _leaderboard(found: SweepDetail) -> Table:
    paths = list(found.spec["parameters"])
    names = _short(paths)
    made = table("trial", "state", found.metric, "steps", *names, "run", right=("trial", found.metric, "steps", *names))
    for each in found.trial_list:
        best = found.best is not None and each.number == found.best.number
        made.add_row(
            str(each.number),
            Text(each.run_status or each.state.value, style=_STATE_STYLES.get(each.state, "dim")),
            Text(formatting.number(each.value), style="head" if best else ""),
            formatting.number(each.steps),
            *(_value(each, path) for path in paths),
            Text(each.task_id or "–", style="id"),
        )
    return made


def _value(trial: TrialView, path: str) -> str:
    value = trial.parameters.get(path)
    return formatting.number(value) if isinstance(value, float) else str(value)


def _short(paths: list[str]) -> list[str]:
    """Return the last parts of paths, or the complete paths if these are not unique."""
    last = [path.rpartition(".")[2] for path in paths]
    return last if len(set(last)) == len(last) else paths
