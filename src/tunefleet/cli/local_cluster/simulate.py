"""`tunefleet simulate`: load-test a server with simulated workers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples

if TYPE_CHECKING:
    from tunefleet.cli.local_cluster.simulate_target import SimulationTarget
    from tunefleet.simulation.load_report import Report
    from tunefleet.simulation.load_run import Progress
    from tunefleet.simulation.plan import Plan


@examples(
    "tunefleet simulate --workers 100 --tasks 1000",
    "tunefleet simulate --workers 1000 --tasks 20000 --rate 200/s --task-s 5 --metrics-per-s 1",
    "tunefleet simulate --steps 10,100,1000 --tasks 10000 --plot cost.svg",
)
def simulate(
    *,
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, help="Number of simulated workers.")] = 100,
    tasks: Annotated[
        int, typer.Option("--tasks", "-m", min=1, help="Number of tasks; with --steps, of the largest load.")
    ] = 1000,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="RATE", help="Submit rate, such as 50/s; default: as fast as possible."),
    ] = None,
    task_s: Annotated[float, typer.Option("--task-s", min=0, help="Run time of a task in seconds, ±20%.")] = 1.0,
    metrics_per_s: Annotated[
        float, typer.Option("--metrics-per-s", min=0, help="Journal records per second and running task.")
    ] = 0.0,
    slots: Annotated[int, typer.Option("--slots", min=1, help="Concurrent tasks per worker.")] = 1,
    kinds: Annotated[str, typer.Option("--kinds", help="Task kinds, in turn: echo, lora_sft, sft.")] = "echo",
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", help="Machines to sample from, NAME:GIB:COUNT or none; default: a mixed fleet."),
    ] = None,
    link: Annotated[
        Literal["http", "redis"], typer.Option("--link", help="Transport between workers and server.")
    ] = "http",
    renewals: Annotated[
        bool,
        typer.Option("--renewals/--no-renewals", help="Renew idle workers as often as real ones, or only every 45 s."),
    ] = True,
    fill_first: Annotated[
        bool, typer.Option("--fill-first", help="Submit all tasks before the workers start.")
    ] = False,
    for_s: Annotated[
        float | None,
        typer.Option("--for", min=0.1, metavar="SECONDS", help="Stop after this time, even if tasks are left."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="N,N,…", help="Simulate each of these worker counts and show growth rates."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Server to test, which requires an admin key; default: a temporary server."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Admin key for --url; default: the key of `login`.")] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Number of processes for the workers; default: automatic.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Write a plot to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Load-test a server with simulated workers.

    Starts a server in a temporary folder, or uses the server at --url and removes the simulated tasks and workers
    at the end. The workers use the real protocol but train nothing: each task only takes its run time. Ctrl-C stops
    the simulation and prints the report. The exit code is 1 if a task was lost or completed twice.
    """
    from tunefleet.cli.local_cluster import simulate_views
    from tunefleet.cli.local_cluster.simulate_target import SimulationTarget
    from tunefleet.simulation import curves, plan

    if plot is not None:
        curves.check(plot)
    loads = plan.read_steps(steps) if steps else (workers,)
    wanted = [
        plan.Plan(
            workers=count,
            tasks=max(1, tasks * count // loads[-1]),
            rate_per_s=plan.read_rate(rate) if rate else None,
            task_s=task_s,
            metrics_per_s=metrics_per_s,
            slots=slots,
            kinds=plan.read_kinds(kinds),
            gpus=plan.read_gpus(gpus or plan.DEFAULT_GPUS),
            seed=seed,
            fill_first=fill_first,
            for_s=for_s,
        )
        for count in loads
    ]
    target = SimulationTarget(link=link, renewals=renewals, url=url, key=key)
    found = _run_all(wanted, target, processes, quiet=as_json)
    if steps:
        summed = curves.series(found)
        print_json(summed) if as_json else say(simulate_views.series(summed))
        if plot is not None:
            curves.draw_series(summed, plot)
    else:
        print_json(found[0]) if as_json else say(simulate_views.load(found[0]))
        if plot is not None:
            curves.draw_load(found[0], plot)
    if any(one.ended == "interrupted" for one in found):
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not all(one.whole for one in found):
        raise typer.Exit(ExitCode.FAILED)


def _run_all(plans: list[Plan], target: SimulationTarget, processes: int | None, *, quiet: bool) -> list[Report]:
    """Run one load after the other, until one is interrupted."""
    from tunefleet.cli.local_cluster import simulate_views

    found = []
    for plan in plans:
        with simulate_views.progress(plan, quiet=quiet) as on_progress:
            found.append(asyncio.run(_run_one(plan, target, processes, on_progress)))
        if found[-1].ended == "interrupted":
            break
    return found


async def _run_one(
    plan: Plan, target: SimulationTarget, processes: int | None, on_progress: Callable[[Progress], None]
) -> Report:
    async with target.running(plan, processes, on_progress) as load:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not a KeyboardInterrupt: the load ends in order, and its report is printed.
            loop.add_signal_handler(number, load.interrupt)
        try:
            return await load.run()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
