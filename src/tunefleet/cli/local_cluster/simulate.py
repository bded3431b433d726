"""`tunefleet simulate`: load a real server with simulated workers, and print what that costs."""

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
    from tunefleet.cli.local_cluster.simulate_target import Site
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
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, help="How many simulated workers.")] = 100,
    tasks: Annotated[
        int, typer.Option("--tasks", "-m", min=1, help="How many tasks; with --steps those of the largest load.")
    ] = 1000,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="Submit so many, such as 50/s; default: at once.")
    ] = None,
    task_s: Annotated[float, typer.Option("--task-s", min=0, help="Seconds that a task runs, more or less.")] = 1.0,
    metrics_per_s: Annotated[
        float, typer.Option("--metrics-per-s", min=0, help="Journal records a second of each running task.")
    ] = 0.0,
    slots: Annotated[int, typer.Option("--slots", min=1, help="Tasks that a worker runs at a time.")] = 1,
    kinds: Annotated[str, typer.Option("--kinds", help="Kinds of the tasks, in turn: echo, lora_sft, sft.")] = "echo",
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", help="Machines to draw from, NAME:GIB:COUNT or none; default: a mixed fleet."),
    ] = None,
    link: Annotated[Literal["http", "redis"], typer.Option("--link", help="How workers and server meet.")] = "http",
    renewals: Annotated[
        bool,
        typer.Option(
            "--renewals/--no-renewals", help="Whether idle workers renew as often as real ones, or every 45 s."
        ),
    ] = True,
    fill_first: Annotated[
        bool, typer.Option("--fill-first", help="Submit everything before the first worker comes.")
    ] = False,
    for_s: Annotated[
        float | None, typer.Option("--for", min=0.1, metavar="SECONDS", help="End after so long, whatever is left.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="N,N,…", help="One load for each number of workers, with slopes.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Decides what is drawn.")] = 0,
    url: Annotated[
        str | None, typer.Option("--url", help="Load this server, with an admin key; default: one of its own.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="That key; default: the one of `login`.")] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Processes of workers; default: as many as they need.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw it too.")] = None,
    as_json: Json = False,
) -> None:
    """Load a real server with simulated workers and measure it.

    Starts a server of its own on a temporary folder, unless --url names one; its own tasks and workers are removed
    there at the end. The workers keep the protocol to the letter, and hold each task for a while in place of running
    it. Ctrl-C ends it and prints what was measured. Exit status 1: a task was lost or counted twice.
    """
    from tunefleet.cli.local_cluster import simulate_views
    from tunefleet.cli.local_cluster.simulate_target import Site
    from tunefleet.simulation import curves, plan
    from tunefleet.simulation import plot as plotter

    if plot is not None:
        plotter.check(plot)
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
    site = Site(link=link, renewals=renewals, url=url, key=key)
    found = _drive(wanted, site, processes, quiet=as_json)
    if steps:
        summed = curves.series(found)
        print_json(summed) if as_json else say(simulate_views.series(summed))
        if plot is not None:
            plotter.draw_series(summed, plot)
    else:
        print_json(found[0]) if as_json else say(simulate_views.load(found[0]))
        if plot is not None:
            plotter.draw_load(found[0], plot)
    if any(one.ended == "interrupted" for one in found):
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not all(one.whole for one in found):
        raise typer.Exit(ExitCode.FAILED)


def _drive(plans: list[Plan], site: Site, processes: int | None, *, quiet: bool) -> list[Report]:
    """Drive one load after the other; the first that is interrupted is the last."""
    from tunefleet.cli.local_cluster import simulate_views

    found = []
    for plan in plans:
        with simulate_views.progress(plan, quiet=quiet) as told:
            found.append(asyncio.run(_one(plan, site, processes, told)))
        if found[-1].ended == "interrupted":
            break
    return found


async def _one(plan: Plan, site: Site, processes: int | None, told: Callable[[Progress], None]) -> Report:
    async with site.running(plan, processes, told) as load:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, load.interrupt)
        try:
            return await load.run()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
